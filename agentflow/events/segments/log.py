"""The event log in a directory of NDJSON segments: one sync serves all runs, one process owns it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from agentflow.errors import AgentflowError, LogClosed, LogCorrupt, StoreError
from agentflow.events.base import BaseLog, EventQuery
from agentflow.events.envelope import StoredEvent
from agentflow.events.forked import ForkGuard
from agentflow.events.group import GroupCommit
from agentflow.events.identity import IdentityWatch
from agentflow.events.listing import RunQuery, page_of_runs
from agentflow.events.owner import Owner
from agentflow.events.rows import Append, LoggedEvent, Notice, Page, RunRow, Snapshot, Swept
from agentflow.events.rules import blob_hash
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.opening import open_directory
from agentflow.events.segments.reader import SegmentReader
from agentflow.events.segments.sealed import unseal
from agentflow.events.segments.store import SegmentStore
from agentflow.events.tombstone import Tombstone

__all__ = ["SegmentLog"]

T = TypeVar("T")


class _Writing:
    """What a log that may be written to has beside its reader."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store
        self.group = GroupCommit(store)
        self.watch = IdentityWatch(store.writer.check_all)

    def stop(self) -> None:
        """Write what was accepted, then end the threads; blocks."""
        self.watch.stop()
        self.group.stop()


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
        self._layout = Layout(self.path)
        opened = open_directory(self._layout, read_only=read_only)
        self._lock = opened.lock
        self._index = opened.found.index
        self._notices = opened.found.notices
        self._fork_guard = ForkGuard(f"the store {self.url}", self._release_lock)
        self._closed = False
        end = (max(opened.found.segment, 1), opened.found.end)
        self._writing = None if opened.store is None else _Writing(opened.store)
        store = opened.store
        self._reader = SegmentReader(
            self._layout, self._index, (lambda: end) if store is None else lambda: store.end
        )
        # One thread: it owns the open files, and pages come out of the page cache.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="agentflow-log-reader")

    @property
    def trims(self) -> bool:
        """As `EventLog.trims`: segments go whole."""
        return False

    @property
    def read_only(self) -> bool:
        """As `EventLog.read_only`."""
        return self._writing is None

    @property
    def failure(self) -> AgentflowError | None:
        """As `EventLog.failure`."""
        return None if self._writing is None else self._writing.store.failure

    @property
    def notices(self) -> Sequence[Notice]:
        """As `EventLog.notices`."""
        return self._notices

    # -- writing

    def append(self, batch: Append) -> asyncio.Future[None]:
        """As `EventLog.append`."""
        try:
            return self._writable().group.append(batch)
        except StoreError as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def put_blob(self, data: bytes) -> str:
        """As `EventLog.put_blob`."""
        name = blob_hash(data)
        await self._call(lambda store: store.upkeep.put_blob(name, data))
        return name

    async def put_definition(self, hash: str, source: bytes) -> None:
        """As `EventLog.put_definition`."""
        await self._call(lambda store: store.upkeep.put_definition(hash, source))

    async def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """As `EventLog.put_snapshot`."""
        await self._call(lambda store: store.upkeep.put_snapshot(workflow_id, kind, offset, data))

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """As `EventLog.save_cursor`."""
        await self._call(lambda store: store.upkeep.save_cursor(consumer, cursor))

    async def drop_cursor(self, consumer: str) -> None:
        """As `EventLog.drop_cursor`."""
        await self._call(lambda store: store.upkeep.drop_cursor(consumer))

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`."""
        return await self._call(lambda store: store.claim(workflow_id, owner))

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """As `EventLog.release`."""
        await self._call(lambda store: store.release(workflow_id, owner))

    async def probe(self) -> None:
        """As `EventLog.probe`."""
        await self._call(lambda store: store.probe())

    def _writable(self) -> _Writing:
        self._check_open()
        if self._writing is None:
            raise StoreError(
                f"the store {self.url} is open for reading only",
                hint="open it on a file system that can be written to, without `read_only`",
            )
        return self._writing

    async def _call(self, call: Callable[[SegmentStore], T]) -> T:
        """Run `call` on the writer thread, after all that was submitted before it."""
        writing = self._writable()
        return await writing.group.call(lambda: call(writing.store))

    # -- retention

    async def trim(self, workflow_id: str, before: int) -> int:
        """Raise Unsupported: segments go whole, so leading events of a run cannot."""
        return await self._call(lambda store: store.upkeep.trim(workflow_id))

    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """As `EventLog.delete`."""
        return await self._call(lambda store: store.upkeep.delete(workflow_id, at))

    async def sweep(self, before: int) -> Swept:
        """As `EventLog.sweep`: removes the segments in which no run is left."""
        blobs, definitions, freed = await self._call(lambda store: store.upkeep.sweep_files(before))
        freed += await self._call(lambda store: store.upkeep.drop_segments())
        return Swept(blobs=blobs, definitions=definitions, bytes=freed)

    # -- reading

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """As `EventLog.read`."""
        return await self._in_thread(lambda: self._reader.read(workflow_id, max(from_offset, 0), limit))

    async def run(self, workflow_id: str) -> RunRow:
        """As `EventLog.run`."""
        self._check_open()
        run = self._index.find(workflow_id)
        run.check_whole()
        return run.row()

    async def _list(self, query: RunQuery) -> Page[RunRow]:
        # A damaged run is listed as far as it is whole, and named in `Page.damaged` whatever was asked for.
        # One that is lost from its beginning is only named: nothing is known of it, nor if it was deleted.
        return await self._in_thread(lambda: self._page(query))

    def _page(self, query: RunQuery) -> Page[RunRow]:
        keys, runs, states = self._index.order.copy(), self._index.runs, query.states()

        def row_of(workflow_id: str) -> RunRow | None:
            run = runs.get(workflow_id)
            if run is None or run.damaged == 0:
                return None
            if states is not None and run.state not in states:
                return None
            if query.label is not None and run.identity.labels.get(query.label[0]) != query.label[1]:
                return None
            return None if query.name is not None and run.identity.name != query.name else run.row()

        return page_of_runs(keys, row_of, query, self._index.quarantined.copy())

    async def _query(self, query: EventQuery) -> Page[LoggedEvent]:
        return await self._in_thread(lambda: self._reader.query(query))

    async def latest_cursor(self) -> str:
        """As `EventLog.latest_cursor`."""
        return await self._in_thread(self._reader.latest_cursor)

    async def load_cursor(self, consumer: str) -> str | None:
        """As `EventLog.load_cursor`."""
        path, what = self._layout.cursor(consumer), f"the position of {consumer}"
        found = await self._in_thread(lambda: _unsealed(path, what))
        return None if found is None else found.decode()

    async def cursors(self, prefix: str) -> dict[str, str]:
        """As `EventLog.cursors`."""
        found = await self._in_thread(lambda: _cursors(self._layout.consumers))
        return {name: cursor for name, cursor in found.items() if name.startswith(prefix)}

    async def get_blob(self, name: str) -> bytes | None:
        """As `EventLog.get_blob`."""
        path = self._layout.blob(name)
        found = None if path is None else await self._in_thread(lambda: _content(path))
        if found is not None and blob_hash(found) != name:
            raise LogCorrupt(f"blob {name} is damaged", hint="restore the store from a copy")
        return found

    async def get_definition(self, hash: str) -> bytes | None:
        """As `EventLog.get_definition`."""
        return await self._in_thread(lambda: _unsealed(self._layout.definition(hash), f"definition {hash}"))

    async def latest_snapshot(
        self, workflow_id: str, kind: str, at_or_before: int | None = None
    ) -> Snapshot | None:
        """As `EventLog.latest_snapshot`."""
        return await self._in_thread(lambda: self._reader.snapshot(workflow_id, kind, at_or_before))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        self._check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except OSError as error:
            raise StoreError(f"the store cannot be read: {error.strerror}") from error

    # -- life

    def _check_open(self) -> None:
        self._fork_guard.check()
        if self._closed:
            raise LogClosed

    async def close(self) -> None:
        """As `EventLog.close`. Raises LogFailed if the files of the store were deleted or replaced."""
        closed, self._closed = self._closed, True
        if closed or self._fork_guard.forked:
            return
        if self._writing is not None:
            self._writing.group.refuse()
        await asyncio.to_thread(self._shut_down)
        if self._writing is not None and self._writing.store.writer.lost:
            raise self._writing.store.writer.refused() or LogClosed()

    def _shut_down(self) -> None:
        self._pool.shutdown()
        self._reader.close()
        if self._writing is not None:
            self._writing.stop()
        self._release_lock()  # last: now another process may open the directory

    def _release_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _unsealed(path: Path, what: str) -> bytes | None:
    content = _content(path)
    return None if content is None else unseal(content, what)


def _cursors(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in folder.glob("*.cursor"):
        consumer = unquote(path.stem)
        content = _unsealed(path, f"the position of {consumer}")
        if content is not None:
            found[consumer] = content.decode()
    return found
