"""`transform`: a value made of others (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.ir import TransformNode
from agentflow.definition.kinds.transform import literal
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression, expression_error, value_template

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class _Program(NamedTuple):
    """An expression or template with the field that it stands in; without one, a literal."""

    made_of: Any
    field: str
    literal: Any = None


class Transform(Kind):
    """Gives the value of its expression or template."""

    name = "transform"

    def compile(self, node: Node) -> Any:
        """Return the literal, the expression, or the template."""
        spec = node.spec
        assert isinstance(spec, TransformNode)
        if spec.expression is None:
            return _Program(value_template(spec.value), "/value")
        found = literal(spec.expression)
        if found is not msgspec.UNSET:
            return _Program(None, "", found)
        return _Program(expression(spec.expression, node.expression_room), "/expression")

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once."""
        program: _Program = activation.node.program
        output = program.literal
        if program.made_of is not None:
            try:
                output = program.made_of.evaluate(state.scope(activation))
            except EvaluationError as error:
                return step_failed(activation, expression_error(error, program.field), now)
        return step_completed(state, activation, now, output=output)


KIND = Transform()
