"""Replay of a stored log into the state of a run, and a cache of replayed states.

`fold` is the one way from the store to a state. A run with many open questions is answered many times, and
each answer would replay its whole log; a cached state is continued with the events behind it instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from agentflow.engine import BaseEvent, Bindings, Graph, IllegalEvent, RunState, evolve
from agentflow.errors import LogCorrupt
from agentflow.events.catalogue import SystemStateSaved
from agentflow.events.decoding import decode_page
from agentflow.events.envelope import decode, micros
from agentflow.events.log import EventLog
from agentflow.events.tracing import RunTracer
from agentflow.records.read_model import base_of_fork

__all__ = ["Fold", "FoldCache", "decode_base", "fold"]

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


_QUIET = 30.0
_MOST = 16
_SHORT = 64
_LONG = 200_000


class Fold(NamedTuple):
    """What folding the first `events` events of a log gave; all of them are durable."""

    state: RunState
    tracer: RunTracer
    events: int


class FoldCache:
    """The folds of the runs that rested last: at most 16, of at most 200,000 events together, for 30 seconds.
    That of a short log is made anew faster than it would be worth its memory."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Fold, asyncio.TimerHandle]] = {}

    def keep(self, fold: Fold) -> None:
        """Keep this one, and give up those that were kept longest when there are too many."""
        run_id = fold.state.workflow_id
        self.drop(run_id)
        if fold.state.next_offset != fold.events or not _SHORT <= fold.events <= _LONG:
            return  # the first: its supervisor went on, and what it wrote may not have got to the log
        timer = asyncio.get_running_loop().call_later(_QUIET, self.drop, run_id)
        self._kept[run_id] = (fold, timer)
        while len(self._kept) > _MOST or sum(f.events for f, _ in self._kept.values()) > _LONG:
            self.drop(next(iter(self._kept)))

    def take(self, workflow_id: str, plan: Graph, bindings: Bindings) -> Fold | None:
        """The fold of a run, if it is kept and was made with this very plan and the same bindings (to end a
        run, or make it stand still, none are needed); from now on it is the caller's."""
        kept = self._kept.get(workflow_id)
        self.drop(workflow_id)
        if kept is None or kept[0].state.graph is not plan or kept[0].state.bindings != bindings:
            return None
        return kept[0]

    def drop(self, workflow_id: str) -> None:
        """Forget the fold of a run, if there is one."""
        kept = self._kept.pop(workflow_id, None)
        if kept is not None:
            kept[1].cancel()

    def clear(self) -> None:
        """Forget all."""
        for run_id in list(self._kept):
            self.drop(run_id)
