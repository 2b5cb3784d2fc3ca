"""Subscriptions to runs: one cursor over history and what is committed next, without a gap or a repetition.

The hub holds no truth and no queue of any subscriber. Of a followed run it keeps a short window of its newest
events (`live_window`); a subscriber is an offset. One that falls behind the window reads the log until it is
in the window again, so a slow subscriber costs the writer nothing and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from enum import Enum, auto

from agentflow.errors import AgentflowError, OffsetTrimmed
from agentflow.events.all_runs import AllRuns, AllRunsReader
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.envelope import StoredEvent
from agentflow.events.filters import TypeFilter
from agentflow.events.live_window import LiveWindow
from agentflow.events.log import EventLog
from agentflow.events.pages import Pages

__all__ = ["Hub"]


class _Next(Enum):
    """What a subscription does where there is no batch for it."""

    WAIT = auto()
    END = auto()


class _Subscription:
    """Where one subscriber is in a run's log.

    `after` is the offset behind which it begins, None for the earliest event that is left; `stop` the offset
    before which it ends, None for the end of the run.
    """

    __slots__ = ("_caught_up", "_from_earliest", "_log", "_position", "_stop", "_window", "_workflow_id")

    def __init__(
        self, log: EventLog, window: LiveWindow, workflow_id: str, after: int | None, stop: int | None
    ) -> None:
        self._log = log
        self._window = window
        self._workflow_id = workflow_id
        self._position = 0 if after is None else after + 1
        self._stop = stop
        self._from_earliest = after is None
        """True until the first batch of a subscription that begins with whatever is left."""
        self._caught_up = False
        """True once the log had nothing more: what comes next is published in the window."""

    async def next_batch(self) -> Sequence[StoredEvent] | _Next:
        """Return the events from the position on, and pass them; or what to do where there are none now.

        Raises OffsetTrimmed, RunNotFound, RunGone or StoreError as `Hub.batches` says.
        """
        while self._stop is None or self._position < self._stop:
            batch = self._window.since(self._position, self._stop)
            if not batch:
                if self._window.closed or (self._window.ended and self._position >= self._window.end):
                    return _Next.END
                if self._caught_up and not self._window.stale and not self._window.is_past(self._position):
                    return _Next.WAIT
                batch = await self._read_log()
                if batch is None:
                    return _Next.END
            if batch:
                self._from_earliest = False
                self._position = batch[-1].offset + 1
                return batch
        return _Next.END

    async def _read_log(self) -> Sequence[StoredEvent] | None:
        """Return a page of the log, empty if it has none now; None if the run has ended."""
        self._window.stale = False
        try:
            batch = await self._window.pages.read(self._position, self._stop)
        except OffsetTrimmed as trimmed:
            if not self._from_earliest:
                raise
            self._position = trimmed.earliest_offset
            return ()
        if batch:
            if self._caught_up:  # another process wrote it: the other subscribers need not read it again
                self._window.extend(batch)
            return batch
        run = await self._log.run(self._workflow_id)
        # Otherwise an event was committed between the two reads.
        self._caught_up = self._position > run.last_offset
        return None if self._caught_up and run.ended else ()


class Hub:
    """Lets subscribers of one event loop follow the runs of one log.

    A store that several processes share is polled every `poll` seconds for writes of the others.
    """

    def __init__(self, log: EventLog, *, poll: float = 0.25) -> None:
        self._log = log
        self._poll = poll if log.shared else None
        self._windows: dict[str, LiveWindow] = {}
        self._all_runs = AllRuns(log, self._schedule_poll)
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._polling: asyncio.Task[None] | None = None
        self._foreign_writes: int | None = None
        """Number of writes by other processes at the last poll."""

    def close(self) -> None:
        """End every subscription where it is: nothing will be published any more. Idempotent."""
        self._closed = True
        self._cancel_poll()
        for window in self._windows.values():
            window.closed = True
            window.wake()
        self._all_runs.close()

    def publish(self, workflow_id: str, events: Sequence[StoredEvent]) -> None:
        """Give the subscribers events of one run that are durable now, in order; never waits."""
        window = self._windows.get(workflow_id)
        if window is not None and events:
            window.extend(events)
        self._all_runs.committed()

    @property
    def followed(self) -> int:
        """Number of runs that have a subscriber; the hub keeps nothing of other runs."""
        return len(self._windows)

    def read_all(
        self,
        types: Sequence[str] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        follow: bool = True,
    ) -> AllRunsReader:
        """Return a reader of the events of all runs in the order of their commits; use it in `with`.

        `types` and times are those of `EventLog.query`.
        """
        return AllRunsReader(self._all_runs, self._log, types, since=since, until=until, follow=follow)

    async def subscribe(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Iterable[str] | None = None,
    ) -> AsyncGenerator[StoredEvent, None]:
        """Yield the events of `batches`, one by one."""
        async with aclosing(self.batches(workflow_id, after, follow=follow, types=types)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def batches(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Iterable[str] | None = None,
    ) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Yield the run's events after offset `after`, each once and in order, in batches.

        Without `after` they begin with the earliest that is left; with it, OffsetTrimmed is raised if the
        first one was trimmed. Ends after the terminal event; without `follow` also at the end that
        the log has now. `types` chooses among exact types and families (`tool.*`). The loop runs other tasks
        between two batches, so that a subscriber that is always behind does not hold up the others. Close it
        (`contextlib.aclosing`) when you leave early. Raises RunNotFound, RunGone, or StoreError if the log
        cannot be read.
        """
        wanted = None if types is None else TypeFilter(types)
        window = self._attach(workflow_id)
        try:
            stop = None if follow else await self._log.last(workflow_id) + 1
            subscription = _Subscription(self._log, window, workflow_id, after, stop)
            has_yielded = True  # to the other tasks of the loop, since the last batch
            while True:
                batch = await subscription.next_batch()
                if batch is _Next.END:
                    return
                if batch is _Next.WAIT:
                    await window.wait()
                    has_yielded = True
                    continue
                if not has_yielded:
                    await asyncio.sleep(0)
                has_yielded = False
                shown = batch if wanted is None else [event for event in batch if wanted(event.type)]
                if shown:
                    yield shown
                if batch[-1].type in TERMINAL_TYPES:
                    return
        finally:
            self._detach(workflow_id, window)

    def _attach(self, workflow_id: str) -> LiveWindow:
        window = self._windows.get(workflow_id)
        if window is None:
            window = self._windows[workflow_id] = LiveWindow(Pages(self._log, workflow_id))
            window.closed = self._closed
            self._schedule_poll()
        window.subscribers += 1
        return window

    def _detach(self, workflow_id: str, window: LiveWindow) -> None:
        window.subscribers -= 1
        if not window.subscribers:
            window.pages.close()
            del self._windows[workflow_id]
            if not self._is_followed:
                self._cancel_poll()

    # The store is polled, not each run: 1,000 idle runs cost one query an interval.

    @property
    def _is_followed(self) -> bool:
        return bool(self._windows or self._all_runs.followers)

    def _schedule_poll(self) -> None:
        if self._poll is not None and self._timer is None and self._polling is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._poll, self._start_poll)

    def _start_poll(self) -> None:
        self._timer = None
        self._polling = asyncio.ensure_future(self._poll_log())

    async def _poll_log(self) -> None:
        try:
            foreign = await self._log.foreign_writes()
        except AgentflowError:  # the subscribers read the log now, and raise the same error
            foreign = None
        finally:
            self._polling = None
        if foreign is None or foreign != self._foreign_writes:
            for window in self._windows.values():
                window.mark_stale()
            self._all_runs.committed()
        self._foreign_writes = foreign
        if self._is_followed:
            self._schedule_poll()

    def _cancel_poll(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
