"""The one thread that writes: it commits whatever has gathered, then reports all of it at once.

The connection belongs to this thread. A batch that is refused fails alone; a commit that fails fails its
whole group, of which then nothing is in the log.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentflow.errors import AgentflowError, LogClosed, StoreError
from agentflow.events.log import FIRST_EPOCH, Append, refusal, state_after
from agentflow.events.owner import this_process
from agentflow.events.sqlite.checkpoint import Checkpointer
from agentflow.events.sqlite.database import failure_of

__all__ = ["Job", "Writer"]

_GROUP_EVENTS = 4_096  # beyond this a larger commit is no faster, only later
_CHECKPOINT_BYTES = 4 << 20
_ROW_OVERHEAD = 120  # bytes of keys and indexes, about
_CACHED_RUNS = 8_192

_INSERT_EVENT = "INSERT INTO event (run, offset, ts, type, body) VALUES (?, ?, ?, ?, ?)"
_UPDATE_RUN = "UPDATE run SET last_offset = ?, state = ?, updated_at = ? WHERE id = ?"
_SELECT_RUN = "SELECT id, epoch, last_offset, state FROM run WHERE workflow_id = ?"
_INSERT_RUN = """
    INSERT INTO run
        (workflow_id, name, definition_hash, state, labels, created_at, updated_at, last_offset, epoch, owner)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_ENDED = frozenset({"completed", "failed", "cancelled"})


class Job:
    """One thing to write: a batch, or a call inside the transaction; and what became of it."""

    __slots__ = ("batch", "call", "error", "future", "result")

    def __init__(
        self,
        future: asyncio.Future[Any],
        batch: Append | None = None,
        call: Callable[[sqlite3.Connection], Any] | None = None,
    ) -> None:
        self.future = future
        self.batch = batch
        self.call = call
        self.result: Any = None
        self.error: AgentflowError | None = None


class _Run:
    """What the writer knows of a run while no other process has written."""

    __slots__ = ("epoch", "id", "last", "state", "updated_at")

    def __init__(self, id: int, epoch: int, last: int, state: str) -> None:
        self.id = id
        self.epoch = epoch
        self.last = last
        self.state = state
        self.updated_at = 0


