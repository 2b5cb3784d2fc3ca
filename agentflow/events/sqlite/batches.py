"""Rows of the table `batch`: their checksums, their events, and how the batches of one run are found.

The newest batches of a run are found by their chain, from `run.last_seq` backwards; the older ones by the
table `place`, which is filled a block at a time, off the path of commits. Nothing here writes.
"""

from __future__ import annotations

import itertools
import sqlite3
import zlib
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.blobs import blob_hash
from agentflow.events.envelope import StoredEvent
from agentflow.events.packing import text_of, unpack
from agentflow.events.sqlite.checks import PRIME, damaged
from agentflow.events.sqlite.event_types import EventTypes

__all__ = [
    "BATCH_COLUMNS",
    "Batch",
    "batch_crc",
    "batches_of",
    "decode_types",
    "encode_types",
    "find_blob",
    "indexed_up_to",
]

BATCH_COLUMNS = "seq, run, first, count, prev, ts, types, crc, body"

_CHAIN = """
    WITH RECURSIVE chain (seq, first, prev) AS (
        SELECT seq, first, prev FROM batch WHERE seq = ?2 AND run = ?1
        UNION ALL
        SELECT batch.seq, batch.first, batch.prev FROM chain JOIN batch ON batch.seq = chain.prev
        WHERE chain.first > ?3 AND chain.prev >= ?4 AND batch.run = ?1
    )
    SELECT seq, first FROM chain"""
_PLACES = """
    SELECT seq FROM place
    WHERE run = ?1 AND seq < ?3
        AND first >= coalesce((SELECT max(first) FROM place WHERE run = ?1 AND first <= ?2), 0)
    ORDER BY first"""

_ONE = f"SELECT {BATCH_COLUMNS} FROM batch WHERE seq = ?"
_FIRST_CHUNK, _LARGEST_CHUNK = 8, 64  # rows of one statement

_types_encoder = msgspec.msgpack.Encoder()
_types_decoder = msgspec.msgpack.Decoder(list[int])


def encode_types(numbers: list[int]) -> bytes:
    """Return the column `types`."""
    return _types_encoder.encode(numbers)


def decode_types(types: bytes) -> list[int]:
    """Return the numbers in the column `types`. Raises msgspec.DecodeError."""
    return _types_decoder.decode(types)


def batch_crc(
    seq: int, run: int, first: int, count: int, prev: int, ts: int, types: bytes, body: bytes
) -> int:
    """Return the checksum of a row."""
    places = seq << 40 ^ run << 20 ^ first ^ count << 60 ^ prev << 80 ^ ts << 3
    return crc32(body, crc32(types, places % PRIME))


class Batch(NamedTuple):
    """A row, in the order of BATCH_COLUMNS."""

    seq: int
    run: int
    first: int
    size: int
    """Number of its events."""
    prev: int
    ts: int
    types: bytes
    crc: int
    body: bytes

    @property
    def stop(self) -> int:
        """The `seq` behind its last event."""
        return self.seq + self.size

    def is_intact(self) -> bool:
        """Return whether the row is as it was written."""
        seq, run, first, size, prev, ts, types, crc, body = self
        return batch_crc(seq, run, first, size, prev, ts, types, body) == crc

    def events(self, db: sqlite3.Connection, known: EventTypes) -> list[StoredEvent]:
        """Return its events. Raises LogCorrupt if they cannot be made of it and what it names."""
        try:
            types = [known.find(db, number)[0] for number in decode_types(self.types)]
            return unpack(
                self.body,
                self.first,
                self.ts,
                types,
                text_of=lambda seq: _text_of(db, seq, self.run),
                blob_of=lambda name: _blob(db, name),
            )
        except (msgspec.DecodeError, zlib.error, IndexError, ValueError) as error:
            raise LogCorrupt(f"a batch at offset {self.first} cannot be read: {error}") from error


def _text_of(db: sqlite3.Connection, seq: int, run: int) -> bytes:
    row = db.execute(_ONE, (seq,)).fetchone()
    batch = None if row is None else Batch(*row)
    if batch is None or batch.run != run or not batch.is_intact():
        raise damaged(f"the batch {seq}, which holds values of a later one,")
    return text_of(batch.body)


def _blob(db: sqlite3.Connection, name: str) -> bytes:
    data = find_blob(db, name)
    if data is None:
        raise damaged(f"{name}, which an event names,")
    return data


def find_blob(db: sqlite3.Connection, name: str) -> bytes | None:
    """Return a blob, or None. Raises LogCorrupt if it is not as it was written: its name is its checksum."""
    row = db.execute("SELECT body FROM blob WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    if not isinstance(row[0], bytes) or blob_hash(row[0]) != name:
        raise damaged(f"blob {name}")
    return row[0]


def indexed_up_to(db: sqlite3.Connection) -> int:
    """Return the `seq` from which on batches are not in `place` yet."""
    row = db.execute("SELECT max(stop) FROM block").fetchone()
    return row[0] or 0


def batches_of(
    db: sqlite3.Connection, run: int, start: int, last_seq: int, last_offset: int
) -> Iterator[Batch]:
    """Yield the batches of a run from the one that holds offset `start` on, in order: all of them, each as it
    was written, inside a transaction. Raises LogCorrupt where that is not so, behind those that are.
    """
    due = None
    places = _places_of(db, run, start, last_seq)
    size = _FIRST_CHUNK
    while chunk := list(itertools.islice(places, size)):
        size = min(2 * size, _LARGEST_CHUNK)
        for batch in _rows(db, chunk):
            if (
                not batch.is_intact()
                or batch.run != run
                or (batch.first > start if due is None else batch.first != due)
            ):
                raise damaged(f"the batch at offset {batch.first}")
            due = batch.first + batch.size
            yield batch
    if due != last_offset + 1:
        raise damaged(f"the list of the batches of run {run}")


def _places_of(db: sqlite3.Connection, run: int, start: int, last_seq: int) -> Iterator[int]:
    """Yield the `seq` of each batch of a run from the one that holds offset `start` on."""
    newest = db.execute(_CHAIN, (run, last_seq, start, indexed_up_to(db))).fetchall()
    newest.reverse()
    if not newest or newest[0][1] > start:
        for (seq,) in db.execute(_PLACES, (run, start, newest[0][0] if newest else 1 << 62)):
            yield seq
    for seq, _ in newest:
        yield seq


def _rows(db: sqlite3.Connection, seqs: list[int]) -> Iterator[Batch]:
    marks = ", ".join("?" * len(seqs))
    rows = db.execute(f"SELECT {BATCH_COLUMNS} FROM batch WHERE seq IN ({marks}) ORDER BY seq", seqs)
    return map(Batch._make, rows)
