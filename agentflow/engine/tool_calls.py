"""Tool calls: what is begun, what cannot be made, what follows an unknown outcome (page 000 §4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import UNSET

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.schemas import validate
from agentflow.engine.activation import Activation
from agentflow.engine.agents.conversation import parse
from agentflow.engine.agents.failure import agent_failed, fault
from agentflow.engine.agents.function_search import find, is_search
from agentflow.engine.agents.progress import AgentProgress, ToolRecord
from agentflow.engine.approvals import ask_call, call_needs_consent
from agentflow.engine.bindings import ToolInfo
from agentflow.engine.budgets import exceeded_moves, tool_calls_exceed
from agentflow.engine.decisions import Decisions, idempotency_key, scope_fields, size_of
from agentflow.engine.limits import close_calls
from agentflow.engine.lost_outcomes import ask_outcome
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["can_start_tools", "settle_unknown", "start_tool", "tool_moves"]

TOOLS_AT_ONCE = 8
_MAX_NAMED = 50
_UNDER_WAY = ("open", "asked")


def tool_moves(state: RunState, activation: Activation, progress: AgentProgress, now: int) -> Decisions:
    """Begin the calls that the model asked for and there is room for, in call order."""
    spec = activation.node.agent
    assert spec is not None
    records = list(progress.tools.values())
    unknown = [r for r in records if r.state == "unknown"]
    if unknown:
        return settle_unknown(state, activation, unknown, now)
    room = _room(records, parallel=spec.parallel_tool_calls)
    moves: Decisions = []
    begun = 0
    for record in records:
        if record.state != "planned" or begun >= room:
            continue
        if record.tries == 0 and activation.tool_calls + begun >= spec.max_tool_calls:
            if any(r.state in _UNDER_WAY for r in records) or moves:
                break  # what is under way ends first
            message = f"more than {spec.max_tool_calls} tool calls"
            return agent_failed(activation, fault("agent", "max_tool_calls_exceeded", message), now)
        over = tool_calls_exceed(state, activation, begun + 1) if record.tries == 0 else None
        if over is not None:
            if moves or any(r.state in _UNDER_WAY for r in records):
                break
            return exceeded_moves(state, activation, over, now)
        begun += 1
        moves += start_tool(state, activation, record, now)
    return moves


def _not_offered(name: str, tools: Mapping[str, ToolInfo], *, is_registered: bool) -> ErrorInfo:
    attached = f"attached: {', '.join([*tools][:_MAX_NAMED]) or 'none'}"
    if is_registered:
        return fault("policy", "tool_not_attached", f"{name} is not attached; {attached}")
    return fault("policy", "tool_not_found", f"there is no function {name}; {attached}")


def _room(records: Iterable[ToolRecord], *, parallel: bool) -> int:
    return (TOOLS_AT_ONCE if parallel else 1) - sum(r.state in _UNDER_WAY for r in records)


def can_start_tools(progress: AgentProgress, *, parallel: bool) -> bool:
    """Return whether a call of this round is to be begun or asked about."""
    records = progress.tools.values()
    if any(r.state == "unknown" for r in records):
        return True
    return any(r.state == "planned" for r in records) and _room(records, parallel=parallel) > 0


def start_tool(state: RunState, activation: Activation, record: ToolRecord, now: int) -> Decisions:
    """`tool.call_started`; followed at once by `tool.call_failed` when the call cannot be made. A call that
    needs a person's consent is asked about instead."""
    tools = state.bindings.of_node(activation.node).tools
    info = tools.get(record.name)
    problem: ErrorInfo | None = None
    parameters = record.parameters
    if activation.agent is not None and record.tries == 0:
        parameters, problem = _arguments(record.call.arguments)
    if info is None:
        problem = _not_offered(record.name, tools, is_registered=record.name in state.bindings.functions)
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
    if problem is None and record.denied is not None:
        problem = record.denied
    if problem is None and info is not None and call_needs_consent(activation, info, record):
        return ask_call(state, activation, record, parameters, now)
    moves: Decisions = [
        ev.ToolCallStarted(
            step_id=activation.node.id,
            iteration=activation.iteration,
            activation=activation.base_key,
            tool_call_id=call_id,
            tool_name=record.name,
            service=info.service or UNSET if info is not None else UNSET,
            parameters=parameters,
            agent_name=activation.node.agent_name,
            side_effect=info.side_effect if info else "none",
            idempotency_key=idempotency_key(state, activation, call_id),
            request_id=UNSET if record.approval is None else record.approval,
        )
    ]
    if problem is not None:
        moves.append(
            ev.ToolCallFailed(
                **scope_fields(activation),
                tool_call_id=call_id,
                tool_name=record.name,
                duration_ms=0,
                error=problem,
                executed=False,
                outcome="not_started",
                will_retry=False,
            )
        )
    elif is_search(info):
        output = find(tools, cast("dict[str, Any]", parameters))
        moves.append(
            ev.ToolCallCompleted(
                **scope_fields(activation),
                tool_call_id=call_id,
                tool_name=record.name,
                duration_ms=0,
                status="success",
                output=output,
                output_size=size_of(output),
            )
        )
    return moves


def _arguments(text: str) -> tuple[Any, ErrorInfo | None]:
    found, value = parse(text.strip() or "{}")
    if not found:
        return text, fault("invalid_input", "invalid_tool_input", "the arguments are not JSON")
    if not isinstance(value, dict):
        return value, fault("invalid_input", "invalid_tool_input", "the arguments are not a JSON object")
    return cast(dict[str, Any], value), None


def settle_unknown(state: RunState, activation: Activation, unknown: list[ToolRecord], now: int) -> Decisions:
    """Ask a person about a call that may have happened, or fail (page 000 §11 rule 4)."""
    if state.on_unknown == "fail":
        record = unknown[0]
        error = ErrorInfo(
            category="tool",
            code="outcome_unknown",
            message=f"{record.name} may have been executed, its result was not recorded",
            details={"tool_call_id": record.call.id},
        )
        closed = close_calls(state, activation, error, now)
        return closed + agent_failed(activation, error, now, closed=closed, outcome="unknown")
    asked = {r.call_id for r in state.requests.values()}
    moves: Decisions = []
    for record in unknown:
        if record.call.id not in asked:
            moves += ask_outcome(state, activation, record, now)
    return moves
