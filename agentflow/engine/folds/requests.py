"""How questions to people and their answers change the state."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import UNSET

from agentflow.definition.conversation import ToolCall
from agentflow.engine.approvals import denial
from agentflow.engine.ends import fault
from agentflow.engine.folds.common import record_of, settle_tool, unit_of
from agentflow.engine.folds.steps import dispatched, take_unit
from agentflow.engine.state import OpenRequest, RunState, ToolRecord, Unit
from agentflow.events import catalogue as ev
from agentflow.events.envelope import micros

__all__ = ["FOLDS"]


def _approval_requested(state: RunState, data: ev.ApprovalRequested, offset: int, ts: int) -> None:
    if state.status in ("pending", "waiting"):
        dispatched(state, ts)
    subject: dict[str, Any] = data.subject
    call_id: str = subject.get("tool_call_id", "") if data.kind == "tool" else ""
    if data.kind == "step":
        node = state.nodes[data.step_id]
        unit = take_unit(state, node, int(data.activation.rpartition("#")[2]))
        unit.status = node.status = "waiting"
        unit.snapshot = subject
        state.parked[unit.key] = unit
    else:
        unit = unit_of(state, data)
        record = record_of(unit, call_id)
        if record is None:  # a tool node's own call
            name: str = subject["tool_name"]
            record = unit.tool = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
        record.parameters = subject.get("parameters")
        record.state = "asked"
        _stands_still(state, unit, ts)
    state.requests[data.request_id] = OpenRequest(data.request_id, unit, call_id, data, offset, ts)
    if data.deadline is not UNSET:
        state.timers[f"approval {data.request_id}"] = micros(data.deadline)


def _approval_decided(
    state: RunState, data: ev.ApprovalGranted | ev.ApprovalDenied, offset: int, ts: int
) -> None:
    granted = isinstance(data, ev.ApprovalGranted)
    state.decided[data.request_id] = "granted" if granted else "denied"
    state.last_approval[data.step_id] = data.request_id
    state.timers.pop(f"approval {data.request_id}", None)
    request = state.requests.pop(data.request_id, None)
    if request is None:
        return
    if state.status == "waiting":
        state.status = "running"
    unit = request.unit
    reason = data.reason if data.reason is not UNSET else None
    error = None
    if not granted:
        # Withdrawn by the runtime: the run ends, nobody refused anything.
        withdrawn = data.via == "policy"
        why = reason or f"{data.by} denied it"
        error = fault("cancelled", "cancelled", why) if withdrawn else denial(why)
    if not request.call_id:
        _step_decided(state, unit, error)
        return
    _goes_on(state, unit, ts)
    record = record_of(unit, request.call_id)
    if record is None:
        return
    record.state = "planned"
    if error is None:
        record.approval = data.request_id
    else:
        record.denied = error
    state.stirred[unit.key] = unit


def _step_decided(state: RunState, unit: Unit, error: Any) -> None:
    if error is not None:
        unit.error = error
        state.refused[unit.key] = unit  # stays parked until its end is in the log
        return
    del state.parked[unit.key]
    unit.status = state.nodes[unit.node.id].status = "pending"
    state.due.setdefault(unit.node.id, deque()).append(unit)


def _input_requested(state: RunState, data: ev.InputRequested, offset: int, ts: int) -> None:
    unit = unit_of(state, data)
    request: Any = data.request
    call_id: str = request.get("tool_call_id", "")
    state.requests[data.request_id] = OpenRequest(data.request_id, unit, call_id, data, offset, ts)
    _stands_still(state, unit, ts)


def _stands_still(state: RunState, unit: Unit, ts: int) -> None:
    """Waiting for a person takes no slot and does not count against any limit of the step."""
    if unit.status != "running":
        return
    unit.status = "waiting"
    state.running -= 1
    if unit.iteration is not None:
        state.nodes[unit.node.id].slots -= 1
    unit.held = state.hold([f"{kind} {unit.key}" for kind in ("attempt", "deadline")], ts)


def _input_received(state: RunState, data: ev.InputReceived, offset: int, ts: int) -> None:
    state.decided[data.request_id] = data.value
    request = state.requests.pop(data.request_id, None)
    if request is None:
        return
    if state.status == "waiting":
        state.status = "running"
    _input_settled(state, request, data.value, ts)


def _input_settled(state: RunState, request: OpenRequest, value: dict[str, Any], ts: int) -> None:
    """What follows from an answer for the call or step that asked."""
    unit = request.unit
    _goes_on(state, unit, ts)
    asked = request.data
    choice = value["choice"]
    if isinstance(asked, ev.InputRequested) and asked.request_type == "budget":
        _budget_answered(state, unit, asked.request, value)
        return
    record = record_of(unit, request.call_id)
    if record is None:
        return
    if choice == "retry":
        record.state = "planned"
        state.stirred[unit.key] = unit
        return
    if choice == "done":
        record.state, record.output = "done", value.get("output")
    else:
        record.state = "failed"
    settle_tool(state, unit, record)


def _budget_answered(state: RunState, unit: Unit, asked: dict[str, Any], value: dict[str, Any]) -> None:
    if value["choice"] == "fail":
        unit.overdrawn = True
    else:
        scope, key = asked["scope"], asked["limit"]
        limits = state.budget if scope == "run" else state.step_budgets[scope]
        # Several calls may have asked: a later answer with less takes nothing back.
        raised = {**limits, key: max(limits[key], value["limit"])}
        if scope == "run":
            state.budget = raised
        else:
            state.step_budgets[scope] = raised
    state.stirred[unit.key] = unit


def _input_cancelled(state: RunState, data: ev.InputCancelled, offset: int, ts: int) -> None:
    """Nobody will answer: what asked has failed. If its step is being ended, that stands behind this."""
    state.withdrawn.add(data.request_id)
    request = state.requests.pop(data.request_id, None)
    if request is None:
        return
    if state.status == "waiting":
        state.status = "running"
    _input_settled(state, request, {"choice": "fail"}, ts)


def _goes_on(state: RunState, unit: Unit, ts: int) -> None:
    """A question of this unit is closed; with its last one it is at work again, and its clocks run."""
    if unit.status != "waiting" or any(r.unit is unit for r in state.requests.values()):
        return
    unit.status = "running"
    state.running += 1
    node = state.nodes[unit.node.id]
    if unit.iteration is not None:
        node.slots += 1
    else:
        node.status = "running"
    state.timers.update((key, ts + left) for key, left in unit.held.items())
    unit.held = {}


def _step_waiting(state: RunState, data: ev.WorkflowStepWaiting, offset: int, ts: int) -> None:
    if data.iteration is None:
        state.nodes[data.step_id].status = "waiting"


FOLDS: dict[type, Any] = {
    ev.ApprovalRequested: _approval_requested,
    ev.ApprovalGranted: _approval_decided,
    ev.ApprovalDenied: _approval_decided,
    ev.InputRequested: _input_requested,
    ev.InputReceived: _input_received,
    ev.InputCancelled: _input_cancelled,
    ev.WorkflowStepWaiting: _step_waiting,
}
