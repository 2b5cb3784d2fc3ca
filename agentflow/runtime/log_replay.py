"""Folding a stored log: the one way from the store to the state of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentflow.engine import BaseEvent, IllegalEvent, RunState, evolve
from agentflow.errors import LogCorrupt
from agentflow.events.catalogue import SystemStateSaved
from agentflow.events.decoding import decode_page
from agentflow.events.envelope import decode, micros
from agentflow.events.log import EventLog
from agentflow.records.read_model import base_of_fork

__all__ = ["decode_base", "fold"]

_PAGE = 512


async def fold(
    log: EventLog,
    state: RunState,
    *,
    upto: int | None = None,
    see: Callable[[Any], object] = lambda data: None,
) -> int:
    """Fold the durable events of `state.workflow_id` that `state` has not seen into it, those after offset
    `upto` left out.

    `see` is shown the data of each. Returns the time of the last one (µs). Raises RunNotFound, RunGone,
    OffsetTrimmed, LogCorrupt.
    """
    offset, ts = state.next_offset, state.last_ts
    while rows := await log.read(state.workflow_id, offset, _PAGE):
        for event in await decode_page(rows):
            if upto is not None and event.offset > upto:
                return ts
            data = event.data
            if isinstance(data, SystemStateSaved) and data.kind == "fork_base":
                state.base = decode_base(await base_of_fork(log, data.ref))
            ts = micros(event.timestamp)
            try:
                evolve(state, data, event.offset, ts)
            except IllegalEvent as illegal:
                raise LogCorrupt(f"{state.workflow_id} at offset {event.offset}: {illegal}") from None
            see(data)
        offset = rows[-1].offset + 1
    return ts


def decode_base(body: bytes) -> list[BaseEvent]:
    """The events of a fork's base, as they stood in the old log, one a line."""
    events = [decode(line) for line in body.split(b"\n") if line]
    return [BaseEvent(event.data, micros(event.timestamp)) for event in events]
