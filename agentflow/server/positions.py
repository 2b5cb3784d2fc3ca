"""Parameters of a stream: its first offset and its types (page 000 §8.1). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

import msgspec

from agentflow.events.envelope import StoredEvent
from agentflow.events.filters import TypeFilter
from agentflow.server.problems import Refusal

__all__ = ["EventFilter", "Heartbeat", "first_wanted", "parse_heartbeat", "parse_time", "parse_types"]

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_WORKFLOW_VIEW = (
    "workflow.*",
    "superstep.*",
    "output",
    "approval.*",
    "input.*",
    "signal.*",
    "timer.*",
    "custom.*",
    "agent.failed",
    "model.call_failed",
    "tool.call_failed",
    "system.error",
    "message.undelivered",
    "plan.*",
    "verification.*",
)
"""The events that `view=workflow` shows: lifecycle, supersteps, outputs, requests, own events, errors."""

Heartbeat = Literal["line", "event"]
DEFAULT_HEARTBEAT = 15.0


def first_wanted(
    *,
    offset: str | None,
    after: str | None,
    from_: str | None,
    last_event_id: str | None,
    earliest: int,
    last: int,
) -> int:
    """Return the offset of the first event to send. Raises Refusal `invalid_position` or `offset_trimmed`.

    Nothing, or `offset=0`, begins at the earliest event that is left; `Last-Event-ID` wins over the query,
    since browsers repeat the URL as it was.
    """
    if last_event_id:
        return _retained(_integer(last_event_id, "Last-Event-ID", 0) + 1, earliest)
    given = {
        name: value
        for name, value in (("offset", offset), ("after", after), ("from", from_))
        if value is not None
    }
    if len(given) > 1:
        raise Refusal("invalid_position", f"give one of {' and '.join(given)}")
    if after is not None:
        return _retained(_integer(after, "after", -1) + 1, earliest)
    if from_ is not None:
        return _retained(_integer(from_, "from", 0), earliest)
    if offset == "latest":
        return last + 1
    position = 0 if offset is None else _integer(offset, "offset", 0)
    return earliest if position == 0 else _retained(position + 1, earliest)


def _integer(text: str, name: str, least: int) -> int:
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or value < least:
        also = ' or "latest"' if name == "offset" else ""
        raise Refusal(
            "invalid_position", f"{name} is a whole number from {least} on{also}, not {text[:40]!r}"
        )
    return value


def _retained(wanted: int, earliest: int) -> int:
    if wanted < earliest:
        raise Refusal(
            "offset_trimmed",
            f"the log begins at offset {earliest}; retention took the events before it",
            earliest_offset=earliest,
            requested=wanted,
        )
    return wanted


def parse_time(text: str | None, name: str) -> int | None:
    """Parse an RFC 3339 time into µs since the epoch. Raises Refusal `invalid_parameter`."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError("no offset")
        return round((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
    except (ValueError, OverflowError):
        raise Refusal(
            "invalid_parameter", f"{name} is a time such as 2026-01-31T12:00:00Z, not {text[:40]!r}"
        ) from None


def parse_types(text: str | None) -> list[str] | None:
    """Parse `tool.*,agent.completed`. Raises Refusal `invalid_parameter`."""
    if text is None:
        return None
    types = [part.strip() for part in text.split(",")]
    try:
        TypeFilter(types)
    except ValueError as error:
        raise Refusal("invalid_parameter", f"type: {error}") from None
    return types


def parse_heartbeat(text: str | None) -> tuple[float | None, Heartbeat]:
    """Return the seconds of silence after which a heartbeat is sent, None for never, and its form."""
    if text is None:
        return DEFAULT_HEARTBEAT, "line"
    if text == "off":
        return None, "line"
    if text == "event":
        return DEFAULT_HEARTBEAT, "event"
    if _INTEGER.fullmatch(text) and 1 <= int(text) <= 300:
        return float(text), "line"
    raise Refusal("invalid_parameter", f"heartbeat is 1 to 300, off or event, not {text[:40]!r}")


class _Step(msgspec.Struct):
    step: str | None = None


_step_decoder = msgspec.json.Decoder(_Step)


class EventFilter:
    """Which events of a run are shown, the same for old and new ones. None of the arguments: all."""

    __slots__ = ("_since", "_step", "_types", "_until", "_view", "everything")

    def __init__(
        self,
        *,
        types: list[str] | None = None,
        view: Literal["workflow", "all"] = "all",
        step: str | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> None:
        self._types = None if types is None else TypeFilter(types)
        self._view = TypeFilter(_WORKFLOW_VIEW) if view == "workflow" else None
        self._step = step
        self._since = since
        self._until = until
        self.everything = types is None and view == "all" and step is None and since is None and until is None

    def __call__(self, event: StoredEvent) -> bool:
        """Return whether the event is wanted; its bytes are read only when a step is asked for."""
        return (
            (self._types is None or self._types(event.type))
            and (self._view is None or self._view(event.type))
            and (self._since is None or event.ts >= self._since)
            and (self._until is None or event.ts < self._until)
            and (self._step is None or _step_decoder.decode(event.text).step == self._step)
        )
