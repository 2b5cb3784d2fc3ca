"""How a model is told the schema of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

__all__ = ["plain_schema", "schema_in_words", "strict_schema"]

_STRICT_KEYS: Final = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "$ref",
        "$defs",
        "title",
        "description",
    }
)

_JUDGES: Final = frozenset(
    {
        *("$schema", "$id", "$comment", "if", "then", "else", "not", "contains", "minContains"),
        *("maxContains", "dependentSchemas", "dependentRequired", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems"),
    }
)
"""Keywords that no provider makes an answer by, and that some refuse."""


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the keywords that providers take: those that only judge a value, such as `if` and
    `contains`, are left out. The answer is held against the whole schema all the same."""
    return cast("dict[str, Any]", _sendable(dict(schema)))


def _sendable(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in _JUDGES:
            continue
        if key == "pattern" and not (str(value).startswith("^") and str(value).endswith("$")):
            continue  # makers of grammars take whole texts only
        if key in ("properties", "$defs") and isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            found[key] = {name: _sendable(part) for name, part in members.items()}
        elif key in ("items", "additionalProperties"):
            found[key] = _sendable(value)
        elif key in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            parts = [_sendable(part) for part in cast("list[Any]", value)]
            left = [part for part in parts if part != {}]
            if left and (key == "allOf" or len(left) == len(parts)):  # one that takes anything takes all
                found[key] = left
        else:
            found[key] = value
    return found


def schema_in_words(schema: dict[str, Any] | bool) -> str:
    """Return the sentence of a prompt that asks for an answer by the schema."""
    if isinstance(schema, bool) or not schema:
        return "Answer with one JSON value and nothing else."
    text = msgspec.json.encode(schema).decode()
    return f"Answer with JSON that is valid by this JSON Schema, and nothing else: {text}"


def strict_schema(schema: object) -> bool:
    """Return whether the provider's strict mode takes the schema: closed objects, every property required,
    and only keywords that it knows. Too careful is harmless: the answer is validated all the same."""
    if isinstance(schema, bool):
        return False
    if not isinstance(schema, dict):
        return False
    node = cast("dict[str, Any]", schema)
    if not node.keys() <= _STRICT_KEYS:
        return False
    properties: Mapping[str, Any] = node.get("properties") or {}
    if (node.get("type") == "object" or properties) and (
        node.get("additionalProperties") is not False or set(node.get("required") or ()) != set(properties)
    ):
        return False
    defs: Mapping[str, Any] = node.get("$defs") or {}
    nested = [*properties.values(), *defs.values(), *(node.get("anyOf") or ())]
    if "items" in node:
        nested.append(node["items"])
    return all(strict_schema(part) for part in nested)
