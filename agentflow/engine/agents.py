"""What an agent does next: its turns, tool calls, repairs and end (page 000 §3, §4; page 001 §5.5).

Pure: every function reads the state and returns the events that say what is to happen.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, cast

from msgspec import UNSET

from agentflow.definition.failure import Category, ErrorInfo
from agentflow.definition.ir import AgentSpec, ModelRef, canonical_json
from agentflow.definition.schemas import validate
from agentflow.engine import conversation
from agentflow.engine.ids import derive
from agentflow.engine.moves import (
    Moves,
    elapsed_ms,
    idempotency_key,
    retrying,
    scope_fields,
    size_of,
    step_failed,
)
from agentflow.engine.state import AgentProgress, RunState, ToolRecord, Unit
from agentflow.events import catalogue as ev
from agentflow.events.families.calls import AgentInput, AgentInputMetadata, AgentOutput, AgentOutputMetadata

__all__ = ["agent_failed", "initialize", "model_of", "next_moves", "settle_unknown", "start_tool"]

MAX_REPAIRS = 2
TOOLS_AT_ONCE = 8


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
        return _tool_moves(state, unit, progress, now)
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
            return agent_failed(unit, _error("agent", "max_turns_exceeded", message), now)
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
            reserved=ev.Reserved(tokens=_reserve(progress, ref), cost_usd=None),
        )
    )
    return moves


def _request_hash(before: str, ref: ModelRef, new: tuple[Any, ...]) -> str:
    """Chained over the calls of a context, so that hashing stays linear in what is said."""
    body = canonical_json([before, ref.provider, ref.model, ref.parameters, new])
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _reserve(progress: AgentProgress, ref: ModelRef) -> int:
    """The worst case in tokens: about four characters to one, and all that the model may write."""
    said = sum(len(m.content) for m in progress.messages) + sum(len(m.content) for m in progress.pending)
    limit = ref.parameters.get("max_tokens", 0)
    return said // 4 + (limit if isinstance(limit, int) else 0)


def _answer_moves(state: RunState, unit: Unit, progress: AgentProgress, now: int) -> Moves:
    spec = _spec(unit)
    if progress.finish_reason == "content_filter":
        message = "the provider withheld the answer"
        return agent_failed(unit, _error("agent", "content_filtered", message), now)
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
        return agent_failed(unit, error, now)
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


def agent_failed(
    unit: Unit, error: ErrorInfo, now: int, *, outcome: Literal["failed", "unknown"] = "failed"
) -> Moves:
    """The end of a step whose agent failed for good (a tool node has no agent events)."""
    moves: Moves = []
    spec, progress = unit.node.agent, unit.agent
    if spec is not None and progress is not None:
        moves.append(
            ev.AgentFailed(
                **scope_fields(unit),
                agent_name=spec.name,
                context_id=progress.context_id,
                duration_ms=elapsed_ms(unit.attempt_started, now),
                error=error,
                turns=progress.turn,
                tool_calls_count=unit.tool_calls,
                usage=unit.usage,
            )
        )
    return moves + step_failed(unit, error, now, outcome=outcome)


# -- tool calls ---------------------------------------------------------------------------------


def _tool_moves(state: RunState, unit: Unit, progress: AgentProgress, now: int) -> Moves:
    spec = _spec(unit)
    records = list(progress.tools.values())
    unknown = [r for r in records if r.state == "unknown"]
    if unknown:
        return settle_unknown(state, unit, unknown, now)
    at_once = TOOLS_AT_ONCE if spec.parallel_tool_calls else 1
    room = at_once - sum(r.state == "open" for r in records)
    moves: Moves = []
    begun = 0
    for record in records:
        if record.state != "planned" or begun >= room:
            continue
        if record.tries == 0 and unit.tool_calls + begun >= spec.max_tool_calls:
            if any(r.state == "open" for r in records) or moves:
                break  # what is under way ends first
            message = f"more than {spec.max_tool_calls} tool calls"
            return agent_failed(unit, _error("agent", "max_tool_calls_exceeded", message), now)
        begun += 1
        moves += start_tool(state, unit, record, now)
    return moves


def start_tool(state: RunState, unit: Unit, record: ToolRecord, now: int) -> Moves:
    """`tool.call_started`; followed at once by `tool.call_failed` when the call cannot be made."""
    tools = state.bindings.of(unit.node.id).tools
    info = tools.get(record.name)
    problem: ErrorInfo | None = None
    parameters = record.parameters
    if unit.agent is not None and record.tries == 0:
        parameters, problem = _arguments(record.call.arguments)
    if info is None:
        names = ", ".join(tools) or "none"
        problem = _error("policy", "tool_not_attached", f"{record.name} is not attached; attached: {names}")
    elif problem is None and not (info.self_checked and isinstance(parameters, dict)):
        issues = validate(info.input_schema, parameters)
        if issues:
            problem = ErrorInfo(
                category="invalid_input",
                code="invalid_tool_input",
                message=f"the arguments of {record.name} do not satisfy its schema",
                details={"errors": [{"path": i.path, "message": i.message} for i in issues]},
            )
    call_id = record.call.id
    moves: Moves = [
        ev.ToolCallStarted(
            **scope_fields(unit),
            tool_call_id=call_id,
            tool_name=record.name,
            service=info.service if info is not None else UNSET,
            parameters=parameters,
            agent_name=unit.node.agent.name if unit.node.agent else None,
            side_effect=info.side_effect if info else "none",
            idempotency_key=idempotency_key(state, unit, call_id),
        )
    ]
    if problem is not None:
        moves.append(
            ev.ToolCallFailed(
                **scope_fields(unit),
                tool_call_id=call_id,
                tool_name=record.name,
                duration_ms=0,
                error=problem,
                executed=False,
                outcome="not_started",
                will_retry=False,
            )
        )
    return moves


def _arguments(text: str) -> tuple[Any, ErrorInfo | None]:
    try:
        value: Any = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text, _error("invalid_input", "invalid_tool_input", "the arguments are not JSON")
    if not isinstance(value, dict):
        return value, _error("invalid_input", "invalid_tool_input", "the arguments are not a JSON object")
    return cast(dict[str, Any], value), None


def settle_unknown(state: RunState, unit: Unit, unknown: list[ToolRecord], now: int) -> Moves:
    """A call that may have happened: ask a person, or fail (page 000 §11 rule 4)."""
    if state.on_unknown == "fail":
        record = unknown[0]
        error = ErrorInfo(
            category="tool",
            code="outcome_unknown",
            message=f"{record.name} may have been executed, its result was not recorded",
            details={"tool_call_id": record.call.id},
        )
        return agent_failed(unit, error, now, outcome="unknown")
    asked = {r.call_id for r in state.requests.values()}
    return [_question(state, unit, r, now) for r in unknown if r.call.id not in asked]


def _question(state: RunState, unit: Unit, record: ToolRecord, now: int) -> Any:
    return ev.InputRequested(
        **scope_fields(unit),
        request_id=derive("req_", now, state.workflow_id, record.call.id, record.tries),
        request_type="outcome_unknown",
        request={
            "tool_call_id": record.call.id,
            "tool_name": record.name,
            "parameters": record.parameters,
            "message": f"{record.name} may have been executed; its result was not recorded",
        },
        response_schema={
            "type": "object",
            "properties": {"choice": {"enum": ["retry", "done", "fail"]}, "output": True},
            "required": ["choice"],
            "additionalProperties": False,
        },
    )


def _error(category: Category, code: str, message: str) -> ErrorInfo:
    return ErrorInfo(category=category, code=code, message=message)
