"""What an agent does next: its turns, tool calls, repairs and end (page 000 §3, §4; page 001 §5.5).

Pure: every function reads the state and returns the events that say what is to happen.
"""

from __future__ import annotations

import hashlib
from typing import Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import AgentSpec, ModelRef, canonical_json
from agentflow.engine import conversation
from agentflow.engine.budgets import Exceeded, asked_about_budget, exceeded_moves
from agentflow.engine.call_queue import bounds_calls, bounds_output, next_call
from agentflow.engine.ends import fault
from agentflow.engine.ids import derive
from agentflow.engine.moves import (
    Moves,
    elapsed_ms,
    retrying,
    scope_fields,
    size_of,
)
from agentflow.engine.reservations import Need, need_of, with_output_limit
from agentflow.engine.respond import attempt_failed
from agentflow.engine.state import AgentProgress, RunState, Unit, model_of
from agentflow.engine.tool_calls import tool_moves
from agentflow.events import catalogue as ev
from agentflow.events.families.calls import AgentInput, AgentInputMetadata, AgentOutput, AgentOutputMetadata

__all__ = ["admit_calls", "initialize", "next_moves"]

MAX_REPAIRS = 2


def initialize(
    state: RunState, unit: Unit, prompt: str, data: Any, previous: str | None, now: int
) -> list[Any]:
    """`agent.initialized`: a fresh context for this attempt."""
    spec = _spec(unit)
    binding = state.bindings.of(unit.node.id)
    context_id = derive("ctx_", now, state.workflow_id, unit.key, unit.attempt)
    return [
        ev.AgentInitialized(
            **scope_fields(unit),
            agent_name=spec.name,
            context_id=context_id,
            system_prompt=prompt,
            model=binding.models[0].name if binding.models else "",
            input=AgentInput(
                data=data,
                metadata=AgentInputMetadata(step_index=unit.node.index, previous_agent=previous),
            ),
            tools=tuple(
                ev.ToolDigest(name=t.name, schema_hash=t.schema_hash) for t in binding.tools.values()
            ),
        )
    ]


def next_moves(state: RunState, unit: Unit, now: int) -> Moves:
    """What this agent does now; empty while it waits for a call, a timer or a person."""
    state.call_queue.pop(unit.key, None)
    progress = unit.agent
    if unit.due_at is not None:  # between two attempts
        if progress is None or now < unit.due_at:
            return []
        return initialize(
            state, unit, progress.system_prompt, progress.user_input, unit.node.previous_agent, now
        )
    if progress is None or progress.model_call is not None or unit.result_ready:
        return []
    if progress.tools:
        return tool_moves(state, unit, progress, now)
    if progress.has_answer:
        return _answer_moves(state, unit, progress, now)
    if progress.due_at is not None and now < progress.due_at:
        return []
    return _model_moves(state, unit, progress, now)


def _spec(unit: Unit) -> AgentSpec:
    spec = unit.node.agent
    assert spec is not None
    return spec


# -- model turns --------------------------------------------------------------------------------


def _model_moves(state: RunState, unit: Unit, progress: AgentProgress, now: int) -> Moves:
    """Begin the next turn and its model call. A call that a budget bounds goes through the queue; its turn
    has begun then, so that the log says since when the call waits."""
    moves: Moves = []
    if not progress.turn_open:
        spec = _spec(unit)
        if progress.turn - progress.repairs >= spec.max_turns:
            message = f"no answer after {spec.max_turns} turns"
            return attempt_failed(state, unit, fault("agent", "max_turns_exceeded", message), now, 0.0)
        moves.append(
            ev.AgentProcessing(
                **scope_fields(unit),
                agent_name=spec.name,
                context_id=progress.context_id,
                turn=progress.turn + 1,
                messages_count=len(progress.messages) + len(progress.pending),
            )
        )
    if bounds_calls(state, unit):
        if not moves and not asked_about_budget(state, unit):
            state.call_queue[unit.key] = (unit, _need(state, unit, progress))
        return moves
    turn = progress.turn + len(moves)
    need = _need(state, unit, progress)
    return [*moves, _call_started(state, unit, need, need.ref.parameters, need.output, turn, now)]


