"""The meta-schema of JSON Schema, Draft 2020-12, as a table: which parts of a schema break it.

jsonschema takes most of a millisecond for each subschema to say that a schema is valid. Here that takes some
microseconds; what is wrong with a part that is not valid, jsonschema says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast
from urllib.parse import urljoin

__all__ = ["bad_identifiers", "invalid_parts"]

_MAX_DEPTH = 200
_ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_ID = re.compile(r"[^#]*#?")
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def invalid_parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a schema that break the meta-schema by themselves, with a pointer to each, in the
    order of the text. Of each, the parts inside that are schemas are left out (they are `True`).

    Raises RecursionError for a schema so deep that no value could be judged by it.
    """
    for path, part in _parts(schema):
        if not isinstance(part, dict):
            if not isinstance(part, bool):
                yield path, part
            continue
        node = cast("dict[str, Any]", part)
        if not all(_fits(keyword, value) for keyword, value in node.items()):
            yield path, {keyword: _alone(keyword, value) for keyword, value in node.items()}


def bad_identifiers(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield each `$id` that is no URI, with a pointer to it: nothing in such a schema could be resolved."""
    for path, part in _parts(schema):
        name: Any = cast("dict[str, Any]", part).get("$id") if isinstance(part, dict) else None
        if isinstance(name, str):
            try:
                urljoin("urn:base", name)
            except ValueError:
                yield f"{path}/$id", name


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield a schema and every schema inside it, also what stands in the place of one, in the order of the
    text."""
    todo: list[tuple[str, Any]] = [("", schema)]
    while todo:
        path, part = todo.pop()
        if path.count("/") > _MAX_DEPTH:
            raise RecursionError
        yield path, part
        if isinstance(part, dict):
            members = cast("dict[str, Any]", part).items()
            inner = [found for keyword, value in members for found in _inner(keyword, value)]
            todo += [(path + place, value) for place, value in reversed(inner)]


def _fits(keyword: str, value: Any) -> bool:
    check = _CHECKS.get(keyword)
    return check is None or check(value)


def _inner(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that a keyword holds; what stands in their place and is none, is told by its
    owner."""
    if keyword in _ONE:
        yield f"/{keyword}", value
    elif keyword in _LISTS and isinstance(value, list):
        for i, item in enumerate(cast("list[Any]", value)):
            yield f"/{keyword}/{i}", item
    elif keyword in _MAPS and isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            if keyword != "dependencies" or not isinstance(item, list):
                yield f"/{keyword}/{name.replace('~', '~0').replace('/', '~1')}", item


def _alone(keyword: str, value: Any) -> Any:
    """Return the value of a keyword without the schemas in it."""
    if keyword in _ONE:
        return True
    if keyword in _LISTS and isinstance(value, list):
        return [True for _ in cast("list[Any]", value)]
    if keyword in _MAPS and isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        names: dict[str, Any] = {k: v for k, v in members.items() if isinstance(v, list)}
        kept = names if keyword == "dependencies" else {}
        return {**dict.fromkeys(members, True), **kept}
    return value


# --- the values of keywords


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and bool(cast("list[Any]", value))


def _is_names(value: Any) -> bool:
    """Return whether a value is an array of strings, each once."""
    if not isinstance(value, list):
        return False
    names = cast("list[Any]", value)
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return _is_filled_list(value) and _is_names(value) and all(name in _TYPES for name in value)


def _is_map_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, cast("dict[str, Any]", value).values()))


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _any(value: Any) -> bool:
    return True


_ONE = frozenset(
    {"items", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
_LISTS = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})
_MAPS = frozenset(
    {"$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"}
)

_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_ONE, _any),
    **dict.fromkeys(_LISTS, _is_filled_list),
    **dict.fromkeys(_MAPS, _is_map),
    "dependencies": lambda value: (
        isinstance(value, dict)
        and all(_is_names(v) for v in cast("dict[str, Any]", value).values() if isinstance(v, list))
    ),
    "type": _is_type,
    "enum": _is_list,
    "examples": _is_list,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "dependentRequired": _is_map_of(_is_names),
    "$vocabulary": _is_map_of(_is_flag),
    "required": _is_names,
    "$id": _matches(_ID),
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$recursiveAnchor"), _matches(_ANCHOR)),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _is_number),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
    **dict.fromkeys(
        [
            *("maxLength", "minLength", "maxItems", "minItems"),
            *("maxContains", "minContains", "maxProperties", "minProperties"),
        ],
        _is_count,
    ),
    **dict.fromkeys(
        [
            *("$schema", "$ref", "$dynamicRef", "$recursiveRef", "$comment"),
            *("pattern", "title", "description", "format", "contentEncoding", "contentMediaType"),
        ],
        _is_text,
    ),
}
