"""`condition`: one of two ways, by an expression (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.ir import ConditionNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression, expression_error, is_true

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class Condition(Kind):
    """Sends the token that it got to `on_true` or `on_false`; its output is the boolean."""

    name = "condition"

    def compile(self, node: Node) -> Any:
        """Return the expression."""
        spec = node.spec
        assert isinstance(spec, ConditionNode)
        return expression(spec.expression, node.expression_room)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Decide at once."""
        try:
            value = is_true(activation.node.program.evaluate(state.scope(activation)))
        except EvaluationError as error:
            return step_failed(activation, expression_error(error, "/expression"), now)
        return step_completed(
            state, activation, now, output=value, next_port="on_true" if value else "on_false"
        )

    def payload(self, activation: Activation) -> Any:
        """Return the payload that it got, because the boolean has done its work by choosing the way."""
        return activation.input


KIND = Condition()
