"""`retry_compensate`: a function that is tried again, and another one for its failure (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.conversation import ToolCall
from agentflow.definition.expressions import EvaluationError, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.kinds.retry_compensate import RetryCompensateNode
from agentflow.definition.policy import NO_RETRY, RetryPolicy
from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.budgets import exceeded_moves, tool_calls_exceed
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.ids import derive
from agentflow.engine.kinds.kind import CALL_EVENTS, Kind, Prepared
from agentflow.engine.kinds.stated_retry import stated_retry
from agentflow.engine.readable import worker_context
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, value_template
from agentflow.engine.tool_calls import settle_unknown, start_tool

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class _Program(NamedTuple):
    """The templates of both inputs; None where the node has none."""

    input: Template | None
    compensate: Template | None


class _Outcome(NamedTuple):
    """How the function ended, then how its compensation did."""

    attempts: int
    value: Any = None
    error: ErrorInfo | None = None
    is_compensated: bool = False
    compensation: Any = None
    compensation_error: ErrorInfo | None = None


class RetryCompensate(Kind):
    """Two functions, one after the other; each is called, repeated and asked about as that of a tool node."""

    name = "retry_compensate"
    takes_slot = True
    takes_calls = True
    events = CALL_EVENTS
    said = "last_tool_output"

    def compile(self, node: Node) -> Any:
        """Return the templates; the node gets the policy of its function."""
        spec = _spec(node)
        stated = None if spec.policy is None else spec.policy.retry
        policy = stated_retry(stated or RetryPolicy())
        node.retry = msgspec.structs.replace(
            policy, max_attempts=spec.max_retries + 1, timeout=None if stated is None else stated.timeout
        )
        inputs = (spec.input, spec.compensate_input)
        return _Program(*(None if one is msgspec.UNSET else value_template(one) for one in inputs))

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate both inputs, before anything is called."""
        if activation.snapshot is not None:
            value = {name: activation.snapshot[name] for name in ("input", "compensate_input")}
            return Prepared(value, value)
        program: _Program = activation.node.program
        scope, field = state.scope(activation), "/input"
        try:
            given = activation.input if program.input is None else program.input.evaluate(scope)
            field = "/compensate_input"
            other = given if program.compensate is None else program.compensate.evaluate(scope)
        except EvaluationError as error:
            return expression_error(error, field)
        value = {"input": given, "compensate_input": other}
        return Prepared(value, value)

    def is_idle(self, activation: Activation) -> bool:
        """Return whether a call, or the question about it, is under way."""
        return activation.tool is not None and activation.tool.state in ("open", "asked")

    def call_policy(self, activation: Activation) -> RetryPolicy:
        """Return the policy of the function whose turn it is."""
        if activation.local is None:
            return activation.node.retry
        policy = _spec(activation.node).compensate_policy
        stated = None if policy is None else policy.retry
        return NO_RETRY if stated is None else stated_retry(stated)

    def context(self, state: RunState, activation: Activation) -> Any:
        """Return what a worker handler may read of its run."""
        return worker_context(activation)

    def call_settled(self, state: RunState, activation: Activation, record: ToolRecord) -> None:
        """Keep how the function ended; after a failure the other has its turn, with retries of its own."""
        before: _Outcome | None = activation.local
        if before is not None:
            done = record.state == "done"
            activation.local = before._replace(
                is_compensated=done,
                compensation=record.output if done else None,
                compensation_error=None if done else record.error,
            )
            return
        attempts = activation.failures + 1
        if record.state == "done":
            activation.local = _Outcome(attempts, value=record.output)
            return
        activation.local = _Outcome(attempts, error=record.error)
        activation.tool, activation.due_at = None, None
        activation.failures, activation.first_failure = 0, None

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Make the call whose turn it is, again if need be, or end."""
        if activation.due_at is not None and now < activation.due_at:
            return []
        outcome: _Outcome | None = activation.local
        if outcome is not None and (outcome.error is None or outcome.is_compensated):
            return _completed(state, activation, outcome, now)
        if outcome is not None and outcome.compensation_error is not None:
            return _failed(activation, outcome, now)
        record = activation.tool
        if record is None:
            over = tool_calls_exceed(state, activation, 1)
            if over is not None:
                return exceeded_moves(state, activation, over, now)
            return start_tool(state, activation, _record(state, activation, now), now)
        if record.state == "planned":
            return start_tool(state, activation, record, now)
        if record.state == "unknown":
            return settle_unknown(state, activation, [record], now)
        return []


def _spec(node: Node) -> RetryCompensateNode:
    assert isinstance(node.spec, RetryCompensateNode)
    return node.spec


def _record(state: RunState, activation: Activation, now: int) -> ToolRecord:
    """Return the call of the function whose turn it is."""
    spec, compensates = _spec(activation.node), activation.local is not None
    wanted = spec.compensate_tool if compensates else spec.tool
    tools = state.bindings.of_node(activation.node).tools
    found = (name for name, info in tools.items() if f"{info.service}.{info.function}" == wanted)
    name = next(found, wanted)
    turn = "compensate" if compensates else "call"
    call_id = derive("call_", now, state.workflow_id, activation.key, turn)
    record = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
    record.parameters = activation.input["compensate_input" if compensates else "input"]
    return record


def _completed(state: RunState, activation: Activation, outcome: _Outcome, now: int) -> Decisions:
    if outcome.error is None:
        output = {"status": "ok", "attempt": outcome.attempts, "value": outcome.value}
        return step_completed(state, activation, now, output=output)
    output = {
        "status": "compensated",
        "attempts": outcome.attempts,
        "last_error": msgspec.to_builtins(outcome.error),
        "compensation": outcome.compensation,
    }
    port = "on_compensated" if activation.node.targets("on_compensated") else "next"
    return step_completed(state, activation, now, output=output, next_port=port)


def _failed(activation: Activation, outcome: _Outcome, now: int) -> Decisions:
    assert outcome.compensation_error is not None
    details = {
        "attempts": outcome.attempts,
        "compensation_error": msgspec.to_builtins(outcome.compensation_error),
    }
    message = (
        f"{activation.node.id} failed, and so did its compensation: {outcome.compensation_error.message}"
    )
    error = ErrorInfo(
        category="agent",
        code="retry_compensate_failed",
        message=message,
        details=details,
        cause=outcome.error,
    )
    return step_failed(activation, error, now)


KIND = RetryCompensate()