def _need(state: RunState, unit: Unit, progress: AgentProgress) -> Need:
    return need_of(progress, unit, state.bindings.of(unit.node.id), model_of(progress))


def admit_calls(state: RunState, now: int) -> Moves:
    """Make the first queued call that fits its budgets; without room for it, what they say is to happen."""
    while (found := next_call(state)) is not None:
        unit, need, fitting = found
        del state.call_queue[unit.key]
        if isinstance(fitting, Exceeded):
            moves = exceeded_moves(state, unit, fitting, now)
            if moves:
                return moves
            continue
        parameters = need.ref.parameters
        if bounds_output(state, unit):
            parameters = with_output_limit(parameters, fitting)
        assert unit.agent is not None
        return [_call_started(state, unit, need, parameters, fitting, unit.agent.turn, now)]
    return []


def _call_started(
    state: RunState, unit: Unit, need: Need, parameters: dict[str, Any], output: int, turn: int, now: int
) -> ev.ModelCallStarted:
    progress, ref = unit.agent, need.ref
    assert progress is not None
    new = tuple(progress.pending)
    attempt = progress.failed_calls
    return ev.ModelCallStarted(
        **scope_fields(unit),
        model_call_id=derive("mcl_", now, progress.context_id, turn, attempt, state.next_offset),
        agent_name=_spec(unit).name,
        provider=ref.provider,
        model=ref.model,
        turn=turn,
        parameters=parameters,
        messages_from=len(progress.messages),
        messages=new,
        request_hash=_request_hash(progress.digest, ref, parameters, new),
        reserved=ev.Reserved(tokens=need.tokens(output), cost_usd=need.cost(output)),
    )


def _request_hash(before: str, ref: ModelRef, parameters: dict[str, Any], new: tuple[Any, ...]) -> str:
    """Chained over the calls of a context, so that hashing stays linear in what is said."""
    body = canonical_json([before, ref.provider, ref.model, parameters, new])
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _answer_moves(state: RunState, unit: Unit, progress: AgentProgress, now: int) -> Moves:
    spec = _spec(unit)
    if progress.finish_reason == "content_filter":
        message = "the provider withheld the answer"
        return attempt_failed(state, unit, fault("agent", "content_filtered", message), now, 0.0)
    if not progress.answer.strip() and not conversation.takes_any_text(spec):
        return _empty_answer_moves(state, unit, progress, now)
    try:
        value = conversation.read_answer(spec, progress.answer)
    except conversation.BadAnswer as bad:
        error = ErrorInfo(
            category="invalid_output",
            code="schema_mismatch",
            message=f"the answer of {spec.name} does not satisfy its schema: {bad}",
            details={"errors": bad.errors},
        )
        if progress.repairs < MAX_REPAIRS:
            return retrying(unit, "repair", error, 0, now)
        return attempt_failed(state, unit, error, now, 0.0)
    duration = elapsed_ms(unit.attempt_started, now)
    return [
        ev.AgentCompleted(
            **scope_fields(unit),
            agent_name=spec.name,
            context_id=progress.context_id,
            duration_ms=duration,
            output_size=size_of(value),
            output=AgentOutput(
                data=value,
                metadata=AgentOutputMetadata(
                    agent_name=spec.name,
                    execution_time_ms=duration,
                    tool_calls_count=unit.tool_calls,
                ),
            ),
            turns=progress.turn,
            usage=unit.usage,
        )
    ]


def _empty_answer_moves(state: RunState, unit: Unit, progress: AgentProgress, now: int) -> Moves:
    """An answer with neither text nor calls: the model is told once in a context, then the attempt fails."""
    error = ErrorInfo(
        category="invalid_output",
        code="empty_answer",
        message=f"the model of {_spec(unit).name} answered with neither text nor calls",
    )
    if progress.repairs < MAX_REPAIRS and conversation.EMPTY_REPAIR not in progress.messages:
        return retrying(unit, "repair", error, 0, now)
    return attempt_failed(state, unit, error, now, 0.0)
