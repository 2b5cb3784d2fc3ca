"""The event log in a directory of NDJSON segments: one sync serves all runs, one process owns it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from agentflow.errors import AgentflowError, ConfigurationError, LogClosed, LogCorrupt, StoreError
from agentflow.events.base import BaseLog, EventQuery
from agentflow.events.envelope import StoredEvent
from agentflow.events.files import make_directories, sync_path
from agentflow.events.group import GroupCommit
from agentflow.events.listing import RunQuery, page_of_runs
from agentflow.events.owner import Owner
from agentflow.events.rows import Append, LoggedEvent, Notice, Page, RunRow, Snapshot, Swept
from agentflow.events.rules import blob_hash
from agentflow.events.segments.closing import Closed, load_closed, save_closed
from agentflow.events.segments.compact import swap_in, worth_rewriting, write_draft
from agentflow.events.segments.layout import PARTS, Layout
from agentflow.events.segments.reader import SegmentReader
from agentflow.events.segments.recovery import Recovered, recover
from agentflow.events.segments.removed import load_removed
from agentflow.events.segments.sealed import unseal
from agentflow.events.segments.store import SegmentStore
from agentflow.events.tombstone import Tombstone

__all__ = ["SegmentLog"]

T = TypeVar("T")


class SegmentLog(BaseLog):
    """An EventLog in `directory`; made if there is none. Opening reads the newest segment, and those closed
    ones that have no good sidecar, so it may take seconds.

    ConfigurationError: the directory cannot be a store, or another process has it. LogCorrupt: it is damaged,
    and which run's events are lost cannot be told. A run that is known to be damaged raises LogCorrupt by
    itself. Belongs to the event loop of its first use.
    """

    durable = True
    shared = False

    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory).absolute()
        self.url = f"file:{directory}"
        self._layout = Layout(self.path)
        self._lock = _lock(self._layout)
        try:
            found = _recover(self._layout)
            self._store = SegmentStore(self._layout, found)
        except OSError as error:
            os.close(self._lock)
            raise ConfigurationError(
                f"the store {self.path} cannot be read: {error.strerror}",
                hint="the directory and its files must be readable and writable",
            ) from error
        except AgentflowError:
            os.close(self._lock)
            raise
        self._upkeep = self._store.upkeep
        self._notices = found.notices
        self._index = found.index
        self._group = GroupCommit(self._store)
        self._reader = SegmentReader(self._store)
        self._sweeping = asyncio.Lock()  # two would write one draft
        # One thread: it owns the open files, and pages come out of the page cache.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="agentflow-log-reader")

    @property
    def failure(self) -> AgentflowError | None:
        """Why the log stopped for good, if it did."""
        return self._store.failure

    @property
    def notices(self) -> Sequence[Notice]:
        """As `EventLog.notices`."""
        return self._notices

    # -- writing

    def append(self, batch: Append) -> asyncio.Future[None]:
        """As `EventLog.append`."""
        return self._group.append(batch)

    async def put_blob(self, data: bytes) -> str:
        """As `EventLog.put_blob`."""
        name = blob_hash(data)
        await self._group.call(lambda: self._upkeep.put_blob(name, data))
        return name

    async def put_definition(self, hash: str, source: bytes) -> None:
        """As `EventLog.put_definition`."""
        await self._group.call(lambda: self._upkeep.put_definition(hash, source))

    async def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """As `EventLog.put_snapshot`."""
        await self._group.call(lambda: self._upkeep.put_snapshot(workflow_id, kind, offset, data))

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """As `EventLog.save_cursor`."""
        await self._group.call(lambda: self._upkeep.save_cursor(consumer, cursor))

    async def drop_cursor(self, consumer: str) -> None:
        """As `EventLog.drop_cursor`."""
        await self._group.call(lambda: self._upkeep.drop_cursor(consumer))

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`."""
        return await self._group.call(lambda: self._store.claim(workflow_id, owner))

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """As `EventLog.release`."""
        await self._group.call(lambda: self._store.release(workflow_id, owner))

    async def probe(self) -> None:
        """As `EventLog.probe`."""
        await self._group.call(self._upkeep.probe)

    # -- retention

    async def trim(self, workflow_id: str, before: int) -> int:
        """As `EventLog.trim`."""
        # The log of a run that has ended does not change, so what its events name can be read before.
        names = await self._in_thread(lambda: self._reader.names(workflow_id, before))
        return await self._group.call(lambda: self._upkeep.trim(workflow_id, before, names))

    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """As `EventLog.delete`."""
        return await self._group.call(lambda: self._upkeep.delete(workflow_id, at))

    async def sweep(self, before: int) -> Swept:
        """As `EventLog.sweep`: rewrites the segments of which a quarter or more is dead. Appends go on
        meanwhile; reads wait while a rewritten file takes the place of the old one."""
        async with self._sweeping:
            return await self._sweep(before)

    async def _sweep(self, before: int) -> Swept:
        blobs, definitions, freed = await self._group.call(lambda: self._upkeep.sweep_files(before))
        newest, length = self._store.end
        if await asyncio.to_thread(worth_rewriting, self._index, newest, length):
            await self._group.call(self._store.roll)
        for number in sorted(self._index.segments):
            freed += await self._rewrite(number)
        return Swept(blobs=blobs, definitions=definitions, bytes=freed)

    async def _rewrite(self, number: int) -> int:
        segment = self._index.segments[number]
        if number == self._store.end[0]:
            return 0
        if not await asyncio.to_thread(worth_rewriting, self._index, number, segment.size):
            return 0
        try:
            draft = await asyncio.to_thread(write_draft, self._layout, self._index, number)
        except OSError as error:
            self._layout.draft(number).unlink(missing_ok=True)
            raise StoreError(f"segment {number} cannot be rewritten: {error.strerror}") from error

        def swap() -> int:
            self._reader.forget(number)
            return swap_in(self._layout, self._index, draft)

        return await self._in_thread(swap)

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
        # A damaged run stands there as far as it is whole.
        keys, runs = (
            self._index.order.copy(),
            self._index.runs,
        )  # the writing thread may change them meanwhile

        def row_of(workflow_id: str) -> RunRow | None:
            run = runs.get(workflow_id)
            return None if run is None else run.row()

        return page_of_runs(keys, row_of, query)

    async def _query(self, query: EventQuery) -> Page[LoggedEvent]:
        # Events of damaged runs are left out. Scans: half a million events a second.
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


def _recover(layout: Layout) -> Recovered:
    for left_over in (*layout.segments.glob("*.new"), layout.probe):
        left_over.unlink(missing_ok=True)
    closed = load_closed(layout.closed)
    removed, cut = load_removed(layout.removed, closed)
    found = recover(layout, removed, closed)
    if found.settled:
        length = layout.removed.stat().st_size if layout.removed.exists() else 0
        save_closed(layout.closed, Closed(found.segment, found.end, found.batch, length))
    if cut:
        text = f"{cut} bytes of a removal that was never acknowledged were cut off {layout.removed.name}"
        found.notices.append(Notice(kind="torn_tail", text=text, bytes=cut))
    return found


def _lock(layout: Layout) -> int:
    """Take the directory for this process; the descriptor holds it."""
    try:
        for part in PARTS:
            make_directories(layout.directory / part)
        sync_path(layout.directory / PARTS[0])
        lock = os.open(layout.lock, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the store {layout.directory} cannot be opened: {error.strerror}",
            hint="choose a directory that you may write to (`--store file:DIR`)",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ConfigurationError(
            f"the store {layout.directory} is in use by another process",
            hint="use that process, or a `sqlite:` store, which several can share",
        ) from error
    return lock


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
