"""The event log in one SQLite file: WAL, synchronous=FULL, one writing thread, reading threads.

The loop's thread only queues and resolves futures; it never touches the database.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from agentflow.errors import AgentflowError, LogClosed, LogCorrupt
from agentflow.events.group import GroupCommit
from agentflow.events.owner import Owner
from agentflow.events.rows import Append, Swept
from agentflow.events.sqlite import calls
from agentflow.events.sqlite.database import open_database
from agentflow.events.sqlite.failures import unusable
from agentflow.events.sqlite.reader import Readers
from agentflow.events.sqlite.reading import SqliteReading
from agentflow.events.sqlite.sweep import sweep
from agentflow.events.sqlite.writer import SqliteStore
from agentflow.events.tombstone import Tombstone

__all__ = ["SqliteLog"]


T = TypeVar("T")

_DELETED = 500


class SqliteLog(SqliteReading):
    """An EventLog in the file `path`; made, with its directory, if there is none. Opening blocks for some ms.

    ConfigurationError: the path or the file cannot be a store. Belongs to the event loop of its first use.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.url = f"sqlite:{path}"
        # Every connection is opened here: a store that is open needs no free descriptor to be read or copied.
        try:
            with ExitStack() as opened:
                db = open_database(self.path)
                opened.callback(db.close)
                self._readers = Readers(self.path, reserve=True)
                opened.callback(self._readers.close)
                self._store = SqliteStore(db, self.path)
                opened.pop_all()
        except sqlite3.Error as error:
            raise unusable(error, self.path) from error
        self._group = GroupCommit(self._store, self._store.watch)

    @property
    def failure(self) -> AgentflowError | None:
        """Why the log stopped for good, if it did."""
        return self._store.failure

    def is_alive(self, owner: Owner) -> bool:
        """Implement `EventLog.is_alive`, by the lock that the process holds beside the store."""
        return self._store.locks.is_alive(owner)

    # -- writing

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Implement `EventLog.append`."""
        return self._group.append(batch)

    async def _write(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run `call(connection, *arguments)` in the writer's transaction."""
        return await self._group.call(self._store.within(call, *arguments))

    async def put_blob(self, data: bytes) -> str:
        """Implement `EventLog.put_blob`."""
        return await self._write(calls.put_blob, data)

    async def put_definition(self, hash: str, source: bytes) -> None:
        """Implement `EventLog.put_definition`."""
        await self._write(calls.put_definition, hash, source)

    async def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """Implement `EventLog.put_snapshot`."""
        await self._write(calls.put_snapshot, workflow_id, kind, offset, data)

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """Implement `EventLog.save_cursor`."""
        await self._write(calls.save_cursor, consumer, cursor)

    async def drop_cursor(self, consumer: str) -> None:
        """Implement `EventLog.drop_cursor`."""
        await self._write(calls.drop_cursor, consumer)

    async def register(self, owner: Owner) -> None:
        """Implement `EventLog.register`: holds the lock of this process beside the store."""
        await self._write(calls.register, owner, self._store.locks)

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """Implement `EventLog.claim`."""
        return await self._write(calls.claim, workflow_id, owner, self._store.locks)

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """Implement `EventLog.release`."""
        await self._write(calls.release, workflow_id, owner)

    async def foreign_writes(self) -> int:
        """Implement `EventLog.foreign_writes`. Takes the lock of the file for a moment."""
        return await self._group.call(self._store.count_foreign_writes)

    async def probe(self) -> None:
        """Implement `EventLog.probe`."""
        await self._write(calls.probe)

    # -- retention

    async def trim(self, workflow_id: str, before: int) -> int:
        """Implement `EventLog.trim`."""
        return await self._write(calls.trim, workflow_id, before)

    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """Implement `EventLog.delete`."""
        return await self._write(calls.delete, workflow_id, at)

    async def delete_all(self, workflow_ids: Sequence[str], at: int) -> dict[str, Tombstone | AgentflowError]:
        """Implement `EventLog.delete_all`: 500 in one call, between which appends go on."""
        chunks = [workflow_ids[i : i + _DELETED] for i in range(0, len(workflow_ids), _DELETED)]
        found = await asyncio.gather(*(self._delete_some(chunk, at) for chunk in chunks))
        return {run: answer for each in found for run, answer in each.items()}

    async def _delete_some(self, runs: Sequence[str], at: int) -> dict[str, Tombstone | AgentflowError]:
        try:
            return await self._write(calls.delete_all, runs, at)
        except LogCorrupt:  # of a page of the file, and nothing was deleted; alone, only the runs on it fail
            return await super().delete_all(runs, at)

    async def sweep(self, before: int) -> Swept:
        """Implement `EventLog.sweep`. The file becomes shorter with the next checkpoint, which begins now."""
        swept = await sweep(self._write, before)
        self._store.checkpoint()
        return swept

    # -- life

    def _check_open(self) -> None:
        if self._group.closed:
            raise LogClosed

    async def close(self) -> None:
        """Implement `EventLog.close`."""
        if self._group.refuse():
            await asyncio.to_thread(self._shut_down)
            if self._store.lost is not None:
                raise self._store.lost

    def _shut_down(self) -> None:
        self._readers.close()
        self._group.stop()  # last: closing the last connection folds the write-ahead log in
