"""`cache_read`: the value that a `cache_write` kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.kinds.caches import CacheNode, check_key

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "diamond"
TAKES = frozenset({"approval"})
STRUCTURAL = frozenset({"next", "on_error", "key_path", "key", "on_miss"})

_LABELS = {"next": "hit", "on_miss": "miss"}


class CacheReadNode(CacheNode, frozen=True, kw_only=True, omit_defaults=True, tag="cache_read"):
    """Goes to `next` with the value that stands under the key, to `on_miss` if there is none.

    Without `on_miss` both lead to `next`. A null that was written is a hit.
    """

    next: str | None = None
    on_miss: str | None = None


Spec = CacheReadNode


def ports(spec: CacheReadNode) -> tuple[tuple[str, str], ...]:
    """Return the way of a hit and that of a miss."""
    pairs = (("next", spec.next), ("on_miss", spec.on_miss))
    return tuple((port, target) for port, target in pairs if target is not None)


def label(spec: CacheReadNode, port: str) -> str | None:
    """Return `hit` or `miss`."""
    return _LABELS[port]


def routing(spec: CacheReadNode) -> dict[str, str]:
    """Return the key, whose entry decides the way."""
    return {"key": spec.key_path or spec.key or ""}


def check(spec: CacheReadNode, at: NodeReport) -> None:
    """Check the key."""
    check_key(spec, at)
