"""What JSON Schema says about the values that an expression reads: types and missing names (page 001 §6.1).

Careful by design: where a schema leaves anything open, nothing is known and nothing is reported.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import msgspec

from agentflow.definition.expressions.nodes import (
    Call,
    Compare,
    Digits,
    Index,
    Lit,
    Logic,
    Node,
    Not,
    Path,
    Segment,
    Star,
)

__all__ = ["Missing", "RootSchemas", "element_schema", "schema_of", "types_of", "value_types", "walk"]

Schema = Any
RootSchemas = dict[str, Schema]

_OPEN = frozenset(
    {
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "patternProperties",
        "additionalProperties",
        "unevaluatedProperties",
    }
)
_RESULTS = {
    **dict.fromkeys(
        ("contains", "startsWith", "endsWith", "success", "failure", "cancelled", "always"), "boolean"
    ),
    **dict.fromkeys(("format", "toJSON", "join"), "string"),
    "length": "number",
}
_Types = frozenset[str]


class Missing(msgspec.Struct, frozen=True):
    """A name that the schema at its level does not have, and the names that it has."""

    name: str
    offset: int
    known: Collection[str]


def walk(schema: Schema, segments: tuple[Segment, ...]) -> Schema | Missing:
    """Return the schema of what a path reads below a value of `schema`; True where nothing is known."""
    for i, segment in enumerate(segments):
        if not isinstance(schema, dict) or _OPEN & cast("dict[str, Any]", schema).keys():
            return True
        level = cast("dict[str, Any]", schema)
        if isinstance(segment, Star):
            element = element_schema(level)
            rest = walk(element, segments[i + 1 :])
            return rest if isinstance(rest, Missing) else {"type": "array"}
        if isinstance(segment, Index) or (isinstance(segment, Digits) and "items" in level):
            schema = element_schema(level)
        else:
            name = segment.text if isinstance(segment, Digits) else segment.name
            found = _property(level, name)
            if found is None:
                known = cast("dict[str, Any]", level.get("properties", {}))
                return Missing(name, segment.offset, known.keys())
            schema = found
    return schema


def _property(level: dict[str, Any], name: str) -> Schema | None:
    """Return the schema of a member, True if unknown, None if the level cannot have it."""
    properties = level.get("properties")
    if isinstance(properties, dict):
        return cast("dict[str, Any]", properties).get(name)
    if "items" in level and level.get("type") == "array":
        return None
    return True


def element_schema(schema: Schema) -> Schema:
    """Return the schema of the elements of an array; True if unknown."""
    if not isinstance(schema, dict):
        return True
    level = cast("dict[str, Any]", schema)
    if "prefixItems" in level or _OPEN & level.keys() or types_of(level) != frozenset({"array"}):
        return True
    return level.get("items", True)


def types_of(schema: Schema) -> _Types | None:
    """Return the JSON types that a schema allows by `type`, `const` or `enum`; None if it does not say."""
    if not isinstance(schema, dict):
        return None
    level = cast("dict[str, Any]", schema)
    declared = level.get("type")
    if isinstance(declared, str):
        return frozenset({_plain(declared)})
    if isinstance(declared, list):
        names = cast("list[Any]", declared)
        return frozenset(_plain(name) for name in names if isinstance(name, str))
    if "const" in level:
        return frozenset({_type_of_value(level["const"])})
    values = level.get("enum")
    if isinstance(values, list) and values:
        return frozenset(_type_of_value(value) for value in cast("list[Any]", values))
    return None


def _plain(name: str) -> str:
    return "number" if name == "integer" else name


def _type_of_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "array" if isinstance(value, list) else "object"


def schema_of(node: Node, roots: RootSchemas) -> Schema:
    """Return the schema of what a path expression reads; True if unknown, or if it is no path."""
    if not isinstance(node, Path):
        return True
    if isinstance(node.base, str):
        base = roots.get(node.base, True)
    elif isinstance(node.base, Path):
        base = schema_of(node.base, roots)
    else:
        return True
    found = walk(base, node.segments)
    return True if isinstance(found, Missing) else found


def value_types(node: Node, roots: RootSchemas) -> _Types | None:
    """Return the JSON types that the value of an expression can have; None if that is not known."""
    match node:
        case Lit():
            return frozenset({_type_of_value(node.value)})
        case Not() | Compare():
            return frozenset({"boolean"})
        case Logic():
            return _either(list(node.operands), roots)
        case Call(name="case"):
            return _either([*node.arguments[1::2], node.arguments[-1]], roots)
        case Call():
            return frozenset({_RESULTS[node.name]}) if node.name in _RESULTS else None
        case Path():
            return types_of(schema_of(node, roots))


def _either(nodes: list[Node], roots: RootSchemas) -> _Types | None:
    found: set[str] = set()
    for node in nodes:
        types = value_types(node, roots)
        if types is None:
            return None
        found |= types
    return frozenset(found)
