"""Replay of a stored log into the state of a run, and a cache of replayed states.

`fold` is the one way from the store to a state. A run with many open questions is answered many times, and
each answer would replay its whole log; a cached state is continued with the events behind it instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agentflow.aside import compute_aside, free_in_slices
from agentflow.engine import BaseEvent, Bindings, Graph, IllegalEvent, RunState, evolve
from agentflow.errors import LogCorrupt
from agentflow.events.catalogue import SystemStateSaved
from agentflow.events.decoding import decode_page
from agentflow.events.envelope import Event, StoredEvent, decode, micros
from agentflow.events.fork_base import lines_of
from agentflow.events.log import EventLog
from agentflow.events.tracing import RunTracer
from agentflow.records.read_model import base_of_fork

__all__ = ["LONG_BASE", "PAGE_EVENTS", "Fold", "FoldCache", "base_event", "decode_base", "fold"]

PAGE_EVENTS = 512
"""How many events of a log are read and folded at a time."""
LONG_BASE = 2_000
"""Events with which a fork begins; more are folded in a thread."""


async def fold(
    log: EventLog,
    state: RunState,
    *,
    upto: int | None = None,
    see: Callable[[Any], object] = lambda data: None,
    page: Sequence[StoredEvent] = (),
) -> int:
    """Replay the durable events of `state.workflow_id` that `state` has not seen, up to offset `upto`.

    `see` is called with the data of each. `page`: those from offset 0 on that were read already. Returns the
    time of the last event (µs).
    Raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt.
    """
    offset, ts = state.next_offset, state.last_ts
    if offset:
        page = ()
    while rows := page or await log.read(state.workflow_id, offset, PAGE_EVENTS):
        page = ()
        for event in await decode_page(rows):
            if upto is not None and event.offset > upto:
                return ts
            data = event.data
            if isinstance(data, SystemStateSaved) and data.kind == "fork_base":
                body = await base_of_fork(log, data.ref)
                state.base = await compute_aside(decode_base, body)
            ts, base = micros(event.timestamp), state.base
            try:
                if len(base) > LONG_BASE:
                    await compute_aside(evolve, state, data, event.offset, ts)
                    await compute_aside(free_in_slices, base)
                else:
                    evolve(state, data, event.offset, ts)
            except IllegalEvent as illegal:
                raise LogCorrupt(f"{state.workflow_id} at offset {event.offset}: {illegal}") from None
            see(data)
        offset = rows[-1].offset + 1
    return ts


def decode_base(body: bytes) -> list[BaseEvent]:
    """Decode the events of a fork's base, one a line, as the old log holds them."""
    return [base_event(decode(line)) for line in lines_of(body)]


def base_event(event: Event[Any]) -> BaseEvent:
    """Return an event as the base of a fork holds it."""
    return BaseEvent(event.data, micros(event.timestamp), (event.workflow_id, event.offset))


_MAX_AGE_S = 30.0
_MAX_ENTRIES = 16
_MIN_EVENTS = 64
_MAX_EVENTS = 200_000


class Fold(NamedTuple):
    """State and tracer after the first `events` events of a log, all of them durable."""

    state: RunState
    tracer: RunTracer
    events: int


class FoldCache:
    """Cache of replayed state for idle runs: 16 entries of 200,000 events together, 30 s each.

    Logs under 64 events are not cached; replaying them is cheaper.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Fold, asyncio.TimerHandle]] = {}

    def __contains__(self, workflow_id: str) -> bool:
        """Return whether the state of a run is cached."""
        return workflow_id in self._kept

    def keep(self, fold: Fold) -> None:
        """Cache a state; evict the oldest beyond the limits."""
        run_id = fold.state.workflow_id
        self.drop(run_id)
        if fold.state.next_offset != fold.events or not _MIN_EVENTS <= fold.events <= _MAX_EVENTS:
            return  # its supervisor went on, and the log may lack what it decided
        timer = asyncio.get_running_loop().call_later(_MAX_AGE_S, self.drop, run_id)
        self._kept[run_id] = (fold, timer)
        while len(self._kept) > _MAX_ENTRIES or sum(f.events for f, _ in self._kept.values()) > _MAX_EVENTS:
            self.drop(next(iter(self._kept)))

    def take(self, workflow_id: str, plan: Graph, bindings: Bindings) -> Fold | None:
        """Remove and return the state of a run, which the caller may change.

        Returns None if it is not cached or was made with another graph or other bindings.
        """
        kept = self._kept.get(workflow_id)
        self.drop(workflow_id)
        if kept is None or kept[0].state.graph is not plan or kept[0].state.bound != bindings:
            return None
        return kept[0]

    def drop(self, workflow_id: str) -> None:
        """Evict the state of a run, if it is cached."""
        kept = self._kept.pop(workflow_id, None)
        if kept is not None:
            kept[1].cancel()

    def clear(self) -> None:
        """Evict all."""
        for run_id in list(self._kept):
            self.drop(run_id)
