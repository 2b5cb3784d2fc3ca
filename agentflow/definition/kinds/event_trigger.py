"""`event_trigger`: a signal from outside, or the name of an event in a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase
from agentflow.definition.policy import MAX_SECONDS

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "diamond"
TAKES = frozenset[str]()
STRUCTURAL = frozenset({"next", "on_error", "on_mismatch", "on_timeout", "event_path"})

_LABELS = {"next": "match", "on_mismatch": "mismatch", "on_timeout": "timeout"}
_PORTS = ("next", "on_mismatch", "on_timeout")


class EventTriggerNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="event_trigger"):
    """Waits for a signal named `event`, of which `match` is true; `signal` is its name, data and signal_id.

    Signals that came earlier are kept in order; each serves one node once. With `event_path` the node
    compares the value there with `event` and does not wait; another value leads to `on_mismatch`, or on.
    """

    event: str
    next: str | None = None
    event_path: str | None = None
    on_mismatch: str | None = None
    match: str | None = None
    timeout: float | None = None
    on_timeout: str | None = None


Spec = EventTriggerNode


def ports(spec: EventTriggerNode) -> tuple[tuple[str, str], ...]:
    """Return the ways on."""
    return tuple((port, getattr(spec, port)) for port in _PORTS if getattr(spec, port) is not None)


def label(spec: EventTriggerNode, port: str) -> str | None:
    """Return `match`, `mismatch` or `timeout`."""
    return _LABELS.get(port)


def routing(spec: EventTriggerNode) -> dict[str, str]:
    """Return the path of the value that chooses the way."""
    return {} if spec.event_path is None else {"event": spec.event_path}


def bounded(spec: EventTriggerNode) -> tuple[str, ...]:
    """Return the way on from a signal; a comparison bounds nothing."""
    return ("next",) if spec.event_path is None else ()


def check(spec: EventTriggerNode, at: NodeReport) -> None:
    """Check the name, and that the fields belong to one of its two forms."""
    at.not_blank("event", spec.event)
    if spec.event_path is not None:
        at.path("event_path", spec.event_path)
        others, why = ("match", "timeout", "on_timeout"), "compares a value and does not wait"
    else:
        others, why = ("on_mismatch",), "waits for a signal that matches"
    for field in others:
        if getattr(spec, field) is not None:
            at.conflict(
                field, f'"{spec.id}" {why}', "add event_path" if spec.event_path is None else "leave it out"
            )
    if spec.match is not None:
        at.expression("match", spec.match, form="signal")
    if spec.timeout is not None:
        at.range("timeout", spec.timeout, above=0, most=MAX_SECONDS)
    elif spec.on_timeout is not None and spec.event_path is None:
        at.conflict("on_timeout", f'"{spec.id}" has no timeout', "add timeout")
