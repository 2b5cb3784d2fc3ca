"""`throttle`: at most so many tokens in a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentflow.definition.kinds.rate_gates import RateGateNode, check_window

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "diamond"
TAKES = frozenset({"approval"})
STRUCTURAL = frozenset({"next", "on_error", "key_path", "on_throttled"})

_LABELS = {"next": "emit", "on_throttled": "throttled"}


class ThrottleNode(RateGateNode, frozen=True, kw_only=True, omit_defaults=True, tag="throttle"):
    """Lets `limit` tokens of a key through within a window; only those that pass count.

    `drop`: one too many goes to `on_throttled`, without it to `next`. `delay`: it waits for its turn, first
    come first served.
    """

    on_throttled: str | None = None
    limit: int = 1
    mode: Literal["drop", "delay"] = "drop"


Spec = ThrottleNode


def ports(spec: ThrottleNode) -> tuple[tuple[str, str], ...]:
    """Return the way on and that of tokens too many."""
    pairs = (("next", spec.next), ("on_throttled", spec.on_throttled))
    return tuple((port, target) for port, target in pairs if target is not None)


def label(spec: ThrottleNode, port: str) -> str | None:
    """Return `emit` or `throttled`."""
    return _LABELS[port]


def routing(spec: ThrottleNode) -> dict[str, str]:
    """Return the path of the key, which decides the way."""
    return {"key": spec.key_path}


def bounded(spec: ThrottleNode) -> tuple[str, ...]:
    """Return the way on of one that waits: a way round that waits takes its time."""
    return ("next",) if spec.mode == "delay" else ()


def check(spec: ThrottleNode, at: NodeReport) -> None:
    """Check the key, the window and the limit."""
    check_window(spec, at, "delay" if spec.mode == "delay" else None)
    at.at_least_one(spec, "", "limit")
    if spec.mode == "delay" and spec.on_throttled is not None:
        message = f'"{spec.id}" delays what is too much'
        at.conflict("on_throttled", message, "leave it out, or set mode to drop")
