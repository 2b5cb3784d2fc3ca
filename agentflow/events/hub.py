"""The live end of the log: one cursor over history and what is committed next, without a seam.

The hub holds no truth and no queue of any subscriber. Of a followed run it keeps a short window
of its newest events and one wake-up; a subscriber is a position. One that falls behind the window reads the
log until it is in the window again, so a slow reader costs the writer nothing and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from agentflow.errors import AgentflowError, OffsetTrimmed
from agentflow.events.all_runs import AllRuns, AllRunsReader
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.envelope import StoredEvent
from agentflow.events.filters import TypeFilter
from agentflow.events.log import EventLog
from agentflow.events.pages import Pages

__all__ = ["Hub"]

_WINDOW_EVENTS = 1_024
_WINDOW_BYTES = 1 << 20


class _Tail:
    """The newest events of a followed run, in order and without gap, and the readers that wait for more."""

    __slots__ = (
        "_bytes",
        "_waiters",
        "_waking",
        "ended",
        "events",
        "pages",
        "stale",
        "start",
        "users",
    )

    def __init__(self, pages: Pages) -> None:
        self.events: list[StoredEvent] = []
        self.pages = pages
        self.start = 0
        self.users = 0
        self.ended = False
        self.stale = False
        """Set when another process may have written; the first reader that sees it polls."""
        self._bytes = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._waking = False

    @property
    def end(self) -> int:
        return self.start + len(self.events)

    def since(self, position: int, stop: int | None) -> list[StoredEvent]:
        """Return what the window has from `position` on, before `stop`."""
        if not self.start <= position < self.end:
            return []
        batch = self.events[position - self.start :]
        return batch if stop is None else batch[: stop - position]

    def is_past(self, position: int) -> bool:
        """Return whether the window has moved on beyond `position`."""
        return bool(self.events) and position < self.start

    def extend(self, events: Sequence[StoredEvent]) -> None:
        """Take newly committed events; those that are known already, by offset, are passed over."""
        first = events[0].offset
        if not self.events or first > self.end:
            # Nothing yet, or something was committed past us: the log has what lies between.
            self.events.clear()
            self._bytes = 0
            self.start = first
        elif first < self.end:
            events = events[self.end - first :]
            if not events:
                return
        self.events.extend(events)
        for event in events:
            self._bytes += event.size
        if events[-1].type in TERMINAL_TYPES:
            self.ended = True
        if len(self.events) > 2 * _WINDOW_EVENTS or self._bytes > 2 * _WINDOW_BYTES:
            self._trim()
        self.stale = False
        self._wake_soon()

    def _trim(self) -> None:
        keep = size = 0
        for event in reversed(self.events):
            size += event.size
            if keep == _WINDOW_EVENTS or (size > _WINDOW_BYTES and keep):
                size -= event.size
                break
            keep += 1
        self.start = self.end - keep
        del self.events[:-keep]
        self._bytes = size

    def _wake_soon(self) -> None:
        # Once a pass of the loop, however many batches come in it: the publisher pays one call.
        if self._waiters and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self.wake)

    def wake(self) -> None:
        """Let every waiting subscriber look again."""
        self._waking = False
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until something was published, or the log is to be polled."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def look(self) -> None:
        """Poll the log, because another process may have written."""
        self.stale = True
        self.wake()


class Hub:
    """Follows the runs of one log. `poll` is how often, in seconds, it is asked whether another process has
    written; only then are the followed runs looked up. For one event loop."""

    def __init__(self, log: EventLog, *, poll: float = 0.25) -> None:
        self._log = log
        self._poll = poll if log.shared else None
        self._tails: dict[str, _Tail] = {}
        self._all_runs = AllRuns(log, self._ask_later)
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._foreign: int | None = None  # writes of other processes, when they were last asked for

    def close(self) -> None:
        """Let every subscriber end where it is: nothing will be published any more. Idempotent."""
        self._closed = True
        self._rest()
        for tail in self._tails.values():
            tail.wake()
        self._all_runs.close()

    def publish(self, workflow_id: str, events: Sequence[StoredEvent]) -> None:
        """Show events of one run that are durable now, in order; called by its sequencer. Never waits."""
        tail = self._tails.get(workflow_id)
        if tail is not None and events:
            tail.extend(events)
        self._all_runs.committed()

    @property
    def followed(self) -> int:
        """How many runs have a subscriber; others take no memory here."""
        return len(self._tails)

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
        """Yield the run's events after offset `after`, each once and in order, as many at a time as there
        are.

        Without `after` they begin with the earliest that is left; with it, OffsetTrimmed is raised when the
        first that is wanted was trimmed. Ends after the terminal event; without `follow` also at the end that
        the log has now. `types` chooses among exact types and families (`tool.*`). RunNotFound; RunGone;
        StoreError if the log cannot be read. Every batch passes through the loop once, so a reader that is
        always behind does not hold up the others. Close it (`contextlib.aclosing`) when you leave early.
        """
        wanted = None if types is None else TypeFilter(types)
        tail = self._attach(workflow_id)
        try:
            position = 0 if after is None else after + 1
            anywhere = after is None  # whether to begin with whatever is left
            stop = None if follow else await self._log.last(workflow_id) + 1
            looked = False  # whether the log had nothing more for us since we were attached
            rested = True  # whether others had their turn since the last batch
            while stop is None or position < stop:
                batch = tail.since(position, stop)
                if not batch:
                    if tail.ended and position >= tail.end:
                        return
                    if self._closed:
                        return
                    if looked and not tail.stale and not tail.is_past(position):
                        await tail.wait()
                        rested = True
                        continue
                    tail.stale = False
                    try:
                        batch = await tail.pages.read(position, stop)
                    except OffsetTrimmed as trimmed:
                        if not anywhere:
                            raise
                        position = trimmed.earliest_offset
                        continue
                    if not batch:
                        run = await self._log.run(workflow_id)
                        looked = position > run.last_offset  # else something came between the two looks
                        if looked and run.ended:
                            return
                        continue
                    if looked:
                        tail.extend(batch)  # perhaps another process wrote it: spare the others the look
                if not rested:
                    await asyncio.sleep(0)
                rested = anywhere = False
                position = batch[-1].offset + 1
                shown = batch if wanted is None else [event for event in batch if wanted(event.type)]
                if shown:
                    yield shown
                if batch[-1].type in TERMINAL_TYPES:
                    return
        finally:
            self._detach(workflow_id, tail)

    def _attach(self, workflow_id: str) -> _Tail:
        tail = self._tails.get(workflow_id)
        if tail is None:
            tail = self._tails[workflow_id] = _Tail(Pages(self._log, workflow_id))
            self._ask_later()
        tail.users += 1
        return tail

    def _detach(self, workflow_id: str, tail: _Tail) -> None:
        tail.users -= 1
        if not tail.users:
            tail.pages.close()
            del self._tails[workflow_id]
            if not self._is_followed:
                self._rest()

    # One question for all runs that are followed, however many: a thousand idle ones cost what one does.

    @property
    def _is_followed(self) -> bool:
        return bool(self._tails or self._all_runs.followers)

    def _ask_later(self) -> None:
        if self._poll is not None and self._timer is None and self._asking is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._poll, self._ask)

    def _ask(self) -> None:
        self._timer = None
        self._asking = asyncio.ensure_future(self._ask_log())

    async def _ask_log(self) -> None:
        try:
            foreign = await self._log.foreign_writes()
        except AgentflowError:  # a subscriber of a run meets the same, and raises it
            foreign = None
        finally:
            self._asking = None
        if foreign is None or foreign != self._foreign:
            for tail in self._tails.values():
                tail.look()
            self._all_runs.committed()
        self._foreign = foreign
        if self._is_followed:
            self._ask_later()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
