"""The event log in a directory of NDJSON segments: one sync serves all runs, one process owns it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

from agentflow.errors import AgentflowError, ConfigurationError, LogClosed, StoreError
from agentflow.events.envelope import StoredEvent
from agentflow.events.files import make_directories
from agentflow.events.group import GroupCommit
from agentflow.events.listing import RunQuery, page_of_runs
from agentflow.events.log import Append, LoggedEvent, Page, RunRow, blob_hash
from agentflow.events.owner import Owner
from agentflow.events.segments.reader import SegmentReader
from agentflow.events.segments.recovery import recover
from agentflow.events.segments.store import SegmentStore

__all__ = ["SegmentLog"]

T = TypeVar("T")

_BLOB = re.compile(r"sha256:([0-9a-f]{64})")


class SegmentLog:
    """An EventLog in `directory`; made if there is none. Opening reads all segments, so it may take seconds.

    ConfigurationError: the directory cannot be a store, or another process has it. LogCorrupt: it is damaged,
    and which run's events are lost cannot be told. A run that is known to be damaged raises LogCorrupt by
    itself. Belongs to the event loop of its first use.
    """

    durable = True
    shared = False

    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory).absolute()
        self.url = f"file:{directory}"
        self._lock = _lock(self.path)
        try:
            found = recover(self.path)
            self._store = SegmentStore(self.path, found)
        except OSError as error:
            os.close(self._lock)
            raise ConfigurationError(
                f"the store {self.path} cannot be read: {error.strerror}",
                hint="the directory and its files must be readable and writable",
            ) from error
        except AgentflowError:
            os.close(self._lock)
            raise
        self.cut = found.cut
        """Bytes of a batch, never acknowledged, that a crash had left torn and opening cut off."""
        self._index = found.index
        self._group = GroupCommit(self._store)
        self._reader = SegmentReader(self._store)
        # One thread: it owns the open files, and pages come out of the page cache.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="agentflow-log-reader")

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
        await self._group.call(lambda: self._store.put(self._blob_path(name), data))
        return name

    async def put_definition(self, hash: str, source: bytes) -> None:
        """As `EventLog.put_definition`."""
        await self._group.call(lambda: self._store.put(self._definition_path(hash), source))

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """As `EventLog.save_cursor`."""
        path = self._cursor_path(consumer)
        await self._group.call(lambda: self._store.replace(path, cursor.encode()))

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`."""
        return await self._group.call(lambda: self._store.claim(workflow_id, owner))

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """As `EventLog.release`."""
        await self._group.call(lambda: self._store.release(workflow_id, owner))

    # -- reading

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """As `EventLog.read`; LogCorrupt from where the run is damaged on."""
        return await self._in_thread(lambda: self._reader.read(workflow_id, max(from_offset, 0), limit))

    async def last(self, workflow_id: str) -> int:
        """As `EventLog.last`; LogCorrupt if the run is damaged."""
        self._check_open()
        run = self._index.find(workflow_id)
        run.check_whole()
        return run.last

    async def run(self, workflow_id: str) -> RunRow:
        """As `EventLog.run`; LogCorrupt if the run is damaged."""
        self._check_open()
        run = self._index.find(workflow_id)
        run.check_whole()
        return run.row()

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
        """As `EventLog.runs`; a damaged run stands there as far as it is whole."""
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
        keys = self._index.order.copy()  # the writing thread may insert meanwhile
        return page_of_runs(keys, lambda found: self._index.runs[found].row(), query)

    async def query(
        self,
        types: Sequence[str] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        cursor: str | None = None,
        limit: int = 256,
    ) -> Page[LoggedEvent]:
        """As `EventLog.query`; events of damaged runs are left out. Scans: half a million events a second."""
        return await self._in_thread(lambda: self._reader.query(types, since, until, cursor, limit))

    async def latest_cursor(self) -> str:
        """As `EventLog.latest_cursor`."""
        self._check_open()
        return self._reader.latest_cursor()

    async def load_cursor(self, consumer: str) -> str | None:
        """As `EventLog.load_cursor`."""
        found = await self._in_thread(lambda: _content(self._cursor_path(consumer)))
        return None if found is None else found.decode()

    async def get_blob(self, name: str) -> bytes | None:
        """As `EventLog.get_blob`."""
        if _BLOB.fullmatch(name) is None:
            return None
        return await self._in_thread(lambda: _content(self._blob_path(name)))

    async def get_definition(self, hash: str) -> bytes | None:
        """As `EventLog.get_definition`."""
        return await self._in_thread(lambda: _content(self._definition_path(hash)))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        self._check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except OSError as error:
            raise StoreError(f"the store cannot be read: {error.strerror}") from error

    def _blob_path(self, name: str) -> Path:
        return self.path / "blobs" / name.removeprefix("sha256:")

    def _definition_path(self, hash: str) -> Path:
        return self.path / "definitions" / f"{quote(hash, safe='')}.source"

    def _cursor_path(self, consumer: str) -> Path:
        return self.path / "consumers" / f"{quote(consumer, safe='')}.cursor"

    def _check_open(self) -> None:
        if self._group.closed:
            raise LogClosed

    async def close(self) -> None:
        """As `EventLog.close`."""
        if self._group.refuse():
            await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._pool.shutdown()
        self._reader.close()
        self._group.stop()
        os.close(self._lock)  # last: now another process may open the directory


def _lock(directory: Path) -> int:
    """Take the directory for this process; the descriptor holds it."""
    try:
        for part in ("segments", "blobs", "definitions", "consumers"):
            make_directories(directory / part)
        lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the store {directory} cannot be opened: {error.strerror}",
            hint="choose a directory that you may write to (`--store file:DIR`)",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ConfigurationError(
            f"the store {directory} is in use by another process",
            hint="use that process, or a `sqlite:` store, which several can share",
        ) from error
    return lock


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
