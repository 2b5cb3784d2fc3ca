"""A strict RFC 8259 parser that keeps the place of every key and value (page 001 §2, rule 2).

Refused beside what the grammar refuses: a lone surrogate, a number beyond the 64-bit floats, a key
that is repeated. The first syntax error ends the reading.
"""

from __future__ import annotations

import math
import re

from agentflow.definition.report import Fatal, Report, shown
from agentflow.definition.source import Tally
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Array, Member, Node, Object, Scalar, pointer_of

__all__ = ["parse_json"]

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"')
_CHUNK = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_WORD = re.compile(r"[^\s,:\[\]{}\"]+")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_KEY_HINT = "put the key in double quotes"
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def parse_json(source: Source, report: Report) -> Node:
    """Return the tree of a JSON text. Raises Fatal after the first syntax error or passed limit."""
    return _Parser(source, report).document()


class _Parser:
    def __init__(self, source: Source, report: Report) -> None:
        self._text = source.text
        self._lines = source.lines
        self._report = report
        self._tally = Tally(report)
        self._at = 0
        self._path: list[str | int] = []

    def document(self) -> Node:
        self._skip()
        node = self._value(1)
        self._skip()
        if self._at < len(self._text):
            raise self._error(f"unexpected {self._here()} after the document", self._at)
        return node

    def _value(self, depth: int) -> Node:
        start = self._at
        place = self._lines.place(start)
        first = self._text[start : start + 1]
        if first == "{":
            self._tally.add(place, depth)
            return self._object(depth)
        if first == "[":
            self._tally.add(place, depth)
            return self._array(depth)
        self._tally.add(place, 0)
        line, column = place
        if first == '"':
            return Scalar(self._string(), line, column, start, "double")
        if first == "-" or first.isdigit():
            return Scalar(self._number(), line, column, start)
        word = _WORD.match(self._text, start)
        if word and word[0] in _LITERALS:
            self._at = word.end()
            return Scalar(_LITERALS[word[0]], line, column, start)
        raise self._error(
            f"expected a value, got {self._here()}", start, _value_hint(self._text, start, word)
        )

    def _object(self, depth: int) -> Object:
        line, column = self._lines.place(self._at)
        members: dict[str, Member] = {}
        self._at += 1
        self._skip()
        if self._take("}"):
            return Object(members, line, column)
        while True:
            key_line, key_column = self._lines.place(self._at)
            if self._text[self._at : self._at + 1] != '"':
                hint = "take the comma away" if self._text[self._at : self._at + 1] == "}" else _KEY_HINT
                raise self._error(f"expected a key in double quotes, got {self._here()}", self._at, hint)
            key = self._string()
            self._skip()
            if not self._take(":"):
                raise self._error(f'expected ":", got {self._here()}', self._at, 'write ":" behind the key')
            self._skip()
            self._path.append(key)
            member = Member(self._value(depth + 1), key_line, key_column)
            if key in members:
                first = members[key]
                self._report.error(
                    "E_DUPLICATE_KEY",
                    f'key "{shown(key)}" is repeated, first at {first.line}:{first.column}',
                    (key_line, key_column),
                    pointer_of(self._path),
                    "keep one of them",
                )
            else:
                members[key] = member
            self._path.pop()
            self._skip()
            if self._take("}"):
                return Object(members, line, column)
            if not self._take(","):
                raise self._error(
                    f'expected "," or "}}", got {self._here()}', self._at, _close_hint("}", line)
                )
            self._skip()

    def _array(self, depth: int) -> Array:
        line, column = self._lines.place(self._at)
        items: list[Node] = []
        self._at += 1
        self._skip()
        if self._take("]"):
            return Array(items, line, column)
        while True:
            self._path.append(len(items))
            items.append(self._value(depth + 1))
            self._path.pop()
            self._skip()
            if self._take("]"):
                return Array(items, line, column)
            if not self._take(","):
                raise self._error(
                    f'expected "," or "]", got {self._here()}', self._at, _close_hint("]", line)
                )
            self._skip()

    def _string(self) -> str:
        plain = _PLAIN_STRING.match(self._text, self._at)
        if plain:
            self._at = plain.end()
            return plain[1]
        start = self._at
        at = start + 1
        parts: list[str] = []
        while True:
            chunk = _CHUNK.match(self._text, at)
            assert chunk is not None  # the pattern matches the empty text
            parts.append(chunk[0])
            at = chunk.end()
            character = self._text[at : at + 1]
            if character == '"':
                self._at = at + 1
                return "".join(parts)
            if character != "\\":
                if character in ("", "\n", "\r"):
                    raise self._error("string is not closed", start, "close it on the same line")
                raise self._error("control character in a string", at)
            text, at = self._escape(at)
            parts.append(text)

    def _escape(self, at: int) -> tuple[str, int]:
        letter = self._text[at + 1 : at + 2]
        if letter in _ESCAPES:
            return _ESCAPES[letter], at + 2
        if letter != "u":
            raise self._error(f'"\\{shown(letter)}" is no JSON escape', at)
        unit = self._unit(at)
        if 0xD800 <= unit < 0xDC00 and self._text[at + 6 : at + 8] == "\\u":
            low = self._unit(at + 6)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)), at + 12
        if 0xD800 <= unit < 0xE000:
            raise self._error(f'"\\u{unit:04x}" is a lone surrogate', at)
        return chr(unit), at + 6

    def _unit(self, at: int) -> int:
        digits = _HEX.match(self._text, at + 2)
        if not digits:
            raise self._error('"\\u" needs four hexadecimal digits', at)
        return int(digits[0], 16)

    def _number(self) -> int | float:
        start = self._at
        match = _NUMBER.match(self._text, start)
        word = _WORD.match(self._text, start)
        if not match or (word and word.end() > match.end()):
            raise self._error(f"{shown(word[0] if word else '-')} is not a JSON number", start)
        self._at = match.end()
        self._tally.digits(match[0], self._lines.place(start))
        if match[1] is None and match[2] is None:
            return int(match[0])
        number = float(match[0])
        if math.isinf(number):
            raise self._error(f"{shown(match[0])} is too large for a number", start)
        return number

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None  # the pattern matches the empty text
        self._at = space.end()

    def _take(self, character: str) -> bool:
        if self._text.startswith(character, self._at):
            self._at += 1
            return True
        return False

    def _here(self) -> str:
        if self._at >= len(self._text):
            return "the end"
        word = _WORD.match(self._text, self._at)
        return f'"{shown(word[0] if word else self._text[self._at])}"'

    def _error(self, message: str, index: int, hint: str | None = None) -> Fatal:
        return self._report.fatal("E_SYNTAX", message, self._lines.place(index), hint=hint)


def _close_hint(bracket: str, line: int | None) -> str:
    return f'add "," before it, or "{bracket}" for the one that was opened in line {line}'


def _value_hint(text: str, start: int, word: re.Match[str] | None) -> str | None:
    """Return what helps where a value was expected."""
    if text[start : start + 1] in ("]", "}"):
        return "take the comma away"
    if text[start : start + 1] == "'":
        return "write double quotes"
    if word is not None:
        known = {"True": "true", "False": "false", "None": "null", "undefined": "null"}.get(word[0])
        return f"write {known}" if known else "put a text in double quotes"
    return None
