"""What an agent does next: its turns, tool calls, repairs and end (page 000 §3, §4; page 001 §5.5).

Pure: every function reads the state and returns the events that say what is to happen.
"""

from __future__ import annotations

import hashlib
from typing import Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import AgentSpec, ModelRef, canonical_json
from agentflow.engine.activation import Activation
from agentflow.engine.agents import conversation
from agentflow.engine.agents.failure import fault
from agentflow.engine.agents.handoffs import handed_over
from agentflow.engine.agents.progress import AgentProgress
from agentflow.engine.budgets import Exceeded, exceeded_moves
from agentflow.engine.call_queue import bounds_calls, bounds_output, need_of_next, next_calls
from agentflow.engine.call_results import attempt_failed
from agentflow.engine.decisions import (
    Decisions,
    elapsed_ms,
    retrying,
    scope_fields,
    size_of,
)
from agentflow.engine.ids import derive
from agentflow.engine.reservations import Need, with_output_limit
from agentflow.engine.state import RunState
from agentflow.engine.tool_calls import tool_moves
from agentflow.events import catalogue as ev
from agentflow.events.families.calls import AgentInput, AgentInputMetadata, AgentOutput, AgentOutputMetadata

__all__ = ["admit_calls", "begin_turn", "complete", "initialize", "next_turn"]

MAX_REPAIRS = 2


def initialize(state: RunState, activation: Activation, prompt: str, data: Any, now: int) -> Decisions:
    """Return `agent.initialized`: a fresh context for this attempt."""
    spec = _spec(activation)
    binding = state.bindings.of_node(activation.node)
    context_id = derive("ctx_", now, state.workflow_id, activation.key, activation.attempt)
    return [
        ev.AgentInitialized(
            **scope_fields(activation),
            agent_name=spec.name,
            context_id=context_id,
            system_prompt=prompt,
            model=binding.models[0].name if binding.models else "",
            input=AgentInput(
                data=data,
                metadata=AgentInputMetadata(
                    step_index=activation.node.index, previous_agent=activation.node.previous_agent
                ),
            ),
            tools=tuple(ev.ToolDigest(name=t.name, schema_hash=t.schema_hash) for t in binding.offered()),
        )
    ]


def begin_turn(activation: Activation, progress: AgentProgress) -> ev.AgentProcessing:
    """Return `agent.processing`, with which the next turn of an agent begins."""
    return ev.AgentProcessing(
        **scope_fields(activation),
        agent_name=_spec(activation).name,
        context_id=progress.context_id,
        turn=progress.turn + 1,
        messages_count=len(progress.messages) + len(progress.pending),
    )


def complete(activation: Activation, value: Any, now: int) -> Decisions:
    """Return `agent.completed`: the end of the step follows it."""
    spec, progress = _spec(activation), activation.agent
    assert progress is not None
    duration = elapsed_ms(activation.attempt_started, now)
    return [
        ev.AgentCompleted(
            **scope_fields(activation),
            agent_name=spec.name,
            context_id=progress.context_id,
            duration_ms=duration,
            output_size=size_of(value),
            output=AgentOutput(
                data=value,
                metadata=AgentOutputMetadata(
                    agent_name=spec.name,
                    execution_time_ms=duration,
                    tool_calls_count=activation.tool_calls,
                ),
            ),
            turns=progress.turn,
            usage=activation.usage,
        )
    ]


def next_turn(state: RunState, activation: Activation, now: int) -> Decisions:
    """Return what this agent does now; empty while it waits for a call, a timer or a person."""
    progress = activation.agent
    if activation.due_at is not None:  # between two attempts
        if progress is None or now < activation.due_at:
            return []
        return initialize(state, activation, progress.system_prompt, progress.user_input, now)
    if progress is None or progress.model_call is not None or activation.result_ready:
        return []
    if progress.tools:
        over = handed_over(_spec(activation), progress) if _spec(activation).handoffs else None
        if over is not None:
            return activation.node.kind.answered_with(state, activation, over, now)
        return tool_moves(state, activation, progress, now)
    if progress.has_answer:
        return _answer_moves(state, activation, progress, now)
    if progress.due_at is not None and now < progress.due_at:
        return []
    return _model_moves(state, activation, progress, now)


def _spec(activation: Activation) -> AgentSpec:
    spec = activation.node.agent
    assert spec is not None
    return spec


# -- model turns --------------------------------------------------------------------------------


