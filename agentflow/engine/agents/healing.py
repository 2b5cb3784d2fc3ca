"""Reads an answer that is nearly JSON (page 003 §14). Pure.

Fences, comments, trailing commas, single quotes, unquoted keys, literals of Python and missing closing
brackets are put right, each with a word for it; text is never guessed. An answer that was cut by its length
limit is not given to this module: what is missing of it is content.
"""

from __future__ import annotations

import re
from typing import Any, cast

from agentflow.engine.agents.conversation import parse

__all__ = ["coerce", "heal"]

_FENCED = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n?(.*?)(?:```|\Z)", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_WORD = re.compile(r"[A-Za-z_$][\w$-]*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_CLOSES = {"{": "}", "[": "]"}
_MAX_CHARS = 1_000_000
_HOLDS = {"array": list, "object": dict}


def heal(text: str) -> tuple[Any, list[str]] | None:
    """Return the value that the text nearly is, and what was put right; None if it cannot be told."""
    changes: list[str] = []
    found, value = parse(text.strip())
    if found:
        return value, changes
    fences = _FENCED.findall(text)
    body = fences[-1] if fences else text
    if fences:
        changes.append("fence")
    begin = min((at for at in (body.find("{"), body.find("[")) if at >= 0), default=-1)
    if begin < 0 or len(body) > _MAX_CHARS:
        return None
    if body[:begin].strip():
        changes.append("text before")
    repaired = _Repair(body[begin:]).run()
    if repaired is None:
        return None
    found, value = parse(repaired[0])
    return (value, changes + repaired[1]) if found else None


class _Repair:
    """One pass over the text that writes what JSON would be."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._open: list[str] = []
        self._changes: dict[str, None] = {}

    def run(self) -> tuple[str, list[str]] | None:
        """Return the JSON text and what was changed; None at what no rule covers."""
        while self._at < len(self._text):
            if not self._step():
                return None
            if not self._open:
                break
        if self._open:
            self._changes["closing brackets"] = None
            self._drop_comma()
            self._out += [_CLOSES[bracket] for bracket in reversed(self._open)]
        if self._text[self._at :].strip().strip("`"):
            self._changes["text behind"] = None
        return "".join(self._out), list(self._changes)

    def _step(self) -> bool:
        text, at = self._text, self._at
        char = text[at]
        comment = _COMMENT.match(text, at)
        if comment is not None:
            self._changes["comments"] = None
            self._at = comment.end()
        elif char in "{[":
            self._open.append(char)
            self._write(char, 1)
        elif char in "}]":
            return self._close(char)
        elif char in "\"'":
            return self._string(char)
        elif char in ",:" or char.isspace():
            self._write(char, 1)
        else:
            return self._word()
        return True

    def _write(self, text: str, length: int) -> None:
        self._out.append(text)
        self._at += length

    def _close(self, char: str) -> bool:
        if _CLOSES[self._open[-1]] != char:
            return False
        self._drop_comma()
        self._open.pop()
        self._write(char, 1)
        return True

    def _drop_comma(self) -> None:
        while self._out and self._out[-1].isspace():
            self._out.pop()
        if self._out and self._out[-1] == ",":
            self._out.pop()
            self._changes["trailing commas"] = None

    def _string(self, quote: str) -> bool:
        text, begin = self._text, self._at + 1
        at, found = begin, list[str]()
        while at < len(text) and text[at] != quote:
            if text[at] == "\\" and at + 1 < len(text):
                pair = text[at : at + 2]
                found.append("'" if pair == "\\'" else pair)
                at += 2
                continue
            found.append({'"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(text[at], text[at]))
            at += 1
        if at == len(text):
            return False  # the text of a value is cut off
        if quote == "'":
            self._changes["single quotes"] = None
        self._write('"' + "".join(found) + '"', at + 1 - self._at)
        return True

    def _word(self) -> bool:
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            self._write(number[0], len(number[0]))
            return True
        word = _WORD.match(self._text, self._at)
        if word is None:
            return False
        if self._text[word.end() :].lstrip()[:1] == ":":
            self._changes["unquoted keys"] = None
            self._write(f'"{word[0]}"', len(word[0]))
            return True
        if word[0] not in _WORDS:
            return False
        if _WORDS[word[0]] != word[0]:
            self._changes["literals of Python"] = None
        self._write(_WORDS[word[0]], len(word[0]))
        return True


def coerce(value: Any, schema: Any, path: str = "") -> tuple[Any, list[str]]:
    """Return the value with texts that are numbers, booleans, arrays or objects, and numbers that are texts,
    as the schema asks for; and what was coerced, by JSON pointer."""
    if not isinstance(schema, dict):
        return value, []
    rules = cast("dict[str, Any]", schema)
    kinds, changes = rules.get("type"), list[str]()
    kinds = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]
    if "object" in kinds and isinstance(value, dict):
        properties: dict[str, Any] = rules.get("properties") or {}
        made: dict[str, Any] = {}
        for key, member in cast("dict[str, Any]", value).items():
            made[key], more = coerce(member, properties.get(key), f"{path}/{key}")
            changes += more
        return made, changes
    if "array" in kinds and isinstance(value, list):
        items: list[Any] = []
        for index, member in enumerate(cast("list[Any]", value)):
            one, more = coerce(member, rules.get("items"), f"{path}/{index}")
            items.append(one)
            changes += more
        return items, changes
    if any(_is_of(value, kind) for kind in kinds):
        return value, []
    for kind in kinds:
        coerced = _read_as(value, kind)
        if coerced is not None:
            coerced, changes = coerce(coerced, rules, path)
            return coerced, [f"{path or '/'} as {kind}", *changes]
    return value, []


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether a scalar is of this type as it is."""
    if value is None or isinstance(value, bool):
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, int):
        return kind in ("integer", "number")
    return kind == "number" if isinstance(value, float) else kind == "string" and isinstance(value, str)


def _read_as(value: Any, kind: Any) -> Any:
    """Return a value read as this type; None if it cannot be."""
    if isinstance(value, str):
        found, parsed = parse(value.strip().lower() if kind == "boolean" else value.strip())
        is_one = isinstance(parsed, _HOLDS.get(kind, ())) or (kind != "string" and _is_of(parsed, kind))
        return cast(Any, parsed) if found and is_one else None
    if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return None
