"""The YAML subset of workflow documents, on PyYAML's events (page 001 §2, rules 3 to 7).

YAML gives JSON types and nothing else: plain scalars are typed here, never by YAML 1.1; tags are a
closed list; aliases are followed without being copied, and counted as if they were.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import yaml

from agentflow.definition.report import Fatal, Report, shown
from agentflow.definition.source import Tally
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Array, Member, Node, Object, Place, Scalar, Style, pointer_of
from agentflow.definition.yaml_scanner import PythonLoader, is_doubtful
from agentflow.definition.yaml_slips import Slip, slip_of

__all__ = ["parse_yaml"]

_loader: Any = getattr(yaml, "CSafeLoader", PythonLoader)
"""The binding of libyaml, 20 times as fast as the parser in Python; PyYAML may come without it."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_OTHER_BOOL = re.compile(r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF")
_OTHER_NUMBER = re.compile(
    r"""[-+]?0b[01_]+ | [-+]?0[0-7_]+ | [-+]?0x[0-9a-fA-F_]+ | [-+]?[1-9][0-9_]*   # 1.1 integers
      | [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?                               # 1.1 base 60
      | [-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)? | [-+]?\.[0-9][0-9_]*([eE][-+][0-9]+)?
      | [-+]?\.(inf|Inf|INF) | \.(nan|NaN|NAN)
      | [-+]?[0-9]+ | 0o[0-7]+                                                     # 1.2 core
      | [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?""",
    re.VERBOSE,
)
_STYLES: dict[str, Style] = {"'": "single", '"': "double", "|": "literal", ">": "folded"}
_KEEP = "keep one of them"
_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset({"str", "int", "float", "bool", "null"})


def parse_yaml(source: Source, report: Report) -> Node:
    """Return the tree of a YAML text. Raises Fatal after a syntax error or a passed limit.

    The parser in Python decides, so that a text gets the same diagnostics whether PyYAML came with libyaml or
    without it. libyaml is asked first, and its answer counts where both give the same: it accepts the text,
    and nothing in the text is known to be read in two ways.
    """
    if not issubclass(_loader, yaml.SafeLoader) and not is_doubtful(source.text):
        attempt = Report()
        try:
            node = _Composer(source, attempt, _loader(source.text)).document()
        except yaml.YAMLError:
            pass
        except Fatal:
            report.take(attempt)
            raise
        else:
            report.take(attempt)
            return node
    loader = PythonLoader(source.text)
    try:
        return _Composer(source, report, loader).document()
    except yaml.MarkedYAMLError as error:
        slip = slip_of(source.text, error, loader)
    except (yaml.YAMLError, ValueError, OverflowError):
        # The parser in Python gives chr() and int() what the text says.
        slip = Slip(min(cast("Any", loader).index, len(source.text)), "the text is not YAML here", None)
    raise report.fatal("E_SYNTAX", slip.message, source.lines.place(slip.at), hint=slip.hint)


class _Anchor(msgspec.Struct, frozen=True):
    node: Node
    height: int
    nodes: int
    text: int


