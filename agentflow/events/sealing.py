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

__all__ = ["seal"]


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
    stored: list[StoredEvent] = []
    timestamp, offset = iso(ts), first
    traces = repeat(None) if tracer is None else tracer.take_batch(first, events)
    for data, id, trace in zip(events, ids.ulids("evt_", len(events)), traces, strict=False):
        event_type = type_of(data)
        event: Event[Any] = Event(
            id=id,
            offset=offset,
            timestamp=timestamp,
            type=event_type,
            workflow_id=workflow_id,
            data=data,
            trace=trace,
            step=getattr(data, "step_id", None) or None,
            attempt=data.attempt if isinstance(data, Custom) else None,
            schema_version=envelope.SCHEMA_VERSION,
        )
        stored.append(StoredEvent(offset, ts, event_type, encode(event)))
        offset += 1
    return stored
