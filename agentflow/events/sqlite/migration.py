"""Migration of version 4, which had one row for each event, to version 5: one row a batch.

Events that were committed together have one time and follow each other, so they become one batch again. A
damaged event becomes a batch that is damaged: its run alone is quarantined, as before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib import resources
from typing import Any

from agentflow.events.envelope import StoredEvent
from agentflow.events.packing import pack
from agentflow.events.sqlite.batches import BATCH_COLUMNS, batch_crc, encode_types
from agentflow.events.sqlite.blocks import index_batches
from agentflow.events.sqlite.checks import event_crc

__all__ = ["add_batches", "execute_script"]

_LARGEST = 256  # events of one batch

_Row = tuple[int, int, int, int, int, bytes, int]
"""`seq`, run, offset, time, number of the type, body and checksum of an event."""


def execute_script(db: sqlite3.Connection, name: str) -> None:
    """Execute the statements of a file beside this module, in the transaction that is open."""
    # Not `executescript`, which commits the transaction that it finds.
    for statement in resources.files("agentflow.events.sqlite").joinpath(name).read_text().split(";\n"):
        db.execute(statement)


def add_batches(db: sqlite3.Connection) -> None:
    """Migrate version 4 to 5: make batches of the events. Reads every event: about 15 s for a million."""
    execute_script(db, "batches.sql")
    db.execute("ALTER TABLE run ADD COLUMN last_seq INTEGER NOT NULL DEFAULT 0")
    seeds: dict[int, int] = dict(db.execute("SELECT id, crc FROM event_type"))
    newest: dict[int, int] = {}
    for group in _groups(db, seeds):
        seq, run, first = group[0][:3]
        prev, newest[run] = newest.get(run, 0), seq
        kinds = encode_types([row[4] for row in group])
        packed = pack([StoredEvent(row[2], row[3], "", row[5]) for row in group])
        ts = group[-1][3]
        crc = batch_crc(seq, run, first, len(group), prev, ts, kinds, packed)
        if not _is_intact(group[0], seeds):
            crc ^= 1
        values = (seq, run, first, len(group), prev, ts, kinds, crc, packed)
        db.execute(f"INSERT INTO batch ({BATCH_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    db.executemany("UPDATE run SET last_seq = ? WHERE id = ?", [(seq, run) for run, seq in newest.items()])
    db.execute("DROP TABLE event")
    index_batches(db, gaps=True)


def _groups(db: sqlite3.Connection, seeds: dict[int, int]) -> Iterator[list[_Row]]:
    group: list[_Row] = []
    rows: Any = db.execute("SELECT seq, run, offset, ts, type, body, crc FROM event ORDER BY seq")
    for row in rows:
        if group and not (
            len(group) < _LARGEST
            and (row[0], row[1], row[2], row[3]) == _next_of(group[-1])
            and _is_intact(row, seeds)
            and _is_intact(group[0], seeds)
        ):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _next_of(row: _Row) -> tuple[int, int, int, int]:
    return row[0] + 1, row[1], row[2] + 1, row[3]


def _is_intact(row: _Row, seeds: dict[int, int]) -> bool:
    _, run, offset, ts, number, body, crc = row
    return number in seeds and event_crc(run, seeds[number], offset, ts, body) == crc
