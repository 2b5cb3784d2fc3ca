"""`tool`: one call of a function (page 003 §4, page 000 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.conversation import ToolCall
from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ToolNode
from agentflow.definition.node import NodeBase
from agentflow.definition.pipeline_nodes import PLAN_STEP, stage_of
from agentflow.definition.policy import RetryPolicy
from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.budgets import exceeded_moves, tool_calls_exceed
from agentflow.engine.decisions import Decisions, step_failed
from agentflow.engine.ids import derive
from agentflow.engine.kinds.kind import CALL_EVENTS, Kind, Prepared
from agentflow.engine.kinds.stated_retry import stated_retry
from agentflow.engine.readable import worker_context
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, value_template
from agentflow.engine.tool_calls import settle_unknown, start_tool
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND", "Tool", "first_call"]


class Tool(Kind):
    """Calls one function. A call that fails is repeated by the policy of the node when that is safe."""

    name = "tool"
    takes_slot = True
    events = CALL_EVENTS
    said: str | None = "last_tool_output"

    def form_of(self, spec: NodeBase) -> Kind:
        """Return the kind of a step of a plan, or of the verifier and the writer of the request pipeline, if
        this is one."""
        if spec.metadata and PLAN_STEP in spec.metadata:
            from agentflow.engine.kinds.stage_call import PLAN_STEP_CALL

            return PLAN_STEP_CALL
        if stage_of(spec) is None:
            return self
        from agentflow.engine.kinds.stage_tool import STAGE_TOOL

        return STAGE_TOOL

    def compile(self, node: Node) -> Any:
        """Return the template of the parameters; None without one: the payload is what the call gets."""
        spec = node.spec
        assert isinstance(spec, ToolNode)
        return None if spec.input is msgspec.UNSET else value_template(spec.input)

    def makes_plain_call(self, node: Node) -> bool:
        """Return whether the node has no gate, limit, cache, write or message of its own."""
        return type(self) is Tool and not node.routes and self.is_bare(node)

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate the parameters."""
        template = activation.node.program
        if activation.snapshot is not None:
            value = activation.snapshot["input"]
            return Prepared(value, {"input": value})
        value = activation.input
        if template is not None:
            try:
                value = template.evaluate(state.scope(activation))
            except EvaluationError as error:
                return expression_error(error, "/agent/input")
        return Prepared(value, {"input": value})

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Make the call at once. What a budget may forbid is decided once the step has started."""
        if state.budget or state.step_budgets:
            return []
        return first_call(state, activation, prepared.input, now)

    def context(self, state: RunState, activation: Activation) -> Any:
        """Return what a worker handler may read of its run: input, nodes and globals, each as far as the node
        is granted; None for other functions."""
        return worker_context(activation)

    def call_policy(self, activation: Activation) -> RetryPolicy:
        """Return its policy; a stated one that names no categories repeats all that may be mended."""
        stated = activation.node.spec.policy
        retry = activation.node.retry
        return retry if stated is None or stated.retry is None else stated_retry(retry)

    def is_idle(self, activation: Activation) -> bool:
        """Return whether the call, or the question about it, is under way."""
        return activation.tool is not None and activation.tool.state in ("open", "asked")

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Make the call, make it again, ask about it, or give it up."""
        record = activation.tool
        if activation.due_at is not None and now < activation.due_at:
            return []
        if record is None:
            over = tool_calls_exceed(state, activation, 1)
            if over is not None:
                return exceeded_moves(state, activation, over, now)
            return first_call(state, activation, activation.input, now)
        if record.state == "planned":
            return start_tool(state, activation, record, now)
        if record.state == "unknown":
            return settle_unknown(state, activation, [record], now)
        if record.state == "failed" and record.error is not None:
            return step_failed(activation, self.failure(activation, record.error), now)
        return []

    def failure(self, activation: Activation, error: ErrorInfo) -> ErrorInfo:
        """Return the failure of the node: that it took too long, that its attempts are used up, or else the
        error of the call. The cause is the error of the last attempt."""
        attempts = activation.failures + 1
        details: dict[str, Any] = {"attempts": attempts}
        if error.category == "timeout" and error.code not in _OWN_CODES:
            code = "tool_timeout"
        elif attempts > 1 and self.call_policy(activation).covers(error.category, error.code):
            code = "tool_retry_exhausted"
            details["last_error"] = msgspec.to_builtins(error)
        else:
            return error
        if attempts == 1 and error.code == code:
            return error
        message = f"{activation.node.id}: {error.message}"
        return ErrorInfo(category=error.category, code=code, message=message, details=details, cause=error)


_OWN_CODES = frozenset({"run_deadline", "step_deadline"})
"""Codes of limits that are not those of the call."""


def first_call(state: RunState, activation: Activation, parameters: Any, now: int) -> Decisions:
    """Make the one call of the node; a call that cannot be made fails the step with the same error."""
    call_id = derive("call_", now, state.workflow_id, activation.key)
    node = activation.node
    name = next(iter(state.bindings.of_node(node).tools), node.id)
    record = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
    record.parameters = parameters
    decisions = start_tool(state, activation, record, now)
    if isinstance(decisions[-1], ev.ToolCallFailed):
        begins = activation.key not in state.open and activation.iteration is None
        decisions += step_failed(activation, decisions[-1].error, now, clock=state.clock if begins else None)
    return decisions


KIND = Tool()
