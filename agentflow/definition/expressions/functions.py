"""The functions of the language (page 001 §6.3), on values that are already computed.

`case` and the status functions are no part of this: they do not take values only (see `compiler`).
Each raises Fault for arguments of a wrong type, and charges the meter before it works.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from agentflow.definition.expressions.errors import Fault
from agentflow.definition.expressions.values import (
    MAX_RESULT,
    Meter,
    bounded_text,
    check_size,
    encode,
    equal,
    kind,
)

__all__ = ["FUNCTIONS", "MAX_JSON_DEPTH"]

MAX_JSON_DEPTH: Final = 64

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([0-9]+)\}|[{}]")
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[{]|[\]}]', re.DOTALL)


def _wrong(function: str, wanted: str, value: Any) -> Fault:
    return Fault("type", f"{function} takes {wanted}, got {kind(value)}")


def _contains(meter: Meter, haystack: Any, needle: Any) -> bool:
    of = kind(haystack)
    if of == "null":
        return False
    if of == "string":
        if kind(needle) != "string":
            raise _wrong("contains", "a string to look for in a string", needle)
        meter.charge_text(len(haystack) + len(needle))
        return needle in haystack
    if of == "array":
        meter.charge(len(haystack))
        return any(equal(element, needle, meter) for element in haystack)
    raise _wrong("contains", "a string or an array", haystack)


def _starts_with(meter: Meter, text: Any, prefix: Any) -> bool:
    return _affix("startsWith", str.startswith, text, prefix)


def _ends_with(meter: Meter, text: Any, suffix: Any) -> bool:
    return _affix("endsWith", str.endswith, text, suffix)


def _affix(name: str, test: Callable[[str, str], bool], text: Any, affix: Any) -> bool:
    if text is None:
        return False
    for value in (text, affix):
        if kind(value) != "string":
            raise _wrong(name, "strings", value)
    return test(text, affix)


def _length(meter: Meter, value: Any) -> int:
    if value is None:
        return 0
    if kind(value) in ("string", "array", "object"):
        return len(value)
    raise _wrong("length", "a string, an array or an object", value)


def _join(meter: Meter, elements: Any, separator: Any = ",") -> str:
    if elements is None:
        return ""
    if kind(elements) != "array":
        raise _wrong("join", "an array", elements)
    if kind(separator) != "string":
        raise _wrong("join", "a string as separator", separator)
    meter.charge(len(elements))
    text = _Text(meter)
    if len(separator) * (len(elements) - 1) > MAX_RESULT:
        raise text.too_long()
    for position, element in enumerate(elements):
        if position:
            text.add(separator)
        text.add_value(element)
    return text.finish()


def _format(meter: Meter, pattern: Any, *values: Any) -> str:
    if kind(pattern) != "string":
        raise _wrong("format", "a string as its first argument", pattern)
    meter.charge_text(len(pattern))
    text = _Text(meter)
    end = 0
    for match in _PLACEHOLDER.finditer(pattern):
        meter.charge(1)
        text.add(pattern[end : match.start()])
        end = match.end()
        token, number = match[0], match[1]
        if number is not None:
            # No call has an argument with a number of more than three digits, leading zeros apart.
            significant = number.lstrip("0")
            if len(significant) > 3 or int(significant or "0") >= len(values):
                raise Fault("format", f"{{{number[:4]}}} has no argument, format got {len(values)}")
            text.add_value(values[int(significant or "0")])
        elif len(token) == 2:
            text.add(token[0])
        else:
            other = "{{" if token == "{" else "}}"
            raise Fault("format", f'stray "{token}" in the pattern, write {other} for a literal one')
    text.add(pattern[end:])
    return text.finish()


class _Text:
    """Pieces of a text whose length is known, and limited, before the text is made."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._pieces: list[str] = []
        self._left = MAX_RESULT

    def add(self, piece: str) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise self.too_long()
        self._meter.charge_text(len(piece))
        self._pieces.append(piece)

    def add_value(self, value: Any) -> None:
        self.add(bounded_text(value, self._left))

    def finish(self) -> str:
        return "".join(self._pieces)

    @staticmethod
    def too_long() -> Fault:
        return Fault("limit", f"text is longer than {MAX_RESULT:,} bytes")


def _to_json(meter: Meter, value: Any) -> str:
    meter.charge_text(check_size(value))
    return encode(value).decode()


def _from_json(meter: Meter, text: Any) -> Any:
    if kind(text) != "string":
        raise _wrong("fromJSON", "a string", text)
    if len(text) > MAX_RESULT:
        raise Fault("limit", f"fromJSON reads at most {MAX_RESULT:,} characters")
    meter.charge_text(len(text))
    containers = text.count("[") + text.count("{")
    if containers > MAX_JSON_DEPTH:
        meter.charge(containers)
        _check_depth(text)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        # The parser's own message may quote the text, which may be a secret.
        raise Fault("from_json", "fromJSON got a text that is not JSON") from None


def _check_depth(text: str) -> None:
    depth = 0
    for match in _BRACKETS.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise Fault("limit", f"fromJSON reads at most {MAX_JSON_DEPTH} levels")
        elif token in "]}":
            depth -= 1


FUNCTIONS: Final = cast(
    dict[str, Callable[..., Any]],
    {
        "contains": _contains,
        "endsWith": _ends_with,
        "format": _format,
        "fromJSON": _from_json,
        "join": _join,
        "length": _length,
        "startsWith": _starts_with,
        "toJSON": _to_json,
    },
)
