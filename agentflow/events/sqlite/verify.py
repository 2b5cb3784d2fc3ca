"""A check of a whole SQLite store, also while a daemon writes to it.

Rows are checked against their checksums in ranges, each a short read of its own; then SQLite checks the
pages of one table after the other. A reader never holds a writer up in WAL mode; while SQLite checks the
largest table (4 ms a MB), the write-ahead log alone grows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

from agentflow.errors import AgentflowError, LogCorrupt
from agentflow.events.base import EventQuery
from agentflow.events.blobs import blob_hash
from agentflow.events.sqlite.across import EventsOfAllRuns
from agentflow.events.sqlite.batches import batches_of
from agentflow.events.sqlite.checks import row_crc
from agentflow.events.sqlite.event_types import EventTypes
from agentflow.events.sqlite.readonly import open_read_only
from agentflow.events.sqlite.run_rows import RUN_COLUMNS, UNREADABLE, is_damage, run_row
from agentflow.events.verification import DamagedRun, Progress, Verified

__all__ = ["verify_file"]

_EVENTS = 2_000  # read at a time
_RUNS = 500

_NEXT_RUNS = "SELECT id, workflow_id FROM run NOT INDEXED WHERE id > ? ORDER BY id LIMIT ?"
# The text of a run's document is kept only if it was registered; its graph is kept always, and checked.
_MISSING = (
    "SELECT DISTINCT name FROM reference WHERE name LIKE 'sha256:%'"
    " AND name NOT IN (SELECT name FROM blob) AND name NOT IN (SELECT hash FROM definition)"
    " AND name IS NOT (SELECT definition_hash FROM run WHERE run.id = reference.run)"
)


def _is_blob(name: str, body: bytes) -> bool:
    return blob_hash(body) == name


def _is_definition(hash: str, source: bytes, crc: int) -> bool:
    return crc32(source) == crc


def _is_position(name: str, position: str, crc: int) -> bool:
    return crc32(position.encode()) == crc


def _is_tombstone(*values: object) -> bool:
    return row_crc(*values[:-1]) == values[-1]


_CHECKS: tuple[tuple[str, str, Callable[..., bool]], ...] = (
    ("blob", "SELECT name, body FROM blob", _is_blob),
    ("definition", "SELECT hash, source, crc FROM definition", _is_definition),
    ("position of", "SELECT name, position, crc FROM consumer", _is_position),
    (
        "record of the deleted run",
        "SELECT workflow_id, state, created_at, ended_at, deleted_at, crc FROM tombstone",
        _is_tombstone,
    ),
)


def verify_file(path: Path, progress: Progress = lambda events: None) -> Verified:
    """Check the store `path`; blocks, for about a second each 100 MB.

    Raises ConfigurationError if there is none, StoreError if it cannot be opened.
    """
    db, _ = open_read_only(path)
    with closing(db):
        check = _Check(db)
        for step in (check.runs, lambda: check.events(progress), check.rest, check.pages):
            check.attempt(step)
        return Verified(
            store=f"sqlite:{path}",
            runs=check.run_count,
            events=check.event_count,
            damaged=[DamagedRun(workflow_id=id, problem=text) for id, text in sorted(check.damaged.items())],
            problems=check.problems,
        )


class _Check:
    """What is found while a store is read."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.run_count = self.event_count = 0
        self.damaged: dict[str, str] = {}
        self.problems: list[str] = []

    def attempt(self, step: Callable[[], None]) -> None:
        """Run a step; where it cannot go on for damage, the others still can."""
        try:
            step()
        except LogCorrupt as error:
            self.problems.append(str(error))
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.problems.append(f"the database is damaged: {error}")

    def runs(self) -> None:
        """Check the record of each run and that none of its events is missing from its list."""
        last = 0
        while rows := self._runs_after(last):
            for number, workflow_id in rows:
                self.run_count += 1
                try:
                    self._check_run(number)
                except AgentflowError as error:
                    self.damaged[str(workflow_id)] = str(error)
                last = number

    def _runs_after(self, number: int) -> list[tuple[Any, ...]]:
        return self._db.execute(_NEXT_RUNS, (number, _RUNS)).fetchall()

    def _check_run(self, number: int) -> None:
        self._db.execute("BEGIN")  # it may be trimmed or deleted meanwhile
        try:
            now = self._db.execute(
                f"SELECT {RUN_COLUMNS}, last_seq FROM run WHERE id = ?", (number,)
            ).fetchone()
            if now is None:
                return
            row = run_row(now[:-1])
            for _ in batches_of(self._db, number, row.earliest_offset, now[-1], row.last_offset):
                pass
        finally:
            self._db.execute("ROLLBACK")

    def events(self, progress: Progress) -> None:
        """Check every event against its checksum, in ranges."""
        across, cursor = EventsOfAllRuns(EventTypes()), None
        while True:
            query = EventQuery(wanted=None, since=None, until=None, cursor=cursor, limit=_EVENTS)
            page = across.page(self._db, query)
            for workflow_id in page.damaged:
                self.damaged.setdefault(workflow_id, "an event is damaged or missing")
            self.event_count += len(page.items)
            progress(self.event_count)
            if len(page.items) < _EVENTS and page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    def rest(self) -> None:
        """Check what runs name, and what else is kept."""
        for what, statement, is_whole in _CHECKS:
            for row in self._rows(statement):
                try:
                    whole = is_whole(*row)
                except UNREADABLE:
                    whole = False
                if not whole:
                    self.problems.append(f"the {what} {row[0]} is damaged")
        for (name,) in self._rows(_MISSING):
            self.problems.append(f"{name} is named by a run and is not there")

    def _rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        # Fetched in parts, so that a store of large blobs needs no memory for all of them.
        with closing(self._db.execute(statement)) as found:
            yield from found

    def pages(self) -> None:
        """Let SQLite check the pages and indexes, table by table."""
        tables = self._db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
        for (table,) in tables.fetchall():
            found: str = self._db.execute(f"PRAGMA integrity_check('{table}')").fetchone()[0]
            if found != "ok":
                self.problems.append(f"table {table}: {found}")
