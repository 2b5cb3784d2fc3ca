"""Schemas as grammars of the local engine (llguidance), with values that are copied from a text.

Pure. A small model writes `john@example.com` when it should copy an address, and it does not stop; a grammar
that allows only what stands in the text turns 1–4 right copies of 10 into 7–8, and 10 where the format is
known. The grammar is a help, never a check: the caller validates the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Final, NamedTuple, cast

import msgspec

__all__ = ["Source", "answer_grammar", "argument_grammar", "source_of"]

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
_LINE: Final = re.compile(r"^[ \t]*(?P<name>[^\W\d][\w \t-]{0,30}):[ \t]+(?P<value>\S.*)$", re.MULTILINE)
_CHUNK: Final = re.compile(r"\s+|\w+(?:\S*\w)?|[^\w\s]")
_MOST_CHUNKS: Final = 2_000
_NOT_A_COPY: Final = frozenset(
    {"const", "pattern", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "not", "$ref"}
)
_MAPS: Final = frozenset({"properties", "$defs"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "prefixItems"})
_COMPOSED: Final = frozenset({"anyOf", "oneOf", "allOf", "$ref", "if", "patternProperties"})
_NOT_PLAIN: Final = frozenset(
    {"enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "patternProperties", "if", "minProperties"}
)


class Source(NamedTuple):
    """What can be copied: a text, and the values that stand in it under a name (folded, see `_folded`)."""

    text: str
    fields: Mapping[str, tuple[str, ...]]


def source_of(contents: Iterable[str]) -> Source:
    """Return the source that messages make: of one that is JSON its leaves, else the text and its lines of
    `name: value`."""
    texts: list[str] = []
    fields: dict[str, list[str]] = {}
    for content in contents:
        try:
            decoded = msgspec.json.decode(content)
        except msgspec.DecodeError:
            texts.append(content)
            found = [(match["name"], match["value"].strip()) for match in _LINE.finditer(content)]
        else:
            found = list(_leaves("", decoded))
            texts.extend(value for _, value in found)
        for name, value in found:
            fields.setdefault(_folded(name), []).append(value)
    return Source("\n".join(texts), {name: tuple(dict.fromkeys(values)) for name, values in fields.items()})


def answer_grammar(
    schema: dict[str, Any] | bool, source: Source | None = None, copied: Set[str] = frozenset()
) -> str:
    """Return a grammar for JSON by a schema, in one line with blanks after colons and commas. The properties
    named in `copied` are copied from the source as in `argument_grammar`, the others are the model's own."""
    if source is not None and isinstance(schema, dict) and copied & (schema.get("properties") or {}).keys():
        return _composed(schema, source, copied)
    return f"{_HEAD}start: {_json(schema, {})}"


def argument_grammar(schema: dict[str, Any], source: Source) -> str:
    """Return a grammar for the arguments of a function: its required properties (all, if none is required) in
    their order, copied from the source wherever it has anything that fits: the value that stands under the
    property's name, else what has its format, else a run of words, or one of the numbers."""
    return _composed(schema, source, None)


def _composed(schema: dict[str, Any], source: Source, copied: Set[str] | None) -> str:
    builder = _Builder(source, schema.get("$defs") or {}, copied)
    start = builder.value(schema)
    return _HEAD + "\n".join([f"start: {start}", *builder.terminals])


class _Builder:
    """Collects the terminals that a rule refers to. `copied` None means every property."""

    def __init__(self, source: Source, defs: Mapping[str, Any], copied: Set[str] | None) -> None:
        self._source = source
        self._defs = {name: _closed(each) for name, each in defs.items()}
        self._copy_only = copied
        self._copy: str | None = None
        self.terminals: list[str] = []

    def value(self, schema: object, name: str = "") -> str:
        if not isinstance(schema, dict):
            return _json(bool(schema), self._defs)
        node = cast("dict[str, Any]", schema)
        properties: dict[str, Any] | None = node.get("properties")
        if node.get("type") == "object" and properties and not node.keys() & _NOT_PLAIN:
            return self._object(node, properties)
        if self._copy_only is not None and name not in self._copy_only:
            return _json(node, self._defs)
        return self._named(node, name) or self._found(node, name) or _json(node, self._defs)

    def _object(self, node: dict[str, Any], properties: dict[str, Any]) -> str:
        required = [name for name in properties if name in (node.get("required") or ())]
        parts: list[str] = []
        for position, name in enumerate(required or properties):
            before = "{" if position == 0 else ", "
            parts.append(_literal(f"{before}{_text(name)}: "))
            parts.append(self.value(properties[name], name))
        return " ".join([*parts, _literal("}")])

    def _named(self, node: dict[str, Any], name: str) -> str | None:
        """Return the values under the property's own name, as far as they are of its type."""
        kind, labels = node.get("type"), node.get("enum")
        if node.keys() & _NOT_A_COPY:
            return None
        written: list[str] = []
        for value in self._source.fields.get(_folded(name), ()):
            if kind == "string" or (kind is None and labels):
                fits, text = not labels or value in labels, _text(value)
            elif kind in ("integer", "number"):
                number = _NUMBER.fullmatch(value)
                fits, text = bool(number) and not (kind == "integer" and "." in value) and not labels, value
            else:
                fits, text = kind == "boolean" and value in ("true", "false"), value
            if fits:
                written.append(text)
        return _one_of(written) if written else None

    def _found(self, node: dict[str, Any], name: str) -> str | None:
        """Return what may be copied from the text."""
        if "enum" in node or node.keys() & _NOT_A_COPY:
            return None
        if node.get("type") == "string":
            return self._string(node, name)
        if node.get("type") in ("integer", "number"):
            return self._number(whole=node["type"] == "integer")
        return None

    def _string(self, node: dict[str, Any], name: str) -> str | None:
        """Return what has the declared format; else the format that the name means, if the text has any; else
        a run of words."""
        declared = node.get("format")
        parts = _NAME_PART.findall(name)
        meant = _NAMED.get(parts[-1].lower()) if parts else None
        wanted = _FORMATS.get(str(declared if declared is not None else meant))
        found = dict.fromkeys(match.group() for match in wanted.finditer(self._source.text)) if wanted else {}
        if found:
            return _one_of(_text(each) for each in found)
        terminal = self._copied() if declared is None else None
        return f'"\\"" {terminal} "\\""' if terminal else None

    def _number(self, *, whole: bool) -> str | None:
        found = dict.fromkeys(match.group() for match in _NUMBER.finditer(self._source.text))
        fitting = [each for each in found if not (whole and "." in each)]
        return _one_of(fitting) if fitting else None

    def _copied(self) -> str | None:
        """Return the terminal for a run of whole words of the source, made once."""
        if self._copy is None:
            chunks = _CHUNK.findall(self._source.text)[:_MOST_CHUNKS]
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
    """Return the schema without members that it does not name: a small model would invent them without end.

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
    """Return a string as JSON writes it."""
    return msgspec.json.encode(value).decode()


def _literal(text: str) -> str:
    """Return a literal of the grammar language, which quotes as JSON does."""
    return _text(text)


def _one_of(literals: Iterable[str]) -> str:
    return "(" + " | ".join(_literal(each) for each in literals) + ")"


def _leaves(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield (name of the member, text) for each string, number and boolean in a JSON value."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            yield from _leaves(key, each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _leaves(name, each)
    elif value is not None:
        yield name, msgspec.json.encode(value).decode()


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()
