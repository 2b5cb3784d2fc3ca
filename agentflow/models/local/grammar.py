"""Schemas as grammars of the local engine (llguidance), with values that are copied from a text.

Pure. A small model writes `john@example.com` when it should copy an address, and it does not stop; a grammar
that allows only what stands in the text turns 1–4 right copies of 10 into 7–8, and 10 where the format is
known. The grammar is a help, never a check: the caller validates the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

__all__ = ["argument_grammar", "json_grammar", "source_text"]

_HEAD: Final = "%llguidance {}\n"
_LAYOUT: Final = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
_FORMATS: Final[Mapping[str, re.Pattern[str]]] = {
    "email": re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[\w-]+(?:\.[\w-]+)+"),
    "uri": re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s<>\"')\]]+[^\s<>\"')\].,;:!?]", re.IGNORECASE),
    "uuid": re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE),
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}\b"),
    "date-time": re.compile(r"\b\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:\d{2})?"),
    "ipv4": re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"),
}
_NAMED: Final[Mapping[str, str]] = {
    "email": "email",
    "mail": "email",
    "url": "uri",
    "uri": "uri",
    "uuid": "uuid",
}
_NAME_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_NUMBER: Final = re.compile(r"(?<![\w.-])-?(?:0|[1-9]\d*)(?:\.\d+)?(?![\w-]|\.\d)")
_CHUNK: Final = re.compile(r"\s+|\w+(?:\S*\w)?|[^\w\s]")
_MOST_CHUNKS: Final = 2_000
_NOT_A_COPY: Final = frozenset(
    {"enum", "const", "pattern", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "not", "$ref"}
)
_MAPS: Final = frozenset({"properties", "$defs"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "prefixItems"})
_COMPOSED: Final = frozenset({"anyOf", "oneOf", "allOf", "$ref", "if", "patternProperties"})
_NOT_PLAIN: Final = frozenset(
    {"enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "patternProperties", "if", "minProperties"}
)


def json_grammar(schema: dict[str, Any] | bool) -> str:
    """A grammar for JSON by a schema, in one line with blanks after colons and commas."""
    return f"{_HEAD}start: {_json(schema, {})}"


def argument_grammar(schema: dict[str, Any], source: str) -> str:
    """A grammar for the arguments of a function: its required properties (all, if none is required) in
    their order; strings and numbers are copied from `source` wherever it has any that fit."""
    builder = _Builder(source, schema.get("$defs") or {})
    start = builder.value(schema)
    return _HEAD + "\n".join([f"start: {start}", *builder.terminals])


def source_text(contents: Iterable[str]) -> str:
    """The text of messages to copy from: of one that is JSON its strings and numbers, else the whole."""
    parts: list[str] = []
    for content in contents:
        try:
            decoded = msgspec.json.decode(content)
        except msgspec.DecodeError:
            parts.append(content)
        else:
            parts.extend(_leaves(decoded))
    return "\n".join(parts)


class _Builder:
    """Collects the terminals that a rule refers to."""

    def __init__(self, source: str, defs: Mapping[str, Any]) -> None:
        self._source = source
        self._defs = {name: _closed(each) for name, each in defs.items()}
        self._copy: str | None = None
        self.terminals: list[str] = []

    def value(self, schema: object, name: str = "") -> str:
        if not isinstance(schema, dict):
            return _json(bool(schema), self._defs)
        node = cast("dict[str, Any]", schema)
        kind = node.get("type")
        properties: dict[str, Any] | None = node.get("properties")
        if kind == "object" and properties and not node.keys() & _NOT_PLAIN:
            return self._object(node, properties)
        if kind == "string" and not node.keys() & _NOT_A_COPY:
            return self._string(node, name)
        if kind in ("integer", "number") and not node.keys() & _NOT_A_COPY:
            return self._number(whole=kind == "integer") or _json(node, self._defs)
        return _json(node, self._defs)

    def _object(self, node: dict[str, Any], properties: dict[str, Any]) -> str:
        required = [name for name in properties if name in (node.get("required") or ())]
        parts: list[str] = []
        for position, name in enumerate(required or properties):
            before = "{" if position == 0 else ", "
            parts.append(_literal(f"{before}{_text(name)}: "))
            parts.append(self.value(properties[name], name))
        return " ".join([*parts, _literal("}")])

    def _string(self, node: dict[str, Any], name: str) -> str:
        """What has the declared format; else the format that the name means, if the source has any; else a
        run of words."""
        declared = node.get("format")
        parts = _NAME_PART.findall(name)
        meant = _NAMED.get(parts[-1].lower()) if parts else None
        wanted = _FORMATS.get(str(declared if declared is not None else meant))
        found = dict.fromkeys(match.group() for match in wanted.finditer(self._source)) if wanted else {}
        if found:
            return _one_of(_text(each) for each in found)
        terminal = self._copied() if declared is None else None
        return f'"\\"" {terminal} "\\""' if terminal else _json(node, self._defs)

    def _number(self, *, whole: bool) -> str | None:
        found = dict.fromkeys(match.group() for match in _NUMBER.finditer(self._source))
        fitting = [each for each in found if not (whole and "." in each)]
        return _one_of(fitting) if fitting else None

    def _copied(self) -> str | None:
        """The terminal for a run of whole words of the source, made once."""
        if self._copy is None:
            chunks = _CHUNK.findall(self._source)[:_MOST_CHUNKS]
            if not any(chunk.strip() for chunk in chunks):
                return None
            escaped = [_text(chunk)[1:-1] for chunk in chunks]
            words = msgspec.json.encode({"substring_chunks": escaped}).decode()
            self.terminals += [f"ANY: %regex {words}", "COPY: ANY & /(?s:\\S|\\S.*\\S)/"]
            self._copy = "COPY"
        return self._copy


def _json(schema: dict[str, Any] | bool, defs: Mapping[str, Any]) -> str:
    node: dict[str, Any] = {} if schema is True else {"not": {}} if schema is False else _closed(schema)
    if defs:
        node.setdefault("$defs", defs)
    node["x-guidance"] = _LAYOUT
    return "%json " + msgspec.json.encode(node).decode()


def _closed(schema: Any) -> Any:
    """The schema without members that it does not name: a small model would invent them without end.

    Objects that are put together from several schemas stay open, since each part names its own members."""
    if not isinstance(schema, dict):
        return schema
    node = dict(cast("dict[str, Any]", schema))
    for key in _MAPS & node.keys():
        node[key] = {name: _closed(each) for name, each in node[key].items()}
    for key in _LISTS & node.keys():
        node[key] = [_closed(each) for each in node[key]]
    if "items" in node:
        node["items"] = _closed(node["items"])
    if "properties" in node and not node.keys() & _COMPOSED:
        node.setdefault("additionalProperties", False)
    return node


def _text(value: str) -> str:
    """A string as JSON writes it."""
    return msgspec.json.encode(value).decode()


def _literal(text: str) -> str:
    """A literal of the grammar language, which quotes as JSON does."""
    return _text(text)


def _one_of(literals: Iterable[str]) -> str:
    return "(" + " | ".join(_literal(each) for each in literals) + ")"


def _leaves(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [leaf for each in cast("dict[str, Any]", value).values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in cast("list[Any]", value) for leaf in _leaves(each)]
    return [] if value is None or isinstance(value, bool) else [msgspec.json.encode(value).decode()]
