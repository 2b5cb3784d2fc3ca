"""Checksums in the rows: what a disk changed behind SQLite's back is never answered as if it were fine.

SQLite does not see a bit that flips in what a row holds. So each row that answers are made of has a checksum
of what it says, written with it and held against it whenever it is read. What changes with every append (the
last offset of a run, its time) has none, which would cost as much as the append; it is held against the last
event. That all rows can be found is SQLite's own matter: see `integrity`.
"""

from __future__ import annotations

import sqlite3
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from agentflow.errors import LogCorrupt

__all__ = [
    "HINT",
    "PRIME",
    "RUN_CHECKS",
    "add_checks",
    "check_run",
    "check_value",
    "damaged",
    "event_crc",
    "row_crc",
    "seal_run",
    "type_crc",
]

V = TypeVar("V", str, bytes)

HINT = "restore the store from a copy"

PRIME = 4_294_967_291  # the greatest of 32 bits: no flip of one bit in a sum is lost in the remainder

_FIXED = (
    "id, workflow_id, name, definition_hash, labels, created_at, parent, state, epoch, owner, earliest_offset"
)
_LAST = (
    "SELECT ts FROM batch WHERE seq = run.last_seq AND batch.run = run.id"
    " AND first + count - 1 = run.last_offset"
)

RUN_CHECKS = f"{_FIXED}, crc, updated_at, ({_LAST})"
"""Columns of `run` for `check_run`."""


def event_crc(run: int, type_crc: int, offset: int, ts: int, body: bytes) -> int:
    """Return the checksum of an event's row."""
    return crc32(body, (run << 16 ^ type_crc ^ offset ^ ts) % PRIME)


def type_crc(name: str) -> int:
    """Return the checksum of the name of an event type."""
    return crc32(name.encode())


def row_crc(*values: object) -> int:
    """Return the checksum of a row of a small table."""
    return crc32(msgspec.json.encode(values))


def damaged(what: str) -> LogCorrupt:
    """Return the error for a row that is not as it was written."""
    return LogCorrupt(f"{what} is damaged", hint=HINT)


def check_value(what: str, value: V, crc: int) -> V:
    """Return a value that was stored with this checksum. Raises LogCorrupt if it differs."""
    if _value_crc(value) != crc:
        raise damaged(what)
    return value


def _value_crc(value: str | bytes) -> int:
    return crc32(value.encode() if isinstance(value, str) else value)


def check_run(row: tuple[Any, ...]) -> None:
    """Raise LogCorrupt unless the RUN_CHECKS of a run are as they were written and fit its last event."""
    *fixed, crc, updated_at, last_time = row
    if row_crc(*fixed) != crc or updated_at != last_time:
        raise damaged(f"the record of {fixed[1]}")


def seal_run(db: sqlite3.Connection, run: int) -> None:
    """Write the checksum of a run's row, after a change."""
    row = db.execute(f"SELECT {_FIXED} FROM run WHERE id = ?", (run,)).fetchone()
    db.execute("UPDATE run SET crc = ? WHERE id = ?", (row_crc(*row), run))


def add_checks(db: sqlite3.Connection) -> None:
    """Migrate version 2 to 3: add the checksums of all rows. Reads every event, so it may take a while."""
    for table in ("event_type", "event", "run", "definition", "consumer", "tombstone"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER NOT NULL DEFAULT 0")
    db.create_function("type_crc", 1, type_crc, deterministic=True)
    db.create_function("event_crc", 5, event_crc, deterministic=True)
    db.create_function("row_crc", -1, row_crc, deterministic=True)
    db.create_function("crc32", 1, _value_crc)
    for statement in (
        "UPDATE event_type SET crc = type_crc(name)",
        "UPDATE event SET crc = event_crc(run, (SELECT t.crc FROM event_type AS t WHERE t.id = type),"
        " offset, ts, body)",
        f"UPDATE run SET crc = row_crc({_FIXED})",
        "UPDATE definition SET crc = crc32(source)",
        "UPDATE consumer SET crc = crc32(position)",
        "UPDATE tombstone SET crc = row_crc(workflow_id, state, created_at, ended_at, deleted_at)",
    ):
        db.execute(statement)
