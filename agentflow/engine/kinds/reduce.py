"""`reduce`: an array becomes one value (page 003 §4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from agentflow.definition.expressions import EvaluationError, json_type_of
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ReduceNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.frames import ABSENT
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, path_expression

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph, Node

__all__ = ["KIND"]


class _Unfit(Exception):
    """An array that the operation cannot fold: what is wrong, and the index of the element if it is one."""

    def __init__(self, reason: str, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.index = index


class Reduce(Kind):
    """Folds the array that its source gave, or that stands at its path."""

    name = "reduce"

    def compile(self, node: Node) -> Any:
        """Return the path of the array; None for a source."""
        path = _spec(node).items_path
        return None if path is None else path_expression(path)

    def link(self, graph: Graph, node: Node) -> None:
        """Note the name of the source as expressions see it."""
        source = _spec(node).source
        if source is not None:
            prefix = node.id.removesuffix(node.name)
            node.program = graph.nodes[prefix + source]

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once."""
        spec = _spec(activation.node)
        value = _array(state, activation)
        if isinstance(value, ErrorInfo):
            return step_failed(activation, value, now)
        try:
            if not isinstance(value, list):
                raise _Unfit("not_array", f"it got {json_type_of(value)}, not an array")
            output = _OPERATIONS[spec.operation](cast("list[Any]", value))
        except _Unfit as unfit:
            return step_failed(activation, _invalid(activation.node, unfit), now)
        return step_completed(state, activation, now, output=output)


def _spec(node: Node) -> ReduceNode:
    spec = node.spec
    assert isinstance(spec, ReduceNode)
    return spec


def _array(state: RunState, activation: Activation) -> Any:
    node = activation.node
    if _spec(node).source is None:
        try:
            return node.program.evaluate(state.scope(activation))
        except EvaluationError as error:
            return expression_error(error, "/items_path")
    source: Node = node.program
    view = activation.path.frame.get("nodes", source.name)
    if view is not ABSENT and view["status"] == "succeeded":
        return view["output"]
    message = f"{node.id} needs an output of {source.name}, which has none here"
    details = {"source": source.name}
    return ErrorInfo(category="agent", code="missing_merge_source", message=message, details=details)


def _invalid(node: Node, unfit: _Unfit) -> ErrorInfo:
    details: dict[str, Any] = {"reason": unfit.reason}
    if unfit.index is not None:
        details["index"] = unfit.index
    message = f"{node.id} cannot {_spec(node).operation}: {unfit}"
    return ErrorInfo(category="invalid_input", code="invalid_reduce_input", message=message, details=details)


# -- operations -----------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(items: list[Any]) -> list[Any]:
    for i, item in enumerate(items):
        if not _is_number(item):
            raise _Unfit("not_number", f"item {i} is no number", i)
    return items


def _sum(items: list[Any]) -> Any:
    """Return the sum: exact of integers, correctly rounded with floats."""
    if all(isinstance(n, int) for n in _numbers(items)):
        return sum(items)
    try:
        return math.fsum(items)
    except OverflowError:
        raise _Unfit("overflow", "the sum is beyond all floats") from None


def _avg(items: list[Any]) -> Any:
    """Return the mean: an integer if integers have one."""
    if not items:
        return None
    total, count = _sum(items), len(items)
    if isinstance(total, int) and total % count == 0:
        return total // count
    try:
        return total / count
    except OverflowError:
        raise _Unfit("overflow", "the mean is beyond all floats") from None


def _extreme(choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def chosen(items: list[Any]) -> Any:
        if items and all(isinstance(item, str) for item in items):
            return choose(items)
        return choose(_numbers(items)) if items else None

    return chosen


def _concat(items: list[Any]) -> Any:
    """Return arrays as one array, or texts as one text."""
    if not items:
        return None
    wanted = str if isinstance(items[0], str) else list
    for i, item in enumerate(items):
        if not isinstance(item, wanted):
            raise _Unfit("not_concatenable", f"item {i} is not an array like all, or text like all", i)
    return "".join(items) if wanted is str else [member for item in items for member in item]


def _merge(items: list[Any]) -> Any:
    """Return objects as one; of equal keys the later one holds."""
    found: dict[str, Any] = {}
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise _Unfit("not_object", f"item {i} is no object", i)
        found |= cast("dict[str, Any]", item)
    return found if items else None


_OPERATIONS: dict[str, Callable[[list[Any]], Any]] = {
    "count": len,
    "sum": _sum,
    "min": _extreme(min),
    "max": _extreme(max),
    "avg": _avg,
    "concat": _concat,
    "merge": _merge,
    "first": lambda items: items[0] if items else None,
    "last": lambda items: items[-1] if items else None,
}

KIND = Reduce()
