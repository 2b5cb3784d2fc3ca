"""From rows of the tables `run` and `tombstone` to values: each is checked against its checksum."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.owner import Owner
from agentflow.events.rows import RunRow
from agentflow.events.rules import no_run
from agentflow.events.sqlite.checks import HINT, RUN_CHECKS, check_run, damaged, row_crc
from agentflow.events.tombstone import Tombstone

__all__ = [
    "CREATED_AT",
    "RUN_COLUMNS",
    "RUN_ID",
    "UNREADABLE",
    "WORKFLOW_ID",
    "find_rows",
    "find_run",
    "is_damage",
    "run_row",
    "run_with_id",
    "tombstone",
]

RUN_COLUMNS = f"{RUN_CHECKS}, last_offset, bytes"
RUN_ID, WORKFLOW_ID, CREATED_AT = 0, 1, 5
"""Places of RUN_COLUMNS."""
_CHECKED = 14  # columns, the first

UNREADABLE = (msgspec.DecodeError, AttributeError, TypeError, UnicodeError)
"""What a row that is not as it was written may lead to before its checksum is looked at."""

_labels_decoder = msgspec.json.Decoder(dict[str, str])
_owner_decoder = msgspec.json.Decoder(Owner)


def is_damage(error: Exception) -> bool:
    """Return whether SQLite says that what it reads is not a database's page."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_MISMATCH"))


def find_run(db: sqlite3.Connection, workflow_id: str) -> tuple[int, RunRow]:
    """Return a run and the number that stands for it. Raises RunNotFound, RunGone or LogCorrupt."""
    rows = _select(db, "= ?", (workflow_id,))
    if not rows:
        raise no_run(workflow_id, tombstone(db, workflow_id))
    return run_with_id(rows[0])


def _select(db: sqlite3.Connection, where: str, workflow_ids: Sequence[str]) -> list[tuple[Any, ...]]:
    try:
        return db.execute(f"SELECT {RUN_COLUMNS} FROM run WHERE workflow_id {where}", workflow_ids).fetchall()
    except sqlite3.OperationalError as error:
        if "UTF-8" not in str(error):
            raise
        raise LogCorrupt(f"the record of a run cannot be read: {error}", hint=HINT) from error


def run_with_id(row: tuple[Any, ...]) -> tuple[int, RunRow]:
    """Return the number that stands for a run, and the run, of its RUN_COLUMNS. Raises LogCorrupt."""
    return row[RUN_ID], run_row(row)


def find_rows(db: sqlite3.Connection, workflow_ids: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the RUN_COLUMNS of these runs, as far as they are found under their ids."""
    rows = _select(db, f"IN ({', '.join('?' * len(workflow_ids))})", workflow_ids)
    return {row[WORKFLOW_ID]: row for row in rows}


def tombstone(db: sqlite3.Connection, workflow_id: str) -> Tombstone | None:
    """Return what is left of a run, if it was deleted. Raises LogCorrupt."""
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


def run_row(row: tuple[Any, ...]) -> RunRow:
    """Return the RUN_COLUMNS of a run as a value. Raises LogCorrupt."""
    try:
        check_run(row[:_CHECKED])
        return RunRow(
            workflow_id=row[1],
            name=row[2],
            definition_hash=row[3],
            state=row[7],
            labels=_labels_decoder.decode(row[4]),
            created_at=row[5],
            updated_at=row[12],
            last_offset=row[14],
            epoch=row[8],
            owner=None if row[9] is None else _owner_decoder.decode(row[9]),
            parent=row[6],
            earliest_offset=row[10],
            bytes=row[15],
        )
    except UNREADABLE as error:
        raise LogCorrupt(f"the record of {row[WORKFLOW_ID]} is damaged: {error}") from error
