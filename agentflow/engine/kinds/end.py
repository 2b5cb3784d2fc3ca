"""`end`: what the run has reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.ir import EndNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, value_template

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class End(Kind):
    """Takes the token that ends its path. Without `drain` it stops the run, or the path that it stands on."""

    name = "end"
    is_end = True
    moves_tokens_only = True

    def compile(self, node: Node) -> Any:
        """Return the template of the output; None without one."""
        spec = node.spec
        assert isinstance(spec, EndNode)
        return None if spec.output is msgspec.UNSET else value_template(spec.output)

    def stops(self, node: Node) -> bool:
        """Return whether the end does not wait for the other tokens of its path."""
        spec = node.spec
        assert isinstance(spec, EndNode)
        return not spec.drain

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once: with the output that is declared, else with what arrived."""
        template = activation.node.program
        output = activation.input
        if template is not None:
            try:
                output = template.evaluate(state.scope(activation))
            except EvaluationError as error:
                return step_failed(activation, expression_error(error, "/output"), now)
        return step_completed(state, activation, now, output=output)


KIND = End()
