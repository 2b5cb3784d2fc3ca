"""Checks of single values against the kinds of `shapes`: text, names, durations, numbers, booleans.

Each check answers with the plain value or with what is wrong; nothing is reported here.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from agentflow.definition.diagnostics import nearest
from agentflow.definition.failure import Category
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.report import shown
from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    ErrorName,
    Id,
    Kind,
    Map,
    Number,
    OneOf,
    Shape,
    Text,
)
from agentflow.definition.source_tree import Node, Object, Scalar, json_type

__all__ = ["Leaf", "Problem", "check_leaf", "either", "is_name", "seconds", "type_name"]

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_CODE = re.compile(r"[a-z][a-z0-9_.]*")
_CATEGORIES: tuple[str, ...] = get_args(Category)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a value; the message lacks its subject (`must be a string`)."""

    code: str
    message: str
    hint: str | None = None


class Leaf(msgspec.Struct, frozen=True):
    """A value that is right, as a plain value (seconds for a duration)."""

    value: Any


_EXPECTED: dict[type[Any], str] = {
    Text: "a string",
    Id: "a string",
    ErrorName: "a string",
    Enum: "a string",
    Duration: "a duration",
    Number: "a number",
    Const: "a boolean",
    ArrayOf: "an array",
    Map: "an object",
    Shape: "an object",
}
_TYPE_NAMES = {
    "string": "a string",
    "number": "a number",
    "boolean": "a boolean",
    "null": "null",
    "array": "an array",
    "object": "an object",
}


def type_name(node: Node) -> str:
    """Return the JSON type of a node in one word, as `OneOf` and `Json` spell it."""
    return json_type(node).rpartition(" ")[2]


def either(types: Iterable[str]) -> str:
    """Return words joined as `a string, a number or null`."""
    names = [_TYPE_NAMES[name] for name in types]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def check_leaf(node: Node, kind: Kind) -> Leaf | Problem:
    """Return the plain value of a leaf, or what is wrong with it."""
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(kind, OneOf):
        return Problem("E_TYPE", f"must be {either(kind.by_type)}")
    if isinstance(kind, ErrorName) and isinstance(value, str):
        return _error_name_problem(value, kind)
    if isinstance(kind, Text | Id | Enum) and isinstance(value, str):
        return _text_problem(value, kind)
    if isinstance(kind, Duration) and isinstance(value, str | int | float) and not isinstance(value, bool):
        length = seconds(value)
        if length is not None and length <= MAX_SECONDS:
            return Leaf(length)
        if length is not None:
            return Problem("E_VALUE", f'"{shown(str(value))}" is longer than 36,500 days')
        return Problem(
            "E_VALUE", f'"{shown(str(value))}" is not a duration', 'write "500ms", "30s", "5m", "1h" or "1d"'
        )
    if isinstance(kind, Number) and isinstance(value, int | float) and not isinstance(value, bool):
        return _number_problem(value, kind)
    if isinstance(kind, Const) and isinstance(node, Scalar) and (value is None or isinstance(value, bool)):
        if value in kind.allowed:
            return Leaf(value)
        if isinstance(value, bool):
            wanted = "true" if kind.allowed == (True,) else "false"
            return Problem(
                "E_VALUE", f"{str(value).lower()} is not allowed", f"write {wanted}, or leave it out"
            )
    expected = _EXPECTED.get(type(kind), "another type")
    hint: str | None = None
    if isinstance(kind, Number) and kind.integer:
        expected = "an integer"
    if isinstance(kind, Number) and isinstance(value, str):
        number = _NUMBER.fullmatch(value.strip())
        hint = (
            f"write {shown(value.strip())} without quotes" if number else "write digits alone, such as 20000"
        )
    if isinstance(kind, Text | Id | Enum | Duration) and isinstance(value, int | float):
        hint = f'write "{shown(json.dumps(value))}" with quotes'
    if isinstance(kind, ArrayOf) and isinstance(node, Object):
        hint = 'begin each element with "- "'
    if isinstance(kind, ArrayOf) and isinstance(value, str) and value.strip():
        hint = f"write [{shown(value)}]"
    return Problem("E_TYPE", f"must be {expected}", hint)


def _text_problem(value: str, kind: Text | Id | Enum) -> Leaf | Problem:
    if isinstance(kind, Enum):
        value = value.strip() if kind.trim else value
        if value in kind.values:
            # The very object of the tables: the graph leaves out what is its default, by identity, and must
            # not depend on where the word came from.
            return Leaf(sys.intern(value))
        words = " or ".join(f'"{word}"' for word in kind.values)
        return Problem("E_VALUE", f'"{shown(value)}" is not allowed', f"write {words}")
    if isinstance(kind, Id):
        if is_name(value, kind.max):
            return Leaf(value)
        return Problem(
            "E_VALUE",
            f'"{shown(value)}" is not a name',
            f"begin with a letter or _, go on with letters, digits, _ and -, at most {kind.max}",
        )
    if not kind.blank and not value.strip():
        return Problem("E_VALUE", "is blank", "write a text, or leave it out")
    if kind.max is not None and len(value) > kind.max:
        return Problem("E_VALUE", f"is longer than {kind.max} characters")
    return Leaf(value)


def _error_name_problem(value: str, kind: ErrorName) -> Leaf | Problem:
    if value in _CATEGORIES:
        return Leaf(value)
    near = nearest(value, _CATEGORIES) if len(value) <= kind.max else None
    if near is None and len(value) <= kind.max and _CODE.fullmatch(value):
        return Leaf(value)
    hint = f'did you mean "{near}"?' if near else f"write a code, or one of {', '.join(_CATEGORIES)}"
    return Problem("E_VALUE", f'"{shown(value)}" is not a category or code of errors', hint)


def _number_problem(value: float, kind: Number) -> Leaf | Problem:
    if kind.integer and not isinstance(value, int):
        return Problem("E_TYPE", "must be an integer", "write it without a fraction")
    if abs(value) > sys.float_info.max:
        return Problem("E_VALUE", f"{shown(str(value))} is too large")
    if kind.minimum is not None and value < kind.minimum:
        return Problem(
            "E_VALUE", f"{shown(str(value))} is below {kind.minimum:g}", f"write {kind.minimum:g} or more"
        )
    if kind.maximum is not None and value > kind.maximum:
        return Problem(
            "E_VALUE", f"{shown(str(value))} is above {kind.maximum:g}", f"write {kind.maximum:g} or less"
        )
    return Leaf(value)


def is_name(text: str, longest: int) -> bool:
    """Return whether a text is an Id of at most `longest` characters."""
    return len(text) <= longest and _ID.fullmatch(text) is not None


def seconds(value: str | float) -> float | None:
    """Return a duration in seconds; None if the text is none, or not above 0."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if not match:
            return None
        number, unit = float(match[1]), match[2]
        result = number / 1000 if unit == "ms" else number * _UNITS[unit]
    else:
        try:
            result = float(value)
        except OverflowError:
            return math.inf if value > 0 else None
    return result if result > 0 else None
