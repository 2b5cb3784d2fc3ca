"""Writer thread of SQLite: one transaction for each group.

A batch that is refused fails alone; a commit that fails fails its whole group, of which then nothing is in
the log. The connection belongs to the writing thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import TypeVar

import msgspec

from agentflow.errors import AgentflowError, LogFailed, StoreError
from agentflow.events.blobs import Blob
from agentflow.events.envelope import StoredEvent
from agentflow.events.group import Job, fail
from agentflow.events.identity import store_lost
from agentflow.events.owner import this_process
from agentflow.events.owner_locks import OwnerLocks
from agentflow.events.packing import EarlierValues, pack
from agentflow.events.references import names_in, parent_of
from agentflow.events.rows import ENDED, FIRST_EPOCH, Append
from agentflow.events.rules import refusal, state_after
from agentflow.events.sealing import size_of
from agentflow.events.sqlite.batches import BATCH_COLUMNS, batch_crc, encode_types
from agentflow.events.sqlite.blocks import BLOCK_BATCHES, count_unindexed, index_batches
from agentflow.events.sqlite.bulk import Bulk
from agentflow.events.sqlite.calls import insert_blob
from agentflow.events.sqlite.checkpoint import Checkpointer
from agentflow.events.sqlite.checks import damaged, seal_run, type_crc
from agentflow.events.sqlite.database import BUSY_MS
from agentflow.events.sqlite.failures import failure_of
from agentflow.events.sqlite.integrity import Integrity, is_small
from agentflow.events.sqlite.presence import StoreFiles
from agentflow.events.sqlite.run_rows import tombstone

__all__ = ["SqliteStore"]

T = TypeVar("T")

_CHECKPOINT_BYTES = 4 << 20
_ROW_OVERHEAD = 60  # bytes of keys, about
_ROW_EVENTS = 256  # a larger batch takes several rows, so that a page of it costs no more than that of others
# Batches of one run in one group share a row, until it has so many bytes of text: compressing and inserting
# each by itself takes 40 µs of CPU a step.
_SHARED_ROW_BYTES = 64 << 10
_LARGE_BYTES = 16 << 10  # of events
_NEWEST_EVENTS = 64
_CACHED_RUNS = 8_192
_BUSY_STEP_MS = 2  # how long SQLite waits for another process's commit by itself: see `_begin_writing`
_IDLE_WAL_BYTES = 4 << 20  # of a store to which nothing is written; beyond it the file is cut

_INSERT_BATCHES = Bulk(f"INSERT INTO batch ({BATCH_COLUMNS}) VALUES", 9)
_INSERT_NAMES = Bulk("INSERT OR IGNORE INTO reference (run, name) VALUES", 2)
_UPDATE_RUNS = Bulk(
    "WITH new (id, last_offset, last_seq, updated_at, bytes) AS (VALUES",
    5,
    """)
    UPDATE run SET last_offset = new.last_offset, last_seq = new.last_seq, updated_at = new.updated_at,
        bytes = new.bytes
    FROM new WHERE run.id = new.id""",
)
_UPDATE_RUN = (  # the same for one; it takes half the time
    "UPDATE run SET last_offset = ?2, last_seq = ?3, updated_at = ?4, bytes = ?5 WHERE id = ?1"
)
_UPDATE_STATE = (
    "UPDATE run SET state = ? WHERE id = ?"  # by itself: it stands in an index, and seldom changes
)
_SELECT_RUN = "SELECT id, epoch, last_offset, state, bytes, last_seq FROM run WHERE workflow_id = ?"
_NEXT_SEQ = "SELECT seq + count FROM batch ORDER BY seq DESC LIMIT 1"
_INSERT_RUN = """
    INSERT INTO run
        (workflow_id, name, definition_hash, state, labels, created_at, updated_at, last_offset, epoch, owner,
         parent)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


_INSERT_LABEL = "INSERT INTO label (name, value, created_at, workflow_id) VALUES (?, ?, ?, ?)"