class _Composer:
    def __init__(self, source: Source, report: Report, loader: Any) -> None:
        self._source = source
        self._report = report
        self._tally = Tally(report)
        self._events = _events_of(loader)
        self._anchors: dict[str, _Anchor] = {}
        self._open: set[str] = set()
        self._height = 0
        self._path: list[str | int] = []

    def document(self) -> Node:
        next(self._events)  # stream start
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return Scalar(None, 1, 1)
        node = self._node(next(self._events), 1)
        next(self._events)  # document end
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._refuse("a second document is not read", _place(event), "keep one document in a file")
        return node

    def _node(self, event: Any, depth: int, *, is_key: bool = False) -> Node:
        """Return the node that begins with `event`. `_height` is left at the height of the node."""
        place = _place(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(cast("str", event.anchor), place, depth)
        anchor = cast("str | None", event.anchor)
        before = self._tally.nodes, self._tally.text
        if anchor is not None:
            self._open.add(anchor)
        if isinstance(event, yaml.ScalarEvent):
            self._tally.add(place, 0, text=self._size(event, place))
            node, height = self._scalar(event, place, is_key), 0
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, "seq", place)
            node, height = self._sequence(place, depth)
        else:
            self._check_tag(event, "map", place)
            node, height = self._mapping(place, depth)
        if anchor is not None:
            self._open.discard(anchor)
            size = self._tally.nodes - before[0], self._tally.text - before[1]
            self._anchors[anchor] = _Anchor(node, height, *size)
        self._height = height
        return node

    def _end_before(self, index: int) -> Place:
        """Return the place behind the token before an empty value: libyaml puts the value before the next."""
        text = self._source.text
        while index and text[index - 1] in " \t\r\n":
            index -= 1
        return self._source.lines.place(index)

    def _size(self, event: Any, place: Place) -> int:
        """Return the bytes of a scalar. The parser in Python lets escapes make lone surrogates, libyaml does
        not."""
        try:
            return len(str(event.value).encode())
        except UnicodeEncodeError:
            message = "string holds a surrogate, not a character"
            raise self._report.fatal("E_SYNTAX", message, place) from None

    def _alias(self, name: str, place: Place, depth: int) -> Node:
        self._height = 0
        if name in self._open:
            self._tally.add(place, 0)
            self._refuse(f'alias "*{shown(name)}" stands inside its own anchor', place, "copy the value")
            return Scalar(None, *place, style="refused")
        anchor = self._anchors.get(name)
        if anchor is None:
            raise self._report.fatal(
                "E_SYNTAX",
                f'alias "*{shown(name)}" has no anchor before it',
                place,
                hint='quote a value that begins with "*"',
            )
        self._tally.add(place, depth + anchor.height - 1, anchor.nodes, anchor.text)
        self._height = anchor.height
        if isinstance(anchor.node, Scalar):
            return msgspec.structs.replace(anchor.node, line=place[0], column=place[1], index=None)
        return msgspec.structs.replace(anchor.node, line=place[0], column=place[1])

    def _sequence(self, place: Place, depth: int) -> tuple[Array, int]:
        self._tally.add(place, depth)
        items: list[Node] = []
        height = 0
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            self._path.append(len(items))
            items.append(self._node(event, depth + 1))
            self._path.pop()
            height = max(height, self._height)
        return Array(items, *place), height + 1

    def _mapping(self, place: Place, depth: int) -> tuple[Object, int]:
        self._tally.add(place, depth)
        members: dict[str, Member] = {}
        height = 0
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, depth)
            line, column = _place(event)
            if key is not None:
                self._path.append(key)
            node = self._node(next(self._events), depth + 1)
            height = max(height, self._height)
            if key is None:
                continue
            if key in members:
                first = members[key]
                message = f'key "{shown(key)}" is repeated, first at {first.line}:{first.column}'
                self._report.error("E_DUPLICATE_KEY", message, (line, column), pointer_of(self._path), _KEEP)
            else:
                members[key] = Member(node, line, column)
            self._path.pop()
        return Object(members, *place), height + 1

    def _key(self, event: Any, depth: int) -> str | None:
        place = _place(event)
        node = self._node(event, depth + 1, is_key=True)
        if isinstance(node, Scalar) and node.value == "<<" and node.style == "plain":
            self._refuse('merge key "<<" is not allowed', place, "write the keys out")
            return None
        if isinstance(node, Scalar) and isinstance(node.value, str):
            return node.value
        text = shown(str(event.value)) if isinstance(event, yaml.ScalarEvent) else "a collection"
        self._refuse(f"key {text or 'null'} is not a string", place, "put the key in quotes")
        return None

    def _scalar(self, event: Any, place: Place, is_key: bool) -> Scalar:
        text = cast("str", event.value)
        if not text and not event.style and event.tag is None and event.anchor is None:
            return Scalar(None, *self._end_before(event.start_mark.index))
        style = _STYLES.get(cast("str | None", event.style) or "", "plain")
        tag = cast("str | None", event.tag)
        index = cast("int", event.start_mark.index)
        if tag is not None and tag.startswith(_CORE) and tag[len(_CORE) :] in _SCALAR_TAGS:
            return self._tagged(tag[len(_CORE) :], text, Scalar(text, *place, index, style), place)
        if tag is not None:
            self._refuse_tag(tag, place)
            return Scalar(text, *place, style="refused")
        if style != "plain":
            return Scalar(text, *place, index, style)
        return Scalar(self._typed(text, place, is_key), *place, index)

    def _typed(self, text: str, place: Place, is_key: bool = False) -> str | int | float | bool | None:
        """Return the value of a plain scalar. The keys `y` and `n` are too common in coordinates to warn
        about."""
        if text in _WORDS:
            return _WORDS[text]
        number = _NUMBER.fullmatch(text)
        if number:
            self._tally.digits(text, place)
            if number[1] is None and number[2] is None:
                return int(text)
            value = float(text)
            if math.isinf(value):
                raise self._report.fatal("E_SYNTAX", f"{shown(text)} is too large for a number", place)
            return value
        if _OTHER_BOOL.fullmatch(text) and not (is_key and len(text) == 1):
            meant = "true" if text[0] in "yY" or text.lower() == "on" else "false"
            self._ambiguous(text, place, f"write {meant}, or quote it")
        elif _OTHER_NUMBER.fullmatch(text):
            self._ambiguous(text, place, "write a JSON number, or quote it")
        return text

    def _tagged(self, tag: str, text: str, scalar: Scalar, place: Place) -> Scalar:
        if tag == "str":
            return scalar
        value = self._typed(text, place) if text in _WORDS or _NUMBER.fullmatch(text) else text
        if tag == "float" and type(value) is int and len(text) < 300:
            value = float(value)
        types = {"int": int, "float": float, "bool": bool, "null": type(None)}
        if type(value) is not types[tag]:
            self._refuse(f'"{shown(text)}" does not fit the tag !!{tag}', place, "drop the tag")
            return msgspec.structs.replace(scalar, style="refused")
        return Scalar(value, *place, None)

    def _check_tag(self, event: Any, own: str, place: Place) -> None:
        tag = cast("str | None", event.tag)
        if tag is not None and tag != _CORE + own:
            self._refuse_tag(tag, place)

    def _refuse_tag(self, tag: str, place: Place) -> None:
        name = f"!!{tag[len(_CORE) :]}" if tag.startswith(_CORE) else tag
        self._refuse(f'tag "{shown(name)}" is not allowed', place, 'quote a value that begins with "!"')

    def _ambiguous(self, text: str, place: Place, hint: str) -> None:
        message = f'{shown(text)} is read as the string "{shown(text)}"'
        self._report.warning("W_YAML_AMBIGUOUS", message, place, pointer_of(self._path), hint)

    def _refuse(self, message: str, place: Place, hint: str) -> None:
        self._report.error("E_YAML_SUBSET", message, place, pointer_of(self._path), hint)


def _events_of(loader: Any) -> Iterator[Any]:
    while loader.check_event():
        yield loader.get_event()


def _place(event: Any) -> Place:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1
