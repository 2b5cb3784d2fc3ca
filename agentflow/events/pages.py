"""Pages of one run's log for many readers that have fallen behind: each page is read once for all of them.

Readers that the live window has left behind tend to be close together. Each by itself would read the same
pages, and all of them would fall further behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from agentflow.events.envelope import StoredEvent
from agentflow.events.log import EventLog

__all__ = ["Pages"]

_EVENTS = 256
_KEPT = 8
_KEPT_BYTES = 1 << 20


class Pages:
    """The pages that were read last. For one event loop; `close` it after the last read."""

    def __init__(self, log: EventLog, workflow_id: str) -> None:
        self._log = log
        self._workflow_id = workflow_id
        self._kept: dict[int, list[StoredEvent]] = {}
        self._sizes: dict[int, int] = {}
        self._reading: dict[int, asyncio.Task[list[StoredEvent]]] = {}

    async def read(self, position: int, stop: int | None) -> Sequence[StoredEvent]:
        """Return the events from `position` on, before `stop`, up to the end of a page; none at the end of
        the log. Raises what `EventLog.read` raises."""
        page = self._kept.get(position)
        if page is None:
            reading = self._reading.get(position)
            if reading is None:
                reading = asyncio.ensure_future(self._read(position))
                self._reading[position] = reading
                reading.add_done_callback(partial(self._over, position))
            page = await asyncio.shield(reading)
        return page if stop is None else page[: stop - position]

    async def _read(self, position: int) -> list[StoredEvent]:
        # To a boundary, so that readers that began at different places share pages.
        try:
            page = await self._log.read(self._workflow_id, position, _EVENTS - position % _EVENTS)
        finally:
            self._reading.pop(position, None)  # at once: what was read is what the log had then
        if page and (page[-1].offset + 1) % _EVENTS == 0:  # one that is not full may grow
            self._keep(position, page)
        return page

    def _over(self, position: int, reading: asyncio.Task[list[StoredEvent]]) -> None:
        if self._reading.get(position) is reading:  # cancelled before it began
            del self._reading[position]
        if not reading.cancelled():
            reading.exception()  # retrieved, because all waiters may have been cancelled

    def _keep(self, position: int, page: list[StoredEvent]) -> None:
        self._kept[position] = page
        self._sizes[position] = sum(event.size for event in page)
        while len(self._kept) > _KEPT or (sum(self._sizes.values()) > _KEPT_BYTES and len(self._kept) > 1):
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._sizes[oldest]

    def close(self) -> None:
        """Give up what is being read."""
        for reading in self._reading.values():
            reading.cancel()
