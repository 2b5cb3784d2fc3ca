"""Forks: the part of another run's log that a new run begins with (page 000 §8, page 002 §9). Pure.

The base is kept as events, so that one fold gives the state of every run. Usage, requests, pauses and ends
belong to the old run and stay there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from agentflow.engine.graph import Graph
from agentflow.events import catalogue as ev

__all__ = ["BaseEvent", "base_of", "cut_of"]


class BaseEvent(NamedTuple):
    """An event of the old run, and when it was written (microseconds)."""

    data: Any
    ts: int


_OWN = (
    ev.WorkflowStarted,
    ev.WorkflowWaiting,
    ev.WorkflowPaused,
    ev.WorkflowResumed,
    ev.WorkflowCancelRequested,
    ev.WorkflowCancelled,
    ev.WorkflowCompleted,
    ev.WorkflowFailed,
    ev.SystemError,
    ev.SignalReceived,
)


def base_of(events: Sequence[BaseEvent], cut: frozenset[str] = frozenset()) -> list[int]:
    """Indexes of the events that a fork keeps: nothing of the steps in `cut`, of the others (when there is a
    cut) only what has come to its end, and no question that was open."""
    closed = {_request(e.data) for e in events if isinstance(e.data, _CLOSED)}
    unanswered = {
        e.data.request_id
        for e in events
        if isinstance(e.data, ev.ApprovalRequested | ev.InputRequested) and e.data.request_id not in closed
    }
    over = {e.data.step_id for e in events if isinstance(e.data, _ENDS) and e.data.iteration is None}
    kept: list[int] = []
    for index, event in enumerate(events):
        data = event.data
        if isinstance(data, _OWN) or _request(data) in unanswered:
            continue
        step = getattr(data, "step_id", None)
        if cut and isinstance(step, str) and (step in cut or step not in over):
            continue
        kept.append(index)
    return kept


_CLOSED = (ev.ApprovalGranted, ev.ApprovalDenied, ev.InputReceived, ev.InputCancelled)
_ENDS = (ev.WorkflowStepCompleted, ev.WorkflowStepFailed, ev.WorkflowStepSkipped)


def _request(data: Any) -> str | None:
    if isinstance(data, ev.WorkflowStepWaiting):
        return data.ref
    found = getattr(data, "request_id", None)
    return found if isinstance(found, str) and not isinstance(data, ev.ToolCallStarted) else None


def cut_of(graph: Graph, steps: Iterable[str]) -> frozenset[str]:
    """These steps and all that comes after them. KeyError: there is no such step."""
    todo = list(steps)
    found: set[str] = set()
    while todo:
        step = todo.pop()
        if step in found:
            continue
        found.add(step)
        for edges in graph.nodes[step].out.values():
            todo += [edge.target.id for edge in edges if not edge.target.is_silent]
    return frozenset(found)
