"""From events as they were decided to events as they are stored: the one place where envelopes are made.

What the engine decides has neither id, offset, time nor span. The EventBus adds them here to each batch on
its way to the log. This module reads no clock but that of `ids`, and does no I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, overload

from agentflow.events import envelope
from agentflow.events.catalogue import TERMINAL, Custom, RunEvent
from agentflow.events.envelope import Event, StoredEvent, encode, stored_event, type_of
from agentflow.events.ids import Ids, iso, written
from agentflow.events.tracing import RunTracer

__all__ = ["UnsealedBatch", "envelopes", "seal", "size_of", "store"]

_sealing = threading.Lock()
"""Held while a batch is encoded: the result of a run may be read in another thread than the log."""


def seal(
    events: Sequence[RunEvent],
    *,
    workflow_id: str,
    first: int,
    ts: int,
    ids: Ids,
    tracer: RunTracer | None = None,
) -> list[StoredEvent]:
    """Return the stored form of a batch that begins at offset `first` and was decided at `ts` (µs).

    `tracer` follows the run and gives the spans that the events open; without one none is recorded.
    """
    made = envelopes(events, workflow_id=workflow_id, first=first, ts=ts, ids=ids, tracer=tracer)
    return [store(event, ts) for event in made]


def envelopes(
    events: Sequence[RunEvent],
    *,
    workflow_id: str,
    first: int,
    ts: int,
    ids: Ids,
    tracer: RunTracer | None = None,
) -> list[Event[Any]]:
    """Return a batch in its envelopes, for `store`: ids and spans are given, and nothing is encoded."""
    return UnsealedBatch(events, workflow_id, first, ts, ids, tracer).envelopes()


class UnsealedBatch(Sequence[StoredEvent]):
    """A batch whose ids are settled, and whose events are encoded, in their spans, when they are first asked
    for.

    The bytes are those that `seal` would have given at the same time. The data of the events is not copied.
    A store that needs no bytes keeps the batch as it is: a run that is never read is never encoded.
    """

    __slots__ = (
        "_data",
        "_ids",
        "_size",
        "_stored",
        "_taken",
        "_workflow_id",
        "ends_run",
        "first",
        "length",
        "ts",
    )

    def __init__(
        self,
        events: Sequence[RunEvent],
        workflow_id: str,
        first: int,
        ts: int,
        ids: Ids,
        tracer: RunTracer | None = None,
    ) -> None:
        self._data = events
        self.length = len(events)
        self.ends_run = bool(events) and events[-1].__class__ in TERMINAL
        self._workflow_id = workflow_id
        self._ids = ids.reserve(self.length)
        self._taken = None if tracer is None else tracer.take_batch(first, events)
        self._stored: list[StoredEvent] | None = None
        self._size = -1
        self.first = first
        self.ts = ts

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> StoredEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[StoredEvent]: ...

    def __getitem__(self, index: int | slice) -> StoredEvent | list[StoredEvent]:
        return self.stored()[index]

    def __iter__(self) -> Iterator[StoredEvent]:
        return iter(self.stored())

    @property
    def last_type(self) -> str:
        """The type of the last event."""
        return type_of(self._data[-1]) if self._data else self.stored()[-1].type

    def envelopes(self) -> list[Event[Any]]:
        """Return the events in their envelopes."""
        made: list[Event[Any]] = []
        timestamp, offset = iso(self.ts), self.first
        spans = repeat(None) if self._taken is None else self._taken.spans()
        workflow_id, version = self._workflow_id, envelope.SCHEMA_VERSION
        for data, id, span in zip(self._data, written("evt_", self._ids), spans, strict=False):
            event: Event[Any] = Event(
                id=id,
                offset=offset,
                timestamp=timestamp,
                type=type_of(data),
                workflow_id=workflow_id,
                data=data,
                trace=None if span is None else span.trace(),
                step=getattr(data, "step_id", None) or None,
                attempt=data.attempt if isinstance(data, Custom) else None,
                schema_version=version,
            )
            made.append(event)
            offset += 1
        return made

    def unread(self) -> Sequence[RunEvent] | None:
        """Return the data of the events, which must not be changed; None once they are encoded."""
        return self._data or None

    def sealed_as(self, stored: list[StoredEvent]) -> UnsealedBatch:
        """Keep the stored form that was made of `envelopes`; return this batch."""
        self._stored, self._data, self._taken = stored, (), None
        return self

    @property
    def size(self) -> int:
        """Bytes of the bodies; the first look encodes them."""
        if self._size < 0:
            self._size = sum([event.size for event in self.stored()])
        return self._size

    def stored(self) -> list[StoredEvent]:
        """Return the events in their stored form; the first call encodes them.

        Of a run that has ended it may be called in any thread.
        """
        if self._stored is None:
            with _sealing:
                if self._stored is None:
                    ts = self.ts
                    self._stored = [
                        stored_event(event.offset, ts, event.type, encode(event), event.data)
                        for event in self.envelopes()
                    ]
                    self._data, self._taken = (), None
        return self._stored


def size_of(events: Sequence[StoredEvent]) -> int:
    """Return the bytes of the bodies of a batch."""
    return events.size if isinstance(events, UnsealedBatch) else sum([event.size for event in events])


def store(event: Event[Any], ts: int) -> StoredEvent:
    """Return the stored form of an event that was decided at `ts`; takes up to 10 ms a MiB."""
    return stored_event(event.offset, ts, event.type, encode(event), event.data)
