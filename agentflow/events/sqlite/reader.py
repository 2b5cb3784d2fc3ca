"""Reading beside the writer: threads with read-only connections, so that a long read holds nobody up.

Only committed rows are visible to them, and a commit is on the disk before it is visible.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from agentflow.errors import LogCorrupt, OffsetTrimmed, StoreError
from agentflow.events.base import EventQuery
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.listing import RunQuery
from agentflow.events.owner import Owner
from agentflow.events.rows import LoggedEvent, Page, RunRow, Snapshot
from agentflow.events.rules import no_run
from agentflow.events.sqlite.checks import (
    HINT,
    PRIME,
    RUN_CHECKS,
    check_run,
    damaged,
    event_crc,
    row_crc,
    type_crc,
)
from agentflow.events.sqlite.database import connect_reader, failure_of
from agentflow.events.tombstone import Tombstone

__all__ = ["Readers", "find_run", "tombstone"]

T = TypeVar("T")

_THREADS = 2
_CHECKED_RUNS = 100_000

# One statement, so that what it sees was there at one time: trimming goes on beside it.
_READ = """
    SELECT offset, ts, type, body, event.crc, run.id, last_offset
    FROM run JOIN event ON event.run = run.id AND event.offset >= max(?2, earliest_offset)
    WHERE workflow_id = ?1
    ORDER BY offset LIMIT ?3"""
_RUN_COLUMNS = f"""workflow_id, name, definition_hash, state, labels, created_at, updated_at, last_offset,
    epoch, owner, parent, earliest_offset, bytes, {RUN_CHECKS}"""
_ID = 13  # of the columns, the first of RUN_CHECKS

# What a row that is not as it was written may lead to before its checksum is looked at.
_UNREADABLE = (msgspec.DecodeError, AttributeError, TypeError, UnicodeError)

_labels_decoder = msgspec.json.Decoder(dict[str, str])
_owner_decoder = msgspec.json.Decoder(Owner)


class Readers:
    """A few threads and their connections."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="agentflow-log-reader")
        self._free: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._types: dict[int, tuple[str, int]] = {}
        """By the number of a type, its name and the checksum of that."""
        self._checked: set[int] = set()

    async def call(self, query: Callable[..., T], *arguments: Any) -> T:
        """Run `query(connection, *arguments)` in a thread. StoreError or LogCorrupt if SQLite fails."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._run, query, arguments)

    def _run(self, query: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            try:
                db = self._free.get_nowait()
            except queue.Empty:
                db = connect_reader(self._path)
            try:
                return query(db, *arguments)
            finally:
                self._free.put(db)
        except _UNREADABLE as error:
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
        """A page of one run."""
        rows = db.execute(_READ, (workflow_id, start, limit)).fetchall()
        if not rows:
            find_run(db, workflow_id)
        elif start < rows[0][0]:
            raise OffsetTrimmed(workflow_id, rows[0][0], max(start, 0))
        elif rows[-1][0] - rows[0][0] != len(rows) - 1 or (len(rows) < limit and rows[-1][0] != rows[-1][6]):
            raise damaged(f"the list of the events of {workflow_id}")
        types = self._known_types(db, rows, 2)
        found: list[StoredEvent] = []
        for offset, ts, type_id, body, crc, run, _ in rows:
            name, seed = types[type_id]
            if crc32(body, (run << 16 ^ seed ^ offset ^ ts) % PRIME) != crc:  # `event_crc`, without the call
                if found:
                    break  # the next read starts at the damaged event, and says so
                raise damaged(f"{workflow_id} from offset {offset} on")
            found.append(StoredEvent(offset, ts, name, body))
        return found

    def run(self, db: sqlite3.Connection, workflow_id: str) -> RunRow:
        """One run's row."""
        return find_run(db, workflow_id)[1]

    def snapshot(
        self, db: sqlite3.Connection, workflow_id: str, kind: str, at_or_before: int | None
    ) -> Snapshot | None:
        """The newest intact snapshot."""
        run, row = find_run(db, workflow_id)
        rows = db.execute(
            "SELECT offset, crc, body FROM snapshot WHERE run = ? AND kind = ? AND offset <= ?"
            " ORDER BY offset DESC",
            (run, kind, row.last_offset if at_or_before is None else at_or_before),
        )
        return next((Snapshot(offset, body) for offset, crc, body in rows if crc32(body) == crc), None)

    def runs(self, db: sqlite3.Connection, query: RunQuery) -> Page[RunRow]:
        """A page of runs."""
        where, values = ["1"], list[Any]()
        states, after = query.states(), query.after()
        if states is not None:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            values += states
        if query.name is not None:
            where.append("name = ?")
            values.append(query.name)
        if query.label is not None:
            where.append("EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = ?)")
            values += query.label
        if query.since is not None:
            where.append("created_at >= ?")
            values.append(query.since)
        if query.until is not None:
            where.append("created_at < ?")
            values.append(query.until)
        if after is not None:
            where.append(f"(created_at, workflow_id) {'>' if query.order == 'asc' else '<'} (?, ?)")
            values += after
        direction = "ASC" if query.order == "asc" else "DESC"
        rows = db.execute(
            f"SELECT {_RUN_COLUMNS} FROM run WHERE {' AND '.join(where)} "
            f"ORDER BY created_at {direction}, workflow_id {direction} LIMIT ?",
            (*values, query.limit + 1),
        ).fetchall()
        items = [_run_row(row) for row in rows[: query.limit]]
        more = len(rows) > query.limit and items
        return Page(items, encode_cursor(items[-1].created_at, items[-1].workflow_id) if more else None)

    def query(self, db: sqlite3.Connection, query: EventQuery) -> Page[LoggedEvent]:
        """A page of events of all runs."""
        after = 0 if query.cursor is None else decode_cursor(query.cursor, tuple[int])[0]
        where, values, wanted = ["seq > ?"], [after], query.wanted
        if wanted is not None:
            ids = [number for number, (name, _) in self._load_types(db).items() if wanted(name)]
            where.append(f"event.type IN ({', '.join('?' * len(ids))})")
            values += ids
        # The plus keeps SQLite from walking the time index, which would sort all that matches for one page.
        if query.since is not None:
            where.append("+ts >= ?")
            values.append(query.since)
        if query.until is not None:
            where.append("+ts < ?")
            values.append(query.until)
        rows = db.execute(
            "SELECT seq, workflow_id, offset, ts, type, body, event.crc, run.id FROM event "
            "JOIN run ON run.id = event.run AND event.offset >= run.earliest_offset "
            f"WHERE {' AND '.join(where)} ORDER BY seq LIMIT ?",
            (*values, query.limit),
        ).fetchall()
        types = self._known_types(db, rows, 4)
        self._check_runs(db, {row[7] for row in rows})
        items: list[LoggedEvent] = []
        for seq, workflow_id, offset, ts, type_id, body, crc, run in rows:
            name, seed = types[type_id]
            if event_crc(run, seed, offset, ts, body) != crc:
                if items:
                    break  # as in `read`
                raise damaged(f"{workflow_id} from offset {offset} on")
            items.append(LoggedEvent(workflow_id, StoredEvent(offset, ts, name, body)))
            after = seq
        return Page(items, encode_cursor(after))

    def latest_cursor(self, db: sqlite3.Connection) -> str:
        """The place behind all events."""
        return encode_cursor(db.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()[0])

    def _check_runs(self, db: sqlite3.Connection, runs: set[int]) -> None:
        """That a run is called what its row says is looked at once. LogCorrupt."""
        if len(self._checked) > _CHECKED_RUNS:
            self._checked.clear()
        for run in runs - self._checked:
            row = db.execute(f"SELECT {RUN_CHECKS} FROM run WHERE id = ?", (run,)).fetchone()
            if row is not None:  # else deleted since
                check_run(row)
        self._checked |= runs

    def _known_types(
        self, db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]], column: int
    ) -> dict[int, tuple[str, int]]:
        """Types by number, with all that `rows` need; a number never changes its name. LogCorrupt."""
        types = self._types
        if any(row[column] not in types for row in rows):
            types = self._load_types(db)
            if any(row[column] not in types for row in rows):
                raise damaged("the type of an event")
        return types

    def _load_types(self, db: sqlite3.Connection) -> dict[int, tuple[str, int]]:
        rows = db.execute("SELECT id, name, crc FROM event_type").fetchall()
        for _, name, crc in rows:
            if type_crc(name) != crc:
                raise damaged("the name of an event type")
        types = self._types = {number: (name, crc) for number, name, crc in rows}
        return types


