"""The event log in one SQLite file: WAL, synchronous=FULL, one writing thread, reading threads.

The loop's thread only queues and resolves futures; it never touches the database.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentflow.errors import AgentflowError, LogClosed
from agentflow.events.envelope import StoredEvent
from agentflow.events.group import GroupCommit
from agentflow.events.listing import RunQuery
from agentflow.events.log import FIRST_EPOCH, Append, LoggedEvent, Page, RunRow, blob_hash
from agentflow.events.owner import Owner, next_epoch
from agentflow.events.sqlite.database import open_database
from agentflow.events.sqlite.reader import Readers
from agentflow.events.sqlite.writer import SqliteStore

__all__ = ["SqliteLog"]


class SqliteLog:
    """An EventLog in the file `path`; made, with its directory, if there is none. Opening blocks for some ms.

    ConfigurationError: the path or the file cannot be a store. Belongs to the event loop of its first use.
    """

    durable = True
    shared = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.url = f"sqlite:{path}"
        self._store = SqliteStore(open_database(self.path), self.path)
        self._group = GroupCommit(self._store)
        self._readers = Readers(self.path)

    @property
    def failure(self) -> AgentflowError | None:
        """Why the log stopped for good, if it did."""
        return self._store.failure

    # -- writing

    def append(self, batch: Append) -> asyncio.Future[None]:
        """As `EventLog.append`."""
        return self._group.append(batch)

    async def put_blob(self, data: bytes) -> str:
        """As `EventLog.put_blob`."""
        name = blob_hash(data)
        await self._group.call(self._store.within(_insert_blob, name, data))
        return name

    async def put_definition(self, hash: str, source: bytes) -> None:
        """As `EventLog.put_definition`."""
        await self._group.call(self._store.within(_insert_definition, hash, source))

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """As `EventLog.save_cursor`."""
        await self._group.call(self._store.within(_save_cursor, consumer, cursor))

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`."""
        return await self._group.call(self._store.within(_claim, workflow_id, owner))

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """As `EventLog.release`."""
        await self._group.call(self._store.within(_release, workflow_id, owner))

    # -- reading

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """As `EventLog.read`."""
        self._check_open()
        return await self._readers.call(self._readers.read, workflow_id, from_offset, limit)

    async def last(self, workflow_id: str) -> int:
        """As `EventLog.last`."""
        self._check_open()
        return await self._readers.call(self._readers.last, workflow_id)

    async def run(self, workflow_id: str) -> RunRow:
        """As `EventLog.run`."""
        self._check_open()
        return await self._readers.call(self._readers.run, workflow_id)

    async def runs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> Page[RunRow]:
        """As `EventLog.runs`."""
        self._check_open()
        query = RunQuery(
            state=state,
            name=name,
            label=label,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
            order=order,
        )
        return await self._readers.call(self._readers.runs, query)

    async def query(
        self,
        types: Sequence[str] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        cursor: str | None = None,
        limit: int = 256,
    ) -> Page[LoggedEvent]:
        """As `EventLog.query`."""
        self._check_open()
        return await self._readers.call(self._readers.query, types, since, until, cursor, limit)

    async def latest_cursor(self) -> str:
        """As `EventLog.latest_cursor`."""
        self._check_open()
        return await self._readers.call(self._readers.latest_cursor)

    async def load_cursor(self, consumer: str) -> str | None:
        """As `EventLog.load_cursor`."""
        self._check_open()
        return await self._readers.call(_select_one, "SELECT position FROM consumer WHERE name = ?", consumer)

    async def get_blob(self, name: str) -> bytes | None:
        """As `EventLog.get_blob`."""
        self._check_open()
        return await self._readers.call(_select_one, "SELECT body FROM blob WHERE name = ?", name)

    async def get_definition(self, hash: str) -> bytes | None:
        """As `EventLog.get_definition`."""
        self._check_open()
        return await self._readers.call(_select_one, "SELECT source FROM definition WHERE hash = ?", hash)

    def _check_open(self) -> None:
        if self._group.closed:
            raise LogClosed

    async def close(self) -> None:
        """As `EventLog.close`."""
        if self._group.refuse():
            await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._readers.close()
        self._group.stop()  # last: closing the last connection folds the write-ahead log in


# -- calls inside the writer's transaction


def _insert_blob(db: sqlite3.Connection, name: str, data: bytes) -> None:
    db.execute("INSERT OR IGNORE INTO blob (name, body) VALUES (?, ?)", (name, data))


def _insert_definition(db: sqlite3.Connection, hash: str, source: bytes) -> None:
    db.execute("INSERT OR IGNORE INTO definition (hash, source) VALUES (?, ?)", (hash, source))


def _claim(db: sqlite3.Connection, workflow_id: str, owner: Owner) -> int:
    row = db.execute("SELECT epoch, owner FROM run WHERE workflow_id = ?", (workflow_id,)).fetchone()
    if row is None:
        return FIRST_EPOCH
    holder = None if row[1] is None else msgspec.json.decode(row[1], type=Owner)
    epoch = next_epoch(workflow_id, row[0], holder, owner)
    db.execute(
        "UPDATE run SET epoch = ?, owner = ? WHERE workflow_id = ?",
        (epoch, msgspec.json.encode(owner).decode(), workflow_id),
    )
    return epoch


def _release(db: sqlite3.Connection, workflow_id: str, owner: Owner) -> None:
    db.execute(
        "UPDATE run SET owner = NULL WHERE workflow_id = ? AND owner = ?",
        (workflow_id, msgspec.json.encode(owner).decode()),
    )


def _save_cursor(db: sqlite3.Connection, consumer: str, cursor: str) -> None:
    db.execute("INSERT OR REPLACE INTO consumer (name, position) VALUES (?, ?)", (consumer, cursor))


def _select_one(db: sqlite3.Connection, statement: str, key: str) -> Any:
    row = db.execute(statement, (key,)).fetchone()
    return None if row is None else row[0]
