"""Paths with arguments in them: `/orders/{id}`. An argument stays inside its segment, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from agentflow.definition.urls import PATH_ARGUMENT

__all__ = ["BadArgument", "as_text", "check_segment", "expand", "filled"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class BadArgument(Exception):
    """An argument cannot stand where it is to; the message names it."""


def expand(template: str, arguments: Mapping[str, Any]) -> str:
    """Return the path with its arguments, percent-encoded, `/` and `?` too. Raises BadArgument for one that
    is missing, empty or no text, or that a server could take for another path."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        text = as_text(arguments.get(name))
        if text is None:
            raise BadArgument(f"{name} must be a text or a number to stand in the path")
        if not text:
            raise BadArgument(f"{name} is empty and cannot stand in the path")
        check_segment(name, text)
        try:
            return quote(text, safe="")
        except UnicodeEncodeError:
            raise BadArgument(f"{name} has half of a surrogate pair in it") from None

    return filled(template, value)


def filled(template: str, value: Callable[[re.Match[str]], str]) -> str:
    """Return the path with `value` of each argument in its place. Raises BadArgument if it is another one
    than the template names."""
    path = PATH_ARGUMENT.sub(value, template)
    if any(segment in (".", "..") for segment in path.split("/")):
        raise BadArgument("the arguments would lead to another path")
    return path


def check_segment(name: str, text: str) -> None:
    """Raise BadArgument if a server could take the text for another path."""
    # Servers decode %2F before they look for "..", and some take a backslash for a slash.
    if any(part.strip() in (".", "..") for part in re.split(r"[/\\]", text)):
        raise BadArgument(f"{name} would lead to another path")
    if _CONTROL.search(text):
        raise BadArgument(f"{name} has a control character in it")


def as_text(value: Any) -> str | None:
    """Return a scalar as it is written in a URL: true, 1.5, text. None for null, arrays and objects."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    return None
