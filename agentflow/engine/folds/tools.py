"""How the events of tool calls, and of questions about them, change the state."""

from __future__ import annotations

from typing import Any

from agentflow.definition.conversation import ToolCall, Usage
from agentflow.engine import conversation
from agentflow.engine.folds.common import open_call, record_of, settle, unit_of, use
from agentflow.engine.state import OpenRequest, RunState, ToolRecord, Unit
from agentflow.events import catalogue as ev

__all__ = ["FOLDS"]

_ONE_TOOL_CALL = Usage(tool_calls=1)


def _tool_started(state: RunState, data: ev.ToolCallStarted, offset: int, ts: int) -> None:
    unit = unit_of(state, data)
    record = record_of(unit, data.tool_call_id)
    if record is None:  # a tool node's own call
        call = ToolCall(id=data.tool_call_id, name=data.tool_name, arguments="")
        record = unit.tool = ToolRecord(call, data.tool_name)
    tools = state.bindings.of(data.step_id).tools
    record.info = tools.get(data.tool_name)
    record.parameters = data.parameters
    record.state = "open"
    record.tries += 1
    if record.tries == 1:
        unit.tool_calls += 1
        use(state, unit, _ONE_TOOL_CALL)
    if record.info is not None and not record.info.safe:
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
    _tool_settled(state, unit, record)


def _tool_failed(state: RunState, data: ev.ToolCallFailed, offset: int, ts: int) -> None:
    state.calls.pop(data.tool_call_id, None)
    unit = unit_of(state, data)
    record = record_of(unit, data.tool_call_id)
    assert record is not None
    record.error, record.executed, record.outcome = data.error, data.executed, data.outcome
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


def _input_received(state: RunState, data: ev.InputReceived, offset: int, ts: int) -> None:
    request = state.requests.pop(data.request_id, None)
    if request is None:
        return
    if state.status == "waiting":
        state.status = "running"
    unit = request.unit
    if unit.status == "waiting" and not any(r.unit is unit for r in state.requests.values()):
        unit.status = "running"
        state.running += 1
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
    if request is not None and request.unit.status == "waiting":
        request.unit.status = "running"
        state.running += 1


FOLDS: dict[type, Any] = {
    ev.ToolCallStarted: _tool_started,
    ev.ToolCallCompleted: _tool_completed,
    ev.ToolCallFailed: _tool_failed,
    ev.InputRequested: _input_requested,
    ev.InputReceived: _input_received,
    ev.InputCancelled: _input_cancelled,
}