def _model_moves(state: RunState, activation: Activation, progress: AgentProgress, now: int) -> Decisions:
    """Begin the next turn and its model call. A call that a budget bounds goes through the queue; its turn
    has begun then, so that the log says since when the call waits."""
    moves: Decisions = []
    if not progress.turn_open:
        spec = _spec(activation)
        if progress.loops_in:
            message = f"{progress.loops_in} was called again and again with the same arguments and result"
            return attempt_failed(activation, fault("agent", "tool_loop", message), now, 0.0)
        if progress.turn - progress.repairs >= spec.max_turns:
            message = f"no answer after {spec.max_turns} turns"
            return attempt_failed(activation, fault("agent", "max_turns_exceeded", message), now, 0.0)
        moves.append(activation.node.kind.begin_turn(state, activation, progress))
    if bounds_calls(state, activation):
        return moves
    turn = progress.turn + len(moves)
    need = need_of_next(state, activation)
    return [*moves, _call_started(state, activation, need, need.ref.parameters, need.output, turn, now)]


def admit_calls(state: RunState, now: int) -> Decisions:
    """Make the first queued call that fits its budgets; without room for it, what they say is to happen."""
    for activation, need, fitting in next_calls(state, now):
        if isinstance(fitting, Exceeded):
            moves = exceeded_moves(state, activation, fitting, now)
            if moves:
                return moves
            continue
        parameters = need.ref.parameters
        if bounds_output(state, activation):
            parameters = with_output_limit(parameters, fitting)
        assert activation.agent is not None
        return [_call_started(state, activation, need, parameters, fitting, activation.agent.turn, now)]
    return []


def _call_started(
    state: RunState,
    activation: Activation,
    need: Need,
    parameters: dict[str, Any],
    output: int,
    turn: int,
    now: int,
) -> ev.ModelCallStarted:
    progress, ref = activation.agent, need.ref
    assert progress is not None
    new = tuple(progress.pending)
    attempt = progress.failed_calls
    return ev.ModelCallStarted(
        **scope_fields(activation),
        model_call_id=derive("mcl_", now, progress.context_id, turn, attempt, state.next_offset),
        agent_name=activation.node.agent_name,
        provider=ref.provider,
        model=ref.model,
        turn=turn,
        parameters=parameters,
        messages_from=len(progress.messages),
        messages=new,
        request_hash=_request_hash(progress.digest, ref, parameters, new),
        reserved=ev.Reserved(tokens=need.tokens(output), cost_usd=need.cost(output)),
        server=need.terms.server,
    )


def _request_hash(before: str, ref: ModelRef, parameters: dict[str, Any], new: tuple[Any, ...]) -> str:
    """Chained over the calls of a context, so that hashing stays linear in what is said."""
    body = canonical_json([before, ref.provider, ref.model, parameters, new])
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _answer_moves(state: RunState, activation: Activation, progress: AgentProgress, now: int) -> Decisions:
    spec = _spec(activation)
    if progress.finish_reason == "content_filter":
        message = "the provider withheld the answer"
        return attempt_failed(activation, fault("agent", "content_filtered", message), now, 0.0)
    if not progress.answer.strip() and not conversation.takes_any_text(spec):
        return _empty_answer_moves(state, activation, progress, now)
    try:
        value, events = activation.node.kind.read_answer(activation, progress)
    except conversation.BadAnswer as bad:
        error = ErrorInfo(
            category="invalid_output",
            code="schema_mismatch",
            message=f"the answer of {spec.name} does not satisfy its schema: {bad}",
            details={"errors": bad.errors},
        )
        if progress.repairs < MAX_REPAIRS:
            return retrying(activation, "repair", error, 0, now)
        return attempt_failed(activation, error, now, 0.0)
    return [*events, *activation.node.kind.answered_with(state, activation, value, now)]


def _empty_answer_moves(
    state: RunState, activation: Activation, progress: AgentProgress, now: int
) -> Decisions:
    """Tell the model once in a context that its answer was empty; fail the attempt the second time."""
    error = ErrorInfo(
        category="invalid_output",
        code="empty_answer",
        message=f"the model of {_spec(activation).name} answered with neither text nor calls",
    )
    if progress.repairs < MAX_REPAIRS and conversation.EMPTY_REPAIR not in progress.messages:
        return retrying(activation, "repair", error, 0, now)
    return attempt_failed(activation, error, now, 0.0)
