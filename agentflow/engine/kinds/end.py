"""`end`: what the run has reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from agentflow.definition.expressions import EvaluationError, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import EndNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.path import Path
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, value_template

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class EndProgram(NamedTuple):
    """The templates of an end."""

    output: Template | None
    error: Template | None


class End(Kind):
    """Takes the token that ends its path. Without `drain` it stops the run, or the path that it stands on."""

    name = "end"
    is_end = True
    moves_tokens_only = True

    def compile(self, node: Node) -> Any:
        """Return the templates of the output and of the error; None where there is none."""
        spec = node.spec
        assert isinstance(spec, EndNode)
        output = None if spec.output is msgspec.UNSET else value_template(spec.output)
        return EndProgram(output, None if spec.error is None else value_template(spec.error))

    def fails(self, node: Node) -> bool:
        """Return whether it states so."""
        spec = node.spec
        assert isinstance(spec, EndNode)
        return spec.status == "failed"

    def path_failure(self, state: RunState, path: Path, node: Node) -> ErrorInfo | None:
        """Return the error with which a path that has reached the end fails; None if it is completed."""
        spec = node.spec
        assert isinstance(spec, EndNode)
        if spec.status == "completed":
            return None
        said: Any = None
        if node.program.error is not None:
            try:
                said = node.program.error.evaluate(state.scope(path=path))
            except EvaluationError as error:
                return expression_error(error, "/error")
        return _error_of(node, said)

    def stops(self, node: Node) -> bool:
        """Return whether the end does not wait for the other tokens of its path."""
        spec = node.spec
        assert isinstance(spec, EndNode)
        return not spec.drain

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once: with the output that is declared, else with what arrived."""
        template = activation.node.program.output
        output = activation.input
        if template is not None:
            try:
                output = template.evaluate(state.scope(activation))
            except EvaluationError as error:
                return step_failed(activation, expression_error(error, "/output"), now)
        return step_completed(state, activation, now, output=output)


def _error_of(node: Node, said: Any) -> ErrorInfo:
    """Return the error that a failing end states: a text is its message."""
    stated: dict[str, Any] = cast("dict[str, Any]", said) if isinstance(said, dict) else {"message": said}
    message, code, details = stated.get("message"), stated.get("code"), stated.get("details")
    text = message if isinstance(message, str) and message else f"the run reached {node.name}, which fails it"
    known = cast("dict[str, Any]", details) if isinstance(details, dict) else None
    return ErrorInfo(
        category="agent",
        code=code if isinstance(code, str) and code else "end_failed",
        message=text,
        details=known,
    )


KIND = End()
