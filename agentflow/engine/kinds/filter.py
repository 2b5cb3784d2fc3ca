"""`filter`: the elements of an array for which an expression is true (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.expressions import EvaluationError, Expression
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import FilterNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.arrays import array_at
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression, expression_error, is_true, path_expression

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class _Program(NamedTuple):
    items: Expression
    keeps: Expression


class Filter(Kind):
    """Keeps the elements for which its expression is true, in order."""

    name = "filter"

    def compile(self, node: Node) -> Any:
        """Return the path of the array and the expression."""
        spec = node.spec
        assert isinstance(spec, FilterNode)
        return _Program(path_expression(spec.items_path), expression(spec.expression, node.expression_room))

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once."""
        program: _Program = activation.node.program
        items = array_at(state, activation, program.items, state.graph.options.max_filter_items)
        kept = items if isinstance(items, ErrorInfo) else _kept(state, activation, items)
        if isinstance(kept, ErrorInfo):
            return step_failed(activation, kept, now)
        return step_completed(state, activation, now, output=kept)


def _kept(state: RunState, activation: Activation, items: list[Any]) -> list[Any] | ErrorInfo:
    scope = state.scope(activation)
    keeps: Expression = activation.node.program.keeps
    kept: list[Any] = []
    for index, item in enumerate(items):
        scope["item"] = scope["map_item"] = item
        scope["index"] = scope["map_index"] = scope["item_index"] = index
        try:
            if is_true(keeps.evaluate(scope)):
                kept.append(item)
        except EvaluationError as error:
            failed = expression_error(error, "/expression")
            message = f"item {index}: {failed.message}"
            details = {**(failed.details or {}), "index": index}
            return msgspec.structs.replace(failed, message=message, details=details)
    return kept


KIND = Filter()
