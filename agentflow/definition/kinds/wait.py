"""`wait`: a durable timer."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase, next_port
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.report import shown

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "dependency"})


class WaitNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="wait"):
    """Goes on `duration` seconds after its start, or at the moment `until`.

    `until` is a time as RFC 3339 writes it, or a template of one. A moment in the past is no wait.
    """

    duration: float | None = None
    until: str | None = None
    next: str | None = None


Spec = WaitNode
ports = next_port


def bounded(spec: WaitNode) -> tuple[str, ...]:
    """Return the way on: a way round that waits takes its time."""
    return ("next",)


def check(spec: WaitNode, at: NodeReport) -> None:
    """Check that there is one time, and that it is one."""
    if spec.duration is None and spec.until is None:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has neither duration nor until', "duration")
    elif spec.duration is not None and spec.until is not None:
        at.conflict("until", f'"{spec.id}" has a duration', "keep duration or until")
    if spec.duration is not None:
        at.range("duration", spec.duration, above=0, most=MAX_SECONDS)
    if spec.until is not None and not at.template("until", spec.until) and not _is_moment(spec.until):
        message = f'until "{shown(spec.until)}" is not a time with its zone'
        at.error("E_VALUE", message, "until", "write it as 2030-01-31T08:00:00Z")


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
