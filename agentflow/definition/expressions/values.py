"""What the operators do with JSON values: types, truth, equality, text, size (page 001 §6.3 to §6.5).

Every function here is iterative over the depth of a value and charges what it visits, so that no value
can exhaust the Python stack or make time unbounded. Values are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from agentflow.definition.expressions.errors import Fault

__all__ = [
    "MAX_RESULT",
    "SMALL_INT",
    "Kind",
    "Meter",
    "bounded_text",
    "check_size",
    "encode",
    "equal",
    "json_size",
    "kind",
    "order",
    "to_text",
    "truth",
]

MAX_RESULT: Final = 1_048_576

Kind = Literal["null", "boolean", "number", "string", "array", "object"]

_KINDS: dict[Any, Kind] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}


class Meter:
    """Counts the operations of one evaluation down from its limit.

    One operation is an element, member or pair of values that is visited, or 64 characters of text that
    are read or made; the operators of the expression itself are charged at the start.
    """

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def charge(self, operations: int) -> None:
        """Take from what is left; raise Fault when it was not enough."""
        self.left -= operations
        if self.left < 0:
            raise Fault("limit", "expression takes too many operations")

    def charge_text(self, characters: int) -> None:
        """Charge a text as `charge` does a value."""
        if characters >= 64:
            self.charge(characters >> 6)


def kind(value: Any) -> Kind:
    """Return the type of a JSON value in the words of the language. Raises TypeError if it is no JSON
    value."""
    found = _KINDS.get(type(value))
    if found is not None:
        return found
    if isinstance(value, Mapping):
        return "object"
    for base in (bool, int, float, str, list, tuple):
        if isinstance(value, base):
            return _KINDS[base]
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def json_type_of(value: Any) -> str:
    """Return the type of a JSON value in the words of messages: `a string`, `an array`, `null` … Raises
    TypeError if it is no JSON value."""
    found = kind(value)
    return found if found == "null" else f"an {found}" if found[0] in "ao" else f"a {found}"


def truth(value: Any) -> bool:
    """Return False for null, false, 0, 0.0 and ""; True for all else, also [] and {}."""
    if value is True:
        return True
    return bool(value) or kind(value) in ("array", "object")


def order(operator: str, a: Any, b: Any) -> bool:
    """Compare two numbers or two strings (by code points) by `<`, `<=`, `>` or `>=`; else raise a Fault."""
    kind_a, kind_b = kind(a), kind(b)
    if kind_a != kind_b or kind_a not in ("number", "string"):
        raise Fault(
            "type", f"{operator} compares number with number or string with string, got {kind_a} and {kind_b}"
        )
    if operator == "<":
        return a < b
    if operator == "<=":
        return a <= b
    return a > b if operator == ">" else a >= b


def equal(a: Any, b: Any, meter: Meter) -> bool:
    """Return whether two values are equal, typed and deep: a boolean is no number, 1 equals 1.0 (exactly),
    members in any order."""
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        kind_a = kind(a)
        if kind_a != kind(b):
            return False
        if kind_a == "array":
            if len(a) != len(b):
                return False
            meter.charge(len(a))
            pairs.extend(zip(a, b, strict=True))
        elif kind_a == "object":
            if len(a) != len(b):
                return False
            meter.charge(len(a))
            for name, value in a.items():
                if name not in b:
                    return False
                pairs.append((value, b[name]))
        elif a != b:
            return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"{type(value).__name__} is not a JSON type")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def encode(value: Any) -> bytes:
    """Return compact JSON in UTF-8, key order kept. The size must have been checked before."""
    try:
        return _encoder.encode(value)
    except RecursionError:
        raise Fault("limit", "value is nested too deeply") from None
    except UnicodeEncodeError:
        raise Fault("type", "text holds half of a surrogate pair") from None
    except (OverflowError, ValueError):
        # Python refuses to write integers of more than 4,300 digits.
        raise Fault("limit", "integer is too long") from None


def json_size(value: Any, limit: int) -> int:
    """Return the bytes of `value` as compact JSON, or any number above `limit` once it is known to be larger.

    Time and memory are bounded by `limit`, whatever the depth, the sharing or the size of the value.
    """
    size = 0
    stack = [value]
    while stack and size <= limit:
        value = stack.pop()
        of = _KINDS.get(type(value)) or kind(value)
        if of == "array" or of == "object":
            count = len(value)
            size += 2
            if not count:
                continue
            # An element takes at least a byte, a member one more and its key with two quotes and a colon.
            if size + len(stack) + (count if of == "array" else 5 * count) > limit:
                return limit + 1
            members = value if of == "array" else value.values()
            types = set(map(type, members))
            if types <= _SCALARS and (str not in types or _texts(members) + size <= limit):
                size += _flat_size(value, limit - size) - 2
                continue
            size += count - 1
            if of == "object":
                for name in value:
                    size += 1 + _string_size(name, limit - size)
            stack.extend(members)
        elif of == "string":
            size += _string_size(value, limit - size)
        elif of == "number":
            size += len(encode(value))
        else:
            size += 5 if value is False else 4
    return size


SMALL_INT = 10**15
"""Integers below it have a short text, which is counted without more ado."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_CHUNK = 1_024


def _texts(members: Iterable[Any]) -> int:
    return sum(len(member) for member in members if type(member) is str)


def _flat_size(value: Any, limit: int) -> int:
    """Return the size of a container of scalars, whose texts fit: the encoder counts faster than a loop
    here."""
    if type(value) is not list:
        names = 0 if type(value) is tuple else sum(map(len, value))
        return limit + 1 if names > limit else len(encode(value))
    size = 2 + max(0, len(value) - 1)  # pyright: ignore[reportUnknownArgumentType]
    for start in range(0, len(value), _CHUNK):  # pyright: ignore[reportUnknownArgumentType]
        chunk = cast("list[Any]", value[start : start + _CHUNK])
        size += len(encode(chunk)) - 1 - len(chunk)
        if size > limit:
            break
    return size


def _string_size(text: str, limit: int) -> int:
    return limit + 1 if len(text) > limit else len(encode(text))


def check_size(value: Any, limit: int = MAX_RESULT) -> int:
    """Return the bytes of a result as JSON; Fault `limit` beyond `limit`."""
    size = len(str(value)) if type(value) is int and abs(value) < SMALL_INT else json_size(value, limit)
    if size > limit:
        raise Fault("limit", f"result is larger than {MAX_RESULT:,} bytes of JSON")
    return size


def to_text(value: Any) -> str:
    """Return the text form of a value (page 001 §6.4): null is "", a string itself, containers compact
    JSON."""
    of = kind(value)
    if of == "string":
        return value
    if of == "null":
        return ""
    if of == "boolean":
        return "true" if value else "false"
    if of == "number":
        return _number_text(value)
    return encode(value).decode()


def _number_text(number: float) -> str:
    if isinstance(number, int):
        return str(number)
    text = encode(number).decode()
    return text[:-2] if abs(number) < 1e15 and text.endswith(".0") else text


def bounded_text(value: Any, limit: int) -> str:
    """Return the text form, or Fault `limit` before a text of more than `limit` bytes is made."""
    of = kind(value)
    if of == "string":
        too_long = len(value) > limit
    elif of in ("array", "object"):
        too_long = json_size(value, limit) > limit
    else:
        too_long = of == "number" and len(encode(value)) > limit
    if too_long:
        raise Fault("limit", f"text is longer than {MAX_RESULT:,} bytes")
    return to_text(value)
