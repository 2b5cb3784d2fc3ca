"""Events of a run without what differs from run to run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from agentflow.events.envelope import Event

__all__ = ["difference", "normal_events"]

_ID: Final = re.compile(r"\b([a-z]{2,6}_)[0-9A-HJKMNP-TV-Z]{26}\b")
_HASH: Final = re.compile(r"\b(?:sha256:)?[0-9a-f]{64}\b")
_TIMES: Final = re.compile(r"(?:_ms|_at|_us|time|^ts|^due|^deadline)$")


def normal_events(events: Iterable[Event[Any]]) -> list[dict[str, Any]]:
    """Return each event as `{type, step?, data}`, in order. Ids are numbered as they come, hashes and times
    replaced by a word."""
    numbers: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    for event in events:
        one: dict[str, Any] = {"type": event.type}
        if event.step is not None:
            one["step"] = event.step
        found.append({**one, "data": _normal(msgspec.to_builtins(event.data), "", numbers)})
    return found


def difference(expected: str, found: str) -> str:
    """Return the lines that differ, with two lines around them; empty if none does."""
    lines = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "expected", "found", lineterm="", n=2
    )
    return "\n".join(lines)


def _normal(value: Any, name: str, numbers: dict[str, str]) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: _normal(one, key, numbers) for key, one in members.items()}
    if isinstance(value, list | tuple):
        return [_normal(one, name, numbers) for one in cast("list[Any]", value)]
    if name and _TIMES.search(name) and not isinstance(value, bool) and isinstance(value, int | float | str):
        return "<time>"
    if isinstance(value, str):
        return _HASH.sub("<hash>", _ID.sub(lambda match: _numbered(match, numbers), value))
    return value


def _numbered(match: re.Match[str], numbers: dict[str, str]) -> str:
    return numbers.setdefault(match[0], f"{match[1]}{len(numbers) + 1}")
