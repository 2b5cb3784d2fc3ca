"""From a tree to nested closures: no generated code, nothing looked up by name at run time but members.

Each closure takes the `Run` of one evaluation. A Fault is caught by the closure of the operator, call or
path that broke the rule, which alone knows the offset, and becomes an EvaluationError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from agentflow.definition.expressions.errors import EvaluationError, Fault
from agentflow.definition.expressions.functions import FUNCTIONS
from agentflow.definition.expressions.nodes import (
    Call,
    Compare,
    Digits,
    Index,
    Lit,
    Logic,
    Member,
    Node,
    Not,
    Path,
    Segment,
    Star,
)
from agentflow.definition.expressions.signatures import STATUS_FUNCTIONS
from agentflow.definition.expressions.values import Meter, equal, kind, order, truth

__all__ = ["Evaluate", "Run", "StatusView", "compile_node"]


class StatusView(Protocol):
    """What the status functions look at: the dependencies of the step (page 001 §5.2)."""

    def success(self) -> bool:
        """Whether all of `depends_on` succeeded."""
        ...

    def failure(self) -> bool:
        """Whether some transitive dependency failed."""
        ...

    def cancelled(self) -> bool:
        """Whether some transitive dependency was cancelled."""
        ...


class Run(Meter):
    """One evaluation: the roots, the status of the dependencies, the operations that are left."""

    __slots__ = ("scope", "status")

    def __init__(self, scope: Mapping[str, Any], status: StatusView | None, left: int) -> None:
        self.scope = scope
        self.status = status
        self.left = left


Evaluate = Callable[[Run], Any]

_MISSING: Final = object()


def compile_node(node: Node, source: str) -> Evaluate:
    """The closure of a tree. `source` goes into the errors."""
    match node:
        case Lit():
            value = node.value
            return lambda run: value
        case Path():
            return _path(node, source)
        case Compare():
            return _compare(node, source)
        case Logic():
            return _logic(node, source)
        case Not():
            operand = compile_node(node.operand, source)
            return lambda run: not truth(operand(run))
        case Call():
            return _call(node, source)


def _error(fault: Fault, offset: int, source: str) -> EvaluationError:
    return EvaluationError(fault.reason, fault.message, offset, source)


# --- operators


def _logic(node: Logic, source: str) -> Evaluate:
    *first, last = [compile_node(operand, source) for operand in node.operands]
    stops_at = node.operator == "||"

    def logic(run: Run) -> Any:
        for operand in first:
            value = operand(run)
            decided = value if value is True or value is False else truth(value)
            if decided is stops_at:
                return value
        return last(run)

    return logic


def _compare(node: Compare, source: str) -> Evaluate:
    compiled = compile_node(node.first, source)
    for operator, right, offset in node.rest[:1]:
        compiled = _comparison(compiled, operator, right, offset, source)
    if len(node.rest) == 1:
        return compiled
    # A long chain must not nest closures: its steps run one after the other.
    steps = [_step(operator, right, offset, source) for operator, right, offset in node.rest[1:]]

    def chain(run: Run) -> Any:
        value = compiled(run)
        for step in steps:
            value = step(value, run)
        return value

    return chain


def _comparison(left: Evaluate, operator: str, right: Node, offset: int, source: str) -> Evaluate:
    """One comparison; with a string, null or boolean on its right it needs no general equality."""
    if operator[0] in "=!" and isinstance(right, Lit):
        literal, wanted = right.value, operator[0] == "="
        if isinstance(literal, str):
            return lambda run: (left(run) == literal) is wanted
        if literal is None or isinstance(literal, bool):
            return lambda run: (left(run) is literal) is wanted
    step = _step(operator, right, offset, source)
    return lambda run: step(left(run), run)


def _step(operator: str, right: Node, offset: int, source: str) -> Callable[[Any, Run], Any]:
    operand = compile_node(right, source)
    if operator[0] in "=!":
        wanted = operator[0] == "="

        def equality(left: Any, run: Run) -> bool:
            right = operand(run)
            try:
                return equal(left, right, run) is wanted
            except Fault as fault:
                raise _error(fault, offset, source) from None

        return equality

    def relation(left: Any, run: Run) -> bool:
        right = operand(run)
        try:
            return order(operator, left, right)
        except Fault as fault:
            raise _error(fault, offset, source) from None

    return relation


# --- calls


def _call(node: Call, source: str) -> Evaluate:
    if node.name in STATUS_FUNCTIONS:
        return _status(node, source)
    arguments = [compile_node(argument, source) for argument in node.arguments]
    if node.name == "case":
        return _case(arguments, [argument.offset for argument in node.arguments], source)
    function, offset = FUNCTIONS[node.name], node.offset

    def call(run: Run) -> Any:
        values = [argument(run) for argument in arguments]
        try:
            return function(run, *values)
        except Fault as fault:
            raise _error(fault, offset, source) from None

    return call


def _status(node: Call, source: str) -> Evaluate:
    name, offset = node.name, node.offset
    if name == "always":
        return lambda run: True

    def status(run: Run) -> bool:
        view = run.status
        if view is None:
            raise EvaluationError("type", f"{name}() needs the status of a step", offset, source)
        if name == "success":
            return view.success()
        return view.failure() if name == "failure" else view.cancelled()

    return status


def _case(arguments: list[Evaluate], offsets: list[int], source: str) -> Evaluate:
    *pairs, default = arguments
    branches = list(zip(pairs[::2], pairs[1::2], offsets[::2], strict=False))

    def case(run: Run) -> Any:
        for condition, value, offset in branches:
            decided = condition(run)
            if decided is True:
                return value(run)
            if decided is not False:
                message = f"case takes booleans as conditions, got {kind(decided)}"
                raise EvaluationError("type", message, offset, source)
        return default(run)

    return case


# --- paths


def _path(node: Path, source: str) -> Evaluate:
    names: list[str] = []
    segments = node.segments
    while segments and isinstance(segments[0], Member):
        names.append(segments[0].name)
        segments = segments[1:]
    start = _members(node.base, tuple(names), source)
    if not segments:
        return start
    stars = [position for position, segment in enumerate(segments) if isinstance(segment, Star)]
    single = [_read(segment, source) for segment in segments[: stars[0] if stars else None]]
    if not stars:

        def path(run: Run) -> Any:
            value = start(run)
            for read in single:
                value = read(value, run)
                if value is _MISSING:
                    value = None
            return value

        return path
    many = [_spread(segment, source) for segment in segments[stars[0] :]]

    def projection(run: Run) -> Any:
        value = start(run)
        for read in single:
            value = read(value, run)
            if value is _MISSING:
                value = None
        values = [value]
        for spread in many:
            values = spread(values, run)
        return values

    return projection


def _members(base: str | Node, names: tuple[str, ...], source: str) -> Evaluate:
    """A root or a value, then members only: what nearly every path is."""
    if isinstance(base, str):
        root = base

        def from_root(run: Run) -> Any:
            value = run.scope.get(root)
            for name in names:
                value = value.get(name) if type(value) is dict else _member(value, name)  # pyright: ignore
            return value  # pyright: ignore[reportUnknownVariableType]

        return from_root
    inner = compile_node(base, source)
    if not names:
        return inner

    def from_value(run: Run) -> Any:
        value = inner(run)
        for name in names:
            value = _member(value, name)
        return value

    return from_value


def _member(value: Any, name: str) -> Any:
    return value.get(name) if kind(value) == "object" else None


Read = Callable[[Any, Run], Any]


def _read(segment: Segment, source: str) -> Read:
    """A segment on one value; what is not there is _MISSING, since in a projection null is."""
    match segment:
        case Member():
            name = segment.name
            return lambda value, run: _lookup(value, name)
        case Digits():
            text, number = segment.text, int(segment.text)
            return lambda value, run: _lookup(value, number if kind(value) == "array" else text)
        case Index():
            key = compile_node(segment.key, source)
            return lambda value, run: _lookup(value, key(run))
        case Star():
            raise AssertionError("a projection reads many values")


def _lookup(value: Any, key: Any) -> Any:
    """A string of an object, an integral number of an array, or _MISSING."""
    of = kind(value)
    if of == "object":
        return value.get(key, _MISSING) if isinstance(key, str) else _MISSING
    if of != "array" or kind(key) != "number":
        return _MISSING
    if isinstance(key, float):
        if not key.is_integer():
            return _MISSING
        key = int(key)
    return value[key] if 0 <= key < len(value) else _MISSING


Spread = Callable[[list[Any], Run], list[Any]]


def _spread(segment: Segment, source: str) -> Spread:
    """A segment on each of the values of a projection."""
    offset = segment.offset
    if isinstance(segment, Star):

        def flatten(values: list[Any], run: Run) -> list[Any]:
            found: list[Any] = []
            try:
                run.charge(len(values))
                for value in values:
                    of = kind(value)
                    if of == "array" or of == "object":
                        run.charge(len(value))
                        found.extend(value if of == "array" else value.values())
            except Fault as fault:
                raise _error(fault, offset, source) from None
            return found

        return flatten
    # The key of `[expr]` is computed once, not per element.
    key = compile_node(segment.key, source) if isinstance(segment, Index) else None
    read = None if key is not None else _read(segment, source)

    def each(values: list[Any], run: Run) -> list[Any]:
        try:
            run.charge(len(values))
        except Fault as fault:
            raise _error(fault, offset, source) from None
        if read is not None:
            found = [read(value, run) for value in values]
        else:
            wanted = key(run) if key is not None else None
            found = [_lookup(value, wanted) for value in values]
        return [value for value in found if value is not _MISSING]

    return each
