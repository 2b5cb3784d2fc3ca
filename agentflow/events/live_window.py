"""The live window of one followed run: its newest events, and the subscribers that wait for the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.envelope import StoredEvent
from agentflow.events.pages import Pages, SharedPage

__all__ = ["LiveWindow"]

_WINDOW_EVENTS = 1_024
_WINDOW_BYTES = 1 << 20


class LiveWindow:
    """The newest events of a followed run, in order and without gap, and the subscribers that wait for more.

    It holds at least the newest event, else at most twice 1,024 events or 1 MiB of them.
    """

    __slots__ = (
        "_bytes",
        "_newest",
        "_waiters",
        "_waking",
        "closed",
        "ended",
        "events",
        "pages",
        "stale",
        "start",
        "subscribers",
    )

    def __init__(self, pages: Pages) -> None:
        self.events: list[StoredEvent] = []
        self.start = 0
        """Offset of the first event of the window."""
        self.ended = False
        """True if the terminal event was published."""
        self.closed = False
        """True if nothing will be published any more."""
        self.stale = False
        """True if another process may have written; the first subscriber that sees it reads the log."""
        self.pages = pages
        """Where subscribers behind the window read; they share what they read at one time."""
        self.subscribers = 0
        self._bytes = 0
        self._newest: SharedPage | None = None  # what the last subscriber was given
        self._waiters: set[asyncio.Future[None]] = set()
        self._waking = False

    @property
    def end(self) -> int:
        """Offset of the event that comes next."""
        return self.start + len(self.events)

    def since(self, position: int, stop: int | None) -> list[StoredEvent]:
        """Return the window's events from offset `position` on, before `stop`; none if it lies outside."""
        if not self.start <= position < self.end:
            return []
        batch = self._newest
        if batch is None or batch[0].offset != position:
            batch = self._newest = SharedPage(self.events[position - self.start :])
        return batch if stop is None else batch[: stop - position]

    def is_past(self, position: int) -> bool:
        """Return whether the window begins behind `position`, so that the log must be read."""
        return bool(self.events) and position < self.start

    def extend(self, events: Sequence[StoredEvent]) -> None:
        """Append newly committed events, without those that are known by their offset; wake subscribers."""
        first = events[0].offset
        self._newest = None
        if not self.events or first > self.end:
            # The first events, or a gap because another process wrote: the log has what lies between.
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
        # Once a pass of the loop, however many batches are published in it.
        if self._waiters and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self.wake)

    def wake(self) -> None:
        """Wake every subscriber that waits."""
        self._waking = False
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until events are published, or the window becomes stale or closed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def mark_stale(self) -> None:
        """Let the subscribers read the log, because another process may have written."""
        self.stale = True
        self.wake()
