"""Pages of one run's log for many readers that have fallen behind: each page is read once for all of them.

Readers that the live window has left behind tend to be close together. Each by itself would read the same
pages, and all of them would fall further behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from agentflow.events.envelope import StoredEvent
from agentflow.events.log import EventLog

__all__ = ["Pages", "SharedPage"]

_EVENTS = 512
_KEPT = 8
_KEPT_BYTES = 1 << 20


class SharedPage(list[StoredEvent]):
    """Events that several readers get: what one of them makes of all of them, the others find in `made`. It
    must not be changed."""

    __slots__ = ("made", "size")

    def __init__(self, events: Iterable[StoredEvent] = ()) -> None:
        super().__init__(events)
        self.made: dict[str, Any] = {}
        self.size = sum([event.size for event in self])
        """Bytes of the events."""


class Pages:
    """The pages that were read last. For one event loop; `close` it after the last read."""

    def __init__(self, log: EventLog, workflow_id: str) -> None:
        self._log = log
        self._workflow_id = workflow_id
        self._kept: dict[int, SharedPage] = {}
        self._reading: dict[int, asyncio.Task[SharedPage]] = {}

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
        return page if stop is None or stop - position >= len(page) else page[: stop - position]

    async def _read(self, position: int) -> SharedPage:
        # To a boundary, so that readers that began at different places share pages.
        try:
            limit = _EVENTS - position % _EVENTS
            page = SharedPage(await self._log.read(self._workflow_id, position, limit))
        finally:
            self._reading.pop(position, None)  # at once: what was read is what the log had then
        if page and (page[-1].offset + 1) % _EVENTS == 0:  # one that is not full may grow
            self._keep(position, page)
        return page

    def _over(self, position: int, reading: asyncio.Task[SharedPage]) -> None:
        if self._reading.get(position) is reading:  # cancelled before it began
            del self._reading[position]
        if not reading.cancelled():
            reading.exception()  # retrieved, because all waiters may have been cancelled

    def _keep(self, position: int, page: SharedPage) -> None:
        self._kept[position] = page
        while len(self._kept) > _KEPT or (
            sum(kept.size for kept in self._kept.values()) > _KEPT_BYTES and len(self._kept) > 1
        ):
            del self._kept[next(iter(self._kept))]

    def close(self) -> None:
        """Give up what is being read."""
        for reading in self._reading.values():
            reading.cancel()
