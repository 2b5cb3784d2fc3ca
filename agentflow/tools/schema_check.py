"""Checks of a schema from outside: may a model be shown the schema, and can arguments be checked by it?

The meta-schema would say so too, in several milliseconds for each function; a server has hundreds. This
looks at the keywords that mean something to a validator, in the time of a look at each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

from agentflow.definition.schemas import TYPES, check_applicable
from agentflow.definition.subschemas import subschemas

__all__ = ["keyword_problem", "schema_problem"]


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) or value is True or value is False


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(_is_schema, cast("list[Any]", value)))


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, cast("dict[str, Any]", value).values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, cast("list[Any]", value)))


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, OverflowError, RecursionError):
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_type(value: Any) -> bool:
    names: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


_KEYWORDS: Final[dict[str, Callable[[Any], bool]]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list),
    "required": _is_texts,
    "pattern": _is_pattern,
    "patternProperties": lambda value: _is_named(value) and all(map(_is_pattern, value)),
    "uniqueItems": lambda value: isinstance(value, bool),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "dependentRequired": lambda value: (
        isinstance(value, dict) and all(map(_is_texts, cast("dict[str, Any]", value).values()))
    ),
    **dict.fromkeys(("$ref", "$dynamicRef", "$anchor", "$id", "format", "title", "description"), _is_text),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _is_schemas),
    **dict.fromkeys(("$defs", "definitions", "dependentSchemas", "properties"), _is_named),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count
    ),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(
        ("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"), _is_schema
    ),
    **dict.fromkeys(("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"), _is_schema),
}


_LISTS: Final = frozenset(key for key, check in _KEYWORDS.items() if check is _is_schemas)
_MAPS: Final = frozenset(
    {"patternProperties"} | {key for key, check in _KEYWORDS.items() if check is _is_named}
)
_ONES: Final = frozenset(key for key, check in _KEYWORDS.items() if check is _is_schema)


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Return what is wrong with it, with the place; None if it can be used."""
    try:
        return keyword_problem(schema) or _reference_problem(schema)
    except (RecursionError, OverflowError, ValueError):
        return "it cannot be read"


def keyword_problem(schema: Any) -> str | None:
    """Return the same of keywords and patterns alone; where references lead is not looked at."""
    stack: list[tuple[str, Any]] = [("", schema)]
    while stack:
        path, part = stack.pop()
        if not isinstance(part, dict):
            continue
        for key, value in cast("dict[str, Any]", part).items():
            check = _KEYWORDS.get(key)
            if check is None:
                continue
            place = f"{path}/{key}"
            if not check(value):
                return f"{key} is not what it may be, at #{place}"
            stack += _parts(key, place, value)
    return None


def _parts(key: str, place: str, value: Any) -> list[tuple[str, Any]]:
    if key in _MAPS:
        named = cast("dict[str, Any]", value)
        return [(f"{place}/{name.replace('~', '~0').replace('/', '~1')}", v) for name, v in named.items()]
    if key in _LISTS:
        return [(f"{place}/{i}", v) for i, v in enumerate(cast("list[Any]", value))]
    return [(place, value)] if key in _ONES else []


def _reference_problem(schema: dict[str, Any]) -> str | None:
    for part in subschemas(schema):
        for key, ref, target in part.references:
            if not isinstance(target, dict | bool):
                where = "leads nowhere" if ref.startswith("#") else "is remote"
                return f'{key} "{ref[:200]}" {where}, at #{part.path}/{key}'
    return next((found.message for found in check_applicable(schema)), None)
