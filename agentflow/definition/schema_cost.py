"""Upper bounds of what judging a value by a schema may cost, before it is judged (page 001 §5.5).

jsonschema-rs is fast but unbounded: references that are followed twice at each level take 2ⁿ steps, lists
in an `enum` are compared one by one, a deep value ends the process. Every schema therefore gets coefficients
once, and every value is measured before the library sees it:

    units = node × nodes + deep × nodes × levels + char × characters + backtracking patterns × longest text

A unit is about 20 ns of CPU. The weights were measured with jsonschema-rs 0.60, each on the worst case that
was found for its keyword, and tests hold the bound against the clock. The same question has the same bound
everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from agentflow.definition.patterns import Pattern, compile_pattern
from agentflow.definition.subschemas import Subschema, dynamic_targets

__all__ = [
    "INLINE_UNITS",
    "MAX_LEVELS",
    "MAX_PARTS",
    "MAX_UNITS",
    "Cost",
    "Size",
    "compile_patterns",
    "cost_of",
    "has_at_most",
    "measure",
]

MAX_UNITS: Final = 15_000_000
"""0.3 s of CPU, 20 ns a unit: beyond it a value is not judged."""
INLINE_UNITS: Final = 1_000_000
"""20 ms of CPU: beyond it judging leaves the event loop."""
MAX_PARTS: Final = 10_000
"""Subschemas of one schema: 6 µs and 3 KiB each when it is compiled."""
MAX_LEVELS: Final = 500
"""Levels of a value: the library recurses into it on the thread's stack."""

_TOTAL_UNITS: Final = 25_000_000  # 0.5 s for compiling a schema, judging by it and saying why not
_PART_UNITS: Final = 1_000  # 20 µs to compile a subschema
_STEP_UNITS: Final = 150  # 3 µs for a step of an explanation
_MAX_STEPS: Final = 100_000  # steps of one explanation
_PART_STEPS: Final = 6  # a subschema that is copied and crawled to explain
_MAX_WORK: Final = 10_000  # subschemas looked at to find the coefficients of a schema that refers to itself
INFINITE: Final = 1e18


class Weights(NamedTuple):
    """Units for each node, for each node at each level, and for each character."""

    node: float
    deep: float
    char: float


_NOTHING: Final = Weights(0, 0, 0)
_ANYTHING: Final = Weights(1, 0, 0)
_COMPARING: Final = frozenset({"uniqueItems", "enum", "const"})
_INNER: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
    | {"prefixItems", "items", "contains", "unevaluatedItems"}
)


class Size(NamedTuple):
    """What a value measures. `nodes` and `characters` are upper bounds, taken from its JSON text."""

    nodes: int
    characters: int


class Cost(NamedTuple):
    """Coefficients of one schema: units for each node, node and level, and character of a value."""

    by_level: tuple[Weights, ...]
    """For values of 1, 2, … levels; the last holds for every further level unless `endless`."""
    endless: bool
    """True if the coefficients grow with each further level of a value, without end."""
    patterns: tuple[Pattern, ...]
    """Patterns that are matched by backtracking, at most once for each text and application."""
    recurses: bool
    """True if the library recurses as deep as a value is: the schema refers to itself, or compares values."""
    alternatives: int
    """Most branches of one `anyOf` or `oneOf`: asked why, each keeps a copy of the value it refuses."""
    compiling: float
    """Units that compiling the schema and its patterns takes."""
    parts: int
    """How many subschemas it has."""

    @property
    def plain(self) -> bool:
        """True if the bound is the same for every value of one size, whatever its levels and texts are."""
        return not (self.endless or self.patterns or self.recurses or self.by_level[-1].deep)

    @property
    def limit(self) -> float:
        """Units beyond which a value is not judged: compiling the schema counts too."""
        return min(MAX_UNITS, _TOTAL_UNITS - self.compiling)

    def steps(self, units: float) -> int:
        """Return the steps that are left to explain a breach, once `units` were spent on finding it."""
        left = (_TOTAL_UNITS - self.compiling - units) / _STEP_UNITS
        return max(0, min(_MAX_STEPS, int(left) - _PART_STEPS * self.parts))

    def units(self, size: Size, levels: int = 1, longest: int = 0) -> float:
        """Return the bound in units for a value of this size; `longest` is its longest text in characters."""
        if self.endless and levels > len(self.by_level):
            return INFINITE
        weights = self.by_level[min(levels, len(self.by_level)) - 1]
        own = weights.node * size.nodes + weights.deep * size.nodes * levels + weights.char * size.characters
        ways = sum(pattern.steps(longest) for pattern in self.patterns)
        return own + 0.5 * ways * (1 + size.characters / max(longest, 1)) if ways else own


def measure(body: bytes) -> Size:
    """Return bounds of the nodes and characters of the value with this JSON text."""
    count = body.count
    return Size(1 + count(b",") + count(b"[") + count(b"{") + count(b":"), len(body))


