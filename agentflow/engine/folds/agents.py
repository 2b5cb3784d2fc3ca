"""How the events of agents and their model calls change the state."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Usage
from agentflow.engine.activation import Activation
from agentflow.engine.agents import conversation
from agentflow.engine.agents.progress import AgentProgress, Measured, ToolRecord
from agentflow.engine.arrivals import mirror
from agentflow.engine.folds.common import (
    extend_attempt,
    open_call,
    record_of,
    settle,
    use,
    wake,
    wake_after,
    was_away,
)
from agentflow.engine.folds.slots import insist
from agentflow.engine.machine import at_work
from agentflow.engine.reservations import output_limit, terms_of, written_at_most
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["FOLDS"]


def _agent_initialized(state: RunState, data: ev.AgentInitialized, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    progress = AgentProgress(data.context_id, data.system_prompt, data.input.data)
    progress.models = state.bindings.of_node(activation.node).models
    progress.offered = frozenset((tool.name, tool.schema_hash) for tool in data.tools)
    spec = activation.node.agent
    assert spec is not None
    if spec.exchanges == "messages":
        progress.pending = conversation.shared_opening(spec, data.system_prompt, data.input.data)
    else:
        progress.pending = conversation.opening(spec, data.system_prompt, data.input.data)
    activation.agent = progress
    activation.attempt_started = ts
    activation.due_at = None
    state.timers.disarm(f"retry {activation.key}")
    if activation.node.retry.timeout is not None:
        state.timers[f"attempt {activation.key}"] = ts + round(activation.node.retry.timeout * 1e6)
    wake(state, activation)


def _agent_processing(state: RunState, data: ev.AgentProcessing, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    progress = activation.agent
    assert progress is not None
    progress.turn, progress.turn_open, progress.asked_at = data.turn, True, ts
    wake(state, activation)


def _input_resolved(state: RunState, data: ev.NodeLlmInputResolved, offset: int, ts: int) -> None:
    """Fold the beginning of a turn of an LLM node; with the first one its conversation begins."""
    activation = at_work(state, data)
    progress = activation.agent
    if progress is None:
        progress = activation.agent = activation.node.kind.open_conversation(state, activation)
    progress.turn += 1
    progress.turn_open, progress.asked_at = True, ts
    wake(state, activation)


def _agent_retrying(state: RunState, data: ev.AgentRetrying, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    progress = activation.agent
    assert progress is not None
    due = ts + round(data.delay_ms * 1000)
    if data.kind == "restart":
        activation.attempt = data.next_attempt
        place = state.node_of(activation)
        place.attempt = data.next_attempt
        mirror(state, activation, place)
        activation.failures += 1
        activation.first_failure = activation.first_failure or ts
        activation.due_at = due
        activation.error = None
        state.timers.disarm(f"attempt {activation.key}")
        state.timers[f"retry {activation.key}"] = due
    elif data.kind == "model":
        progress.due_at = progress.asked_at = due
        state.timers[f"retry {activation.key}"] = due
    elif data.kind == "fallback":
        later = range(progress.model_index + 1, len(progress.models))
        named = (index for index in later if progress.models[index].name == data.model)
        progress.model_index = next(named, progress.model_index + 1)
        progress.asked_at = ts
        progress.failed_calls = 0
        progress.first_failure = None
    else:  # repair
        progress.repairs += 1
        progress.has_answer = False
        progress.pending = [conversation.repair(data.error)]
    wake_after(state, activation, data.delay_ms)


def _agent_completed(state: RunState, data: ev.AgentCompleted, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    activation.output = data.output.data
    settle(state, activation)


def _agent_failed(state: RunState, data: ev.AgentFailed, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    activation.error = data.error
    settle(state, activation)


def _model_started(state: RunState, data: ev.ModelCallStarted, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    progress = activation.agent
    if progress is None:  # a handler's
        record = record_of(activation, data.model_call_id)
        if record is None:
            record = activation.node.kind.add_call(activation, data.model_call_id, data.model)
        record.state, record.safe = "open", True
        _reserve(state, activation, data, offset)
        return
    progress.messages.extend(data.messages)
    progress.pending = []
    progress.tools = {}
    progress.digest = data.request_hash
    progress.model_call = data.model_call_id
    progress.due_at = None
    state.timers.disarm(f"retry {activation.key}")
    extend_attempt(state, activation, ts)
    progress.asked_at = None
    state.changed.pop(activation.key, None)
    state.call_queue.pop(activation.key, None)
    if state.returning:
        insist(state, activation, ts)
    _reserve(state, activation, data, offset)


def _reserve(state: RunState, activation: Activation, data: ev.ModelCallStarted, offset: int) -> None:
    call = open_call(state, "model", data.model_call_id, activation, offset)
    call.tokens, call.cost, call.parameters = data.reserved.tokens, data.reserved.cost_usd, data.parameters
    call.model = f"{data.provider}:{data.model}"
    terms = terms_of(state.bindings.of_node(activation.node), call.model)
    call.output_tokens = min(call.tokens, written_at_most(data.parameters, terms))
    call.input_tokens = call.tokens - call.output_tokens


def _model_completed(state: RunState, data: ev.ModelCallCompleted, offset: int, ts: int) -> None:
    call = state.calls.pop(data.model_call_id, None)
    activation = at_work(state, data)
    progress = activation.agent
    if progress is None:
        record = record_of(activation, data.model_call_id)
        assert record is not None
        record.state, record.executed = "done", True
        record.output = {
            "message": msgspec.to_builtins(data.message),
            "finish_reason": data.finish_reason,
            "response_model": data.response_model,
            "usage": msgspec.to_builtins(data.usage),
        }
        activation.interruptions = 0
        use(state, activation, data.usage)
        return
    progress.model_call = None
    progress.failed_calls = 0
    progress.first_failure = None
    progress.turn_open = False
    progress.min_output = 0
    if call is not None:
        _measure(progress, call.model, data.usage)
    activation.interruptions = 0
    message = data.message
    progress.messages.append(message)
    if message.tool_calls:
        progress.tools = {c.id: ToolRecord(c, c.name) for c in message.tool_calls}
    else:
        progress.answer, progress.has_answer = message.content, True
    progress.finish_reason = data.finish_reason
    use(state, activation, data.usage)
    wake(state, activation)


def _measure(progress: AgentProgress, model: str, usage: Usage) -> None:
    """Remember how many tokens the conversation so far has. A context only grows, so that a smaller count
    (some servers leave out what they have cached) is no better bound."""
    if usage.estimated is True or usage.input_tokens == 0:
        return
    known = progress.measured
    least = known.tokens if known is not None and known.model == model else 0
    progress.measured = Measured(model, len(progress.messages), max(least, usage.input_tokens))


def _model_failed(state: RunState, data: ev.ModelCallFailed, offset: int, ts: int) -> None:
    call = state.calls.pop(data.model_call_id, None)
    activation = at_work(state, data)
    progress = activation.agent
    if progress is None:
        record = record_of(activation, data.model_call_id)
        assert record is not None
        record.state, record.error = "failed", data.error
        if data.error.category == "interrupted":
            was_away(state, activation, data.error, ts)
        if data.usage is not UNSET:
            use(state, activation, data.usage)
        return
    progress.model_call = None
    progress.asked_at = ts
    if data.error.category == "interrupted":
        was_away(state, activation, data.error, ts)
    elif call is not None and data.error.category == "budget":
        # Cut at the limit that the budget left: made again only if that is larger, and not counted as failed.
        terms = terms_of(state.bindings.of_node(activation.node), call.model)
        progress.min_output = output_limit(call.parameters, terms) + 1
    else:
        progress.failed_calls += 1
        progress.first_failure = progress.first_failure or ts
    if data.usage is not UNSET:
        use(state, activation, data.usage)
    wake(state, activation)


def _noted(state: RunState, data: ev.NodeHealed | ev.NodeStreamDisabled, offset: int, ts: int) -> None:
    """Check that the node is at work; what was healed stands in its output."""
    at_work(state, data)


FOLDS: dict[type, Any] = {
    ev.NodeHealed: _noted,
    ev.NodeStreamDisabled: _noted,
    ev.AgentInitialized: _agent_initialized,
    ev.AgentProcessing: _agent_processing,
    ev.AgentRetrying: _agent_retrying,
    ev.NodeLlmInputResolved: _input_resolved,
    ev.AgentCompleted: _agent_completed,
    ev.AgentFailed: _agent_failed,
    ev.ModelCallStarted: _model_started,
    ev.ModelCallCompleted: _model_completed,
    ev.ModelCallFailed: _model_failed,
}
