"""`cache_write`: keeps a value for a `cache_read`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.kinds.caches import CacheNode, check_key
from agentflow.definition.node import next_port
from agentflow.definition.policy import MAX_SECONDS

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval"})


class CacheWriteNode(CacheNode, frozen=True, kw_only=True, omit_defaults=True, tag="cache_write"):
    """Keeps the value at `value_path` under the key: for `ttl` seconds, or without one for good."""

    value_path: str
    ttl: float | None = None
    next: str | None = None


Spec = CacheWriteNode
ports = next_port


def check(spec: CacheWriteNode, at: NodeReport) -> None:
    """Check the key, the path of the value, and the time to live."""
    check_key(spec, at)
    at.path("value_path", spec.value_path)
    if spec.ttl is not None:
        at.range("ttl", spec.ttl, above=0, most=MAX_SECONDS)
