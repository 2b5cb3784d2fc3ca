"""Closures of paths: members, elements and projections (page 001 §6.3).

Nothing here fails on a missing member: it is null, or, in a projection, left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from agentflow.definition.expressions.errors import Fault
from agentflow.definition.expressions.nodes import Digits, Index, Member, Node, Path, Segment, Star
from agentflow.definition.expressions.run import Evaluate, Run, Step, located
from agentflow.definition.expressions.values import kind

__all__ = ["MISSING", "compile_path", "lookup"]

Compile = Callable[[Node, str], Evaluate]

MISSING: Final = object()
"""What `lookup` finds where nothing is."""
_TABLES: Final = frozenset({"nodes", "steps"})
"""Roots whose mappings are tables of the run, which grow with its steps: as a value they are copied."""


def compile_path(node: Path, source: str, compile_node: Compile) -> Evaluate:
    """Return the closure of a path; `compile_node` compiles its base and its keys."""
    names: list[str] = []
    for segment in node.segments:
        if not isinstance(segment, Member):
            break
        names.append(segment.name)
    base = node.base
    segments = node.segments[len(names) :]
    if not segments and isinstance(base, str):
        return _whole_path(base, tuple(names), node, source)
    start = (
        _from_root(base, tuple(names))
        if isinstance(base, str)
        else _from_value(compile_node(base, source), names)
    )
    if not segments:
        return start
    stars = [position for position, segment in enumerate(segments) if isinstance(segment, Star)]
    single = [_read(segment, source, compile_node) for segment in segments[: stars[0] if stars else None]]
    if not stars:

        def path(run: Run) -> Any:
            value = start(run)
            for read in single:
                value = read(value, run)
                if value is MISSING:
                    value = None
            return value

        return _metered(path, node, source) if isinstance(base, str) else path
    many = [_spread(segment, source, compile_node) for segment in segments[stars[0] :]]

    def projection(run: Run) -> Any:
        value = start(run)
        for read in single:
            value = read(value, run)
            if value is MISSING:
                value = None
        values = [value]
        for spread in many:
            values = spread(values, run)
        return values

    return _metered(projection, node, source) if isinstance(base, str) else projection


def _metered(read: Evaluate, node: Path, source: str) -> Evaluate:
    """Return the closure of a path from a root, which counts the value if the evaluation counts what it
    reads."""

    def metered(run: Run) -> Any:
        value = read(run)
        if run.room is not None:
            _count(run, value, node, source)
        return value

    return metered


def _count(run: Run, value: Any, node: Path, source: str) -> None:
    """Count a value that was read, if the evaluation counts what it reads."""
    try:
        run.read(value)
    except Fault as fault:
        raise located(fault, node.offset, source) from None


def _from_root(root: str, names: tuple[str, ...]) -> Evaluate:
    def from_root(run: Run) -> Any:
        value = run.scope.get(root)
        for name in names:
            value = value.get(name) if type(value) is dict else _member(value, name)  # pyright: ignore
        return value  # pyright: ignore[reportUnknownVariableType]

    return from_root


def _whole_path(root: str, names: tuple[str, ...], node: Path, source: str) -> Evaluate:
    """Return the closure of a root with members only, which nearly every path is."""
    if root in _TABLES and not names:
        return _metered(_copied(root), node, source)

    def whole_path(run: Run) -> Any:
        value = run.scope.get(root)
        for name in names:
            value = value.get(name) if type(value) is dict else _member(value, name)  # pyright: ignore
        if run.room is not None:
            _count(run, value, node, source)
        return value  # pyright: ignore[reportUnknownVariableType]

    return whole_path


def _copied(root: str) -> Evaluate:
    def copied(run: Run) -> Any:
        value = run.scope.get(root)
        return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else value

    return copied


def _from_value(base: Evaluate, names: list[str]) -> Evaluate:
    if not names:
        return base

    def from_value(run: Run) -> Any:
        value = base(run)
        for name in names:
            value = _member(value, name)
        return value

    return from_value


def _member(value: Any, name: str) -> Any:
    return value.get(name) if kind(value) == "object" else None


def _read(segment: Segment, source: str, compile_node: Compile) -> Step:
    """Return what a segment reads of one value, MISSING if it is not there: null is a value of a
    projection."""
    match segment:
        case Member():
            name = segment.name
            return lambda value, run: lookup(value, name)
        case Digits():
            text, number = segment.text, int(segment.text)
            return lambda value, run: lookup(value, number if kind(value) == "array" else text)
        case Index():
            key = compile_node(segment.key, source)
            return lambda value, run: lookup(value, key(run))
        case Star():
            raise AssertionError("a projection reads many values")


def lookup(value: Any, key: Any) -> Any:
    """Return the member of an object by a string, the element of an array by an integral number, or
    MISSING."""
    of = kind(value)
    if of == "object":
        return value.get(key, MISSING) if isinstance(key, str) else MISSING
    if of != "array" or kind(key) != "number":
        return MISSING
    if isinstance(key, float):
        if not key.is_integer():
            return MISSING
        key = int(key)
    return value[key] if 0 <= key < len(value) else MISSING


Spread = Callable[[list[Any], Run], list[Any]]


def _spread(segment: Segment, source: str, compile_node: Compile) -> Spread:
    """Return what a segment reads of each value of a projection."""
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
                raise located(fault, offset, source) from None
            return found

        return flatten
    # The key of `[expr]` is computed once, not per element.
    key = compile_node(segment.key, source) if isinstance(segment, Index) else None
    read = None if key is not None else _read(segment, source, compile_node)

    def each(values: list[Any], run: Run) -> list[Any]:
        try:
            run.charge(len(values))
        except Fault as fault:
            raise located(fault, offset, source) from None
        if read is not None:
            found = [read(value, run) for value in values]
        else:
            wanted = key(run) if key is not None else None
            found = [lookup(value, wanted) for value in values]
        return [value for value in found if value is not MISSING]

    return each
