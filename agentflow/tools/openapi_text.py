"""The text of an OpenAPI document as JSON values: RFC 8259 JSON, or YAML as OpenAPI means it.

YAML is read by the rules of its JSON schema: `200` may be a key, and `no`, `2020-01-01` are texts. Limits
keep a hostile text from taking the machine's memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec
import yaml

from agentflow.definition.yaml_scanner import PythonLoader, is_doubtful
from agentflow.definition.yaml_slips import slip_of

__all__ = ["BrokenDocument", "parse_openapi"]

MAX_BYTES = 16 << 20
_MAX_NODES = 1_000_000
_MAX_DEPTH = 100
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))
_BYTE = re.compile(r"byte (\d+)|position (\d+)")
_loader: Any = getattr(yaml, "CSafeLoader", PythonLoader)


class BrokenDocument(Exception):
    """The document cannot be used; the message names the place, `line:column` or a JSON pointer."""


def parse_openapi(text: bytes) -> Any:
    """Return the value of the whole text. Raises BrokenDocument."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"{":
        return _json(text)
    try:
        return _yaml(text.decode())
    except UnicodeDecodeError as error:
        place = _place(text, error.start)
        raise BrokenDocument(f"{place}: byte 0x{text[error.start]:02x} is not UTF-8") from None


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise BrokenDocument("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = _BYTE.search(str(error))
        place = _place(text, int(at[1] or at[2]) if at else len(text))
        raise BrokenDocument(f"{place}: the text is not JSON here") from None


def _place(text: bytes, index: int) -> str:
    before = text[:index]
    line_start = before.rfind(b"\n") + 1
    lines = before.count(b"\n") + 1
    return f"{lines}:{len(before[line_start:].decode('utf-8', 'replace')) + 1}"


def _yaml(text: str) -> Any:
    """Return the value of YAML.

    As for workflow documents the parser in Python decides, so that a text gives the same on every
    installation; libyaml, 20 times as fast, is asked first where both agree.
    """
    if not issubclass(_loader, yaml.SafeLoader) and not is_doubtful(text):
        with suppress(yaml.YAMLError):
            return _Yaml().document(_events_of(_loader(text)))
    try:
        loader = PythonLoader(text)
    except (yaml.YAMLError, ValueError):  # a character that YAML does not allow
        raise BrokenDocument("it holds a character that YAML does not allow") from None
    try:
        return _Yaml().document(_events_of(loader))
    except yaml.MarkedYAMLError as error:
        slip = slip_of(text, error, loader)
        at, message = slip.at, slip.message + (f"; {slip.hint}" if slip.hint else "")
    except (yaml.YAMLError, ValueError, OverflowError):
        at, message = min(cast("Any", loader).index, len(text)), "the text is not YAML here"
    before = text[:at]
    line = before.count("\n") + 1
    raise BrokenDocument(f"{line}:{at - before.rfind(chr(10))}: {message}")


def _events_of(loader: Any) -> Iterator[Any]:
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


class _Yaml:
    """Builds the value from the parser's events, without recursion: a text may be nested as deeply as it is
    long."""

    def __init__(self) -> None:
        self._nodes = 0
        self._anchors: dict[str, tuple[Any, int]] = {}

    def document(self, events: Iterable[Any]) -> Any:
        """Return the value. Reads to the end, because parsers differ in how far they look ahead."""
        stack: list[_Open] = []
        root: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise BrokenDocument(f"{_mark(event)}: a second document is not read")
                continue
            if isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
                self._count(event, 1)
                if len(stack) >= _MAX_DEPTH:
                    raise BrokenDocument(f"{_mark(event)}: it is nested too deeply")
                empty: Any = [] if isinstance(event, yaml.SequenceStartEvent) else {}
                stack.append(_Open(event, empty, self._nodes))
                continue
            if isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                done = stack.pop()
                value = done.value
                self._remember(done.event, value, self._nodes - done.nodes + 1)
                event = done.event
            elif isinstance(event, yaml.ScalarEvent):
                self._count(event, 1)
                value = _scalar(event, is_key=bool(stack) and stack[-1].wants_key)
                self._remember(event, value, 1)
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self._anchors:
                    raise BrokenDocument(
                        f"{_mark(event)}: an alias stands inside its own anchor, or has none"
                    )
                value, size = self._anchors[event.anchor]
                # Every use counts, so that a small text does not become a large value.
                self._count(event, size)
            else:
                continue
            if stack:
                stack[-1].take(event, value)
            else:
                root = value
        return root

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > _MAX_NODES:
            raise BrokenDocument(f"{_mark(event)}: it has more than {_MAX_NODES:,} values")

    def _remember(self, event: Any, value: Any, size: int) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, size)


class _Open:
    """A sequence or mapping whose end has not come yet."""

    def __init__(self, event: Any, value: Any, nodes: int) -> None:
        self.event = event
        self.value: Any = value
        self.nodes = nodes
        self._key: str | None = None

    @property
    def wants_key(self) -> bool:
        return isinstance(self.value, dict) and self._key is None

    def take(self, event: Any, value: Any) -> None:
        into: Any = self.value
        if isinstance(into, list):
            cast("list[Any]", into).append(value)
        elif self._key is not None:
            self.value[self._key], self._key = value, None
        elif not isinstance(value, str):
            raise BrokenDocument(f"{_mark(event)}: a key is no text")
        elif value in self.value:
            raise BrokenDocument(f'{_mark(event)}: key "{value[:60]}" is repeated')
        else:
            self._key = value


def _mark(event: Any) -> str:
    return f"{event.start_mark.line + 1}:{event.start_mark.column + 1}"


def _scalar(event: yaml.ScalarEvent, *, is_key: bool) -> Any:
    text = str(event.value)
    plain = event.implicit[0] or event.tag in _PLAIN_TAGS
    if is_key:
        if text == "<<" and plain:
            raise BrokenDocument(f"{_mark(event)}: merge keys are not JSON")
        return text  # 200 is a key like any other
    if not plain:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    number = _NUMBER.fullmatch(text)
    if number is None or len(text) > 1000:
        return text
    return float(text) if number[2] or number[3] else int(text)
