"""What the expressions of a node read, so that a child path builds no more of the scope than that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

from agentflow.definition.expressions import Expression, Template
from agentflow.definition.expressions.references import collect_references

__all__ = ["NO_ROOTS", "Reads", "expressions_in", "rare_roots", "reads_of"]

_RARE = frozenset(
    {"globals", "state", "last_llm_output", "last_tool_output", "map_item", "map_index", "item_index"}
)
_COUNTS = ("count", "visits")
NO_ROOTS: frozenset[str] = frozenset()


class Reads(NamedTuple):
    """By root: the names that are read; None if they are computed, and any may be. `counted`: the nodes of
    which `count` or `visits` is read, which are 0 before the first arrival."""

    nodes: frozenset[str] | None
    steps: frozenset[str] | None
    globals: frozenset[str] | None
    counted: frozenset[str]


def expressions_in(value: Any) -> Iterator[Expression]:
    """Yield the expressions in what a kind compiled: expressions, templates, and tuples and lists of them."""
    if isinstance(value, Expression):
        yield value
    elif isinstance(value, Template):
        for _, _, expression in value.expressions:
            yield expression
    elif isinstance(value, tuple | list):
        for member in cast("Iterable[Any]", value):
            yield from expressions_in(member)


def rare_roots(values: Iterable[Any]) -> frozenset[str]:
    """Return the roots that few nodes read, and that the scope holds for those alone."""
    found = NO_ROOTS
    for expression in expressions_in(tuple(values)):
        if not expression.roots.isdisjoint(_RARE):
            found |= expression.roots & _RARE
    return found


def reads_of(values: Iterable[Any]) -> Reads:
    """Return what these expressions and templates read."""
    found: dict[str, set[str] | None] = {"nodes": set(), "steps": set(), "globals": set()}
    counted: set[str] = set()
    for expression in expressions_in(tuple(values)):
        for reference in collect_references(expression.tree):
            root, *rest = reference.path
            if root not in found:
                continue
            names = found[str(root)]
            if not rest or not isinstance(rest[0], str):
                found[str(root)] = None
            elif names is not None:
                names.add(rest[0])
            if root == "nodes" and len(rest) > 1 and rest[1] in _COUNTS and isinstance(rest[0], str):
                counted.add(rest[0])
    frozen = {root: None if names is None else frozenset(names) for root, names in found.items()}
    return Reads(frozen["nodes"], frozen["steps"], frozen["globals"], frozenset(counted))