def compile_patterns(parts: list[Subschema]) -> dict[str, Pattern]:
    """Return each pattern of a schema, by how it is written. Raises PatternError for one that is none."""
    return {source: compile_pattern(source) for part in parts for source in patterns_of(part.schema)}


def cost_of(parts: list[Subschema], patterns: Mapping[str, Pattern]) -> Cost:
    """Return the coefficients of a schema, given as all its subschemas with the schema itself first.

    The coefficients are infinite where no bound is known.
    """
    if not parts:
        return Cost((Weights(1, 0, 0),), False, (), recurses=False, alternatives=0, compiling=0, parts=0)
    graph = _Graph(parts, patterns)
    by_level, endless = graph.solve()
    compares = any(not _COMPARING.isdisjoint(part.schema) for part in parts)
    several = (len(part.schema.get(key) or ()) for part in parts for key in ("anyOf", "oneOf"))
    recurses = compares or graph.recursive
    compiling = graph.compiling + _PART_UNITS * len(parts)
    return Cost(by_level, endless, tuple(graph.backtracking), recurses, max(several), compiling, len(parts))


def patterns_of(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the patterns that stand right in a schema, for values and for names."""
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    names = schema.get("patternProperties")
    if isinstance(names, dict):
        yield from cast("dict[str, Any]", names)


class _Graph:
    """Subschemas as a graph: which apply to the same value, which to its members, items and names.

    For a value v of n nodes, cost(s, v) ≤ own(s) + Σ in place + Σ children. Members and items are disjoint
    parts of v, so the coefficient of their nodes is the largest of one child, not the sum: K = max(I, C). I
    sums the weights that apply to v itself, C those that apply to one child. A schema that refers to itself
    has one K for each level of a value.
    """

    def __init__(self, parts: list[Subschema], patterns: Mapping[str, Pattern]) -> None:
        self._parts = parts
        self._patterns = patterns
        self._number = {id(part.schema): i for i, part in enumerate(parts)}
        self._anchors = dynamic_targets(parts)
        self.backtracking: list[Pattern] = []
        self.compiling = 0.0
        self._own = [self._weights(part.schema) for part in parts]
        self._in_place = [list(self._beside(part)) for part in parts]
        inner = [self._inner(part.schema) for part in parts]
        order = self._in_order(
            [[*beside, *below] for beside, below in zip(self._in_place, inner, strict=True)]
        )
        self.recursive = order is None
        self._order = order or self._in_order(self._in_place)

    # -- what one schema does by itself

    def _weights(self, schema: dict[str, Any]) -> Weights:
        node, deep, char = 1.0 + len(schema), 0.0, 0.0
        for key, value in schema.items():
            match key:
                case "multipleOf":
                    node, char = node + 75, char + 1
                case "uniqueItems":
                    deep += 16 * (value is True)
                case "enum" | "const":
                    options: list[Any] = value if key == "enum" else [value]
                    whole = (_nodes(option) for option in options if isinstance(option, dict | list))
                    node, char = node + len(options) / 4 + 7 * sum(whole), char + 0.05
                case "required" | "properties":
                    node += 2 + len(value) / 20
                case "dependentRequired":
                    node += 2 + sum(map(len, value.values())) / 4
                case "minLength" | "maxLength":
                    char += 0.1
                case "pattern" | "patternProperties":
                    for source in (value,) if key == "pattern" else value:
                        char += self._pattern_weight(source)
                        node += 10
                case _:
                    pass
        return Weights(node, deep, char)

    def _pattern_weight(self, source: str) -> float:
        pattern = self._patterns[source]
        self.compiling += pattern.compiling
        if pattern.linear:
            return 0.1 + 0.7 * pattern.states
        self.backtracking.append(pattern)
        return 0.1

    # -- how they lead to each other

    def _beside(self, part: Subschema) -> Iterator[int]:
        """Yield the schemas that apply to the same value, each as often as it does."""
        for schema in part.in_place:
            if id(schema) in self._number:
                yield self._number[id(schema)]
        for key, ref, target in part.references:
            if id(target) in self._number:
                yield self._number[id(target)]
            if key == "$dynamicRef":
                others = self._anchors.get(ref.partition("#")[2], ())
                yield from (self._number[i] for i in others if i != id(target))

    def _inner(self, schema: dict[str, Any]) -> list[int]:
        """Return the schemas that apply to members, items and names."""
        found: list[Any] = []
        if not _INNER.isdisjoint(schema):
            for key in _INNER & schema.keys():
                value = schema[key]
                several = key in ("properties", "patternProperties")
                found += value.values() if several else value if key == "prefixItems" else [value]
        return [self._number[id(s)] for s in found if id(s) in self._number]

    def _in_order(self, targets: list[list[int]]) -> list[int] | None:
        """Return the schemas so that each comes after its targets; None if there is a circle."""
        waiting = [len(of_one) for of_one in targets]
        users: list[list[int]] = [[] for _ in targets]
        for i, of_one in enumerate(targets):
            for j in of_one:
                users[j].append(i)
        ready = deque(i for i, count in enumerate(waiting) if not count)
        order: list[int] = []
        while ready:
            i = ready.popleft()
            order.append(i)
            for user in users[i]:
                waiting[user] -= 1
                if not waiting[user]:
                    ready.append(user)
        return order if len(order) == len(targets) else None

    # -- the coefficients

    def solve(self) -> tuple[tuple[Weights, ...], bool]:
        """Return the coefficients by levels, and whether they grow with each further one."""
        if self._order is None or self.compiling > _TOTAL_UNITS:
            return (Weights(INFINITE, INFINITE, INFINITE),), False
        total = [_NOTHING] * len(self._parts)
        if not self.recursive:
            self._round(total, total)
            return (total[0],), False
        found: list[Weights] = []
        for _ in range(min(MAX_LEVELS, max(_MAX_WORK // len(self._parts), 2))):
            following = list(total)
            self._round(total, following)
            if following == total:
                return tuple(found), False
            total = following
            found.append(total[0])
            if total[0].node > INFINITE:
                break
        return tuple(found), True

    def _round(self, below: list[Weights], total: list[Weights]) -> None:
        """Set `total` to the coefficients for values one level deeper than those of `below`."""
        own, child = list(self._own), [_NOTHING] * len(self._parts)
        for i in self._order or ():
            schema = self._parts[i].schema
            mine, inner = own[i], _NOTHING
            if not _INNER.isdisjoint(schema):
                inner = self._children(schema, below)
                if "propertyNames" in schema:
                    mine = _plus(mine, self._of(schema["propertyNames"], below))
            for j in self._in_place[i]:
                mine, inner = _plus(mine, own[j]), _plus(inner, child[j])
            if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
                mine, inner = _plus(mine, mine, mine), _plus(inner, inner, inner)
            own[i], child[i] = mine, inner
            total[i] = _most(mine, inner)

    def _children(self, schema: dict[str, Any], below: list[Weights]) -> Weights:
        """Return the most that applies to one member or item of a value."""

        def of(*keys: str) -> list[Weights]:
            return [self._of(schema[key], below) for key in keys if key in schema]

        def each(schemas: Any) -> list[Weights]:
            return [self._of(inner, below) for inner in schemas]

        by_name = _most(*each(cast("dict[str, Any]", schema.get("properties") or {}).values()))
        by_pattern = each(cast("dict[str, Any]", schema.get("patternProperties") or {}).values())
        member = _plus(by_name, *by_pattern, *of("additionalProperties", "unevaluatedProperties"))
        by_place = _most(*each(schema.get("prefixItems") or ()))
        return _most(member, _plus(by_place, *of("items", "contains", "unevaluatedItems")))

    def _of(self, schema: Any, below: list[Weights]) -> Weights:
        number = self._number.get(id(schema))
        return _ANYTHING if number is None else below[number]


def _plus(*several: Weights) -> Weights:
    node, deep, char = _NOTHING
    for weights in several:
        node, deep, char = node + weights.node, deep + weights.deep, char + weights.char
    return Weights(node, deep, char)


def _most(*several: Weights) -> Weights:
    node, deep, char = _NOTHING
    for weights in several:
        node, deep, char = max(node, weights.node), max(deep, weights.deep), max(char, weights.char)
    return Weights(node, deep, char)


def _nodes(value: Any) -> int:
    count = 0
    todo = [value]
    while todo:
        part = todo.pop()
        count += 1
        if isinstance(part, dict):
            todo += cast("dict[str, Any]", part).values()
        elif isinstance(part, list):
            todo += cast("list[Any]", part)
    return count


def has_at_most(value: Any, nodes: int) -> bool:
    """Return whether a JSON value has at most this many nodes, of which an array or object counts as five.

    Looks at no more of them, for 30 to 40 ns each: 5 ms for 150,000.
    """
    containers: list[Any] = [value] if isinstance(value, dict | list) else []
    left = nodes
    while containers:
        part = cast("dict[str, Any] | list[Any]", containers.pop())
        left -= len(part) + 4
        if left < 0:
            return False
        members = part.values() if isinstance(part, dict) else part
        containers += [m for m in members if type(m) in _CONTAINERS]
    return True


_CONTAINERS: Final = (dict, list)


class Shape(NamedTuple):
    """How deep a value goes, and its longest text in characters."""

    levels: int
    longest: int


def shape_of(value: Any) -> Shape:
    """Return the exact levels and longest text of a value; levels stop to count beyond MAX_LEVELS."""
    longest = 0
    level: list[Any] = [value]
    levels = 0
    while level and levels <= MAX_LEVELS:
        levels += 1
        below: list[Any] = []
        for part in level:
            if isinstance(part, str):
                longest = max(longest, len(part))
            elif isinstance(part, dict):
                members = cast("dict[str, Any]", part)
                longest = max(longest, max(map(len, members), default=0))
                below += members.values()
            elif isinstance(part, list):
                below += cast("list[Any]", part)
        level = below
    return Shape(levels, longest)