class _Run:
    """What the writer knows of a run while no other process has written."""

    __slots__ = (
        "bytes",
        "epoch",
        "id",
        "last",
        "last_seq",
        "pending",
        "pending_bytes",
        "state",
        "updated_at",
        "values",
    )

    def __init__(self, id: int, epoch: int, last: int, state: str, size: int, last_seq: int) -> None:
        self.id = id
        self.epoch = epoch
        self.last = last
        self.state = state
        self.bytes = size
        self.last_seq = last_seq
        self.updated_at = 0
        self.values = EarlierValues()
        self.pending: list[StoredEvent] = []  # of this group, in no row yet
        self.pending_bytes = 0


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_BUSY")


class SqliteStore:
    """Writes groups to a database that `open_database` has opened."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        db.execute(f"PRAGMA busy_timeout = {_BUSY_STEP_MS}")
        self._path = path
        self._files = StoreFiles(path)
        self.locks = OwnerLocks(path)
        self.lost: AgentflowError | None = None
        """Set when the files were deleted or replaced: what was acknowledged before may be gone too."""
        self._runs: dict[str, _Run] = {}
        self._types: dict[str, tuple[int, int]] = {}  # its number and checksum
        self._data_version = self._watched_version = -1
        self._foreign = 0  # how often that was seen to have changed
        self._crowded = False  # whether another process wrote between our last two groups
        self._next_seq = 0  # of the next batch; 0 when it must be read
        self._behind_large = 0  # the `seq` behind the last batch that takes long to read
        self._rows: list[int | bytes] = []  # the columns of one batch after those of the other
        self._names: list[int | str] = []  # and so these
        self._blobs: set[str] = set()  # that the group has stored
        self._touched: dict[str, _Run] = {}
        self._unsealed: set[int] = set()
        self._unsynced = 0
        self._unindexed = count_unindexed(db)
        self._begun = self._written = 0  # commits, counted from 1, and the last that wrote something
        self._watched = 0  # the last commit that had written something when the store was last watched
        self.failure: AgentflowError | None = None
        self.sync_s = 0.0
        self._checkpointer = Checkpointer(path, self._stop_for, lambda: self._begun)
        self._integrity = None if is_small(path) else Integrity(path, self._stop_with)

    def within(self, call: Callable[..., T], *arguments: object) -> Callable[[], T]:
        """Return a call for a job: `call(connection, *arguments)` inside the group's transaction."""
        size = sum(len(argument) for argument in arguments if isinstance(argument, bytes))

        def run() -> T:
            self._unsynced += size
            return call(self._db, *arguments)

        return run

    def read_newest(self, read: Callable[[sqlite3.Connection, int], T], seq: int) -> T | None:
        """Return `read(connection, stop)` of what was committed behind `seq`, before `stop`; None unless that
        takes some 0.1 ms, because it is short and was just written by this process."""
        first, stop = seq + 1, self._next_seq
        if not self._behind_large <= first < stop <= first + _NEWEST_EVENTS:
            return None
        return read(self._db, stop)

    def count_foreign_writes(self) -> int:
        """Return how often another process was seen to have written; for a job, which the look precedes."""
        return self._foreign

    def write(
        self, group: list[Job], leaving: Callable[[], None] = lambda: None, *, patient: bool = True
    ) -> bool:
        """Implement `Store.write`."""
        if self._crowded and not patient:
            return False
        if self.failure is not None:
            fail(group, self._told(self.failure))
            return True
        try:
            self._commit(group, leaving, patient)
            if self._is_lost():  # before anything is acknowledged
                fail(group, self._told(self.lost))
        except sqlite3.Error as error:
            self._roll_back()
            if not patient and _is_busy(error):
                self._crowded = True
                return False
            if self._is_lost():
                fail(group, self._told(self.lost))
                return True
            failure, effect = failure_of(error, self._path)
            if effect == "final":
                self.failure = failure
            if effect == "refused":
                self._write_one_by_one(group, failure)
            else:
                fail(group, failure)
        except Exception as error:  # the thread must answer for every job, whatever a job holds
            self._roll_back()
            self._write_one_by_one(group, StoreError(f"cannot be stored: {error!r}"))
        except BaseException:  # of a signal, in the thread of the loop
            self._roll_back()
            raise
        return True

    @staticmethod
    def _told(failure: AgentflowError | None) -> LogFailed:
        """Copy an exception for another group: one that is raised again collects tracebacks."""
        assert failure is not None
        return LogFailed(str(failure), hint=failure.hint)

    def _is_lost(self) -> bool:
        """Look whether the files of the store and the locks of its owners are in place; stop if not."""
        if self.lost is None:
            problem = self._files.problem() or self.locks.problem()
            if problem is not None:
                self.lost = store_lost(problem)
                self._stop_with(self.lost)
        return self.lost is not None

    def _commit(self, group: list[Job], leaving: Callable[[], None], patient: bool) -> None:
        self._begun += 1
        before = self._db.total_changes
        if self._crowded:  # it may have the lock for seconds
            leaving()
        self._begin_writing(patient)
        self._forget_if_changed()
        self._blobs.clear()
        for job in group:
            if job.batch is not None:
                job.error = self._take(job.batch)
            else:
                leaving()  # a call may take its time, and what was committed before waits for nothing
                self._call(job)
        leaving()
        self._flush()
        written = perf_counter()
        self._db.execute("COMMIT")
        self.sync_s = perf_counter() - written
        if self._db.total_changes != before:
            self._written = self._begun

    def _begin_writing(self, patient: bool = True) -> None:
        """Take the write lock, for which another process may have to be waited: 2 ms, or longer if `patient`.

        SQLite looks for it ever more seldom, up to every 100 ms: beside a process that commits all the time
        it may not get it for 5 s. So it waits for 2 ms and is asked again.
        """
        deadline = monotonic() + BUSY_MS / 1_000
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not (patient and _is_busy(error)) or monotonic() > deadline:
                    raise

    def _write_one_by_one(self, group: list[Job], failure: AgentflowError) -> None:
        """Write each job by itself, so that one which cannot be stored fails alone."""
        if len(group) == 1:
            group[0].error = failure
        else:
            for job in group:
                self.write([job])

    def _forget_if_changed(self) -> None:
        """Drop what is cached if another process has committed; we hold the write lock, so none can now."""
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        self._crowded = version != self._data_version
        if self._crowded:
            self._foreign += 1
            self._data_version = version
            self._runs.clear()
            self._next_seq = 0
        elif len(self._runs) > _CACHED_RUNS:
            self._runs.clear()

    def _take(self, batch: Append) -> AgentflowError | None:
        """Add a batch to the group, or say why not."""
        workflow_id, events = batch.workflow_id, batch.events
        run = self._runs.get(workflow_id) or self._load(workflow_id)
        if run is None:
            error = refusal(batch, -1, 0, False, tombstone(self._db, workflow_id))
        else:
            error = refusal(batch, run.last, run.epoch, run.state in ENDED)
        if error is not None:
            return error
        if not self._next_seq:
            self._next_seq = self._read_next_seq()
        if run is not None and run.last_seq >= self._next_seq:
            return damaged(f"the end of the log, where {workflow_id} has events,")
        if run is None:
            try:
                run = self._create(batch)
            except AgentflowError as unavailable:  # before anything was written
                return unavailable
        else:
            run.last += len(events)
            state = state_after(batch, run.state)
            if state != run.state:
                run.state = state
                self._unsealed.add(run.id)
        run.updated_at = events[-1].ts
        self._touched[workflow_id] = run
        if run.pending_bytes > _SHARED_ROW_BYTES or len(run.pending) + len(events) > _ROW_EVENTS:
            self._add_rows(run)
        size = size_of(events)
        run.pending += events
        run.pending_bytes += size
        run.bytes += size
        return None

    def _add_rows(self, run: _Run) -> None:
        """Make rows of the pending events of a run."""
        events, size = run.pending, run.pending_bytes
        run.pending, run.pending_bytes = [], 0
        for start in range(0, len(events), _ROW_EVENTS):
            self._add_row(run, events[start : start + _ROW_EVENTS])
        if size > _LARGE_BYTES:
            self._behind_large = self._next_seq

    def _add_row(self, run: _Run, events: Sequence[StoredEvent]) -> None:
        known, first, count, ts = self._types, events[0].offset, len(events), events[-1].ts
        numbers = encode_types([(known.get(event.type) or self._intern(event.type))[0] for event in events])
        seq, prev = self._next_seq, run.last_seq
        packed = pack(events, seq, run.values)
        crc = batch_crc(seq, run.id, first, count, prev, ts, numbers, packed)
        self._rows += (seq, run.id, first, count, prev, ts, numbers, crc, packed)
        self._next_seq = seq + count
        run.last_seq = seq
        for event in events:
            if b'"sha256:' in event.text:  # `names_in` looks for itself, but seldom is there one
                for name in names_in(event.text):
                    self._names += (run.id, name)
                for blob in event.blobs:
                    self._put_blob(blob)
        self._unsynced += len(packed) + _ROW_OVERHEAD
        self._unindexed += 1

    def _put_blob(self, blob: Blob) -> None:
        """Store a blob in the transaction of the event that names it."""
        if blob.name not in self._blobs:
            insert_blob(self._db, blob.name, blob.data)
            self._blobs.add(blob.name)
            self._unsynced += len(blob.data)

    def _read_next_seq(self) -> int:
        row = self._db.execute(_NEXT_SEQ).fetchone()
        return row[0] if row is not None else 1

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
        if owner.lock == this_process().lock:
            self.locks.hold(owner.lock)
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
                parent_of(batch.events[0].text),
            ),
        )
        assert cursor.lastrowid is not None
        if meta.labels:
            rows = [(name, value, meta.created_at, batch.workflow_id) for name, value in meta.labels.items()]
            self._db.executemany(_INSERT_LABEL, rows)
        self._unsealed.add(cursor.lastrowid)
        self._names += (cursor.lastrowid, meta.definition_hash)
        run = _Run(cursor.lastrowid, FIRST_EPOCH, len(batch.events) - 1, state, 0, 0)
        self._runs[batch.workflow_id] = run
        return run

    def _intern(self, name: str) -> tuple[int, int]:
        db = self._db
        crc = type_crc(name)
        db.execute("INSERT OR IGNORE INTO event_type (name, crc) VALUES (?, ?)", (name, crc))
        type_id: int = db.execute("SELECT id FROM event_type WHERE name = ?", (name,)).fetchone()[0]
        found = self._types[name] = (type_id, crc)
        return found

    def _call(self, job: Job) -> None:
        """Run a call on what the group has written so far; it may change what is cached."""
        assert job.call is not None
        self._flush()
        self._blobs.clear()  # it may remove some
        job.error = None  # of an attempt that was rolled back
        try:
            job.result = job.call()
        except AgentflowError as error:
            job.error = error
        self._runs.clear()

    def _flush(self) -> None:
        for run in self._touched.values():
            if run.pending:
                self._add_rows(run)
        if self._rows:
            _INSERT_BATCHES.execute(self._db, self._rows)
            self._rows.clear()
        if self._names:
            _INSERT_NAMES.execute(self._db, self._names)
            self._names.clear()
        if self._touched:
            touched, unsealed = self._touched.values(), self._unsealed
            new = [v for r in touched for v in (r.id, r.last, r.last_seq, r.updated_at, r.bytes)]
            if len(touched) == 1:
                self._db.execute(_UPDATE_RUN, new)
            else:
                _UPDATE_RUNS.execute(self._db, new)
            if unsealed:
                self._db.executemany(_UPDATE_STATE, [(r.state, r.id) for r in touched if r.id in unsealed])
            for workflow_id, run in self._touched.items():
                if run.state in ENDED:
                    self._runs.pop(workflow_id, None)
            self._touched.clear()
        for run_id in self._unsealed:
            seal_run(self._db, run_id)
        self._unsealed.clear()

    def _roll_back(self) -> None:
        self._next_seq = 0
        self._runs.clear()
        self._types.clear()
        self._rows.clear()
        self._names.clear()
        self._blobs.clear()
        self._touched.clear()
        self._unsealed.clear()
        if self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error as error:
                # A transaction that can neither end nor be undone leaves no way to go on.
                self.failure = failure_of(error)[0]

    @property
    def due(self) -> bool:
        """As `Store.due`."""
        return (
            self._checkpointer.rest_is_writers
            or self._unsynced > _CHECKPOINT_BYTES
            or self._unindexed >= BLOCK_BATCHES
        )

    def tend(self) -> None:
        """Implement `Store.tend`: fills the indexes, and keeps the write-ahead log short."""
        if self._is_lost():
            self._checkpointer.rest_is_copied()
            self._unsynced = self._unindexed = 0
        elif self._unindexed >= BLOCK_BATCHES:
            self._index()
        elif self._checkpointer.rest_is_writers:
            try:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except sqlite3.Error as error:
                self._stop_for(error)
            self._checkpointer.rest_is_copied()
        else:
            self._unsynced = 0
            self._checkpointer.nudge(self._written)

    def _index(self) -> None:
        """Add the newest batches to the indexes; a store that does not take it now does so later."""
        self._unindexed = 0
        try:
            self._begun += 1
            self._begin_writing()
            indexed = index_batches(self._db)
            self._db.execute("COMMIT")
            if indexed:
                self._written = self._begun
        except sqlite3.Error as error:
            self._roll_back()
            failure, effect = failure_of(error, self._path)
            if effect == "final":
                self._stop_with(failure)

    def checkpoint(self) -> None:
        """Begin to move the write-ahead log into the file; returns at once. For any thread."""
        self._checkpointer.nudge(self._written)

    def watch(self) -> None:
        """Look after a store to which nothing may be written: are its files there, is its log short?

        Called by the writer thread every 0.5 s. Never raises.
        """
        # Not by `_begun`: a hub that asks for the writes of others begins a commit four times a second.
        idle, self._watched = self._watched == self._written, self._written
        if self._is_lost() or self.failure is not None or not idle:
            return
        if self._files.wal_bytes() > _IDLE_WAL_BYTES:
            try:
                self._cut_log()
            except sqlite3.Error as error:
                self._stop_for(error)

    def _cut_log(self) -> None:
        """Truncate the write-ahead log, which keeps the length of the largest burst otherwise.

        First the checkpoint thread copies what is in it, off the path of acknowledgements; then, at a later
        look, cutting it takes some ms. Not while another process writes, and never waiting for a reader.
        """
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        quiet, self._watched_version = version == self._watched_version, version
        if not quiet:
            return
        if self._checkpointer.has_to_copy(self._written):
            self._unsynced = 0
            self._checkpointer.nudge(self._written)
            return
        self._db.execute("PRAGMA busy_timeout = 0")
        try:
            busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {_BUSY_STEP_MS}")
        if not busy:  # else a reader or another process uses it: at the next look
            self._checkpointer.rest_is_copied()

    def finish(self) -> None:
        """Implement `Store.finish`."""
        if not self._is_lost() and self.failure is None and self._written:
            self._index()
        if self._integrity is not None:
            self._integrity.stop()
        self._checkpointer.stop()
        self._db.close()
        self.locks.release()

    def _stop_for(self, error: sqlite3.Error) -> bool:
        """Return whether a failed checkpoint is final, because it may have been a failed sync."""
        failure, effect = failure_of(error, self._path)
        if effect != "final":
            return False
        self._stop_with(failure)
        return True

    def _stop_with(self, failure: AgentflowError) -> None:
        if self.failure is None:
            self.failure = failure
