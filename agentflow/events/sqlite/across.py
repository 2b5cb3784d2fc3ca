"""Events of all runs in the order of their commits: complete, or with the names of the runs that have lost
something (page 000 §7).

A damaged page of the database may hide rows without any error. So where numbers are missing, the rows of the
block are counted against the number that stands in it, in another page; behind the last block no number may
be missing. Where the two differ, SQLite finds the damage itself, or a checksum is wrong, the batches are
looked up one by one, by where they should be. A reader gets all that is intact, behind the damage too, and is
told which runs have lost something.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.base import EventQuery
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.rows import LoggedEvent, Page
from agentflow.events.sqlite.batches import BATCH_COLUMNS, Batch, decode_types, indexed_up_to
from agentflow.events.sqlite.blocks import Block, block_from
from agentflow.events.sqlite.checks import RUN_CHECKS, check_run
from agentflow.events.sqlite.event_types import EventTypes
from agentflow.events.sqlite.run_rows import UNREADABLE, is_damage

__all__ = ["EventsOfAllRuns"]

_CHECKED_RUNS = 100_000
_END = (1 << 63) - 1

_BATCHES = f"""
    SELECT {BATCH_COLUMNS} FROM batch
    WHERE seq >= coalesce((SELECT max(seq) FROM batch WHERE seq <= ?1), 0) AND seq < ?2 ORDER BY seq"""
_STOP = "SELECT seq + count FROM batch ORDER BY seq DESC LIMIT 1"
_ONE = f"SELECT {BATCH_COLUMNS} FROM batch NOT INDEXED WHERE seq = ?"
_Place = tuple[int, int, int]
"""`seq`, run and first offset of a batch that must be there; an offset of -1: it is not known."""


class _Hidden(Exception):
    """The table shows fewer batches than there are, or one that is damaged."""


class _Found:
    """A page that is being collected: events, damaged runs, and the last event that was looked at."""

    def __init__(self, query: EventQuery, numbers: set[int] | None) -> None:
        self.query = query
        self.numbers = numbers
        self.items: list[LoggedEvent] = []
        self.damaged: set[str] = set()
        self.after = 0 if query.cursor is None else decode_cursor(query.cursor, tuple[int])[0]

    @property
    def full(self) -> bool:
        return len(self.items) >= self.query.limit

    def skips(self, block: Block) -> bool:
        """Return whether no event of the block is asked for."""
        query = self.query
        return (
            (query.since is not None and block.until < query.since)
            or (query.until is not None and block.since >= query.until)
            or (self.numbers is not None and not block.has_types(self.numbers))
        )


class EventsOfAllRuns:
    """Answers queries of one store. `page` may run in several threads, each with a connection of its own."""

    def __init__(self, types: EventTypes) -> None:
        self._types = types
        self._names: dict[int, str] = {}  # of runs whose record was checked
        self._end_checked = False

    def page(self, db: sqlite3.Connection, query: EventQuery) -> Page[LoggedEvent]:
        """Return a page of events. Raises LogCorrupt if it cannot be told what is missing."""
        db.execute("BEGIN")  # one state of the store for all statements
        try:
            wanted = query.wanted
            numbers = None
            if wanted is not None:
                numbers = {number for number, (name, _) in self._types.load(db).items() if wanted(name)}
            found = _Found(query, numbers)
            self._collect(db, found)
        finally:
            db.execute("ROLLBACK")
        return Page(found.items, encode_cursor(found.after), tuple(sorted(found.damaged)))

    def newest(self, query: EventQuery, db: sqlite3.Connection, stop: int) -> Page[LoggedEvent] | None:
        """Return the newest events, of all types; None if the last batch does not end at `stop`, or some of
        them are in a block or cannot be read."""
        found = _Found(query, None)
        try:
            db.execute("BEGIN")
            try:
                if found.after + 1 < indexed_up_to(db) or db.execute(_STOP).fetchone() != (stop,):
                    return None
                self._scan(db, found, None, stop)
            finally:
                db.execute("ROLLBACK")
        except (sqlite3.DatabaseError, _Hidden):
            return None
        return None if found.damaged else Page(found.items, encode_cursor(found.after), ())

    def _collect(self, db: sqlite3.Connection, found: _Found) -> None:
        block: Block | None = None
        behind = indexed_up_to(db)
        while not found.full and found.after + 1 < behind:
            block = block_from(db, found.after + 1)
            stop = behind if block is None else block.stop
            if block is None or not block.is_intact() or block.start > found.after + 1 > 1:
                block = None  # blocks follow each other, so one is missing or damaged
            elif found.skips(block):
                found.after = stop - 1
                continue
            self._read_up_to(db, found, block, stop)
        if not found.full:
            self._read_up_to(db, found, None, _END)

    def _read_up_to(self, db: sqlite3.Connection, found: _Found, block: Block | None, stop: int) -> None:
        """Take what is asked for before `stop`: all of it, or as much as the page takes."""
        try:
            self._scan(db, found, block, stop)
        except (sqlite3.DatabaseError, _Hidden) as error:
            if not (isinstance(error, _Hidden) or is_damage(error)):
                raise
            self._salvage(db, found, stop)

    def _scan(self, db: sqlite3.Connection, found: _Found, block: Block | None, stop: int) -> None:
        """Raises _Hidden where a batch is missing or damaged; what is before it was taken."""
        due, counted = found.after + 1, False
        for row in db.execute(_BATCHES, (due, stop)):
            batch = Batch(*row)
            if batch.stop <= due:
                continue  # the last one before; it may have been removed, or end there
            if batch.seq > due and not counted:
                self._count(db, block)
                counted = True
            if not batch.is_intact():
                raise _Hidden
            self._take(db, found, batch)
            due = found.after + 1
            if found.full:
                return
        if stop != _END:
            if due < stop and not counted:
                self._count(db, block)
            found.after = stop - 1
        elif not self._end_checked:
            newest = db.execute("SELECT max(last_seq) FROM run").fetchone()[0]
            if newest is not None and newest >= due:
                raise _Hidden
            self._end_checked = True

    def _count(self, db: sqlite3.Connection, block: Block | None) -> None:
        """Raise _Hidden unless a gap is what retention has left."""
        if block is None:
            raise _Hidden
        rows = db.execute("SELECT count(*) FROM batch WHERE seq >= ? AND seq < ?", (block.start, block.stop))
        if rows.fetchone()[0] != block.batches:
            raise _Hidden

    def _take(self, db: sqlite3.Connection, found: _Found, batch: Batch) -> None:
        """Add the events of an intact batch that are asked for. Raises _Hidden if they cannot be read."""
        query, last = found.query, batch.stop - 1
        row = db.execute("SELECT earliest_offset FROM run WHERE id = ?", (batch.run,)).fetchone()
        if self._is_removed(db, batch.run, batch.first + batch.size, row):
            found.after = last
            return
        try:
            if found.numbers is None or not found.numbers.isdisjoint(decode_types(batch.types)):
                events = batch.events(db, self._types)
            else:
                events = []
        except (LogCorrupt, *UNREADABLE):
            raise _Hidden from None
        earliest = 0 if row is None else row[0]
        for number, event in enumerate(events, start=batch.seq):
            if number <= found.after or event.offset < earliest or not query.takes(event.type, event.ts):
                continue
            if not self._is_sound(db, batch.run):
                found.damaged.add(self._name(db, batch.run))
                break
            found.items.append(LoggedEvent(self._names[batch.run], event))
            if found.full:
                found.after = number
                return
        found.after = last

    def _salvage(self, db: sqlite3.Connection, found: _Found, stop: int) -> None:
        """Take what is left before `stop`, each batch looked up by itself.

        Reads the whole table of places, about 30 ms for a million events.
        """
        for seq, run, first in self._places(db, found.after + 1, stop):
            batch = _one(db, seq, run)
            try:
                if batch is None:
                    raise _Hidden
                self._take(db, found, batch)
            except _Hidden:
                if not self._is_hidden(db, run, first):
                    found.damaged.add(self._name(db, run))
                found.after = max(found.after, seq)
            if found.full:
                return
        if stop != _END:
            found.after = max(found.after, stop - 1)

    def _places(self, db: sqlite3.Connection, start: int, stop: int) -> list[_Place]:
        """Return the batches that must be there from the one that holds `start` on, before `stop`."""
        before = "coalesce((SELECT max(seq) FROM place WHERE +seq <= ?1), 0)"
        places: set[_Place] = set(
            db.execute(
                f"SELECT seq, run, first FROM place WHERE +seq >= {before} AND +seq < ?2", (start, stop)
            )
        )
        known = {seq for seq, _, _ in places}
        for run, last_seq in db.execute(
            "SELECT id, last_seq FROM run WHERE last_seq >= ?", (start,)
        ).fetchall():
            places |= {place for place in _chain(db, run, last_seq, start) if place[0] not in known}
        return sorted(place for place in places if place[0] < stop)

    def _is_removed(self, db: sqlite3.Connection, run: int, behind: int, row: Any) -> bool:
        """Return whether the events of a batch are hidden from readers: its run was deleted, or trimmed up to
        the offset `behind` them."""
        if row is not None:
            return behind <= row[0]
        return db.execute("SELECT 1 FROM doomed WHERE run = ?", (run,)).fetchone() is not None

    def _is_hidden(self, db: sqlite3.Connection, run: int, first: int) -> bool:
        """Return `_is_removed` of a batch that cannot be read: it ends where the next one begins."""
        row = db.execute("SELECT earliest_offset FROM run WHERE id = ?", (run,)).fetchone()
        later = db.execute(
            "SELECT min(first) FROM place WHERE run = ? AND first > ?", (run, first)
        ).fetchone()
        return self._is_removed(db, run, _END if later[0] is None or first < 0 else later[0], row)

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
        for workflow_id in self._names_of(db, run):
            if workflow_id.startswith("wf_"):
                return workflow_id
        return f"run {run}, whose id cannot be read"

    def _names_of(self, db: sqlite3.Connection, run: int) -> Iterator[str]:
        """Yield what the events of a run and its record call it; the events have checksums of their own."""
        try:
            for (seq,) in db.execute("SELECT seq FROM place WHERE run = ? ORDER BY first LIMIT 8", (run,)):
                batch = _one(db, seq, run)
                if batch is not None and batch.is_intact():
                    yield msgspec.json.decode(batch.events(db, self._types)[0].body)["workflow_id"]
        except (sqlite3.DatabaseError, LogCorrupt, KeyError, *UNREADABLE):
            pass
        try:
            for (value,) in db.execute("SELECT workflow_id FROM run WHERE id = ?", (run,)):
                yield str(value)
        except (sqlite3.DatabaseError, *UNREADABLE):
            pass


def _one(db: sqlite3.Connection, seq: int, run: int) -> Batch | None:
    """Return a batch by its place; None if it cannot be read or is damaged."""
    try:
        row = db.execute(_ONE, (seq,)).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return None
    batch = None if row is None else Batch(*row)
    return batch if batch is not None and batch.run == run and batch.is_intact() else None


def _chain(db: sqlite3.Connection, run: int, last_seq: int, start: int) -> Iterator[_Place]:
    """Yield the batches of a run from its last one back to the one that holds `start`; ends with one that is
    missing."""
    seq = last_seq
    while seq >= start:
        batch = _one(db, seq, run)
        yield seq, run, -1 if batch is None else batch.first
        if batch is None:
            return
        seq = batch.prev
