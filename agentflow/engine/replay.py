"""Forks: the part of another run's log that a new run begins with (page 000 §8, page 002 §9). Pure.

The base is kept as events, so that one fold gives the state of every run. Usage, requests, pauses and ends
belong to the old run and stay there.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from agentflow.engine.graph import Graph
from agentflow.engine.ids import named
from agentflow.events import catalogue as ev

__all__ = [
    "RUN_EVENTS",
    "BaseEvent",
    "asked_by_message",
    "base_of",
    "cut_of",
    "forked_request_id",
    "rewritten",
]


class BaseEvent(NamedTuple):
    """An event of the old run, when it was written (microseconds), and the id and offset that it had."""

    data: Any
    ts: int
    origin: tuple[str, int] | None = None


RUN_EVENTS = (
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
"""Events about the run itself, which a fork does not copy."""


def base_of(events: Sequence[BaseEvent], cut: frozenset[str] = frozenset()) -> list[int]:
    """Indexes of the events that a fork keeps: nothing of the steps in `cut`, of the others (when there is a
    cut) only what has come to its end, and no open question that its activation will ask again. An open
    question of a handler that has returned stays: nothing would ask it a second time."""
    unanswered = _open_requests(events) - asked_by_message(events)
    whole = not cut and not unanswered
    over: set[str] = set()
    ended: set[str] = set()
    begun: dict[str, str] = {}
    for event in events:
        data = event.data
        if data.__class__ in _ENDS:
            ended.add(data.activation)
            if data.iteration is None:
                over.add(data.step_id)
        elif cut and data.__class__ is ev.WorkflowStepStarted:
            begun[data.activation] = data.step_id
    kept: list[int] = []
    for index, event in enumerate(events):
        data = event.data
        if whole and data.__class__ not in _SPECIAL:
            kept.append(index)
            continue
        if data.__class__ is ev.WorkflowStarted and data.edits is not UNSET:
            kept.append(index)  # the edits of a fork that is forked again
            continue
        if data.__class__ in _RUN_EVENTS or (unanswered and _request(data) in unanswered):
            continue
        if data.__class__ is ev.WorkflowStepWaiting and data.for_ == "child" and data.activation not in ended:
            continue  # its child is begun or forked with the run, and says anew where it stands
        step = getattr(data, "step_id", None)
        if cut and isinstance(step, str):
            around = [begun[key] for key in _openers(data.activation) if key in begun]
            if any(name in cut or name not in over for name in (step, *around)):
                continue
        kept.append(index)
    return kept


def _open_requests(events: Sequence[BaseEvent]) -> set[str]:
    asked = {e.data.request_id for e in events if e.data.__class__ in _ASKED}
    return asked - {_request(e.data) for e in events if e.data.__class__ in _CLOSED} if asked else asked


def asked_by_message(events: Sequence[BaseEvent]) -> set[str]:
    """Return the open requests of activations that have ended: their answers are messages."""
    still_open = _open_requests(events)
    if not still_open:
        return still_open
    asked: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event.data, ev.InputRequested) and event.data.request_id in still_open:
            asked.setdefault(str(event.data.activation), []).append(event.data.request_id)
    ended = {e.data.activation for e in events if isinstance(e.data, ev.WorkflowStepCompleted)}
    return {request for activation in asked.keys() & ended for request in asked[activation]}


def forked_request_id(workflow_id: str, request_id: str) -> str:
    """Return the id under which a fork asks an open question of the run that it goes on from."""
    return named("req_", workflow_id, request_id)


def rewritten(event: Any, workflow_id: str, asked: Container[str], outputs: Mapping[str, Any]) -> Any:
    """Return the data of an event as a fork's base has it: open questions under new ids, edited outputs."""
    if isinstance(event, ev.InputRequested) and event.request_id in asked:
        return msgspec.structs.replace(event, request_id=forked_request_id(workflow_id, event.request_id))
    if isinstance(event, ev.WorkflowStepCompleted) and event.step_id in outputs:
        return msgspec.structs.replace(event, output=outputs[event.step_id])
    return event


def _openers(activation: str) -> list[str]:
    """Return the keys of the activations on whose child paths this one is, as far as they can be read off."""
    return [activation[: found.start()].partition("[")[0] for found in _CHILD_PATH.finditer(activation)]


_CHILD_PATH = re.compile(r"\.\d+/")
_ASKED = frozenset({ev.ApprovalRequested, ev.InputRequested})
_CLOSED = frozenset({ev.ApprovalGranted, ev.ApprovalDenied, ev.InputReceived, ev.InputCancelled})
_ENDS = frozenset({ev.WorkflowStepCompleted, ev.WorkflowStepFailed, ev.WorkflowStepSkipped})
_RUN_EVENTS = frozenset(RUN_EVENTS)
_SPECIAL = _RUN_EVENTS | {ev.WorkflowStepWaiting}  # what a fork of the whole may leave out


def _request(data: Any) -> str | None:
    if isinstance(data, ev.WorkflowStepWaiting):
        return data.ref
    found = getattr(data, "request_id", None)
    return found if isinstance(found, str) and not isinstance(data, ev.ToolCallStarted) else None


def cut_of(graph: Graph, steps: Iterable[str]) -> frozenset[str]:
    """These steps and all that comes after them. KeyError: there is no such step.

    A step on a child path, or in an inner graph, is begun anew with the step that opened that.
    """
    around = _around(graph)
    todo = list(steps)
    found: set[str] = set()
    while todo:
        step = todo.pop()
        if step in found:
            continue
        found.add(step)
        todo += around.get(step, ())
        todo += [edge.target.id for edge in graph.all_nodes[step].edges() if not edge.target.is_silent]
    return frozenset(found)


def _around(graph: Graph) -> dict[str, list[str]]:
    """Return, by step, the steps that open the child paths or hold the inner graph in which it runs."""
    found: dict[str, list[str]] = {}
    for node in graph.all_nodes.values():
        stop = {edge.target.id for edge in node.targets("next")}
        todo = [edge.target for port in node.opening_ports for edge in node.targets(port)]
        seen: set[str] = set()
        while todo:
            inside = todo.pop()
            if inside.id in stop or inside.id in seen or inside.is_silent:
                continue
            seen.add(inside.id)
            found.setdefault(inside.id, []).append(node.id)
            todo += [edge.target for edge in inside.edges()]
        prefix = node.id.removesuffix(node.name)
        if prefix:
            found.setdefault(node.id, []).append(prefix[:-1])
    return found