def find_run(db: sqlite3.Connection, workflow_id: str) -> tuple[int, RunRow]:
    """A run and the number that stands for it. RunNotFound, RunGone."""
    row = db.execute(f"SELECT {_RUN_COLUMNS} FROM run WHERE workflow_id = ?", (workflow_id,)).fetchone()
    if row is None:
        raise no_run(workflow_id, tombstone(db, workflow_id))
    return row[_ID], _run_row(row)


def tombstone(db: sqlite3.Connection, workflow_id: str) -> Tombstone | None:
    """What is left of a run, if it was deleted."""
    row = db.execute(
        "SELECT state, created_at, ended_at, deleted_at, crc FROM tombstone WHERE workflow_id = ?",
        (workflow_id,),
    ).fetchone()
    if row is None:
        return None
    if row_crc(workflow_id, *row[:4]) != row[4]:
        raise damaged(f"the record of the deleted run {workflow_id}")
    return Tombstone(
        workflow_id=workflow_id, state=row[0], created_at=row[1], ended_at=row[2], deleted_at=row[3]
    )


def _run_row(row: tuple[Any, ...]) -> RunRow:
    check_run(row[_ID:])
    return RunRow(
        workflow_id=row[0],
        name=row[1],
        definition_hash=row[2],
        state=row[3],
        labels=_labels_decoder.decode(row[4]),
        created_at=row[5],
        updated_at=row[6],
        last_offset=row[7],
        epoch=row[8],
        owner=None if row[9] is None else _owner_decoder.decode(row[9]),
        parent=row[10],
        earliest_offset=row[11],
        bytes=row[12],
    )
