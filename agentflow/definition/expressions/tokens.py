"""Words of the expression language: where each begins, and what a literal stands for.

One regular expression reads a whole dotted path as one token: paths are most of what people write, and
the parser then takes three steps for `a.b.c == 'x'`. No pattern backtracks over more than one number, so
that time is linear in the text.
"""

from __future__ import annotations

import re
from sys import intern
from typing import Any, Final

import msgspec

from agentflow.definition.expressions.errors import ExpressionError
from agentflow.definition.expressions.nodes import Digits, Member, Segment, Star

__all__ = [
    "BAD",
    "DOUBLE",
    "END",
    "NUMBER",
    "OPERATOR",
    "PATH",
    "SINGLE",
    "TAIL",
    "Token",
    "decode_number",
    "decode_string",
    "split_path",
    "tokenize",
]

# Kind, text, offset.
Token = tuple[int, str, int]

PATH: Final = 1
TAIL: Final = 2
NUMBER: Final = 3
SINGLE: Final = 4
DOUBLE: Final = 5
OPERATOR: Final = 6
BAD: Final = 7
END: Final = 8

_SPACE = r"[ \t\r\n]*+"
_NAME = r"[A-Za-z_][A-Za-z0-9_-]*+"
_SEGMENT = rf"(?:{_NAME}|[0-9]++(?![A-Za-z_-])|\*)"
_DOTTED = rf"(?:{_SPACE}\.{_SPACE}{_SEGMENT})"
_JSON_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"

# The order of the groups is that of the kinds above.
_GROUPS = (
    rf"({_NAME}{_DOTTED}*+)",
    rf"({_DOTTED}++)",
    rf"((?:0x[0-9A-Fa-f]++|{_JSON_NUMBER})(?![A-Za-z0-9_.-]))",
    r"('[^']*+(?:''[^']*+)*+')",
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+")',
    r"([!=]==?|[<>]=?|&&|\|\||[!()\[\],*])",
    r"(-?[0-9][A-Za-z0-9_.-]*+|.)",
)
_TOKEN = re.compile(_SPACE + "(?:" + "|".join(_GROUPS) + ")", re.DOTALL)
_SEGMENTS = re.compile(rf"{_NAME}|[0-9]++|\*")
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9A-Fa-f]{4})')
_ESCAPED_PAIR = re.compile(r"\\[^u]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_MAX_DIGITS = 1_000


def tokenize(text: str, start: int, end: int) -> list[Token]:
    """Return the tokens of `text[start:end]`, whose last character must be no white space, and END."""
    tokens: list[Token] = []
    append = tokens.append
    for match in _TOKEN.finditer(text, start, end):
        kind: int = match.lastindex  # pyright: ignore[reportAssignmentType]  (one group always matches)
        append((kind, match[kind], match.start(kind)))
    append((END, "", end))
    return tokens


def split_path(text: str, offset: int, skip: int) -> list[Segment]:
    """Return the segments of a PATH or TAIL token at `offset`; `skip` 1 leaves out the root name of a
    PATH."""
    segments: list[Segment] = []
    plain = not (" " in text or "\n" in text or "\t" in text or "\r" in text)
    if plain:
        words = text.split(".")
        at = offset + len(words[0]) + 1
        del words[0]
        for word in words:
            segments.append(_segment(word, at))
            at += len(word) + 1
        return segments
    for match in _SEGMENTS.finditer(text):
        if skip:
            skip -= 1
        else:
            segments.append(_segment(match[0], offset + match.start()))
    return segments


def _segment(word: str, offset: int) -> Segment:
    if word == "*":
        return Star(offset)
    if "0" <= word[0] <= "9":
        if len(word) > _MAX_DIGITS:
            raise _too_many_digits(word, offset)
        return Digits(word, offset)
    return Member(intern(word), offset)  # most graphs repeat a few names


def decode_number(text: str, offset: int) -> int | float:
    """Return the value of a NUMBER token: an exact integer, or a finite 64-bit float."""
    if len(text) > _MAX_DIGITS:
        raise _too_many_digits(text, offset)
    if text.startswith("0x"):
        return int(text, 16)
    if "." not in text and "e" not in text and "E" not in text:
        return int(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ExpressionError(
            "E_EXPR_SYNTAX", f"number {_shorten(text)} is out of range", offset, length=len(text)
        )
    return value


def decode_string(kind: int, text: str, offset: int) -> str:
    """Return the value of a SINGLE or DOUBLE token, its quotes included in `text`."""
    if kind == SINGLE:
        value = text[1:-1]
        if "'" in value:
            value = value.replace("''", "'")
    elif "\\" not in text and (text.isprintable() or _CONTROL.search(text) is None):
        value = text[1:-1]
    else:
        value = _decode_json_string(text, offset)
    if not value.isascii() and _SURROGATE.search(value) is not None:
        raise ExpressionError(
            "E_EXPR_SYNTAX", "a string holds half of a surrogate pair", offset, length=len(text)
        )
    return value


def _decode_json_string(text: str, offset: int) -> str:
    control = _CONTROL.search(text)
    if control is not None:
        raise ExpressionError(
            "E_EXPR_SYNTAX",
            f"control character U+{ord(control[0]):04X} in a double-quoted string",
            offset + control.start(),
            "write an escape such as \\n, or use single quotes",
        )
    # Blank out the escaped pairs, so that what is left of `\` begins an escape.
    bad = _BAD_ESCAPE.search(_ESCAPED_PAIR.sub(_blank, text))
    if bad is not None:
        at = bad.start()
        raise ExpressionError(
            "E_EXPR_SYNTAX",
            f"unknown escape {text[at : at + 2]}",
            offset + at,
            "write \\\\ for a backslash",
            2,
        )
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise ExpressionError(
            "E_EXPR_SYNTAX", "a string holds half of a surrogate pair", offset, length=len(text)
        ) from None
    return value


def _blank(match: re.Match[str]) -> str:
    return "  " if match[0][1] in '"\\/bfnrt' else match[0]


def _too_many_digits(text: str, offset: int) -> ExpressionError:
    return ExpressionError(
        "E_EXPR_LIMIT", f"number has more than {_MAX_DIGITS:,} characters", offset, length=len(text)
    )


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
