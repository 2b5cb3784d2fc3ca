"""The log of a run that has ended, as a result holds it: decoded when somebody first looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol, cast

import msgspec

from agentflow.events.envelope import Event, StoredEvent, decode, type_of
from agentflow.events.sealing import UnsealedBatch
from agentflow.lazy import LazySequence

__all__ = ["LoggedData", "RunEvents", "peek"]

Part = StoredEvent | UnsealedBatch


class LoggedData(Protocol):
    """What a projection needs of an event; an Event has it."""

    @property
    def offset(self) -> int: ...

    @property
    def type(self) -> str: ...

    @property
    def data(self) -> Any: ...


class RunEvents(LazySequence[Event[Any]]):
    """Events in the order of their log, decoded at the first access and then kept."""

    __slots__ = ("_events", "_parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._events: tuple[Event[Any], ...] | None = None

    def made(self) -> tuple[Event[Any], ...]:
        """Return the events."""
        parts = self._parts  # read first: another thread may decode them meanwhile, and lets go of them last
        events = self._events
        if events is None:
            rows = (row for part in parts for row in (part if isinstance(part, UnsealedBatch) else (part,)))
            events = self._events = tuple(decode(row.body) for row in rows)
            self._parts = ()
        return events


class _Unread(msgspec.Struct, frozen=True, gc=False):
    """An event that was never encoded: its data must not be changed."""

    offset: int
    type: str
    data: Any


class _Peeked:
    """An event of which the type is known, and the data when somebody asks."""

    __slots__ = ("_data", "_row", "offset", "type")

    def __init__(self, row: StoredEvent) -> None:
        self.offset = row.offset
        self.type = row.type
        self._data: Any = None
        self._row: StoredEvent | None = row

    @property
    def data(self) -> Any:
        """The data as it is in the log: it must not be changed."""
        if self._row is not None:
            self._data, self._row = decode(self._row.body).data, None
        return self._data


def peek(parts: Sequence[Part]) -> list[LoggedData]:
    """Return the events for a projection, which decodes only those that it asks for the data of."""
    seen: list[LoggedData] = []
    for part in parts:
        data = None if isinstance(part, StoredEvent) else part.unread()
        if data is not None:
            seen += map(_Unread, count(cast("UnsealedBatch", part).first), map(type_of, data), data)
        else:
            seen += map(_Peeked, (part,) if isinstance(part, StoredEvent) else part)
    return seen
