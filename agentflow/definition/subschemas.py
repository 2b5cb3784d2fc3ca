"""The parts of a JSON Schema that are schemas themselves, where they stand, and what they refer to.

Follows the keywords of Draft 2020-12, so that data (`const`, `enum`, `default`, `examples`) and properties
that are named like keywords are taken for what they are. References resolve inside the schema only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

__all__ = ["Subschema", "dynamic_targets", "endless", "registry_of", "subschemas"]

# Keywords by what their value holds: one schema, a list of schemas, a map of schemas.
_ONE = (
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_REFERENCES = ("$ref", "$dynamicRef")
# Those that apply to the very value that the schema around them applies to.
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})


class Subschema(NamedTuple):
    """`path`: a JSON pointer. `references`: keyword, its text, and what it leads to (None: nowhere).
    `in_place`: the schemas among its parts that apply to the same value."""

    path: str
    schema: dict[str, Any]
    references: list[tuple[str, str, Any]]
    in_place: list[Any]


def registry_of(schema: Any, name: str | None = None) -> Any:
    """Return a registry that holds this schema alone, under `name`, else its `$id`, else the empty name.

    It is crawled once: one that is not is crawled again for each name that it does not hold yet, which makes
    a large schema take minutes. Raises ValueError for a `$id` that is no URI.
    """
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    resource: Any = DRAFT202012.create_resource(schema)
    return cast("Any", Registry)().with_resource(name or resource.id() or "", resource).crawl()


class _Base:
    """Where references of a schema resolve: against the schema as a whole, or the nearest part with an `$id`.

    The resolver is made at the first reference: it crawls the schema, which takes longer than all the rest.
    """

    __slots__ = ("_around", "_made", "_schema")

    def __init__(self, schema: Any, around: _Base | None = None, made: Any = None) -> None:
        self._schema = schema
        self._around = around
        self._made = made

    @property
    def resolver(self) -> Any:
        if self._made is None:
            from referencing.jsonschema import DRAFT202012

            resource: Any = DRAFT202012.create_resource(self._schema)
            if self._around is None:
                self._made = registry_of(self._schema).resolver(resource.id() or "")
            else:
                self._made = self._around.resolver.in_subresource(resource)
        return self._made


def dynamic_targets(parts: Iterable[Subschema]) -> dict[str, list[int]]:
    """Return the identities of all schemas that a `$dynamicRef` of each name may lead to."""
    found: dict[str, list[int]] = {}
    for part in parts:
        name = part.schema.get("$dynamicAnchor")
        if isinstance(name, str):
            found.setdefault(name, []).append(id(part.schema))
    return found


def subschemas(schema: Any) -> Iterator[Subschema]:
    """Yield the schema and every schema inside it, in document order; what a reference leads to, elsewhere in
    it, too. Booleans are left out. The schema must satisfy the meta-schema."""
    stack: list[tuple[str, Any, _Base]] = [("", schema, _Base(schema))]
    seen: set[int] = set()
    while stack:
        path, part, base = stack.pop()
        if not isinstance(part, dict) or id(cast("object", part)) in seen:
            continue
        node = cast("dict[str, Any]", part)
        seen.add(id(node))
        if path and "$id" in node:
            base = _Base(node, base)
        inner = list(_parts(node))
        found = [(key, node[key], *_resolve(base, node[key])) for key in _REFERENCES if key in node]
        in_place = [value for keyword, _, value in inner if keyword in _IN_PLACE]
        yield Subschema(path, node, [(key, ref, target) for key, ref, target, _ in found], in_place)
        # A reference may lead to a place that no keyword leads to; it is visited after all others.
        elsewhere = [(f"{path}/{key}", target, there) for key, _, target, there in found]
        stack[:0] = [entry for entry in elsewhere if isinstance(entry[1], dict)]
        stack.extend((path + place, value, base) for _, place, value in reversed(inner))


def _parts(node: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield keyword, place and schema, for each schema right inside a schema."""
    for keyword, value in node.items():
        if keyword in _ONE:
            yield keyword, f"/{keyword}", value
        elif keyword in _LIST:
            for i, part in enumerate(cast("list[Any]", value)):
                yield keyword, f"/{keyword}/{i}", part
        elif keyword in _MAP and isinstance(value, dict):
            for name, part in cast("dict[str, Any]", value).items():
                yield keyword, f"/{keyword}/{name.replace('~', '~0').replace('/', '~1')}", part


def _resolve(base: _Base, ref: str) -> tuple[Any, Any]:
    """Return what a reference leads to and its base, or (None, None)."""
    resolver = base.resolver
    from referencing.exceptions import Unresolvable

    try:
        resolved = resolver.lookup(ref)
    except (Unresolvable, LookupError, TypeError, ValueError):
        # Beside Unresolvable, a pointer through a value that is no container raises what Python does.
        return None, None
    return resolved.contents, _Base(resolved.contents, made=resolved.resolver)


def endless(found: Iterable[Subschema]) -> list[str]:
    """Return the paths of schemas that lead back to themselves without going into the value: no value could
    ever be judged by them. One for each such circle."""
    nodes = {id(part.schema): part for part in found}
    if not any(part.references for part in nodes.values()):
        return []  # a tree
    done: set[int] = set()
    paths: list[str] = []
    for start in nodes:
        open_nodes: dict[int, Iterator[int]] = {}
        stack = [start]
        while stack:
            current = stack[-1]
            if current not in open_nodes:
                if current in done:
                    stack.pop()
                    continue
                open_nodes[current] = iter(_targets(nodes[current]))
            following = next((n for n in open_nodes[current] if n in nodes and n not in done), None)
            if following is None:
                done.add(current)
                del open_nodes[current]
                stack.pop()
            elif following in open_nodes:
                paths.append(nodes[following].path)
                done.add(following)
            else:
                stack.append(following)
    return paths


def _targets(part: Subschema) -> list[int]:
    # Only dicts are looked up by their identity; that of a boolean is never found.
    return [id(target) for _, _, target in part.references] + [id(schema) for schema in part.in_place]
