"""Events of all runs in the order of their commits: complete, or with the names of the runs that have lost
something (page 000 §7).

A damaged page of the database may hide rows without any error. So each page of an answer is counted against
an index, which lies in other pages; where the two differ, or SQLite finds the damage itself, the events are
looked up one by one by the index of runs. An event whose checksum is wrong is left out in any case. A reader
gets all that is intact, behind the damage too, and is told which runs have lost something.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.base import EventQuery
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.rows import LoggedEvent, Page
from agentflow.events.sqlite.checks import RUN_CHECKS, check_run, event_crc
from agentflow.events.sqlite.event_types import EventTypes
from agentflow.events.sqlite.run_rows import UNREADABLE, is_damage

__all__ = ["EventsOfAllRuns"]

_CHECKED_RUNS = 100_000
_END = (1 << 63) - 1
_TIMED_ROWS = 1_024  # that are read at a time when most may be of another time

# `first` is the earliest offset of the run that is left; NULL: the run was deleted, or its row is damaged.
_COLUMNS = "seq, run, offset, ts, type, body, crc, (SELECT earliest_offset FROM run WHERE id = event.run)"
_COUNT = (
    "SELECT count(*) FROM event INDEXED BY event_by_type"
    " WHERE type IN (SELECT id FROM event_type) AND seq > ? AND seq <= ?"
)
_BY_RUNS = (
    "SELECT seq, run, offset FROM event INDEXED BY sqlite_autoindex_event_1"
    " WHERE +seq > ? ORDER BY +seq LIMIT ?"
)
_Row = tuple[Any, ...]


class _Hidden(Exception):
    """The table shows fewer events than its index, or a row that is damaged."""


class _Found:
    """A page that is being collected: events, damaged runs, and the last position that was looked at."""

    def __init__(self, after: int) -> None:
        self.items: list[LoggedEvent] = []
        self.damaged: set[str] = set()
        self.after = after


class EventsOfAllRuns:
    """Answers queries of one store. `page` may run in several threads, each with a connection of its own."""

    def __init__(self, types: EventTypes) -> None:
        self._types = types
        self._names: dict[int, str] = {}  # of runs whose record was checked

    def page(self, db: sqlite3.Connection, query: EventQuery) -> Page[LoggedEvent]:
        """Return a page of events. Raises LogCorrupt if it cannot be told what is missing."""
        found = _Found(0 if query.cursor is None else decode_cursor(query.cursor, tuple[int])[0])
        db.execute("BEGIN")  # one state of the store for all statements
        try:
            self._collect(db, query, found)
        finally:
            db.execute("ROLLBACK")
        return Page(found.items, encode_cursor(found.after), tuple(sorted(found.damaged)))

    def _collect(self, db: sqlite3.Connection, query: EventQuery, found: _Found) -> None:
        timed = query.since is not None or query.until is not None
        more = True
        while more and len(found.items) < query.limit:
            count = max(query.limit - len(found.items), _TIMED_ROWS if timed else 0)
            try:
                rows = self._rows(db, query, found.after, count)
                more = len(rows) == count
                for row in rows:
                    self._take(db, query, row, found)
                    found.after = row[0]
                    if len(found.items) == query.limit:
                        break
            except (sqlite3.DatabaseError, _Hidden) as error:
                if not (isinstance(error, _Hidden) or is_damage(error)):
                    raise
                more = self._salvage(db, query, found, count)

    def _rows(self, db: sqlite3.Connection, query: EventQuery, after: int, limit: int) -> list[_Row]:
        """Return the next rows of the wanted types in the order of commits. Raises _Hidden if there should be
        more.

        Times are compared later, when the checksum of a row has shown that its time is what was written.
        """
        where, values, wanted = "seq > ?", [after], query.wanted
        if wanted is not None:
            ids = [number for number, (name, _) in self._types.load(db).items() if wanted(name)]
            where += f" AND type IN ({', '.join('?' * len(ids))})"
            values += ids
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM event WHERE {where} ORDER BY seq LIMIT ?", (*values, limit)
        ).fetchall()
        last = rows[-1][0] if len(rows) == limit else _END
        if any(later[0] <= row[0] for row, later in itertools.pairwise(rows)):
            raise _Hidden
        # Counted where the rows do not come from: of all types by the index of types, of some in the table.
        if wanted is None:
            counted = db.execute(_COUNT, (after, last)).fetchone()[0]
        else:
            statement = f"SELECT count(*) FROM event NOT INDEXED WHERE {where} AND seq <= ?"
            counted = db.execute(statement, (*values, last)).fetchone()[0]
        if counted > len(rows) or (wanted is not None and counted != len(rows)):
            raise _Hidden
        return rows

    def _salvage(self, db: sqlite3.Connection, query: EventQuery, found: _Found, limit: int) -> bool:
        """Take what is left of the next `limit` events, each looked up by itself; whether there may be more.

        Reads the whole index of runs, 90 ms for a million events.
        """
        places = db.execute(_BY_RUNS, (found.after, limit)).fetchall()
        for place in places:
            row = _one_row(db, place)
            try:
                if row is None:
                    raise _Hidden
                self._take(db, query, row, found)
            except _Hidden:
                if not self._is_removed(db, place[1], place[2]):
                    found.damaged.add(self._name(db, place[1]))
            found.after = place[0]
            if len(found.items) == query.limit:
                break
        return len(places) == limit

    def _is_removed(self, db: sqlite3.Connection, run: int, offset: int) -> bool:
        """Return whether this event is hidden from readers: its run was deleted, or trimmed beyond it."""
        if db.execute("SELECT 1 FROM doomed WHERE run = ?", (run,)).fetchone() is not None:
            return True
        row = db.execute("SELECT earliest_offset FROM run WHERE id = ?", (run,)).fetchone()
        return row is not None and offset < row[0]

    def _take(self, db: sqlite3.Connection, query: EventQuery, row: _Row, found: _Found) -> None:
        """Add the event of a row to the page if it is asked for. Raises _Hidden if the row is damaged: then
        its columns, that of the run too, may say anything."""
        _, run, offset, ts, type_id, body, crc, first = row
        try:
            name, seed = self._types.find(db, type_id)
            if event_crc(run, seed, offset, ts, body) != crc:
                raise _Hidden
        except (LogCorrupt, *UNREADABLE):
            raise _Hidden from None
        if offset < first if first is not None else self._is_removed(db, run, offset):
            pass  # trimmed or deleted
        elif not query.takes(name, ts):
            pass
        elif self._is_sound(db, run):
            found.items.append(LoggedEvent(self._names[run], StoredEvent(offset, ts, name, body)))
        else:
            found.damaged.add(self._name(db, run))

    def _is_sound(self, db: sqlite3.Connection, run: int) -> bool:
        """Return whether the record of a run is as it was written; looked at once."""
        if run in self._names:
            return True
        row = db.execute(f"SELECT {RUN_CHECKS} FROM run WHERE id = ?", (run,)).fetchone()
        try:
            if row is None:
                return False
            check_run(row)
        except (LogCorrupt, *UNREADABLE):
            return False
        if len(self._names) > _CHECKED_RUNS:
            self._names.clear()
        self._names[run] = row[1]
        return True

    def _name(self, db: sqlite3.Connection, run: int) -> str:
        """Return the id of a run of which something is damaged, as well as it can be told."""
        known = self._names.get(run)
        if known is not None:
            return known
        for workflow_id in _names_of(db, run):
            if workflow_id.startswith("wf_"):
                return workflow_id
        return f"run {run}, whose id cannot be read"


def _one_row(db: sqlite3.Connection, place: Sequence[int]) -> _Row | None:
    """Return an event by its position; None if it cannot be read."""
    try:
        row = db.execute(f"SELECT {_COLUMNS} FROM event NOT INDEXED WHERE seq = ?", (place[0],)).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return None
    return row if row is not None and (row[1], row[2]) == (place[1], place[2]) else None


def _names_of(db: sqlite3.Connection, run: int) -> Iterator[str]:
    """Return what the record of a run and its events call it; the events have checksums of their own."""
    for statement in (
        "SELECT body FROM event WHERE run = ? ORDER BY offset LIMIT 8",
        "SELECT workflow_id FROM run WHERE id = ?",
    ):
        try:
            for (value,) in db.execute(statement, (run,)):
                yield msgspec.json.decode(value)["workflow_id"] if isinstance(value, bytes) else str(value)
        except UNREADABLE:
            continue
        except (sqlite3.DatabaseError, KeyError):
            continue
