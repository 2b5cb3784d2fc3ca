"""How the events of tool calls, and of questions about them, change the state."""

from __future__ import annotations

from typing import Any

from agentflow.definition.conversation import ToolCall, Usage
from agentflow.engine import conversation
from agentflow.engine.folds.common import open_call, record_of, settle, unit_of, use, was_away
from agentflow.engine.state import OpenRequest, RunState, ToolRecord, Unit
from agentflow.events import catalogue as ev

__all__ = ["FOLDS"]

_ONE_TOOL_CALL = Usage(tool_calls=1, cost_usd=0.0)


def _tool_started(state: RunState, data: ev.ToolCallStarted, offset: int, ts: int) -> None:
    unit = unit_of(state, data)
    record = record_of(unit, data.tool_call_id)
    if record is None:  # a tool node's own call
        call = ToolCall(id=data.tool_call_id, name=data.tool_name, arguments="")
        record = unit.tool = ToolRecord(call, data.tool_name)
    tools = state.bindings.of(data.step_id).tools
    record.info = tools.get(data.tool_name)
    record.parameters = data.parameters
    # A declaration that became harmless since the call was recorded does not make that call harmless.
    harmless = record.info is not None and record.info.side_effect in ("none", "read")
    record.safe = record.info is not None and record.info.safe
    if harmless and data.side_effect not in ("none", "read"):
        record.safe = False
    record.state = "open"
    record.tries += 1
    if record.tries == 1:
        unit.tool_calls += 1
        use(state, unit, _ONE_TOOL_CALL)
    if not record.safe and record.info is not None:
        unit.unsafe = True
    unit.due_at = None
    if state.timers:
        state.timers.pop(f"retry {unit.key}", None)
    open_call(state, "tool", data.tool_call_id, unit, offset)
    state.stirred[unit.key] = unit


def _tool_completed(state: RunState, data: ev.ToolCallCompleted, offset: int, ts: int) -> None:
    state.calls.pop(data.tool_call_id, None)
    unit = unit_of(state, data)
    record = record_of(unit, data.tool_call_id)
    assert record is not None
    record.state, record.output, record.executed = "done", data.output, True
    unit.interruptions = 0
    _tool_settled(state, unit, record)


def _tool_failed(state: RunState, data: ev.ToolCallFailed, offset: int, ts: int) -> None:
    state.calls.pop(data.tool_call_id, None)
    unit = unit_of(state, data)
    record = record_of(unit, data.tool_call_id)
    assert record is not None
    record.error, record.executed, record.outcome = data.error, data.executed, data.outcome
    if data.error.category == "interrupted":
        was_away(state, unit, ts)
    if data.will_retry:
        record.state = "planned"
        state.stirred[unit.key] = unit
    elif data.outcome == "unknown":
        record.state = "unknown"
        state.stirred[unit.key] = unit
    else:
        record.state = "failed"
        _tool_settled(state, unit, record)


def _tool_settled(state: RunState, unit: Unit, record: ToolRecord) -> None:
    if record is unit.tool:
        if record.state == "done":
            unit.output = record.output
            settle(state, unit)
        else:
            unit.error = record.error
        state.stirred[unit.key] = unit
        return
    progress = unit.agent
    assert progress is not None
    if all(r.state in ("done", "failed") for r in progress.tools.values()):
        progress.pending = [conversation.tool_message(r) for r in progress.tools.values()]
        progress.tools = {}
        progress.settled_tools += 1
    state.stirred[unit.key] = unit


def _input_requested(state: RunState, data: ev.InputRequested, offset: int, ts: int) -> None:
    unit = unit_of(state, data)
    request: Any = data.request
    call_id: str = request.get("tool_call_id", "")
    state.requests[data.request_id] = OpenRequest(data.request_id, unit, call_id, data)
    if unit.status == "running":
        unit.status = "waiting"
        state.running -= 1
        if unit.iteration is not None:
            state.nodes[unit.node.id].slots -= 1
        # Waiting for a person does not count against any limit of the step.
        unit.held = state.hold([f"{kind} {unit.key}" for kind in ("attempt", "deadline")], ts)


def _input_received(state: RunState, data: ev.InputReceived, offset: int, ts: int) -> None:
    request = state.requests.pop(data.request_id, None)
    if request is None:
        return
    if state.status == "waiting":
        state.status = "running"
    unit = request.unit
    _goes_on(state, unit, ts)
    record = record_of(unit, request.call_id)
    if record is None:
        return
    choice = data.value["choice"]
    if choice == "retry":
        record.state = "planned"
        state.stirred[unit.key] = unit
        return
    if choice == "done":
        record.state, record.output = "done", data.value.get("output")
    else:
        record.state = "failed"
    _tool_settled(state, unit, record)


def _input_cancelled(state: RunState, data: ev.InputCancelled, offset: int, ts: int) -> None:
    request = state.requests.pop(data.request_id, None)
    if request is not None:
        _goes_on(state, request.unit, ts)


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
    ev.ToolCallStarted: _tool_started,
    ev.ToolCallCompleted: _tool_completed,
    ev.ToolCallFailed: _tool_failed,
    ev.InputRequested: _input_requested,
    ev.InputReceived: _input_received,
    ev.WorkflowStepWaiting: _step_waiting,
    ev.InputCancelled: _input_cancelled,
}
