"""Reading beside the writer: threads with read-only connections, so that a long read does not delay appends.

Only committed rows are visible to them, and a commit is on the disk before it is visible.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from agentflow.errors import LogClosed, LogCorrupt, OffsetTrimmed, StoreError
from agentflow.events.cursors import encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.rows import RunRow, Snapshot
from agentflow.events.sqlite.across import EventsOfAllRuns
from agentflow.events.sqlite.batches import batches_of
from agentflow.events.sqlite.checks import HINT, damaged
from agentflow.events.sqlite.database import connect_reader
from agentflow.events.sqlite.event_types import EventTypes
from agentflow.events.sqlite.failures import failure_of
from agentflow.events.sqlite.lists import RunLists
from agentflow.events.sqlite.run_rows import UNREADABLE, find_run

__all__ = ["Readers"]

T = TypeVar("T")

_THREADS = 2
_TOGETHER = 32  # short queries in one call of a thread
_TOGETHER_S = 0.002

_FIND_RUN = "SELECT id, last_seq, last_offset, earliest_offset FROM run WHERE workflow_id = ?"


class _Job(NamedTuple):
    """A query, and who waits for its answer."""

    future: asyncio.Future[Any]
    query: Callable[..., Any]
    arguments: tuple[Any, ...]


_Answer = tuple["asyncio.Future[Any]", Any, Exception | None]


def _report(loop: asyncio.AbstractEventLoop, done: list[_Answer]) -> None:
    if done:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all waiters
            loop.call_soon_threadsafe(_settle, done)


def _settle(done: list[_Answer]) -> None:
    for future, result, error in done:
        if future.done():  # cancelled
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class Readers:
    """Two threads and their connections, each opened when it is first needed.

    `reserve`: open them now, so that a read needs no descriptor later. Raises sqlite3.Error if that fails.
    """

    def __init__(self, path: Path, *, immutable: bool = False, reserve: bool = False) -> None:
        self._path = path
        self._immutable = immutable
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="agentflow-log-reader")
        self._free: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._gathered: list[_Job] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # whose pass gathers queries
        self._types = EventTypes()
        self.runs = RunLists().page
        self.query = EventsOfAllRuns(self._types).page
        if reserve:
            self._reserve()

    def _reserve(self) -> None:
        try:
            for _ in range(_THREADS):
                db = connect_reader(self._path)
                self._free.put(db)
                db.execute("PRAGMA schema_version").fetchone()  # opens the write-ahead log and its index
        except sqlite3.Error:
            self.close()
            raise

    async def call(self, query: Callable[..., T], *arguments: Any) -> T:
        """Run `query(connection, *arguments)` in a thread. StoreError or LogCorrupt if SQLite fails."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._run, query, arguments)

    async def call_short(self, query: Callable[..., T], *arguments: Any) -> T:
        """Do as `call`. Of the short queries of one pass of the loop the first goes to a thread at once, the
        others together, 32 at a time: handing one over and back takes longer than most of them."""
        loop = asyncio.get_running_loop()
        job = _Job(loop.create_future(), query, arguments)
        if self._loop is None:
            self._loop = loop
            loop.call_soon(self._end_pass)
            self._pool.submit(self._run_all, [job])
        elif self._loop is loop:
            self._gathered.append(job)
        else:
            self._pool.submit(self._run_all, [job])
        return await job.future

    def _end_pass(self) -> None:
        jobs, self._gathered, self._loop = self._gathered, [], None
        for start in range(0, len(jobs), _TOGETHER):
            together = jobs[start : start + _TOGETHER]
            try:
                self._pool.submit(self._run_all, together)
            except RuntimeError:  # the pool was shut down in this pass
                _settle([(job.future, None, LogClosed()) for job in together])

    def _run_all(self, jobs: list[_Job]) -> None:
        """Answer queries in the order of their calls; each answer waits for 2 ms of the others at most."""
        done: list[_Answer] = []
        loop, began = jobs[0].future.get_loop(), monotonic()
        for job in jobs:
            if job.future.cancelled():
                continue
            try:
                done.append((job.future, self._run(job.query, job.arguments), None))
            except Exception as error:
                done.append((job.future, None, error))
            if monotonic() - began > _TOGETHER_S:
                _report(loop, done)
                done, began = [], monotonic()
        _report(loop, done)
        # The traceback of an error names this frame, which must not name the error.
        done = []

    def _run(self, query: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            try:
                db = self._free.get_nowait()
            except queue.Empty:
                db = connect_reader(self._path, immutable=self._immutable)
            try:
                return query(db, *arguments)
            finally:
                self._free.put(db)
        except UNREADABLE as error:
            raise LogCorrupt(f"the store holds what cannot be read: {error}", hint=HINT) from error
        except sqlite3.Error as error:
            failure, effect = failure_of(error)
            told = effect == "later" or isinstance(failure, LogCorrupt)
            raise (failure if told else StoreError(str(failure))) from error

    def close(self) -> None:
        """Let reads under way finish, then close; blocks."""
        self._pool.shutdown()
        while not self._free.empty():
            self._free.get().close()

    # -- queries; they run in a thread, on the connection they are given

    def read(self, db: sqlite3.Connection, workflow_id: str, start: int, limit: int) -> list[StoredEvent]:
        """Return a page of one run."""
        db.execute("BEGIN")  # one state of the store for all statements: trimming goes on beside it
        try:
            return self._read(db, workflow_id, max(start, 0), limit)
        finally:
            db.execute("ROLLBACK")

    def _read(self, db: sqlite3.Connection, workflow_id: str, start: int, limit: int) -> list[StoredEvent]:
        row = db.execute(_FIND_RUN, (workflow_id,)).fetchone()
        if row is None or start > row[2]:
            find_run(db, workflow_id)
            return []
        run, last_seq, last_offset, earliest = row
        if start < earliest:
            raise OffsetTrimmed(workflow_id, earliest, start)
        found: list[StoredEvent] = []
        try:
            for batch in batches_of(db, run, start, last_seq, last_offset):
                events = batch.events(db, self._types)
                found += events if batch.first >= start else events[start - batch.first :]
                if len(found) >= limit:
                    break
        except LogCorrupt:
            if not found:  # else the next read starts at the damaged batch, and says so
                raise damaged(f"{workflow_id} from offset {start} on") from None
        return found[:limit]

    def run(self, db: sqlite3.Connection, workflow_id: str) -> RunRow:
        """Return one run's row."""
        return find_run(db, workflow_id)[1]

    def snapshot(
        self, db: sqlite3.Connection, workflow_id: str, kind: str, at_or_before: int | None
    ) -> Snapshot | None:
        """Return the newest intact snapshot."""
        run, row = find_run(db, workflow_id)
        rows = db.execute(
            "SELECT offset, crc, body FROM snapshot WHERE run = ? AND kind = ? AND offset <= ?"
            " ORDER BY offset DESC",
            (run, kind, row.last_offset if at_or_before is None else at_or_before),
        )
        return next((Snapshot(offset, body) for offset, crc, body in rows if crc32(body) == crc), None)

    def latest_cursor(self, db: sqlite3.Connection) -> str:
        """Return the place behind all events."""
        row = db.execute("SELECT seq + count - 1 FROM batch ORDER BY seq DESC LIMIT 1").fetchone()
        return encode_cursor(0 if row is None else row[0])
