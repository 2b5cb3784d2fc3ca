"""What happened to the nodes of a run, for finding a mistake: timeline, and retries (page 003 §11)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event

__all__ = ["NodeRetries", "NodeTimeline", "TimelineEntry", "TimelineEvent", "TimelineFold"]

TimelineEvent = Literal[
    "node_started", "node_retrying", "node_waiting", "node_completed", "node_failed", "node_skipped"
]


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a node. `visit` counts from 1; `iteration` is the item of a for_each.

    `details`: of a start its kind, of a retry the code, attempt and delay, of a wait what is waited for,
    of an end the duration and port, of a failure the error, of a skip its reason.
    """

    index: int
    offset: int
    clock: int
    path: str
    node_id: str
    visit: int
    iteration: int | None
    attempt: int
    event: TimelineEvent
    at: str
    details: dict[str, Any]


class NodeRetries(msgspec.Struct, frozen=True, kw_only=True):
    """How often an operation of a node was tried again, and why: by code of the error.

    `operation`: `model`, `tool`, `repair` of an answer, `fallback` to another model, `restart`.
    """

    node_id: str
    operation: str
    retries: int
    reasons: dict[str, int]


class NodeTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the nodes of a run, in the order of its log, and how often what was tried again."""

    items: tuple[TimelineEntry, ...]
    retries: tuple[NodeRetries, ...]


class TimelineFold:
    """Makes the timeline and the counts of retries from the events of a run, in the order of offsets."""

    def __init__(self) -> None:
        self.entries: list[TimelineEntry] = []
        self._counts: dict[tuple[str, str], dict[str, int]] = {}

    def take(self, event: Event[Any]) -> None:
        """Take the next event."""
        data: ev.RunEvent = event.data
        if isinstance(data, ev.WorkflowStepRetrying | ev.AgentRetrying):
            reasons = self._counts.setdefault((data.step_id, data.kind), {})
            reasons[data.error.code] = reasons.get(data.error.code, 0) + 1
        if not isinstance(data, ev.WorkflowStepEvent):
            return
        said = _said(data)
        if said is None:
            return
        kind, details = said
        self.entries.append(
            TimelineEntry(
                index=len(self.entries),
                offset=event.offset,
                clock=data.clock,
                path=data.path,
                node_id=data.step_id,
                visit=data.visit + 1,
                iteration=data.iteration,
                attempt=data.attempt,
                event=kind,
                at=event.timestamp,
                details=details,
            )
        )

    def timeline(self) -> NodeTimeline:
        """Return what was taken so far."""
        retries = [
            NodeRetries(node_id=node_id, operation=operation, retries=sum(reasons.values()), reasons=reasons)
            for (node_id, operation), reasons in self._counts.items()
        ]
        return NodeTimeline(items=tuple(self.entries), retries=tuple(retries))


def _said(data: ev.WorkflowStepEvent) -> tuple[TimelineEvent, dict[str, Any]] | None:
    match data:
        case ev.WorkflowStepStarted():
            return "node_started", {"kind": data.kind}
        case ev.WorkflowStepRetrying():
            return "node_retrying", {
                "code": data.error.code,
                "next_attempt": data.next_attempt,
                "delay_ms": data.delay_ms,
            }
        case ev.WorkflowStepWaiting():
            deadline = {} if data.deadline is UNSET else {"deadline": data.deadline}
            return "node_waiting", {"for": data.for_, "ref": data.ref, **deadline}
        case ev.WorkflowStepCompleted():
            port = {} if data.next is UNSET or data.next is None else {"next": data.next}
            return "node_completed", {"duration_ms": data.duration_ms, **port}
        case ev.WorkflowStepFailed():
            error = data.error
            said = {"code": error.code, "category": error.category, "message": error.message}
            return "node_failed", {"duration_ms": data.duration_ms, "attempts": data.attempts, **said}
        case ev.WorkflowStepSkipped():
            return "node_skipped", {"reason": data.reason, "caused_by": list(data.caused_by)}
        case _:
            return None
