"""The half of the SQLite log that reads: threads with connections that cannot write."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from agentflow.events.base import BaseLog, EventQuery
from agentflow.events.envelope import StoredEvent
from agentflow.events.listing import RunQuery
from agentflow.events.rows import LoggedEvent, Page, RunRow, Snapshot
from agentflow.events.sqlite import calls
from agentflow.events.sqlite.reader import Readers

__all__ = ["SqliteReading"]

T = TypeVar("T")


class SqliteReading(BaseLog):
    """Reads of an EventLog in a SQLite file; subclasses add the writes."""

    durable = True
    shared = True
    _readers: Readers

    @abstractmethod
    def _check_open(self) -> None:
        """Raise LogClosed once the log is closed."""

    async def _read(self, query: Callable[..., T], *arguments: Any) -> T:
        """Run `query(connection, *arguments)` in a thread, on a connection that cannot write."""
        self._check_open()
        return await self._readers.call(query, *arguments)

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Implement `EventLog.read`."""
        self._check_open()
        return await self._readers.call_short(self._readers.read, workflow_id, from_offset, limit)

    async def run(self, workflow_id: str) -> RunRow:
        """Implement `EventLog.run`."""
        self._check_open()
        return await self._readers.call_short(self._readers.run, workflow_id)

    async def _list(self, query: RunQuery) -> Page[RunRow]:
        return await self._read(self._readers.runs, query)

    async def count_runs(self) -> dict[str, int]:
        """Implement `EventLog.count_runs`, from the index of states: 1 ms for 10,000 runs."""
        return await self._read(calls.count_runs)

    async def _query(self, query: EventQuery) -> Page[LoggedEvent]:
        return await self._read(self._readers.query, query)

    async def latest_cursor(self) -> str:
        """Implement `EventLog.latest_cursor`."""
        return await self._read(self._readers.latest_cursor)

    async def load_cursor(self, consumer: str) -> str | None:
        """Implement `EventLog.load_cursor`."""
        return await self._read(calls.load_cursor, consumer)

    async def cursors(self, prefix: str) -> dict[str, str]:
        """Implement `EventLog.cursors`."""
        return await self._read(calls.cursors, prefix)

    async def get_blob(self, name: str) -> bytes | None:
        """Implement `EventLog.get_blob`."""
        return await self._read(calls.get_blob, name)

    async def get_definition(self, hash: str) -> bytes | None:
        """Implement `EventLog.get_definition`."""
        return await self._read(calls.get_definition, hash)

    async def latest_snapshot(
        self, workflow_id: str, kind: str, at_or_before: int | None = None
    ) -> Snapshot | None:
        """Implement `EventLog.latest_snapshot`."""
        return await self._read(self._readers.snapshot, workflow_id, kind, at_or_before)
