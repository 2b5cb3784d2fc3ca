"""`evolve`: one event folded into the state of its run.

Total and deterministic: it never decides, never fails on an event that the engine wrote, and ignores
types that it does not know. It changes the given state in place (a run's state has one owner), so its
cost follows what the event changed and not the size of the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from agentflow.definition.conversation import ToolCall, Usage, add_usage
from agentflow.engine import conversation
from agentflow.engine.state import (
    EXPRESSION_STATUS,
    AgentProgress,
    NodeState,
    OpenCall,
    OpenRequest,
    RunState,
    StepStatus,
    Token,
    ToolRecord,
    Unit,
)
from agentflow.events import catalogue as ev

__all__ = ["evolve"]

UNSET = msgspec.UNSET
_ONE_TOOL_CALL = Usage(tool_calls=1)


def evolve(state: RunState, data: Any, offset: int, ts: int) -> None:
    """Fold the event `data` that stands at `offset` and was written at `ts` (microseconds)."""
    state.next_offset = offset + 1
    fold = _FOLDS.get(data.__class__)
    if fold is not None:
        fold(state, data, offset, ts)


# -- the run ------------------------------------------------------------------------------------


def _started(state: RunState, data: ev.WorkflowStarted, offset: int, ts: int) -> None:
    state.begin = data
    state.input = data.input
    state.started_at = ts
    options = data.options
    state.on_failure = options.get("on_failure") or state.on_failure
    state.on_unknown = options.get("on_unknown") or state.on_unknown
    if state.plan.options.timeout is not None:
        state.timers["run"] = ts + round(state.plan.options.timeout * 1e6)
    state.frontier.extend(n.id for n in state.plan.graph_steps if not n.deps)
    state.tokens.extend(Token(target, data.input, None) for target in state.plan.entry)


def _waiting(state: RunState, data: ev.WorkflowWaiting, offset: int, ts: int) -> None:
    state.status = "waiting"


def _paused(state: RunState, data: ev.WorkflowPaused, offset: int, ts: int) -> None:
    state.status, state.pause = "paused", data.reason


def _resumed(state: RunState, data: ev.WorkflowResumed, offset: int, ts: int) -> None:
    state.status, state.pause = "running", None


def _cancel_requested(state: RunState, data: ev.WorkflowCancelRequested, offset: int, ts: int) -> None:
    state.cancel_requested = data


def _completed(state: RunState, data: ev.WorkflowCompleted, offset: int, ts: int) -> None:
    state.status, state.output, state.ended = "completed", data.output, ts


def _failed(state: RunState, data: ev.WorkflowFailed, offset: int, ts: int) -> None:
    state.status, state.error, state.ended = "failed", data.error, ts
    state.output = None if data.partial_output is UNSET else data.partial_output


def _cancelled(state: RunState, data: ev.WorkflowCancelled, offset: int, ts: int) -> None:
    state.status, state.ended = "cancelled", ts


# -- steps --------------------------------------------------------------------------------------


def _step_started(state: RunState, data: ev.WorkflowStepStarted, offset: int, ts: int) -> None:
    if state.status in ("pending", "waiting"):
        _dispatched(state, ts)
    node = state.nodes[data.step_id]
    node.attempt = data.attempt
    if data.iteration is None:
        unit = _take_unit(state, node, data.visit)
        node.visits = data.visit + 1
        node.status = "running"
        state.clock = data.clock + 1
    else:
        unit = node.units[data.iteration]
        _leave_due(state, unit)
        node.slots += 1
    unit.status = "running"
    unit.input = data.input
    unit.started = unit.attempt_started = ts
    unit.first_offset = offset
    unit.clock = data.clock
    state.open[unit.key] = unit
    plan = node.plan
    if data.iteration is None and plan.for_each is not None:
        _open_items(state, node, unit, data.input)
        return
    state.running += 1
    state.granted = plan.index
    state.stirred[unit.key] = unit
    if plan.timeout is not None:
        state.timers[f"deadline {unit.key}"] = ts + round(plan.timeout * 1e6)


def _dispatched(state: RunState, ts: int) -> None:
    state.status = "running"
    if state.dispatched_at is None:
        state.dispatched_at = ts


def _take_unit(state: RunState, node: NodeState, visit: int) -> Unit:
    """The unit that this event starts: from the due queue, else from what would have become due."""
    waiting = state.due.get(node.plan.id)
    if waiting:
        unit = waiting.popleft()
        if not waiting:
            del state.due[node.plan.id]
        return unit
    unit = Unit(node.plan, visit, None)
    if node.plan.join_any:
        for token in state.tokens:
            if token.target == node.plan.id:
                state.tokens.remove(token)
                break
    else:
        state.frontier.remove(node.plan.id)
    return unit


def _open_items(state: RunState, node: NodeState, outer: Unit, items: list[Any]) -> None:
    node.outer = outer
    node.items = items
    node.open_items = len(items)
    plan = node.plan
    if plan.timeout is not None:
        state.timers[f"deadline {outer.key}"] = outer.started + round(plan.timeout * 1e6)
    queue: deque[Unit] = deque()
    for i, item in enumerate(items):
        unit = Unit(plan, outer.visit, i)
        unit.item, unit.clock = item, outer.clock
        node.units[i] = unit
        queue.append(unit)
    if queue:
        state.due[plan.id] = queue
    else:
        _settle(state, outer)


def _leave_due(state: RunState, unit: Unit) -> None:
    queue = state.due.get(unit.node.id)
    if queue:
        if queue[0] is unit:
            queue.popleft()
        elif unit in queue:
            queue.remove(unit)
        if not queue:
            del state.due[unit.node.id]


def _step_completed(state: RunState, data: ev.WorkflowStepCompleted, offset: int, ts: int) -> None:
    unit = _close(state, data)
    unit.status, unit.output = "succeeded", data.output
    if data.iteration is not None:
        _item_done(state, unit)
        return
    node = state.nodes[data.step_id]
    state.steps_done["succeeded"] += 1
    outputs: dict[str, Any] = {"status": "success", "result": data.output}
    if node.plan.for_each is not None:
        outputs["items"] = _items_view(node)
    _step_ended(state, node, "succeeded", outputs, None, data.output)
    if node.plan.join_any:
        port = data.next
        targets = node.plan.next if port is UNSET or port is None else [node.plan.ports.get(port, port)]
        source = node.plan.agent.name if node.plan.agent else node.plan.id
        payload = unit.input if node.plan.kind == "condition" else data.output
        state.tokens.extend(Token(t, payload, source) for t in targets)


def _step_failed(state: RunState, data: ev.WorkflowStepFailed, offset: int, ts: int) -> None:
    if state.status in ("pending", "waiting"):
        _dispatched(state, ts)
    unit = _close(state, data)
    unit.error = data.error
    status: StepStatus = "cancelled" if data.error.category == "cancelled" else "failed"
    unit.status = status
    if data.iteration is not None:
        _item_done(state, unit)
        return
    node = state.nodes[data.step_id]
    state.steps_done[status] += 1
    if status == "failed" and node.plan.required:
        state.has_failed = True
        state.failed_steps.append(data.step_id)
    outputs = None
    if node.outer is not None:
        results = [u.output if u.status == "succeeded" else None for u in _units(node)]
        outputs = {"status": "failed", "result": results, "items": _items_view(node)}
    _step_ended(state, node, status, outputs, data.error, None)


def _step_skipped(state: RunState, data: ev.WorkflowStepSkipped, offset: int, ts: int) -> None:
    if state.status in ("pending", "waiting"):
        _dispatched(state, ts)
    unit = _close(state, data)
    unit.status = "skipped"
    if data.iteration is not None:
        _item_done(state, unit)
        return
    node = state.nodes[data.step_id]
    state.steps_done["skipped"] += 1
    state.skipped.append(data.step_id)
    _step_ended(state, node, "skipped", None, None, None)


def _step_retrying(state: RunState, data: ev.WorkflowStepRetrying, offset: int, ts: int) -> None:
    unit = _unit(state, data)
    unit.attempt = data.next_attempt
    state.nodes[data.step_id].attempt = data.next_attempt
    unit.failures += 1
    unit.first_failure = unit.first_failure or ts
    unit.error = None
    unit.due_at = ts + round(data.delay_ms * 1000)
    state.timers[f"retry {unit.key}"] = unit.due_at
    state.timers.pop(f"attempt {unit.key}", None)
    state.stirred[unit.key] = unit


def _close(state: RunState, data: Any) -> Unit:
    """Take the unit that ends out of every agenda. One that never started is made for its record."""
    key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
    unit = state.open.pop(key, None)
    if unit is None:
        node = state.nodes[data.step_id]
        if data.iteration is not None:
            unit = node.units[data.iteration]
            _leave_due(state, unit)
        else:
            unit = _take_unit(state, node, data.visit)
            node.visits = data.visit + 1
        return unit
    state.closed.append(key)
    outer = unit.iteration is None and unit.node.for_each is not None
    if not outer:
        if unit.status != "waiting":
            state.running -= 1  # a step that waits for a person holds no slot
        if unit.iteration is not None:
            state.nodes[unit.node.id].slots -= 1
    state.stirred.pop(key, None)
    if state.settled:
        state.settled.pop(key, None)
    if state.timers:
        for kind in ("deadline", "attempt", "retry"):
            state.timers.pop(f"{kind} {key}", None)
    return unit


def _item_done(state: RunState, unit: Unit) -> None:
    node = state.nodes[unit.node.id]
    node.open_items -= 1
    if node.open_items == 0 and node.outer is not None:
        _settle(state, node.outer)


def _settle(state: RunState, unit: Unit) -> None:
    unit.result_ready = True
    state.settled[unit.key] = unit


def _step_ended(
    state: RunState, node: NodeState, status: StepStatus, outputs: Any, error: Any, output: Any
) -> None:
    node.status = status
    plan = node.plan
    shown: dict[str, Any] | None = msgspec.to_builtins(error) if error is not None else None
    state.nodes_view[plan.id] = {
        "output": output,
        "status": status,
        "error": shown,
        "visits": node.visits,
    }
    if plan.join_any:
        return
    brief = None if shown is None else {k: shown[k] for k in ("category", "code", "message")}
    state.steps_view[plan.id] = {"outputs": outputs, "status": EXPRESSION_STATUS[status], "error": brief}
    for dependent in plan.dependents:
        waiting = state.nodes[dependent]
        waiting.waiting_for -= 1
        if waiting.waiting_for == 0:
            state.frontier.append(dependent)


def _units(node: NodeState) -> list[Unit]:
    return [node.units[i] for i in range(len(node.items))]


def _items_view(node: NodeState) -> list[dict[str, Any]]:
    return [
        {
            "index": u.iteration,
            "status": EXPRESSION_STATUS.get(u.status, u.status),
            "result": u.output if u.status == "succeeded" else None,
            "error": msgspec.to_builtins(u.error) if u.error is not None else None,
        }
        for u in _units(node)
    ]


def _unit(state: RunState, data: Any) -> Unit:
    return state.open[data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"]


# -- agents and models --------------------------------------------------------------------------


def _agent_initialized(state: RunState, data: ev.AgentInitialized, offset: int, ts: int) -> None:
    unit = _unit(state, data)
    progress = AgentProgress(data.context_id, data.system_prompt, data.input.data)
    progress.models = state.bindings.of(data.step_id).models
    progress.pending = conversation.opening(data.system_prompt, data.input.data)
    unit.agent = progress
    unit.attempt_started = ts
    unit.due_at = None
    state.timers.pop(f"retry {unit.key}", None)
    if unit.node.retry.timeout is not None:
        state.timers[f"attempt {unit.key}"] = ts + round(unit.node.retry.timeout * 1e6)
    state.stirred[unit.key] = unit


def _agent_processing(state: RunState, data: ev.AgentProcessing, offset: int, ts: int) -> None:
    _progress(state, data).turn = data.turn


def _agent_retrying(state: RunState, data: ev.AgentRetrying, offset: int, ts: int) -> None:
    unit = _unit(state, data)
    progress = unit.agent
    assert progress is not None
    due = ts + round(data.delay_ms * 1000)
    if data.kind == "restart":
        unit.attempt = data.next_attempt
        state.nodes[data.step_id].attempt = data.next_attempt
        unit.failures += 1
        unit.first_failure = unit.first_failure or ts
        unit.due_at = due
        unit.error = None
        state.timers.pop(f"attempt {unit.key}", None)
        state.timers[f"retry {unit.key}"] = due
    elif data.kind == "model":
        progress.due_at = due
        state.timers[f"retry {unit.key}"] = due
    elif data.kind == "fallback":
        progress.model_index += 1
        progress.failed_calls = 0
        progress.first_failure = None
    else:  # repair
        progress.repairs += 1
        progress.has_answer = False
        progress.pending = [conversation.repair(data.error)]
    state.stirred[unit.key] = unit


def _agent_completed(state: RunState, data: ev.AgentCompleted, offset: int, ts: int) -> None:
    unit = _unit(state, data)
    unit.output = data.output.data
    unit.agent_duration_ms = data.duration_ms
    _settle(state, unit)


def _agent_failed(state: RunState, data: ev.AgentFailed, offset: int, ts: int) -> None:
    unit = _unit(state, data)
    unit.error = data.error
    unit.agent_duration_ms = data.duration_ms
    _settle(state, unit)


def _model_started(state: RunState, data: ev.ModelCallStarted, offset: int, ts: int) -> None:
    unit = _unit(state, data)
    progress = unit.agent
    assert progress is not None
    progress.messages.extend(data.messages)
    progress.pending = []
    progress.tools = {}
    progress.digest = data.request_hash
    progress.model_call = data.model_call_id
    progress.due_at = None
    state.timers.pop(f"retry {unit.key}", None)
    _open_call(state, "model", data.model_call_id, unit, offset)


def _model_completed(state: RunState, data: ev.ModelCallCompleted, offset: int, ts: int) -> None:
    state.calls.pop(data.model_call_id, None)
    unit = _unit(state, data)
    progress = unit.agent
    assert progress is not None
    progress.model_call = None
    progress.failed_calls = 0
    progress.first_failure = None
    progress.last_error = None
    message = data.message
    progress.messages.append(message)
    if message.tool_calls:
        progress.tools = {c.id: ToolRecord(c, c.name) for c in message.tool_calls}
    else:
        progress.answer, progress.has_answer = message.content, True
    progress.finish_reason = data.finish_reason
    _use(state, unit, data.usage)
    state.stirred[unit.key] = unit


def _model_failed(state: RunState, data: ev.ModelCallFailed, offset: int, ts: int) -> None:
    state.calls.pop(data.model_call_id, None)
    unit = _unit(state, data)
    progress = unit.agent
    assert progress is not None
    progress.model_call = None
    if data.error.category != "interrupted":
        progress.failed_calls += 1
        progress.first_failure = progress.first_failure or ts
    progress.last_error = data.error
    if data.usage is not UNSET:
        _use(state, unit, data.usage)
    state.stirred[unit.key] = unit


# -- tools --------------------------------------------------------------------------------------


def _tool_started(state: RunState, data: ev.ToolCallStarted, offset: int, ts: int) -> None:
    unit = _unit(state, data)
    record = _record(unit, data.tool_call_id)
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
        _use(state, unit, _ONE_TOOL_CALL)
    if record.info is not None and not record.info.safe:
        unit.unsafe = True
    unit.due_at = None
    if state.timers:
        state.timers.pop(f"retry {unit.key}", None)
    _open_call(state, "tool", data.tool_call_id, unit, offset)
    state.stirred[unit.key] = unit


def _tool_completed(state: RunState, data: ev.ToolCallCompleted, offset: int, ts: int) -> None:
    state.calls.pop(data.tool_call_id, None)
    unit = _unit(state, data)
    record = _record(unit, data.tool_call_id)
    assert record is not None
    record.state, record.output, record.executed = "done", data.output, True
    _tool_settled(state, unit, record)


def _tool_failed(state: RunState, data: ev.ToolCallFailed, offset: int, ts: int) -> None:
    state.calls.pop(data.tool_call_id, None)
    unit = _unit(state, data)
    record = _record(unit, data.tool_call_id)
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
            _settle(state, unit)
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


# -- people -------------------------------------------------------------------------------------


def _input_requested(state: RunState, data: ev.InputRequested, offset: int, ts: int) -> None:
    unit = _unit(state, data)
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
    record = _record(unit, request.call_id)
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


# -- shared -------------------------------------------------------------------------------------


def _progress(state: RunState, data: Any) -> AgentProgress:
    progress = _unit(state, data).agent
    assert progress is not None
    return progress


def _record(unit: Unit, call_id: str) -> ToolRecord | None:
    if unit.tool is not None and unit.tool.call.id == call_id:
        return unit.tool
    return unit.agent.tools.get(call_id) if unit.agent is not None else None


def _open_call(state: RunState, kind: Any, call_id: str, unit: Unit, offset: int) -> None:
    call = OpenCall(kind, call_id, unit, offset)
    state.calls[call_id] = call
    state.fresh.append(call)


def _use(state: RunState, unit: Unit, usage: Usage) -> None:
    unit.usage = add_usage(unit.usage, usage)
    state.usage = add_usage(state.usage, usage)


_FOLDS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    ev.WorkflowStarted: _started,
    ev.WorkflowWaiting: _waiting,
    ev.WorkflowPaused: _paused,
    ev.WorkflowResumed: _resumed,
    ev.WorkflowCancelRequested: _cancel_requested,
    ev.WorkflowCompleted: _completed,
    ev.WorkflowFailed: _failed,
    ev.WorkflowCancelled: _cancelled,
    ev.WorkflowStepStarted: _step_started,
    ev.WorkflowStepCompleted: _step_completed,
    ev.WorkflowStepFailed: _step_failed,
    ev.WorkflowStepSkipped: _step_skipped,
    ev.WorkflowStepRetrying: _step_retrying,
    ev.AgentInitialized: _agent_initialized,
    ev.AgentProcessing: _agent_processing,
    ev.AgentRetrying: _agent_retrying,
    ev.AgentCompleted: _agent_completed,
    ev.AgentFailed: _agent_failed,
    ev.ModelCallStarted: _model_started,
    ev.ModelCallCompleted: _model_completed,
    ev.ModelCallFailed: _model_failed,
    ev.ToolCallStarted: _tool_started,
    ev.ToolCallCompleted: _tool_completed,
    ev.ToolCallFailed: _tool_failed,
    ev.InputRequested: _input_requested,
    ev.InputReceived: _input_received,
    ev.InputCancelled: _input_cancelled,
}
