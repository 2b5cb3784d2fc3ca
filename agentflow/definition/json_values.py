"""What a Python value holds that JSON cannot: keys, texts and numbers without a form, too deep nesting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.report import shown
from agentflow.definition.source_tree import child_pointer

__all__ = ["copy_json", "is_broken_text", "json_problems"]

_MAX_DEPTH = 200
_MAX_BITS = 3_320  # a thousand digits
_2_53 = 1 << 53
_ATOMS = frozenset({str, int, float, bool, type(None)})


def json_problems(value: Any, *, structs: bool = False) -> Iterator[tuple[str, str, str]]:
    """Yield pointer, message and code of each problem; `structs`: of a graph. Does not recurse."""
    todo: list[tuple[Any, str, int]] = [(value, "", 0)]
    while todo:
        item, path, depth = todo.pop()
        if depth > _MAX_DEPTH:
            yield path, f"values are nested deeper than {_MAX_DEPTH}", "E_LIMIT"
        elif (problem := _problem(item, structs)) is not None:
            yield path, problem, "E_TYPE"
        elif isinstance(item, msgspec.Struct):
            fields = ((field, getattr(item, field)) for field in item.__struct_fields__)
            todo += [(v, child_pointer(path, k), depth + 1) for k, v in fields if v is not msgspec.UNSET]
        elif isinstance(item, Mapping):
            members = cast("Mapping[str, Any]", item).items()
            todo += [(v, child_pointer(path, k), depth + 1) for k, v in members if not _is_plain(v)]
        elif isinstance(item, list | tuple):
            items = cast("list[Any]", item)
            todo += [(v, f"{path}/{i}", depth + 1) for i, v in enumerate(items) if not _is_plain(v)]


def _problem(item: Any, structs: bool) -> str | None:
    match item:
        case None | bool() | list() | tuple():
            return None
        case msgspec.Struct() if structs:
            return None
        case Mapping():
            keys = cast("Mapping[Any, Any]", item)
            wrong = next((k for k in keys if not isinstance(k, str) or is_broken_text(k)), None)
            return None if wrong is None else f"key {shown(repr(wrong))} is not a string of characters"
        case str():
            return "string holds a lone surrogate" if is_broken_text(item) else None
        case int():
            return "number has more than 1,000 digits" if structs and item.bit_length() > _MAX_BITS else None
        case float():
            return None if math.isfinite(item) else f"{item} is not a JSON number"
        case _:
            return f"{type(item).__name__} is not a JSON type"


def _is_plain(value: Any) -> bool:
    """Return True for most values of long lists: they are JSON, and need no pointer."""
    if value.__class__ is str:
        return value.isascii()
    return value is None or value.__class__ is bool or (value.__class__ is int and abs(value) < _2_53)


def copy_json(value: Any) -> Any:
    """Return a JSON value with containers of its own: dicts and lists, as a log that is read gives them."""
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value).items()
        return {k: v if v.__class__ in _ATOMS else copy_json(v) for k, v in members}
    if isinstance(value, list | tuple):
        return [v if v.__class__ in _ATOMS else copy_json(v) for v in cast("list[Any]", value)]
    return value


def is_broken_text(text: str) -> bool:
    """Return whether half of a surrogate pair stands in a text. The encoder says so in 1 ms a MiB; looking at
    each character took 35 ms."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
