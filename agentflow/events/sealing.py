"""From events as they were decided to events as they are stored: the one place where envelopes are made.

What the engine decides has neither id, offset, time nor span. The EventBus adds them here to each batch on
its way to the log. This module reads no clock but that of `ids`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from agentflow.events import envelope
from agentflow.events.catalogue import Custom, RunEvent
from agentflow.events.envelope import Event, StoredEvent, encode, type_of
from agentflow.events.ids import Ids, iso
from agentflow.events.tracing import RunTracer

__all__ = ["envelopes", "seal", "store"]


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
    made: list[Event[Any]] = []
    timestamp, offset = iso(ts), first
    traces = repeat(None) if tracer is None else tracer.take_batch(first, events)
    for data, id, trace in zip(events, ids.ulids("evt_", len(events)), traces, strict=False):
        event: Event[Any] = Event(
            id=id,
            offset=offset,
            timestamp=timestamp,
            type=type_of(data),
            workflow_id=workflow_id,
            data=data,
            trace=trace,
            step=getattr(data, "step_id", None) or None,
            attempt=data.attempt if isinstance(data, Custom) else None,
            schema_version=envelope.SCHEMA_VERSION,
        )
        made.append(event)
        offset += 1
    return made


def store(event: Event[Any], ts: int) -> StoredEvent:
    """Return the stored form of an event that was decided at `ts`; takes up to 10 ms a MiB."""
    return StoredEvent(event.offset, ts, event.type, encode(event))
