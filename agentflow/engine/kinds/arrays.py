"""What kinds that read an array at a path have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agentflow.definition.expressions import EvaluationError, Expression, json_type_of
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["array_at", "too_many"]


def array_at(state: RunState, activation: Activation, path: Expression, limit: int) -> list[Any] | ErrorInfo:
    """Return the array at `items_path`, of at most `limit` elements, or why there is none."""
    node = activation.node
    name = node.kind.name
    try:
        value = path.evaluate(state.scope(activation))
    except EvaluationError as error:
        return expression_error(error, "/items_path")
    if not isinstance(value, list):
        message = f"items_path of {node.id} gave {json_type_of(value)}, not an array"
        return ErrorInfo(category="invalid_input", code=f"{name}_items_not_array", message=message)
    items = cast("list[Any]", value)
    return items if len(items) <= limit else too_many(node, len(items), limit)


def too_many(node: Node, count: int, limit: int) -> ErrorInfo:
    """Return the error of a node that has more items than a run may have."""
    message = f"{node.id} got {count} items, the limit is {limit}"
    code = f"{node.kind.name}_item_limit_exceeded"
    return ErrorInfo(category="agent", code=code, message=message, details={"limit": limit})
