"""The indexes of batches, filled a block at a time and off the path of commits.

A block says which types and times its batches have, so that a query passes over what it does not ask for, and
how many rows there must be, so that one that a damaged page hides is noticed. Only batches in blocks are ever
removed: behind the last block every gap of `seq` is damage.
"""

from __future__ import annotations

import itertools
import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from agentflow.events.packing import VARIED_TIMES, times_of
from agentflow.events.sqlite.batches import decode_types, encode_types, indexed_up_to
from agentflow.events.sqlite.checks import row_crc

__all__ = ["BLOCK_BATCHES", "Block", "block_from", "count_unindexed", "index_batches", "remove_batches"]

BLOCK_BATCHES = 512

# The times of the events of a batch stand in its body, if they differ. A body that is longer than the row
# that batches of one commit share is not inflated for them.
_NEWEST = """
    SELECT seq, run, first, count, ts, types,
        CASE WHEN substr(body, 1, 1) IN (x'02', x'03') AND length(body) < 131072
            THEN body ELSE substr(body, 1, 1) END
    FROM batch WHERE seq >= ? ORDER BY seq LIMIT ?"""
_COLUMNS = "stop, start, batches, types, since, until, crc"
_ALWAYS = (-(1 << 63), (1 << 63) - 1)


class Block(NamedTuple):
    """A row of the table `block`, in the order of its columns."""

    stop: int
    start: int
    batches: int
    types: bytes
    since: int
    until: int
    crc: int

    def is_intact(self) -> bool:
        """Return whether the row is as it was written."""
        return row_crc(*self[:-1]) == self.crc

    def has_types(self, numbers: set[int]) -> bool:
        """Return whether one of its events may be of one of these types."""
        return not numbers.isdisjoint(decode_types(self.types))


def count_unindexed(db: sqlite3.Connection) -> int:
    """Return how many batches lie behind the last block."""
    return db.execute("SELECT count(*) FROM batch WHERE seq >= ?", (indexed_up_to(db),)).fetchone()[0]


def index_batches(db: sqlite3.Connection, *, gaps: bool = False) -> int:
    """Put the batches behind the last block into blocks; return how many. Inside a transaction.

    Ends before a gap, because it must be found as the damage that it is; not with `gaps`, after a migration.
    """
    start, found = indexed_up_to(db), 0
    while rows := db.execute(_NEWEST, (start, BLOCK_BATCHES)).fetchall():
        if not gaps:
            rows = _follow(rows, start)
            if not rows:
                break
        _insert(db, start or rows[0][0], rows)
        start, found = rows[-1][0] + rows[-1][3], found + len(rows)
    return found


def _follow(rows: list[Any], start: int) -> list[Any]:
    """Return the rows up to the first gap."""
    if start and rows[0][0] != start:
        return []
    for place, (row, later) in enumerate(itertools.pairwise(rows), start=1):
        if row[0] + row[3] != later[0]:
            return rows[:place]
    return rows


def _insert(db: sqlite3.Connection, start: int, rows: Sequence[Any]) -> None:
    types = {number for kinds in {row[5] for row in rows} for number in decode_types(kinds)}
    times = [_times_of(row[4], row[6]) for row in rows]
    since, until = min(since for since, _ in times), max(until for _, until in times)
    _write(db, (rows[-1][0] + rows[-1][3], start, len(rows), encode_types(sorted(types)), since, until))
    db.executemany(
        "INSERT OR REPLACE INTO place (run, first, seq) VALUES (?, ?, ?)",
        [(run, first, seq) for seq, run, first, *_ in rows],
    )


def _times_of(ts: int, body: bytes) -> tuple[int, int]:
    """Return the earliest and the latest time of a batch; all time if that cannot be told."""
    if not body[0] & VARIED_TIMES:
        return ts, ts
    return (times_of(body) or _ALWAYS) if len(body) > 1 else _ALWAYS


def _write(db: sqlite3.Connection, values: tuple[Any, ...]) -> None:
    db.execute(
        f"INSERT OR REPLACE INTO block ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, row_crc(*values))
    )


def block_from(db: sqlite3.Connection, seq: int) -> Block | None:
    """Return the block that holds this `seq`, else the next one; None behind the last block."""
    row = db.execute(f"SELECT {_COLUMNS} FROM block WHERE stop > ? ORDER BY stop LIMIT 1", (seq,)).fetchone()
    return None if row is None else Block(*row)


def remove_batches(db: sqlite3.Connection, places: Sequence[tuple[int, int, int]]) -> None:
    """Remove the batches at these places (run, first offset, `seq`), which stand in blocks."""
    if not places:
        return
    seqs = sorted(seq for _, _, seq in places)
    marks = ", ".join("?" * len(seqs))
    there = [seq for (seq,) in db.execute(f"SELECT seq FROM batch WHERE seq IN ({marks}) ORDER BY seq", seqs)]
    db.executemany("DELETE FROM place WHERE run = ? AND first = ?", [place[:2] for place in places])
    db.execute(f"DELETE FROM batch WHERE seq IN ({marks})", seqs)
    while there:
        block = block_from(db, there[0])
        if block is None:
            return
        count = bisect_left(there, block.stop)
        if block.is_intact():  # a damaged one is not made to look sound
            _write(db, (*block[:2], block.batches - count, *block[3:6]))
        del there[:count]
