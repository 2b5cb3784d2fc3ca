"""`loop`: a body that leads back to it, as long as an expression is true (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import LoopNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.path import NodeState
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression, expression_error, is_true

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class Loop(Kind):
    """Sends the token that it got to `body` while its condition is true, else to `next`.

    Counts, on each path, how often in a row it did the former; any other way begins the count anew.
    """

    name = "loop"
    shows_more = True

    def compile(self, node: Node) -> Any:
        """Return the condition."""
        spec = node.spec
        assert isinstance(spec, LoopNode)
        return expression(spec.condition, node.expression_room)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Decide at once."""
        spec = activation.node.spec
        assert isinstance(spec, LoopNode)
        try:
            value = is_true(activation.node.program.evaluate(state.scope(activation)))
        except EvaluationError as error:
            return step_failed(activation, expression_error(error, "/condition"), now)
        port = "body" if value else "next"
        limit = spec.max_iterations
        if value and limit is not None and state.node_of(activation).count >= limit:
            if spec.on_limit is None:
                return step_failed(activation, _too_many(activation.node, limit), now)
            port = "on_limit"
        return step_completed(state, activation, now, output=value, next_port=port)

    def ended(self, activation: Activation, place: NodeState, data: Any) -> None:
        """Count a way round."""
        port = getattr(data, "next", UNSET)
        place.count = place.count + 1 if port == "body" else 0

    def view(self, activation: Activation, place: NodeState) -> dict[str, Any]:
        """Return the count."""
        return {"count": place.count}

    def payload(self, activation: Activation) -> Any:
        """Return the payload that it got."""
        return activation.input


def _too_many(node: Node, limit: int) -> ErrorInfo:
    message = f"the condition of {node.id} was still true after {limit} iterations"
    return ErrorInfo(
        category="agent",
        code="loop_iteration_limit_exceeded",
        message=message,
        details={"limit": limit},
    )


KIND = Loop()
