"""`map`: the same work for each element of an array (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from agentflow.definition.expressions import EvaluationError, Expression, Template, json_type_of
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import MapNode, NodeBase
from agentflow.definition.kinds.map import at_once
from agentflow.engine import arrivals, limits
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.group import Group, Spawning
from agentflow.engine.kinds.kind import Kind, Prepared
from agentflow.engine.kinds.tool import Tool
from agentflow.engine.mail import Taken
from agentflow.engine.messages import Outgoing, packed, type_of
from agentflow.engine.path import NodeState, Path
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, path_expression, value_template
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph, Node

__all__ = ["KIND"]


class _Program(NamedTuple):
    items: Expression
    input: Template | None


def _spec(node: Node) -> MapNode:
    spec = node.spec
    assert isinstance(spec, MapNode)
    return spec


def _compile(node: Node) -> _Program:
    spec = _spec(node)
    template = None if spec.input is msgspec.UNSET else value_template(spec.input)
    return _Program(path_expression(spec.items_path), template)


def _items(state: RunState, activation: Activation) -> list[Any] | ErrorInfo:
    """Return the array, or why there is none."""
    node = activation.node
    try:
        value = node.program.items.evaluate(state.scope(activation))
    except EvaluationError as error:
        return expression_error(error, "/items_path")
    return _checked(state, activation, value)


def _checked(state: RunState, activation: Activation, value: Any) -> list[Any] | ErrorInfo:
    """Return a value as the array of a map, or why it is none."""
    node = activation.node
    if not isinstance(value, list):
        message = f"items_path of {node.id} gave {json_type_of(value)}, not an array"
        return ErrorInfo(category="invalid_input", code="map_items_not_array", message=message)
    found, limit = cast("list[Any]", value), state.graph.options.max_map_items
    if len(found) <= limit:
        return found
    message = f"items_path of {node.id} gave {len(found)} items, the limit is {limit}"
    details = {"limit": limit}
    return ErrorInfo(category="agent", code="map_item_limit_exceeded", message=message, details=details)


def _item_failed(node: Node, index: int, cause: ErrorInfo | None) -> ErrorInfo:
    message = f"item {index} of {node.id} failed"
    details = {"index": index}
    return ErrorInfo(category="agent", code="item_failed", message=message, details=details, cause=cause)


def _output(how: str, results: list[tuple[bool, Any]]) -> list[Any]:
    """Return the results in the order of the items: null for one that failed, or nothing with `skip`."""
    return [value if good else None for good, value in results if good or how != "skip"]


class _Map(Kind):
    """Chooses the form of a map node: with `tool`, or with `body`."""

    name = "map"

    def form_of(self, spec: NodeBase) -> Kind:
        """Return the form."""
        assert isinstance(spec, MapNode)
        if spec.exchange:
            return _OVER_MESSAGE
        return _OVER_TOOL if spec.body is None else _OVER_BODY


class MapOverTool(Tool):
    """Calls a function for each item. Items are iterations, as of a for_each: they are retried and kept
    one by one, and count as no steps."""

    name = "map"
    said = None
    iterates = True
    shows_more = True

    def compile(self, node: Node) -> Any:
        """Return the path of the array and the template of the arguments."""
        return _compile(node)

    def link(self, graph: Graph, node: Node) -> None:
        """Bound the calls by the option of the run."""
        node.max_parallel = at_once(_spec(node), graph.options)

    def items(self, state: RunState, activation: Activation) -> list[Any] | ErrorInfo:
        """Return the array."""
        return _items(state, activation)

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate the arguments for one item; without a template they are the item."""
        template = activation.node.program.input
        value = activation.item
        if template is not None:
            try:
                value = template.evaluate(state.scope(activation))
            except EvaluationError as error:
                return expression_error(error, "/input")
        return Prepared(value, {"input": value})

    def item_ended(self, state: RunState, activation: Activation, item: Activation) -> bool:
        """Return whether the first failure ends the node."""
        failed = item.status in ("failed", "cancelled")
        return failed and _spec(activation.node).on_item_error == "fail"

    def end_of_items(self, state: RunState, activation: Activation, now: int) -> Decisions | None:
        """Return the results in the order of the items, or the first failure."""
        children = [activation.children[i] for i in range(len(activation.children))]
        how = _spec(activation.node).on_item_error
        failed = [c for c in children if c.status in ("failed", "cancelled")]
        if how == "fail" and failed:
            error = ErrorInfo(category="cancelled", code="cancelled", message="another item failed")
            moves: Decisions = []
            for child in children:
                if child.key in state.open:
                    moves += limits.abort(state, child, error, now)
            index = failed[0].iteration
            assert index is not None
            error = _item_failed(activation.node, index, failed[0].error)
            return moves + step_failed(activation, error, now, items=_results(children))
        output = _output(how, [(c.status == "succeeded", c.output) for c in children])
        return step_completed(state, activation, now, output=output, items=_results(children))

    def view(self, activation: Activation, place: NodeState) -> dict[str, Any]:
        """Return the failures by index."""
        failed = [(i, c.error) for i, c in sorted(activation.children.items()) if c.error is not None]
        return {"errors": [{"index": i, "error": msgspec.to_builtins(error)} for i, error in failed]}