class Writer:
    """The thread and its queue. `report` is called from the thread with each group, committed or failed."""

    def __init__(self, db: sqlite3.Connection, path: Path, report: Callable[[list[Job]], None]) -> None:
        self._db = db
        self._report = report
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._runs: dict[str, _Run] = {}
        self._types: dict[str, int] = {}
        self._data_version = -1
        self._rows: list[tuple[int, int, int, int, bytes]] = []
        self._touched: dict[str, _Run] = {}
        self._unsynced = 0
        self.done = 0
        """How many jobs have been reported; read by the loop's thread."""
        self.failure: AgentflowError | None = None
        """Why nothing can be written any more."""
        self._lender = threading.Event()
        self._lent = False
        self._checkpointer = Checkpointer(path, self._stop_for)
        self._thread = threading.Thread(target=self._work, name="agentflow-log-writer", daemon=True)
        self._thread.start()

    # -- called by the loop's thread

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        self._queue.put(job)

    def lend(self, jobs: int, seconds: float) -> None:
        """Sleep, so that the thread gets the interpreter, until `jobs` have been reported or time is up."""
        self._lender.clear()
        self._lent = True
        if self.done < jobs:
            self._lender.wait(seconds)
        self._lent = False

    def stop(self) -> None:
        """Write what is queued, then end; blocks. Nothing may be put afterwards."""
        self._queue.put(None)
        self._thread.join()

    # -- the thread

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._gather()
            if group:
                self._write(group)
                self._report(group)
                self.done += len(group)
                if self._lent:
                    self._lender.set()
            if not stopping:
                self._tend_wal()
        self._checkpointer.stop()
        self._db.close()

    def _gather(self) -> tuple[list[Job], bool]:
        """All that is queued, up to a group; waits for the first."""
        group: list[Job] = []
        job = self._queue.get()
        size = 0
        try:
            while job is not None:
                group.append(job)
                size += len(job.batch.events) if job.batch is not None else 1
                if size >= _GROUP_EVENTS:
                    return group, False
                job = self._queue.get_nowait()
        except queue.Empty:
            return group, False
        return group, True

    def _write(self, group: list[Job]) -> None:
        if self.failure is not None:
            _fail(group, LogClosed(str(self.failure), hint=self.failure.hint))
            return
        try:
            self._commit(group)
        except sqlite3.Error as error:
            self._roll_back()
            failure, effect = failure_of(error)
            if effect == "final":
                self.failure = failure
            if effect == "refused":
                self._write_one_by_one(group, failure)
            else:
                _fail(group, failure)
        except Exception as error:  # the thread must answer for every job, whatever a job holds
            self._roll_back()
            self._write_one_by_one(group, StoreError(f"cannot be stored: {error!r}"))

    def _commit(self, group: list[Job]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._forget_if_changed()
        for job in group:
            if job.batch is not None:
                job.error = self._take(job.batch)
            else:
                self._call(job)
        self._flush()
        self._db.execute("COMMIT")

    def _write_one_by_one(self, group: list[Job], failure: AgentflowError) -> None:
        """Something in the group cannot be stored: let it fail alone."""
        if len(group) == 1:
            group[0].error = failure
        else:
            for job in group:
                self._write([job])

    def _forget_if_changed(self) -> None:
        """Drop what is cached if another process has committed; we hold the write lock, so none can now."""
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._data_version:
            self._data_version = version
            self._runs.clear()
        elif len(self._runs) > _CACHED_RUNS:
            self._runs.clear()

    def _take(self, batch: Append) -> AgentflowError | None:
        """Add a batch to the group, or say why not."""
        run = self._runs.get(batch.workflow_id) or self._load(batch.workflow_id)
        if run is None:
            error = refusal(batch, -1, 0, False)
        else:
            error = refusal(batch, run.last, run.epoch, run.state in _ENDED)
        if error is not None:
            return error
        if run is None:
            run = self._create(batch)
        else:
            run.last += len(batch.events)
            run.state = state_after(batch, run.state)
            run.updated_at = batch.events[-1].ts
            self._touched[batch.workflow_id] = run
        types, run_id, rows = self._types, run.id, self._rows
        for event in batch.events:
            type_id = types.get(event.type) or self._intern(event.type)
            rows.append((run_id, event.offset, event.ts, type_id, event.body))
            self._unsynced += len(event.body) + _ROW_OVERHEAD
        return None

    def _load(self, workflow_id: str) -> _Run | None:
        row = self._db.execute(_SELECT_RUN, (workflow_id,)).fetchone()
        if row is None:
            return None
        run = self._runs[workflow_id] = _Run(*row)
        return run

    def _create(self, batch: Append) -> _Run:
        meta = batch.run
        assert meta is not None  # refusal() lets only a first batch through
        owner = meta.owner or this_process()
        state = state_after(batch, "pending")
        cursor = self._db.execute(
            _INSERT_RUN,
            (
                batch.workflow_id,
                meta.name,
                meta.definition_hash,
                state,
                msgspec.json.encode(meta.labels).decode(),
                meta.created_at,
                batch.events[-1].ts,
                len(batch.events) - 1,
                FIRST_EPOCH,
                msgspec.json.encode(owner).decode(),
            ),
        )
        assert cursor.lastrowid is not None
        run = _Run(cursor.lastrowid, FIRST_EPOCH, len(batch.events) - 1, state)
        self._runs[batch.workflow_id] = run
        return run

    def _intern(self, name: str) -> int:
        db = self._db
        db.execute("INSERT OR IGNORE INTO event_type (name) VALUES (?)", (name,))
        type_id: int = db.execute("SELECT id FROM event_type WHERE name = ?", (name,)).fetchone()[0]
        self._types[name] = type_id
        return type_id

    def _call(self, job: Job) -> None:
        """Run a call on what the group has written so far; it may change what is cached."""
        assert job.call is not None
        self._flush()
        try:
            job.result = job.call(self._db)
        except AgentflowError as error:
            job.error = error
        self._runs.clear()

    def _flush(self) -> None:
        if self._rows:
            self._db.executemany(_INSERT_EVENT, self._rows)
            self._rows.clear()
        if self._touched:
            self._db.executemany(
                _UPDATE_RUN, [(r.last, r.state, r.updated_at, r.id) for r in self._touched.values()]
            )
            for workflow_id, run in self._touched.items():
                if run.state in _ENDED:
                    self._runs.pop(workflow_id, None)
            self._touched.clear()

    def _roll_back(self) -> None:
        self._runs.clear()
        self._types.clear()
        self._rows.clear()
        self._touched.clear()
        if self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error as error:
                # A transaction that can neither end nor be undone leaves no way to go on.
                self.failure = failure_of(error)[0]

    def _tend_wal(self) -> None:
        if self._checkpointer.rest_is_writers:
            try:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except sqlite3.Error as error:
                self._stop_for(error)
            self._checkpointer.rest_is_writers = False
        elif self._unsynced > _CHECKPOINT_BYTES:
            self._unsynced = 0
            self._checkpointer.nudge()

    def _stop_for(self, error: sqlite3.Error) -> bool:
        """A checkpoint failed: that may be a failed sync too, and then it is final. True if so."""
        failure, effect = failure_of(error)
        if effect != "final":
            return False
        if self.failure is None:
            self.failure = failure
        return True


def _fail(group: list[Job], failure: AgentflowError) -> None:
    for job in group:
        if job.error is None:
            job.error = failure
