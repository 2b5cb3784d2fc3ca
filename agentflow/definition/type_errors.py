"""What msgspec says about a value of the wrong type, in our words: the place, the rule, the next step.

A library's own message never reaches the user: `Expected `int | null`, got `str` - at `$.max_tokens`` becomes
`max_tokens must be an integer or null, not a string`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.report import known_names, shown
from agentflow.definition.source_tree import pointer_of

__all__ = ["TypeProblem", "explain", "undecodable"]

_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]|(\[\.\.\.\])")
_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
    "bytes": "base64 text",
}
_FORMS = {
    "datetime": "a date and time as RFC 3339 writes it",
    "duration": "a duration as ISO 8601 writes it",
    "date": "a date as RFC 3339 writes it",
    "time": "a time as RFC 3339 writes it",
    "UUID": "a UUID",
    "base64": "base64 text",
    "decimal": "a decimal number",
}
_BOUNDS = {
    ">=": "at least {}",
    ">": "more than {}",
    "<=": "at most {}",
    "<": "less than {}",
    "length >=": "at least {} long",
    "length <=": "at most {} long",
}


class TypeProblem(NamedTuple):
    """What is wrong, without its subject; where (names and indexes, "" for any member), and what helps."""

    message: str
    steps: list[str | int]
    hint: str | None

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer."""
        return pointer_of(self.steps)

    def sentence(self, subject: str = "the value") -> str:
        """Return the whole message; the place is its subject, else `subject`."""
        name = ""
        for step in self.steps:
            name += f"[{step}]" if isinstance(step, int) else f".{shown(step, 60)}" if step else "[…]"
        return f"{name.lstrip('.') or subject} {self.message}"


def explain(error: msgspec.ValidationError, target: Any) -> TypeProblem:
    """Return what a ValidationError of a conversion to the type `target` means."""
    text, _, place = str(error).partition(" - at `$")
    steps: list[str | int] = [
        name if name else int(index) if index else "" for name, index, _ in _STEP.findall(place)
    ]
    for pattern, make in _MESSAGES:
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match is not None:
            message, hint = make(match, _type_at(target, steps))
            return TypeProblem(message, steps, hint)
    return TypeProblem("is not allowed here", steps, None)


def undecodable(error: Exception, target: Any) -> str:
    """Return why text could not be decoded to the type `target`: msgspec's DecodeError, or no UTF-8."""
    if isinstance(error, msgspec.ValidationError):
        return explain(error, target).sentence()
    place = re.search(r"byte (\d+)|position (\d+)", str(error))
    return f"it is not JSON at byte {place[1] or place[2]}" if place else "it is not whole JSON"


Made = tuple[str, str | None]


def _wrong_type(match: re.Match[str], wanted: inspect.Type | None) -> Made:
    names = [_NAMES.get(name, name) for name in match[1].split(" | ")]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    got = {"bool": "a boolean"}.get(match[2]) or _NAMES.get(match[2], match[2])
    return f"must be {listed}, not {got}", _allowed(None, wanted)


def _out_of_range(match: re.Match[str], _: inspect.Type | None) -> Made:
    bound = _BOUNDS.get(match[1].strip())
    return (f"must be {bound.format(match[2])}" if bound else "is out of range"), None


def _not_a_member(match: re.Match[str], wanted: inspect.Type | None) -> Made:
    value = match[1].strip("'")
    return f'"{shown(value)}" is not allowed', _allowed(value, wanted)


def _missing(match: re.Match[str], _: inspect.Type | None) -> Made:
    return f'has no "{shown(match[1])}"', None


def _unknown(match: re.Match[str], wanted: inspect.Type | None) -> Made:
    found = [one for one in _alternatives(wanted) if isinstance(one, inspect.StructType)]
    known = [field.encode_name for one in found for field in one.fields]
    return f'has an unknown key "{shown(match[1])}"', did_you_mean(match[1], known) or known_names(known)


def _wrong_length(match: re.Match[str], _: inspect.Type | None) -> Made:
    return f"must have {match[1] or ''}{match[2]} items, not {match[3]}", None


def _wrong_text(match: re.Match[str], _: inspect.Type | None) -> Made:
    for word, form in _FORMS.items():
        if word in match[1]:
            return f"is not {form}", None
    return "is not allowed here", None


_MESSAGES: tuple[tuple[str, Callable[[re.Match[str], inspect.Type | None], Made]], ...] = (
    (r"Expected `([^`]+)`, got `([^`]+)`", _wrong_type),
    (r"Expected `[^`]+` (?:of )?((?:length )?[<>]=?) ?(\S+)", _out_of_range),
    (r"Invalid enum value (.+)", _not_a_member),
    (r"Invalid value (.+)", _not_a_member),
    (r"Object missing required field `(.+)`", _missing),
    (r"Object contains unknown field `(.+)`", _unknown),
    (r"Expected `array` of (at least |at most )?length (\d+), got (\d+)", _wrong_length),
    (r"Invalid (.+)", _wrong_text),
    (r"Expected `[^`]+` matching regex .+", lambda _match, _wanted: ("is not written as it must be", None)),
)


def _allowed(value: str | None, wanted: inspect.Type | None) -> str | None:
    """Return the hint that lists the values of a Literal or enum, or the one that is near."""
    values: list[str] = []
    for one in _alternatives(wanted):
        if isinstance(one, inspect.LiteralType):
            values += [str(item) for item in one.values]
        elif isinstance(one, inspect.EnumType):
            values += [str(item.value) for item in one.cls]
        elif value is not None and isinstance(one, inspect.StructType) and one.tag is not None:
            values.append(str(one.tag))
    near = did_you_mean(value, values) if value is not None and len(value) <= 64 else None
    return near or (f"write {' or '.join(dict.fromkeys(values))}" if values else None)


def _alternatives(kind: inspect.Type | None) -> list[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        return [inner for one in kind.types for inner in _alternatives(one)]
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    return [] if kind is None else [kind]


def _type_at(target: Any, steps: list[str | int]) -> inspect.Type | None:
    """Return the type that a place below `target` has, None where it cannot be told."""
    try:
        kind: inspect.Type | None = inspect.type_info(target)
    except TypeError:
        return None
    for step in steps:
        found: list[inspect.Type] = []
        for one in _alternatives(kind):
            inner = _inside(one, step)
            if inner is not None:
                found.append(inner)
        if not found:
            return None
        kind = found[0] if len(found) == 1 else inspect.UnionType(tuple(found))
    return kind


def _inside(kind: inspect.Type, step: str | int) -> inspect.Type | None:
    if isinstance(kind, inspect.StructType):
        return next((field.type for field in kind.fields if field.encode_name == step), None)
    if isinstance(kind, inspect.DictType):
        return kind.value_type
    if isinstance(kind, inspect.TupleType):
        items = kind.item_types
        return items[step] if isinstance(step, int) and step < len(items) else None
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        return kind.item_type
    return None