def _results(children: list[Activation]) -> tuple[ev.ItemResult, ...]:
    """Return how each item ended; one that has not begun is cancelled with the node."""
    return tuple(
        ev.ItemResult(
            index=i,
            status=c.status if c.status in ("succeeded", "failed", "skipped") else "cancelled",
            **({} if c.error is None else {"error": c.error}),
        )
        for i, c in enumerate(children)
    )


class MapOverBody(Spawning):
    """Opens a child path at its body for each item; nodes on it read `item` and `index`."""

    name = "map"

    def compile(self, node: Node) -> Any:
        """Return the path of the array and the template of what the body gets."""
        return _compile(node)

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate the array: it is the input of the activation."""
        if activation.snapshot is not None:
            return super().prepare(state, activation)
        found = _items(state, activation)
        return found if isinstance(found, ErrorInfo) else Prepared(found, {"input": found})

    def total(self, state: RunState, activation: Activation) -> int:
        """Return the number of items."""
        return len(activation.input)

    def at_once(self, state: RunState, activation: Activation) -> int:
        """Return how many items may be at work at once."""
        return at_once(_spec(activation.node), state.graph.options)

    def take_over(self, state: RunState, activation: Activation, group: Group) -> None:
        """Keep what an earlier attempt finished: those items are never run again."""
        place = state.node_of(activation)
        if place.kept is not None and activation.attempt > 1:
            for index, path in place.kept.items():
                if index < group.total and path.item == activation.input[index]:
                    group.results[index] = path
                    group.finished.append(index)
        place.kept = None

    def begin_path(self, state: RunState, activation: Activation, path: Path) -> None:
        """Bring the item, or what the template makes of it, to the body."""
        path.item, path.item_path = activation.input[path.index], path
        arrivals.prepare_path(path)
        node = activation.node
        payload, template = path.item, node.program.input
        if template is not None:
            scope = state.scope(activation, path)
            scope["item"], scope["index"] = path.item, path.index
            try:
                payload = template.evaluate(scope)
            except EvaluationError as error:
                path.error = expression_error(error, "/input")
                return
        arrivals.deliver(state, path, node.targets("body")[0].target, payload)

    def verdict(self, activation: Activation, group: Group) -> tuple[bool, bool]:
        """Let the first failure decide, if it fails the node."""
        return bool(group.failed) and _spec(activation.node).on_item_error == "fail", True

    def finish(self, state: RunState, activation: Activation, group: Group, now: int) -> Decisions:
        """Return the results in the order of the items, or the first failure."""
        how = _spec(activation.node).on_item_error
        if group.failed and how == "fail":
            index = group.failed[0]
            error = _item_failed(activation.node, index, group.results[index].error)
            return step_failed(activation, error, now)
        paths = [group.results[i] for i in range(group.total)]
        output = _output(how, [(path.error is None, path.output) for path in paths])
        return self.complete(state, activation, group, now, output=output)

    def ended(self, activation: Activation, place: NodeState, data: Any) -> None:
        """Take over what the bodies gave; let go of the items of an attempt that is over for good."""
        super().ended(activation, place, data)
        place.kept = None

    def closed(self, state: RunState, activation: Activation) -> None:
        """Keep the finished items for the next attempt, should a person ask for one."""
        super().closed(state, activation)
        group: Group | None = activation.local
        if group is not None and state.on_failure == "hold":
            state.node_of(activation).kept = {i: group.results[i] for i in group.finished}

    def view(self, activation: Activation, place: NodeState) -> dict[str, Any]:
        """Return the failures by index."""
        group: Group | None = activation.local
        failed = [] if group is None else sorted(group.failed)
        errors = [(i, group.results[i].error) for i in failed] if group is not None else []
        return {"errors": [{"index": i, "error": msgspec.to_builtins(error)} for i, error in errors]}


class MapOverMessage(MapOverBody):
    """Opens a child path for each element of the list that arrives as a message; the body gets the element
    with its type, and what it sends is the result. The list of the results goes on as a typed message."""

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return the message as the array."""
        value = activation.input if activation.snapshot is None else activation.snapshot["input"]
        found = _checked(state, activation, value)
        return found if isinstance(found, ErrorInfo) else Prepared(found, {"input": found})

    def begin_path(self, state: RunState, activation: Activation, path: Path) -> None:
        """Bring the element to the body."""
        path.item, path.item_path = activation.input[path.index], path
        arrivals.prepare_path(path)
        taken = activation.taken
        tag, value = _element(path.item, "list" if taken is None else taken.type)
        target = activation.node.targets("body")[0].target
        arrivals.deliver(state, path, target, value, Taken(tag))

    def finish(self, state: RunState, activation: Activation, group: Group, now: int) -> Decisions:
        """Return the results in the order of the elements with their types, or the first failure."""
        how = _spec(activation.node).on_item_error
        if group.failed and how == "fail":
            return super().finish(state, activation, group, now)
        given = [group.results[i] for i in range(group.total)]
        kept = [path for path in given if path.error is None or how != "skip"]
        types = {path.output_type if path.error is None else "None" for path in kept}
        values = [path.output if path.error is None else None for path in kept]
        tag = f"list[{types.pop()}]" if len(types) == 1 else "list"
        if tag == "list":
            values = [_typed(path, value) for path, value in zip(kept, values, strict=True)]
        bases: tuple[str, ...] = ("list", "list[Any]")
        if not values:  # its type is that of what the body may send
            body: Any = activation.node.targets("body")[0].target.spec
            bases = (*(f"list[{one}]" for one in getattr(body, "emits", ())), *bases)
        sent = [Outgoing(type=tag, payload=values, bases=bases)]
        return step_completed(state, activation, now, output=values, messages=sent)

    def is_typed(self, spec: NodeBase) -> bool:
        """Return True: the results keep their types."""
        return True

    def accepts(self, node: Node, tags: tuple[str, ...], *, element: bool = False) -> bool:
        """Return whether the message is a list."""
        return any(tag == "list" or tag.startswith("list[") for tag in tags)


def _element(item: Any, tag: str) -> tuple[str, Any]:
    """Return type and value of an element of a list with this tag."""
    if tag.startswith("list[") and tag not in ("list[Any]", "list[object]"):
        return tag[5:-1], item
    if isinstance(item, dict) and "$type" in item:
        found: dict[str, Any] = dict(cast("dict[str, Any]", item))
        kind: str = found.pop("$type")
        value: Any = found.get("$value", found)
        return kind, value
    return type_of(item), cast("Any", item)


def _typed(path: Path, value: Any) -> Any:
    return value if path.error is not None else packed(value, path.output_type)


_OVER_TOOL, _OVER_BODY, _OVER_MESSAGE = MapOverTool(), MapOverBody(), MapOverMessage()
KIND = _Map()
