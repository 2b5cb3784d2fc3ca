"""`debounce`: one token of a burst."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentflow.definition.kinds.rate_gates import RateGateNode, check_window

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "diamond"
TAKES = frozenset({"approval"})
STRUCTURAL = frozenset({"next", "on_error", "key_path", "on_suppressed"})

_LABELS = {"next": "emit", "on_suppressed": "suppressed"}


class DebounceNode(RateGateNode, frozen=True, kw_only=True, omit_defaults=True, tag="debounce"):
    """`leading`: a token is suppressed when its key was seen less than a window ago; each renews that.

    `trailing`: a token waits; a newer one of its key supersedes it, and the last one goes on after a quiet
    window. Suppressed tokens go to `on_suppressed`, without it to `next`.
    """

    on_suppressed: str | None = None
    mode: Literal["leading", "trailing"] = "leading"


Spec = DebounceNode


def ports(spec: DebounceNode) -> tuple[tuple[str, str], ...]:
    """Return the way on and that of suppressed tokens."""
    pairs = (("next", spec.next), ("on_suppressed", spec.on_suppressed))
    return tuple((port, target) for port, target in pairs if target is not None)


def label(spec: DebounceNode, port: str) -> str | None:
    """Return `emit` or `suppressed`."""
    return _LABELS[port]


def routing(spec: DebounceNode) -> dict[str, str]:
    """Return the path of the key, which decides the way."""
    return {"key": spec.key_path}


def bounded(spec: DebounceNode) -> tuple[str, ...]:
    """Return the way on of one that waits: a way round that waits takes its time."""
    return ("next",) if spec.mode == "trailing" else ()


def check(spec: DebounceNode, at: NodeReport) -> None:
    """Check the key and the window."""
    check_window(spec, at, "trailing" if spec.mode == "trailing" else None)
