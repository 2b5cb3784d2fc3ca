"""How OpenAPI writes a parameter: in the path, the query, a header or a cookie, by its style (3.2 §4.12).

Separators are written as they are; the values between them are percent-encoded, but for those of headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.tools.openapi_body import deep_pairs, quoted, text_of
from agentflow.tools.path_template import BadArgument, check_segment

__all__ = ["STYLES", "Parameter", "cookie_text", "header_text", "path_text", "query_parts"]

STYLES: Final = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form", "cookie"),
    "querystring": ("form",),
}
"""The styles of each place; the first is the usual one."""

_SEPARATORS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_JOINTS: Final = {"simple": ("", ","), "label": (".", "."), "matrix": (";", ";")}
"""What stands before a value of the path, and between the exploded parts of one."""


class Parameter(NamedTuple):
    """An argument that does not stand in the body. `argument` is its name for the agent."""

    argument: str
    name: str
    where: str
    style: str
    explode: bool
    as_json: bool


def path_text(p: Parameter, value: Any) -> str:
    """Return what stands for `{name}` in the path. Raises BadArgument for what would leave its segment, and
    for an empty value."""

    def part(text: str) -> str:
        check_segment(p.argument, text)
        return quoted(text)

    if p.as_json:
        return part(msgspec.json.encode(value).decode())
    before, between = _JOINTS[p.style]
    texts = _parts(value, part, explode=p.explode)
    if not texts or texts == [""]:
        raise BadArgument(f"{p.argument} is empty and cannot stand in the path")
    if p.style == "matrix":
        name = quoted(p.name)
        if not p.explode:
            return f";{name}={','.join(texts)}"
        return "".join(f";{text}" if isinstance(value, dict) else f";{name}={text}" for text in texts)
    joined = (between if p.explode else ",").join(texts)
    if joined in (".", ".."):
        raise BadArgument(f"{p.argument} would lead to another path")
    return before + joined


def query_parts(p: Parameter, value: Any) -> list[str]:
    """Return the parts of the query, `name=value`, that a value makes."""
    if p.as_json:
        return [_pair(p.name, msgspec.json.encode(value).decode())]
    if p.where == "querystring":
        return [_pair(*pair) for name, v in _members(value) for pair in _exploded(name, v)]
    if p.style == "deepObject":
        return [_pair(*pair) for pair in deep_pairs(p.name, value)]
    if not p.explode:
        parts = _parts(value, quoted, explode=False)
        return [f"{quoted(p.name)}={_SEPARATORS.get(p.style, ',').join(parts)}"]
    if isinstance(value, dict):
        return [_pair(name, text_of(v)) for name, v in _members(value)]
    return [_pair(*pair) for pair in _exploded(p.name, value)]


def header_text(p: Parameter, value: Any) -> str:
    """Return the value of a header. Raises BadArgument for a character that no header can hold."""
    if p.as_json:
        text = msgspec.json.encode(value).decode()
    else:
        text = ",".join(_parts(value, _as_it_is, explode=p.explode))
    if not all(c.isprintable() and ord(c) < 256 for c in text):
        raise BadArgument(f"{p.argument} has a character in it that no header can hold")
    return text.strip()


def cookie_text(p: Parameter, value: Any) -> str:
    """Return the cookies that a value makes, as they stand in the header."""
    name = p.name if p.style == "cookie" else quoted(p.name)
    if p.as_json:
        return f"{name}={quoted(msgspec.json.encode(value).decode())}"
    if not p.explode:
        return f"{name}={','.join(_parts(value, quoted, explode=False))}"
    if isinstance(value, dict):
        parts = [_pair(key, text_of(v)) for key, v in _members(value)]
    else:
        parts = [f"{name}={quoted(text)}" for _, text in _exploded(p.name, value)]
    return ("; " if p.style == "cookie" else "&").join(parts)


def _pair(name: str, text: str) -> str:
    return f"{quoted(name)}={quoted(text)}"


def _members(value: Any) -> list[tuple[str, Any]]:
    """Return the members of an object that are given."""
    if not isinstance(value, dict):
        return []
    return [(name, v) for name, v in cast("dict[str, Any]", value).items() if v is not None]


def _exploded(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, list):
        return [(name, text_of(item)) for item in cast("list[Any]", value)]
    return [(name, text_of(value))]


def _parts(value: Any, part: Callable[[str], str], *, explode: bool) -> list[str]:
    """Return the parts of a value: one of a scalar, the elements of an array; of an object `key=value` when
    it is exploded, else keys and values in turn."""
    if isinstance(value, list):
        return [part(text_of(item)) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        pairs = [(part(key), part(text_of(v))) for key, v in _members(value)]
        return [f"{k}={v}" for k, v in pairs] if explode else [text for pair in pairs for text in pair]
    return [part(text_of(value))]


def _as_it_is(text: str) -> str:
    return text
