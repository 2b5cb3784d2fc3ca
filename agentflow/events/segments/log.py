"""The event log in a directory of NDJSON segments: one sync serves all runs, one process owns it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from agentflow.errors import AgentflowError, LogClosed, StoreError
from agentflow.events.base import BaseLog, EventQuery
from agentflow.events.blobs import blob_hash
from agentflow.events.envelope import StoredEvent
from agentflow.events.forked import ForkGuard
from agentflow.events.group import GroupCommit
from agentflow.events.listing import RunQuery, page_of_runs
from agentflow.events.owner import Owner
from agentflow.events.rows import Append, LoggedEvent, Notice, Page, RunRow, Snapshot, Swept
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.opening import open_directory
from agentflow.events.segments.reader import SegmentReader
from agentflow.events.segments.store import SegmentStore
from agentflow.events.tombstone import Tombstone

__all__ = ["SegmentLog"]

P = ParamSpec("P")
T = TypeVar("T")


class SegmentLog(BaseLog):
    """An EventLog in `directory`; made if there is none. Opening reads all segments, so it may take seconds.

    `read_only` reads a store without changing anything: appends are refused with a StoreError. A store on a
    read-only file system is opened so by itself. Raises ConfigurationError, LogCorrupt or StoreError as
    `open_directory`; a run that is known to be damaged raises LogCorrupt by itself. Belongs to the event loop
    of its first use.
    """

    durable = True
    shared = False

    def __init__(self, directory: Path | str, *, read_only: bool = False) -> None:
        self.path = Path(directory).absolute()
        self.url = f"file:{directory}"
        self._files = StoreFiles(self.path)
        self._lock, self._index, self._notices, self._store = open_directory(self._files, read_only=read_only)
        self._reader = SegmentReader(self._files, self._index)
        self._fork_guard = ForkGuard(f"the store {self.url}", self._release_lock)
        self._closed = False
        self._group = None if self._store is None else GroupCommit(self._store, self._store.writer.check_all)
        # One thread: it owns the open files, and pages come out of the page cache.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="agentflow-log-reader")

    @property
    def trims(self) -> bool:
        """As `EventLog.trims`: segments are removed whole."""
        return False

    @property
    def read_only(self) -> bool:
        """As `EventLog.read_only`."""
        return self._store is None

    @property
    def failure(self) -> AgentflowError | None:
        """As `EventLog.failure`."""
        return None if self._store is None else self._store.failure

    @property
    def notices(self) -> Sequence[Notice]:
        """As `EventLog.notices`."""
        return self._notices

    # -- writing

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Implement `EventLog.append`."""
        self._fork_guard.check()
        if self._group is not None:
            return self._group.append(batch)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(LogClosed() if self._closed else self._refusal())
        return refused

    async def put_blob(self, data: bytes) -> str:
        """Implement `EventLog.put_blob`."""
        return await self._write(lambda _: self._put_blob(data))

    def _put_blob(self, data: bytes) -> str:
        name = blob_hash(data)
        self._files.put_blob(name, data)
        return name

    async def put_definition(self, hash: str, source: bytes) -> None:
        """Implement `EventLog.put_definition`."""
        await self._write(lambda _: self._files.definitions.put_once(hash, source))

    async def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """Implement `EventLog.put_snapshot`."""
        await self._write(lambda store: store.put_snapshot(workflow_id, kind, offset, data))

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """Implement `EventLog.save_cursor`."""
        await self._write(lambda _: self._files.cursors.put(consumer, cursor.encode()))

    async def drop_cursor(self, consumer: str) -> None:
        """Implement `EventLog.drop_cursor`."""
        await self._write(lambda _: self._files.cursors.drop(consumer))

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """Implement `EventLog.claim`."""
        return await self._write(lambda store: store.claim(workflow_id, owner))

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """Implement `EventLog.release`."""
        await self._write(lambda store: store.release(workflow_id, owner))

    async def probe(self) -> None:
        """Implement `EventLog.probe`."""
        await self._write(lambda store: store.probe())

    async def trim(self, workflow_id: str, before: int) -> int:
        """Raise Unsupported: segments go whole, so leading events of a run cannot."""
        return await self._write(lambda store: store.trim(workflow_id))

    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """Implement `EventLog.delete`."""
        return await self._write(lambda store: store.delete(workflow_id, at))

    async def sweep(self, before: int) -> Swept:
        """Implement `EventLog.sweep`: removes the segments in which no run is left."""
        if not self.read_only:
            await self._in_thread(self._files.names_in_blobs)  # reads them while batches are written
        blobs, definitions, freed = await self._write(lambda store: store.sweep_files(before))
        freed += await self._write(lambda store: store.drop_segments())
        await self._in_thread(self._reader.close)  # an open descriptor would keep the space of a segment
        return Swept(blobs=blobs, definitions=definitions, bytes=freed)

    def _refusal(self) -> StoreError:
        return StoreError(
            f"the store {self.url} is open for reading only",
            hint="open it on a file system that can be written to, without `read_only`",
        )

    async def _write(self, call: Callable[[SegmentStore], T]) -> T:
        """Run `call` on the writer thread, after all that was submitted before it."""
        self._check_open()
        if self._group is None or (store := self._store) is None:
            raise self._refusal()
        return await self._group.call(lambda: call(store))

    # -- reading

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Implement `EventLog.read`."""
        return await self._in_thread(self._reader.read, workflow_id, max(from_offset, 0), limit)

    async def run(self, workflow_id: str) -> RunRow:
        """Implement `EventLog.run`."""
        self._check_open()
        run = self._index.find(workflow_id)
        run.check_whole()
        return run.row()

    async def _list(self, query: RunQuery) -> Page[RunRow]:
        return await self._in_thread(self._page, query)

    def _page(self, query: RunQuery) -> Page[RunRow]:
        """Return a page of runs; a damaged one is listed as far as it is whole, and named in `Page.damaged`.

        One that is lost from its beginning is only named: nothing is known of it, nor if it was deleted.
        """
        runs, states, label = self._index.runs, query.states(), query.label

        def row_of(workflow_id: str) -> RunRow | None:
            run = runs.get(workflow_id)
            if run is None or run.damaged == 0 or (states is not None and run.state not in states):
                return None
            # As `page_of_runs` does it, but before a row is made of a run that is not wanted.
            return None if label and run.identity.labels.get(label[0]) != label[1] else run.row()

        return page_of_runs(self._index.order.copy(), row_of, query, self._index.damaged.copy().keys())

    async def _query(self, query: EventQuery) -> Page[LoggedEvent]:
        return await self._in_thread(self._reader.query, query)

    async def latest_cursor(self) -> str:
        """Implement `EventLog.latest_cursor`."""
        return await self._in_thread(self._reader.latest_cursor)

    async def load_cursor(self, consumer: str) -> str | None:
        """Implement `EventLog.load_cursor`."""
        found = await self._in_thread(self._files.cursors.get, consumer)
        return None if found is None else found.decode()

    async def cursors(self, prefix: str) -> dict[str, str]:
        """Implement `EventLog.cursors`."""
        found = await self._in_thread(self._files.cursors.all, prefix)
        return {consumer: cursor.decode() for consumer, cursor in found.items()}

    async def get_blob(self, name: str) -> bytes | None:
        """Implement `EventLog.get_blob`."""
        return await self._in_thread(self._files.get_blob, name)

    async def get_definition(self, hash: str) -> bytes | None:
        """Implement `EventLog.get_definition`."""
        return await self._in_thread(self._files.definitions.get, hash)

    async def latest_snapshot(
        self, workflow_id: str, kind: str, at_or_before: int | None = None
    ) -> Snapshot | None:
        """Implement `EventLog.latest_snapshot`."""
        self._check_open()
        run = self._index.find(workflow_id)
        latest = run.last if at_or_before is None else at_or_before
        return await self._in_thread(self._files.latest_snapshot, workflow_id, kind, latest)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **kwargs))
        except OSError as error:
            raise StoreError(f"the store cannot be read: {error.strerror}") from error

    # -- life

    def _check_open(self) -> None:
        self._fork_guard.check()
        if self._closed:
            raise LogClosed

    async def close(self) -> None:
        """Implement `EventLog.close`. Raises LogFailed if the files of the store were deleted or replaced."""
        closed, self._closed = self._closed, True
        if closed or self._fork_guard.forked:
            return
        if self._group is not None:
            self._group.refuse()
        await asyncio.to_thread(self._shut_down)
        if self._store is not None and self._store.writer.lost:
            raise self._store.writer.refused() or LogClosed()

    def _shut_down(self) -> None:
        self._pool.shutdown()
        self._reader.close()
        if self._group is not None:
            self._group.stop()
        self._release_lock()  # last: now another process may open the directory

    def _release_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
