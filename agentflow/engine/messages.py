"""Routing: which edges deliver a message, decided once, when its handler has returned (page 002 §4).

Expressions are evaluated here; predicates and selections that are Python code are evaluated by the caller,
and their results come with the message. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.templates import is_true
from agentflow.events.catalogue import Delivery, SentMessage

if TYPE_CHECKING:
    from agentflow.engine.graph import Edge, Node, Route

__all__ = [
    "NO_EDGE",
    "Outgoing",
    "Way",
    "acceptance",
    "offered",
    "packed",
    "route_messages",
    "takes_type",
    "type_of",
    "undelivered_reason",
    "way_of",
]

NO_EDGE = "no_edge"

_PLAIN = ("None", "bool", "int", "float", "str")
"""Types whose values are their JSON, also inside a list."""

_FURTHEST = ("target_mismatch", "type_mismatch", "condition_false", "not_selected")
"""Statuses of what was not delivered, in the order of the tests."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a handler sent. `type` is its tag, `bases` are those of its base classes.

    `verdicts` has the results of predicates that are Python code, by the name of the edge; `selections` those
    of selections, by their name. A text in place of a result says why the code raised.
    """

    type: str
    payload: Any
    target: str | None = None
    bases: tuple[str, ...] = ()
    verdicts: Mapping[str, bool | str] = {}
    selections: Mapping[str, Sequence[str] | str] = {}

    @property
    def tags(self) -> tuple[str, ...]:
        """Its type and those of its base classes."""
        return (self.type, *self.bases)


class Way(NamedTuple):
    """What the edges of a node do with a message, and those that take it, with their names."""

    deliveries: tuple[Delivery, ...]
    taken: tuple[tuple[str, Edge], ...]


_NOWHERE = Way((Delivery(edge="", target="", status=NO_EDGE),), ())
_MAX_WAYS = 64
"""Types and targets of which a node keeps the way: more than a workflow has."""


class _Refused(Exception):
    """A predicate or a selection that gives no way."""

    def __init__(self, edge: str, reason: str, targets: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.edge = edge
        self.reason = reason
        self.targets = list(targets)


def type_of(value: Any) -> str:
    """Return the tag of a JSON value that no handler named."""
    if value is None:
        return "None"
    return type(value).__name__


def route_messages(
    node: Node, messages: Sequence[Outgoing], shared: Mapping[str, Any], first: int = 0
) -> tuple[SentMessage, ...] | ErrorInfo:
    """Return the messages with what each edge did with them, or why the sender fails. `first` is the index of
    the first of them among those of its activation."""
    sent: list[SentMessage] = []
    for index, message in enumerate(messages, first):
        way = way_of(node, message, shared)
        if isinstance(way, ErrorInfo):
            return way
        sent.append(
            SentMessage(index=index, type=message.type, payload=message.payload, deliveries=way.deliveries)
        )
    return tuple(sent)


def way_of(node: Node, message: Outgoing, shared: Mapping[str, Any]) -> Way | ErrorInfo:
    """Return what each edge of a node does with a message, or why its sender fails.

    Found once for each type and target where no edge asks more of a message.
    """
    known = node.ways
    if known is None or message.verdicts:
        return _find_way(node, message, shared)
    key = message.type, message.bases, message.target
    way = known.get(key)
    if way is None:
        way = _find_way(node, message, shared)
        if isinstance(way, Way) and len(known) < _MAX_WAYS:
            known[key] = way
    return way


def _find_way(node: Node, message: Outgoing, shared: Mapping[str, Any]) -> Way | ErrorInfo:
    if message.target is not None:
        reached = {edge.target.id for route in node.routes for edge in route.edges}
        if message.target not in reached:
            return _unknown_target(node, message.target, reached)
    found: Statuses = []
    try:
        for route in node.routes:
            found += _ROUTES[route.kind](route, message, shared)
    except _Refused as refused:
        return _routing_failed(node, message, refused)
    if not found:
        return _NOWHERE
    return Way(
        tuple(Delivery(edge=e.name, target=e.target.id, status=s) for e, s in found),
        tuple((e.name, e) for e, s in found if s in ("delivered", "buffered")),
    )


def offered(node: Node, message: Outgoing) -> dict[str, list[str]]:
    """Return the targets that each selection of a node may choose from for this message, by its name."""
    return {
        route.edges[0].spec.selection or route.name: [
            e.target.id for e in route.edges if acceptance(e, message) is None
        ]
        for route in node.routes
        if route.kind == "multi" and route.edges[0].spec is not None
    }


def packed(value: Any, tag: str) -> Any:
    """Return an element of a list of several types as JSON that carries its tag."""
    if tag in _PLAIN:
        return value
    if isinstance(value, dict) and "$type" not in value:
        return {"$type": tag, **cast("dict[str, Any]", value)}
    return {"$type": tag, "$value": cast("Any", value)}


def takes_type(accepted: Sequence[str], tags: Sequence[str], *, element: bool = False) -> bool:
    """Return whether one of the accepted types is among those of a message; none accepted: all are taken.

    With `element` the message is one of the list that a fan-in delivers.
    """
    if not accepted or "Any" in accepted or "object" in accepted:
        return True
    if not element:
        return any(tag in accepted for tag in tags)
    lists = {"list", "list[Any]", "list[object]", *(f"list[{tag}]" for tag in tags)}
    return not lists.isdisjoint(accepted)


def undelivered_reason(sent: SentMessage) -> str | None:
    """Return why no edge delivered a message: the test at which it came furthest; None if one did."""
    statuses = {delivery.status for delivery in sent.deliveries}
    if statuses & {"delivered", "buffered", NO_EDGE}:
        return None
    return max(statuses, key=_FURTHEST.index)


Statuses = list[tuple["Edge", str]]


def acceptance(edge: Edge, message: Outgoing) -> str | None:
    """Return why an edge cannot take a message at all; None if it can."""
    if message.target is not None and message.target != edge.target.id:
        return "target_mismatch"
    if not edge.target.kind.accepts(edge.target, message.tags, element=edge.fan is not None):
        return "type_mismatch"
    return None


def _holds(edge: Edge, message: Outgoing, shared: Mapping[str, Any]) -> bool:
    verdict = message.verdicts.get(edge.name)
    if isinstance(verdict, str):
        raise _Refused(edge.name, verdict, [edge.target.id])
    if verdict is not None:
        return verdict
    if edge.predicate is not None:
        raise _Refused(edge.name, f"its predicate {edge.predicate} was not evaluated", [edge.target.id])
    if edge.when is None:
        return True
    try:
        return is_true(edge.when.evaluate({"message": message.payload, "state": shared}))
    except EvaluationError as error:
        raise _Refused(edge.name, error.reason, [edge.target.id]) from None


def _each(route: Route, message: Outgoing, shared: Mapping[str, Any]) -> Statuses:
    found: Statuses = []
    for edge in route.edges:
        status = acceptance(edge, message)
        if status is None and not _holds(edge, message, shared):
            status = "condition_false"
        found.append((edge, status or "delivered"))
    return found


def _buffered(route: Route, message: Outgoing, shared: Mapping[str, Any]) -> Statuses:
    return [(edge, acceptance(edge, message) or "buffered") for edge in route.edges]


def _selected(route: Route, message: Outgoing, shared: Mapping[str, Any]) -> Statuses:
    tested = [(edge, acceptance(edge, message)) for edge in route.edges]
    targets = [edge.target.id for edge, status in tested if status is None]
    if not targets:
        return [(edge, status or "not_selected") for edge, status in tested]
    spec = route.edges[0].spec
    name = route.name if spec is None else spec.selection or route.name
    chosen = message.selections.get(name)
    if chosen is None or isinstance(chosen, str):
        raise _Refused(name, chosen or "the selection gave nothing", targets)
    for target in chosen:
        if target not in targets:
            raise _Refused(name, f'"{target}" is not among the targets', targets)
    return [(e, s or ("delivered" if e.target.id in chosen else "not_selected")) for e, s in tested]


def _first_case(route: Route, message: Outgoing, shared: Mapping[str, Any]) -> Statuses:
    """Test the cases in order and the default last; report them in the order in which they stand."""
    found: dict[int, str] = {}
    taken = False
    is_default = [
        edge.when is None and edge.predicate is None and edge.name not in message.verdicts
        for edge in route.edges
    ]
    for edge, _ in sorted(zip(route.edges, is_default, strict=True), key=lambda case: case[1]):
        status = acceptance(edge, message)
        if status is None and taken:
            status = "not_selected"
        elif status is None and not _holds(edge, message, shared):
            status = "condition_false"
        taken = taken or status is None
        found[edge.index] = status or "delivered"
    return [(edge, found[edge.index]) for edge in route.edges]


_ROUTES = {
    "single": _each,
    "fan_out": _each,
    "multi": _selected,
    "switch": _first_case,
    "fan_in": _buffered,
}


def _routing_failed(node: Node, message: Outgoing, refused: _Refused) -> ErrorInfo:
    to = f" to {', '.join(refused.targets)}" if refused.targets else ""
    return ErrorInfo(
        category="agent",
        code="routing_failed",
        message=(
            f"the message of {node.id}, of type {message.type}, cannot be routed over"
            f' "{refused.edge}"{to}: {refused.reason}'
        ),
        details={"edge": refused.edge, "reason": refused.reason, "valid_targets": refused.targets},
    )


def _unknown_target(node: Node, target: str, reached: set[str]) -> ErrorInfo:
    return ErrorInfo(
        category="invalid_input",
        code="unknown_target",
        message=f'no edge of {node.id} leads to "{target}"',
        details={"target": target, "valid_targets": sorted(reached)},
    )
