"""What an agent does next: its turns, tool calls, repairs and end (page 000 §3, §4; page 001 §5.5).

Pure: every function reads the state and returns the events that say what is to happen.
"""

from __future__ import annotations

import hashlib
from typing import Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import AgentSpec, ModelRef, canonical_json
from agentflow.engine import conversation
from agentflow.engine.bindings import ModelTerms
from agentflow.engine.budgets import call_exceeds, exceeded_moves
from agentflow.engine.ends import fault
from agentflow.engine.ids import derive
from agentflow.engine.moves import (
    Moves,
    elapsed_ms,
    retrying,
    scope_fields,
    size_of,
)
from agentflow.engine.respond import attempt_failed
from agentflow.engine.state import AgentProgress, RunState, Unit
from agentflow.engine.tool_calls import tool_moves
from agentflow.events import catalogue as ev
from agentflow.events.families.calls import AgentInput, AgentInputMetadata, AgentOutput, AgentOutputMetadata

__all__ = ["initialize", "model_of", "next_moves"]

MAX_REPAIRS = 2
_NO_TERMS = ModelTerms()


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


def model_of(progress: AgentProgress) -> ModelRef:
    """The model that serves the next call: the first one, or a fallback."""
    return progress.models[min(progress.model_index, len(progress.models) - 1)]


def _spec(unit: Unit) -> AgentSpec:
    spec = unit.node.agent
    assert spec is not None
    return spec


# -- model turns --------------------------------------------------------------------------------


def _model_moves(state: RunState, unit: Unit, progress: AgentProgress, now: int) -> Moves:
    spec = _spec(unit)
    moves: Moves = []
    repeat = progress.last_error is not None
    turn = progress.turn if repeat else progress.turn + 1
    if not repeat:
        if progress.turn - progress.repairs >= spec.max_turns:
            message = f"no answer after {spec.max_turns} turns"
            return attempt_failed(state, unit, fault("agent", "max_turns_exceeded", message), now, 0.0)
        count = len(progress.messages) + len(progress.pending)
        moves.append(
            ev.AgentProcessing(
                **scope_fields(unit),
                agent_name=spec.name,
                context_id=progress.context_id,
                turn=turn,
                messages_count=count,
            )
        )
    ref = model_of(progress)
    terms = state.bindings.of(unit.node.id).terms.get(ref.name, _NO_TERMS)
    said, may_write = _reserve(progress, ref, terms)
    cost = terms.cost(said, may_write)
    over = call_exceeds(state, unit, tokens=said + may_write, cost=cost)
    if over is not None:
        return exceeded_moves(state, unit, over, now)
    new = tuple(progress.pending)
    attempt = progress.failed_calls
    moves.append(
        ev.ModelCallStarted(
            **scope_fields(unit),
            model_call_id=derive("mcl_", now, progress.context_id, turn, attempt, state.next_offset),
            agent_name=spec.name,
            provider=ref.provider,
            model=ref.model,
            turn=turn,
            parameters=ref.parameters,
            messages_from=len(progress.messages),
            messages=new,
            request_hash=_request_hash(progress.digest, ref, new),
            reserved=ev.Reserved(tokens=said + may_write, cost_usd=cost),
        )
    )
    return moves


def _request_hash(before: str, ref: ModelRef, new: tuple[Any, ...]) -> str:
    """Chained over the calls of a context, so that hashing stays linear in what is said."""
    body = canonical_json([before, ref.provider, ref.model, ref.parameters, new])
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _reserve(progress: AgentProgress, ref: ModelRef, terms: ModelTerms) -> tuple[int, int]:
    """The worst case in tokens, read and written: about four characters to one, and all that the model may
    write (nothing when nobody knows how much that is: then one call may go over)."""
    said = sum(len(m.content) for m in progress.messages) + sum(len(m.content) for m in progress.pending)
    limit = ref.parameters.get("max_tokens", terms.max_output_tokens)
    return said // 4, limit if isinstance(limit, int) else 0


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
