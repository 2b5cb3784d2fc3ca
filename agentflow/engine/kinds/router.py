"""`router`: the first of several ways whose expression is true (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.expressions import EvaluationError, Expression
from agentflow.definition.ir import RouterNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression, expression_error, is_true

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class _Route(NamedTuple):
    when: Expression
    target: str


class Router(Kind):
    """Sends the token that it got along the first true route, else to `default`."""

    name = "router"

    def compile(self, node: Node) -> Any:
        """Return the routes in declared order."""
        spec = node.spec
        assert isinstance(spec, RouterNode)
        return tuple(
            _Route(expression(route.when, node.expression_room), route.next) for route in spec.routes
        )

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Decide at once; routes behind the first true one are not evaluated."""
        node = activation.node
        spec = node.spec
        assert isinstance(spec, RouterNode)
        scope = state.scope(activation)
        routes: tuple[_Route, ...] = node.program
        for i, route in enumerate(routes):
            try:
                taken = is_true(route.when.evaluate(scope))
            except EvaluationError as error:
                return step_failed(activation, expression_error(error, f"/routes/{i}/when"), now)
            if taken:
                output = {"selected": route.target, "route": i}
                return step_completed(state, activation, now, output=output, next_port=f"routes/{i}/next")
        output = {"selected": spec.default, "route": None}
        return step_completed(state, activation, now, output=output, next_port="default")

    def payload(self, activation: Activation) -> Any:
        """Return the payload that it got."""
        return activation.input


KIND = Router()
