"""What is wrong with a value that does not satisfy a schema, in our words: the value, then the rule.

The library that finds a breach names the keyword, its value and the part of the instance; its own message
never reaches the user. Values are written as JSON, at most 200 characters of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

__all__ = ["breach_text", "json_text", "listed"]

_SHOWN: Final = 200
_SHOWN_ITEMS: Final = 20
_MAPS: Final = ("properties", "patternProperties", "$defs", "dependentSchemas")
"""Keywords whose members have names of the user's own choice."""
_TYPES: Final = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def breach_text(error: Any) -> str:
    """Return the message for a ValidationError of jsonschema."""
    value = json_text(error.instance)
    if _is_of_a_name(list(error.absolute_schema_path)):
        value = f"the name {value}"
    make = _TEXTS.get(error.validator)
    if make is None:  # a schema that is `false`
        return f"{value} is not allowed here"
    return make(value, error.validator_value, error)


def _is_of_a_name(path: list[Any]) -> bool:
    """Return True if a part of a schema at this path judges the names of members."""
    return any(
        key == "propertyNames" and (number == 0 or path[number - 1] not in _MAPS)
        for number, key in enumerate(path)
    )


def listed(names: Iterable[Any]) -> str:
    """Return up to 20 values as JSON, with commas."""
    all_names = list(names)
    texts = [json_text(name) for name in all_names[:_SHOWN_ITEMS]]
    return ", ".join(texts + ["…"] * (len(all_names) > _SHOWN_ITEMS))


# --- values


class _Full(Exception):
    """The text is long enough."""


def json_text(value: Any) -> str:
    """Return the JSON of a value; longer than 200 characters, its begin and an ellipsis."""
    writer = _Writer()
    try:
        writer.write(value)
    except _Full:
        return "".join(writer.parts)[:_SHOWN] + " …"
    return "".join(writer.parts)


class _Writer:
    """Writes JSON and stops behind the last character that is shown: a large value costs no more."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._length = 0

    def write(self, value: Any) -> None:
        """Append a value. Raises _Full."""
        if isinstance(value, str):
            self._append(json.dumps(str(value)[: _SHOWN + 1], ensure_ascii=False))
        elif isinstance(value, dict):
            self._members(cast("dict[str, Any]", value))
        elif isinstance(value, list | tuple):
            self._items(cast("list[Any]", value))
        else:
            self._append(_scalar(value))

    def _members(self, members: dict[str, Any]) -> None:
        self._append("{")
        for number, (name, member) in enumerate(members.items()):
            self._append(", " if number else "")
            self.write(str(name))
            self._append(": ")
            self.write(member)
        self._append("}")

    def _items(self, items: list[Any]) -> None:
        self._append("[")
        for number, item in enumerate(items):
            self._append(", " if number else "")
            self.write(item)
        self._append("]")

    def _append(self, text: str) -> None:
        self.parts.append(text)
        self._length += len(text)
        if self._length > _SHOWN + 2:  # the quotes of a text do not count
            raise _Full


def _scalar(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):  # an integer of more digits than Python writes
        return "the value"


# --- keywords


Maker = Callable[[str, Any, Any], str]


def _wrong_type(value: str, wanted: Any, _: Any) -> str:
    names: list[str] = [wanted] if isinstance(wanted, str) else list(wanted)
    return f"{value} is not {' or '.join(_TYPES.get(name, name) for name in names)}"


def _counted(verb: str, noun: str) -> Maker:
    def make(value: str, limit: Any, _: Any) -> str:
        return f"{value} has {verb} than {limit} {noun}{'' if limit == 1 else 's'}"

    return make


def _items(value: str, _: Any, error: Any) -> str:
    allowed = len(error.schema.get("prefixItems", ()))
    return f"{value} has more than {allowed} item{'' if allowed == 1 else 's'}"


def _alternatives(value: str, schemas: Any, error: Any) -> str:
    if error.validator == "oneOf" and not error.context:
        return f"{value} fits more than one of {len(schemas)} alternatives"
    return f"{value} fits none of {len(schemas)} alternatives"


def _contains(value: str, _: Any, error: Any) -> str:
    schema = error.schema
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if error.validator == "maxContains" or error.message.startswith("Too many"):
        return f"{value} has more than {most} of the items that are asked for"
    return f"{value} has fewer than {least} of the items that are asked for"


def _unevaluated(value: str, _: Any, error: Any) -> str:
    if error.validator == "unevaluatedItems":
        return f"{value} has items that no part of the schema allows"
    return f"{value} has members that no part of the schema allows"


def _kept(_: str, __: Any, error: Any) -> str:
    return error.message  # a keyword of ours


_TEXTS: Final[dict[str, Maker]] = {
    "type": _wrong_type,
    "enum": lambda value, wanted, _: f"{value} is not one of {listed(wanted)}",
    "const": lambda value, wanted, _: f"{value} is not {json_text(wanted)}",
    "minimum": lambda value, limit, _: f"{value} is less than {limit}",
    "maximum": lambda value, limit, _: f"{value} is more than {limit}",
    "exclusiveMinimum": lambda value, limit, _: f"{value} is not more than {limit}",
    "exclusiveMaximum": lambda value, limit, _: f"{value} is not less than {limit}",
    "multipleOf": lambda value, step, _: f"{value} is not a multiple of {step}",
    "minLength": _counted("fewer", "character"),
    "maxLength": _counted("more", "character"),
    "minItems": _counted("fewer", "item"),
    "maxItems": _counted("more", "item"),
    "minProperties": _counted("fewer", "member"),
    "maxProperties": _counted("more", "member"),
    "required": _kept,
    "dependentRequired": _kept,
    "anyOf": _alternatives,
    "oneOf": _alternatives,
    "not": lambda value, wanted, _: f"{value} is excluded by the schema {json_text(wanted)}",
    "contains": _contains,
    "minContains": _contains,
    "maxContains": _contains,
    "items": _items,
    "unevaluatedItems": _unevaluated,
    "unevaluatedProperties": _unevaluated,
    "pattern": lambda value, wanted, _: f"{value} does not match the pattern {json_text(wanted)}",
    "uniqueItems": lambda value, _, __: f"{value} has the same item twice",
    "additionalProperties": _kept,
}
"""Keyword to message. Those that apply another schema to a part (`$ref`, `properties`, `if`) have none."""
