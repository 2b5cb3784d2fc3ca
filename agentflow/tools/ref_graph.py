"""Which schemas of a document contain themselves, by the references between them.

Each is looked at once, without recursion: a document may hold thousands, in chains of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

__all__ = ["RefGraph"]

# Keywords whose schemas apply to the very value that the schema around them applies to.
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
_ONE: Final = frozenset(
    {"additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames"}
    | {"then", "unevaluatedItems", "unevaluatedProperties"}
)
_SEVERAL: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED: Final = frozenset({"dependentSchemas", "patternProperties", "properties"})


class _Edges(NamedTuple):
    """The references in a schema: all of them, and those that apply to the same value."""

    every: tuple[str, ...]
    in_place: tuple[str, ...]


class RefGraph:
    """`schema` gives what a reference stands for; anything but an object has no references."""

    def __init__(self, schema: Callable[[str], Any]) -> None:
        self._schema = schema
        self._edges: dict[str, _Edges] = {}
        self._cyclic: dict[str, bool] = {}
        self._endless: dict[str, bool] = {}

    def is_cyclic(self, ref: str) -> bool:
        """Return whether the schema contains a reference to itself, however far inside."""
        if ref not in self._cyclic:
            _components(ref, lambda r: self._of(r).every, self._cyclic)
        return self._cyclic[ref]

    def is_endless(self, ref: str) -> bool:
        """Return whether it says that a value must be what the value must be, and so on."""
        if ref not in self._endless:
            _components(ref, lambda r: self._of(r).in_place, self._endless)
        return self._endless[ref]

    def _of(self, ref: str) -> _Edges:
        known = self._edges.get(ref)
        if known is None:
            found = list(_references(self._schema(ref)))
            every = dict.fromkeys(inner for inner, _ in found)
            in_place = dict.fromkeys(inner for inner, here in found if here)
            known = self._edges[ref] = _Edges(tuple(every), tuple(in_place))
        return known


def _references(schema: Any) -> Iterator[tuple[str, bool]]:
    stack: list[tuple[Any, bool]] = [(schema, True)]
    while stack:
        part, here = stack.pop()
        if not isinstance(part, dict):
            continue
        for key, value in cast("dict[str, Any]", part).items():
            inside = here and key in _IN_PLACE
            if key == "$ref" and isinstance(value, str):
                yield value, here
            elif key in _ONE:
                stack.append((value, inside))
            elif key in _SEVERAL and isinstance(value, list):
                stack += [(item, inside) for item in cast("list[Any]", value)]
            elif key in _NAMED and isinstance(value, dict):
                inside = here and key == "dependentSchemas"
                stack += [(item, inside) for item in cast("dict[str, Any]", value).values()]


def _components(root: str, edges: Callable[[str], tuple[str, ...]], found: dict[str, bool]) -> None:
    """Note for each node that `root` reaches whether it is in a cycle (Tarjan's strongly connected
    components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    is_open: set[str] = set()
    work: list[tuple[str, Iterator[str]]] = []

    def enter(ref: str) -> None:
        index[ref] = low[ref] = len(index)
        open_.append(ref)
        is_open.add(ref)
        work.append((ref, iter(edges(ref))))

    enter(root)
    while work:
        ref, rest = work[-1]
        for inner in rest:
            if inner in found:
                continue
            if inner not in index:
                enter(inner)
                break
            if inner in is_open:
                low[ref] = min(low[ref], index[inner])
        else:
            work.pop()
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[ref])
            if low[ref] == index[ref]:
                members: list[str] = []
                while not members or members[-1] != ref:
                    members.append(open_.pop())
                    is_open.discard(members[-1])
                in_cycle = len(members) > 1 or ref in edges(ref)
                found.update(dict.fromkeys(members, in_cycle))
