"""A store whose archived runs are read as if they were still in it (page 000 §7).

Everything goes to the store. Where it says that a run is gone, the archive is asked; a run that is there
answers reads, and refuses writes, as an ended run does. What is listed is what the store has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from agentflow.errors import RunGone
from agentflow.events.archive import Archive
from agentflow.events.envelope import StoredEvent
from agentflow.events.exported import ExportedLog
from agentflow.events.log import EventLog, RunRow, Snapshot

__all__ = ["ArchivedRuns", "with_archive"]

T = TypeVar("T")

_MAX_OPEN = 8
"""Archived runs that are held in memory, those that were asked for last."""


def with_archive(log: EventLog, archive: Archive) -> EventLog:
    """Return `log` with the runs of `archive` readable in it."""
    return cast("EventLog", ArchivedRuns(log, archive))


class ArchivedRuns:
    """The reads of single runs; every other call is that of the store."""

    def __init__(self, log: EventLog, archive: Archive) -> None:
        self.log = log
        self.archive = archive
        self._open: dict[str, ExportedLog] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    async def _either(self, workflow_id: str, call: Callable[[EventLog], Awaitable[T]]) -> T:
        try:
            return await call(self.log)
        except RunGone:
            found = self._open.pop(workflow_id, None) or await self.archive.get(workflow_id)
            if found is None:
                raise
        self._open[workflow_id] = found
        if len(self._open) > _MAX_OPEN:
            del self._open[next(iter(self._open))]
        return await call(found)

    async def is_archived(self, workflow_id: str) -> bool:
        """Return whether a run is read from the archive. Raises RunNotFound or RunGone."""
        await self.run(workflow_id)
        return workflow_id in self._open

    async def run(self, workflow_id: str) -> RunRow:
        """Implement `EventLog.run`."""
        return await self._either(workflow_id, lambda log: log.run(workflow_id))

    async def last(self, workflow_id: str) -> int:
        """Implement `EventLog.last`."""
        return await self._either(workflow_id, lambda log: log.last(workflow_id))

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Implement `EventLog.read`."""
        return await self._either(workflow_id, lambda log: log.read(workflow_id, from_offset, limit))

    async def latest_snapshot(
        self, workflow_id: str, kind: str, at_or_before: int | None = None
    ) -> Snapshot | None:
        """Implement `EventLog.latest_snapshot`."""
        return await self._either(
            workflow_id, lambda log: log.latest_snapshot(workflow_id, kind, at_or_before)
        )

    async def get_blob(self, name: str) -> bytes | None:
        """Implement `EventLog.get_blob`; of an archived run while it is one of the last 8 that were read."""
        return await self._first(lambda log: log.get_blob(name))

    async def get_definition(self, hash: str) -> bytes | None:
        """Implement `EventLog.get_definition`, as `get_blob`."""
        return await self._first(lambda log: log.get_definition(hash))

    async def _first(self, get: Callable[[EventLog], Awaitable[bytes | None]]) -> bytes | None:
        for log in (self.log, *reversed(self._open.values())):
            found = await get(log)
            if found is not None:
                return found
        return None
