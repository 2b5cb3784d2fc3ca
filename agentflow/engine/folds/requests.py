"""How questions to people and their answers change the state."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.definition.conversation import ToolCall
from agentflow.engine.activation import Activation
from agentflow.engine.agents.failure import fault
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.approvals import denial
from agentflow.engine.arrivals import dispatched, enqueue, mirror
from agentflow.engine.budgets import is_about_budget, is_about_call, is_about_own_budget
from agentflow.engine.folds.common import record_of, settle_tool, wake
from agentflow.engine.folds.messages import message_answered, message_asked
from agentflow.engine.folds.slots import go_on, stand_still
from agentflow.engine.handler_results import INPUT_TIMEOUT, unanswered
from agentflow.engine.illegal import IllegalEvent
from agentflow.engine.machine import activation_of, at_work
from agentflow.engine.recorded_calls import HANDLER_ENDED
from agentflow.engine.state import OpenRequest, RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import micros

__all__ = ["FOLDS"]


def _approval_requested(state: RunState, data: ev.ApprovalRequested, offset: int, ts: int) -> None:
    dispatched(state, ts)
    subject: dict[str, Any] = data.subject
    call_id: str = subject.get("tool_call_id", "") if data.kind == "tool" else ""
    asks_itself = _asks_itself(state, data)
    if asks_itself:
        activation = at_work(state, data)
        stand_still(state, activation, ts)
        wake(state, activation)
    elif data.supersedes is not UNSET:
        activation = _superseded(state, data)
    elif data.kind == "step":
        activation = activation_of(state, data)
        if activation not in state.arrived:
            raise IllegalEvent(data, f"{activation.key} is not to be asked about")
        state.arrived.remove(activation)
        place = state.node_of(activation)
        activation.status = place.status = "waiting"
        activation.phase = "asked"
        mirror(state, activation, place)
        activation.snapshot = subject
        state.awaiting_approval[activation.key] = activation
    else:
        activation = at_work(state, data)
        record = record_of(activation, call_id)
        if record is None:  # a tool node's own call
            name: str = subject["tool_name"]
            record = activation.tool = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
        record.parameters = subject.get("parameters")
        record.state = "asked"
        stand_still(state, activation, ts)
    state.requests[data.request_id] = OpenRequest(data.request_id, activation, call_id, data, offset, ts)
    if data.deadline is not UNSET and not (asks_itself and activation.node.kind.starts_run):
        state.timers[f"approval {data.request_id}"] = micros(data.deadline)


def _superseded(state: RunState, data: ev.ApprovalRequested) -> Activation:
    """Withdraw the question whose subject has changed; its step waits for the new one."""
    key = data.activation
    activation = state.awaiting_approval.get(key)
    if activation is None or data.supersedes not in state.requests:
        raise IllegalEvent(data, f"{key} does not wait for {data.supersedes}")
    del state.requests[str(data.supersedes)]
    state.withdrawn[str(data.supersedes)] = None
    state.timers.disarm(f"approval {data.supersedes}")
    activation.snapshot = data.subject
    if state.pipeline is not None:
        state.pipeline.stale.pop(key, None)
    return activation


def _asks_itself(state: RunState, data: Any) -> bool:
    """Return whether the kind of the activation that asks takes the answer itself."""
    key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
    activation = state.open.get(key)
    return activation is not None and activation.node.kind.takes_answers


def _answered(state: RunState, request: OpenRequest, data: Any, ts: int) -> None:
    """Hand an answer to the kind that asked: its activation is at work again with the last one."""
    activation = request.activation
    state.timers.disarm(f"input {data.request_id}")
    go_on(state, activation, ts)
    activation.node.kind.answered(state, activation, data, ts)
    wake(state, activation)


def _approval_decided(
    state: RunState, data: ev.ApprovalGranted | ev.ApprovalDenied, offset: int, ts: int
) -> None:
    granted = isinstance(data, ev.ApprovalGranted)
    state.decided[data.request_id] = "granted" if granted else "denied"
    state.last_approval[data.step_id] = data.request_id
    state.timers.disarm(f"approval {data.request_id}")
    request = state.requests.pop(data.request_id, None)
    if request is None:
        return
    if state.pipeline is not None:
        state.pipeline.note_decision(request, data, ts, granted=granted)
    if state.status == "waiting":
        state.status = "running"
    if data.via not in ("deadline", "policy"):
        state.mail.since_outside.clear()
    activation = request.activation
    if activation.node.kind.takes_answers and activation.phase == "open":  # else the approval of its start
        _answered(state, request, data, ts)
        return
    reason = data.reason if data.reason is not UNSET else None
    error = None
    if not granted:
        # Withdrawn by the runtime because the run ends: that is no refusal.
        withdrawn = data.via == "policy"
        why = reason or f"{data.by} denied it"
        error = fault("cancelled", "cancelled", why) if withdrawn else denial(why)
    if not request.call_id:
        _step_decided(state, activation, error)
        return
    go_on(state, activation, ts)
    record = record_of(activation, request.call_id)
    if record is None:
        return
    record.state = "planned"
    if error is None:
        record.approval = data.request_id
    else:
        record.denied = error
    wake(state, activation)


def _step_decided(state: RunState, activation: Activation, error: Any) -> None:
    if error is not None:
        activation.error = error
        activation.phase = "denied"
        state.denied[activation.key] = activation  # its end is still to be decided
        return
    del state.awaiting_approval[activation.key]
    place = state.node_of(activation)
    activation.status = place.status = activation.phase = "pending"
    mirror(state, activation, place)
    enqueue(state, activation, place)


def _input_requested(state: RunState, data: ev.InputRequested, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    asks_by_message = activation.node.kind.sends and not is_about_call(data)
    asks_itself = asks_by_message or activation.node.kind.takes_answers
    if activation.node.kind.starts_run:
        state.mail.routed.pop(data.request_id, None)  # forwarded to the caller
    call_id: str = "" if asks_itself else data.request.get("tool_call_id", "")
    is_known = data.request_id in state.requests  # a handler that begins its attempt once more asks again
    state.requests[data.request_id] = OpenRequest(data.request_id, activation, call_id, data, offset, ts)
    if asks_by_message:
        if not is_known:
            message_asked(activation)
        if data.deadline is not UNSET:
            state.timers[f"input {data.request_id}"] = micros(data.deadline)
        return
    if not call_id:
        state.call_queue.pop(activation.key, None)
    kind = activation.node.kind
    stand_still(state, activation, ts)
    if kind.takes_answers and not kind.starts_run and data.deadline is not UNSET:
        state.timers[f"input {data.request_id}"] = micros(data.deadline)
    state.settled.pop(activation.key, None)  # of a stage that waits with its answer for a clarification
    if kind.takes_answers:
        wake(state, activation)


def _taken_out(state: RunState, request_id: str) -> OpenRequest | None:
    """Take an open request out of the state: one that people see, or one that went along an edge."""
    return state.requests.pop(request_id, None) or state.mail.routed.pop(request_id, None)


def _input_received(state: RunState, data: ev.InputReceived, offset: int, ts: int) -> None:
    state.decided[data.request_id] = data.value
    request = _taken_out(state, data.request_id)
    if request is None:
        return
    if state.status == "waiting":
        state.status = "running"
    if data.via == "message":
        state.mail.answered[data.request_id] = None
    elif data.via != "deadline":
        state.mail.since_outside.clear()
    if _is_by_message(request):
        state.timers.disarm(f"input {data.request_id}")
        message_answered(state, request, data.value, None, is_withdrawn=False)
        return
    if request.activation.node.kind.takes_answers and not is_about_own_budget(request):
        _answered(state, request, data, ts)
        return
    _input_settled(state, request, data.value, ts)


def _is_by_message(request: OpenRequest) -> bool:
    """Return whether a handler asked, whose answer is a message."""
    return request.activation.node.kind.sends and not is_about_call(request.data)


def _input_settled(state: RunState, request: OpenRequest, value: dict[str, Any], ts: int) -> None:
    """Fold an answer for the call or step that asked."""
    activation = request.activation
    go_on(state, activation, ts)
    asked = request.data
    choice = value["choice"]
    if isinstance(asked, ev.InputRequested) and is_about_budget(asked):
        _budget_answered(state, activation, asked.request, value)
        return
    record = record_of(activation, request.call_id)
    if record is None:
        return
    if choice == "retry":
        record.state = "planned"
        wake(state, activation)
        return
    if choice == "done":
        record.state, record.output = "done", value.get("output")
    else:
        record.state = "failed"
        if activation.node.kind.sends:  # or its handler would make it again
            record.denied = record.error
    settle_tool(state, activation, record)


def _budget_answered(
    state: RunState, activation: Activation, asked: dict[str, Any], value: dict[str, Any]
) -> None:
    if value["choice"] == "fail":
        activation.overdrawn = True
    else:
        scope, key = asked["scope"], asked["limit"]
        limits = state.budget if scope == "run" else state.step_budgets[scope]
        # Several calls may have asked: a later answer with less takes nothing back.
        raised = {**limits, key: max(limits[key], value["limit"])}
        if scope == "run":
            state.budget = raised
        else:
            state.step_budgets[scope] = raised
    wake(state, activation)


def _input_cancelled(state: RunState, data: ev.InputCancelled, offset: int, ts: int) -> None:
    """Fold a withdrawn question: the call or step that asked has failed. The end of its step may follow."""
    state.withdrawn[data.request_id] = None
    request = _taken_out(state, data.request_id)
    if request is None:
        return
    if state.status == "waiting":
        state.status = "running"
    if _is_by_message(request):
        state.timers.disarm(f"input {data.request_id}")
        expired = data.reason == INPUT_TIMEOUT
        problem = unanswered(request) if expired else None
        message_answered(state, request, None, problem, is_withdrawn=not expired)
        return
    if request.activation.node.kind.takes_answers:
        _answered(state, request, data, ts)
        return
    if data.reason == HANDLER_ENDED:
        go_on(state, request.activation, ts)
    else:
        _input_settled(state, request, {"choice": "fail"}, ts)


FOLDS: dict[type, Any] = {
    ev.ApprovalRequested: _approval_requested,
    ev.ApprovalGranted: _approval_decided,
    ev.ApprovalDenied: _approval_decided,
    ev.InputRequested: _input_requested,
    ev.InputReceived: _input_received,
    ev.InputCancelled: _input_cancelled,
}
