"""Calls to the store beside appends: each function runs inside the writer's transaction.

They run in the writing thread, behind every batch that was submitted before them. An AgentflowError is the
answer to its caller alone, so it is raised before anything is written.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec

from agentflow.errors import AgentflowError, RunGone, RunNotFound
from agentflow.events.blobs import blob_hash
from agentflow.events.envelope import StoredEvent
from agentflow.events.owner import Owner, next_epoch, this_process
from agentflow.events.owner_locks import OwnerLocks
from agentflow.events.packing import pack, sources_of
from agentflow.events.references import names_in
from agentflow.events.rows import FIRST_EPOCH
from agentflow.events.rules import check_removable, first_kept, tombstone_of
from agentflow.events.sqlite.batches import Batch, batch_crc, batches_of, find_blob
from agentflow.events.sqlite.bulk import Bulk
from agentflow.events.sqlite.checks import check_value, row_crc, seal_run
from agentflow.events.sqlite.event_types import EventTypes
from agentflow.events.sqlite.run_rows import find_rows, find_run, run_with_id
from agentflow.events.tombstone import Tombstone

__all__ = [
    "claim",
    "count_runs",
    "cursors",
    "delete",
    "delete_all",
    "drop_cursor",
    "get_blob",
    "get_definition",
    "insert_blob",
    "load_cursor",
    "probe",
    "put_blob",
    "put_definition",
    "put_snapshot",
    "register",
    "release",
    "save_cursor",
    "trim",
]

_INSERT_TOMBSTONES = Bulk("INSERT INTO tombstone VALUES", 6)
_INSERT_DOOMED = Bulk("INSERT INTO doomed (run) VALUES", 1)
_DELETE_RUNS = tuple(
    Bulk(f"DELETE FROM {table} WHERE {column} IN (VALUES", 1, ")")
    for table, column in (("run", "id"), ("reference", "run"), ("snapshot", "run"))
)


def put_blob(db: sqlite3.Connection, data: bytes) -> str:
    """Implement `EventLog.put_blob`."""
    name = blob_hash(data)
    insert_blob(db, name, data)
    inner = [(name, each) for each in names_in(data)]
    db.executemany("INSERT OR IGNORE INTO inner_reference (blob, name) VALUES (?, ?)", inner)
    _stamp(db, name)
    return name


def insert_blob(db: sqlite3.Connection, name: str, data: bytes) -> None:
    """Store a blob; one that is there is written again only if the disk has changed it."""
    db.execute(
        "INSERT INTO blob (name, body) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET body = excluded.body WHERE body IS NOT excluded.body",
        (name, data),
    )


def put_definition(db: sqlite3.Connection, hash: str, source: bytes) -> None:
    """Implement `EventLog.put_definition`."""
    db.execute(
        "INSERT OR IGNORE INTO definition (hash, source, crc) VALUES (?, ?, ?)", (hash, source, crc32(source))
    )
    _stamp(db, hash)


def _stamp(db: sqlite3.Connection, name: str) -> None:
    db.execute("INSERT OR REPLACE INTO stored (name, at) VALUES (?, ?)", (name, _now()))


def _now() -> int:
    return time.time_ns() // 1000


def count_runs(db: sqlite3.Connection) -> dict[str, int]:
    """Implement `EventLog.count_runs`."""
    return dict(db.execute("SELECT state, count(*) FROM run GROUP BY state").fetchall())


def save_cursor(db: sqlite3.Connection, consumer: str, cursor: str) -> None:
    """Implement `EventLog.save_cursor`."""
    db.execute(
        "INSERT OR REPLACE INTO consumer (name, position, crc) VALUES (?, ?, ?)",
        (consumer, cursor, crc32(cursor.encode())),
    )


def drop_cursor(db: sqlite3.Connection, consumer: str) -> None:
    """Implement `EventLog.drop_cursor`."""
    db.execute("DELETE FROM consumer WHERE name = ?", (consumer,))


def cursors(db: sqlite3.Connection, prefix: str) -> dict[str, str]:
    """Implement `EventLog.cursors`."""
    found = db.execute(
        "SELECT name, position, crc FROM consumer WHERE substr(name, 1, ?) = ?", (len(prefix), prefix)
    ).fetchall()
    return {name: check_value(f"the position of {name}", position, crc) for name, position, crc in found}


def put_snapshot(db: sqlite3.Connection, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
    """Implement `EventLog.put_snapshot`."""
    db.execute(
        "INSERT OR REPLACE INTO snapshot (run, kind, offset, crc, body) VALUES (?, ?, ?, ?, ?)",
        (find_run(db, workflow_id)[0], kind, offset, crc32(data), data),
    )


def register(db: sqlite3.Connection, owner: Owner, locks: OwnerLocks) -> None:
    """Implement `EventLog.register`. The kernel gives the lock up however the process ends, so that it is a
    lease without a clock; another incarnation has another lock."""
    if owner.lock and owner.lock == this_process().lock:
        locks.hold(owner.lock)


def claim(db: sqlite3.Connection, workflow_id: str, owner: Owner, locks: OwnerLocks) -> int:
    """Implement `EventLog.claim`. The lock of this process is held before the row says so."""
    try:
        run, row = find_run(db, workflow_id)
    except RunNotFound:
        return FIRST_EPOCH
    alive = row.owner is not None and row.owner != owner and locks.is_alive(row.owner, remove=True)
    epoch = next_epoch(workflow_id, row.epoch, row.owner, owner, alive)
    if owner.lock and owner.lock == this_process().lock:
        locks.hold(owner.lock)
    db.execute(
        "UPDATE run SET epoch = ?, owner = ? WHERE id = ?",
        (epoch, msgspec.json.encode(owner).decode(), run),
    )
    seal_run(db, run)
    return epoch


def release(db: sqlite3.Connection, workflow_id: str, owner: Owner) -> None:
    """Implement `EventLog.release`."""
    try:
        run, row = find_run(db, workflow_id)
    except (RunNotFound, RunGone):
        return
    if row.owner == owner:
        db.execute("UPDATE run SET owner = NULL WHERE id = ?", (run,))
        seal_run(db, run)


def trim(db: sqlite3.Connection, workflow_id: str, before: int) -> int:
    """Implement `EventLog.trim`: the events are hidden from now on; `sweep` frees their space."""
    run, row = find_run(db, workflow_id)
    check_removable(workflow_id, row.state, row.ended)
    earliest = first_kept(row.earliest_offset, row.last_offset, before)
    if earliest == row.earliest_offset:
        return earliest
    names, size = {row.definition_hash}, 0
    batches = list(_kept_batches(db, run, earliest, row.last_offset))
    for batch, events in batches:
        names.update(blob.name for event in events for blob in event.blobs)  # it is read as a whole
        for event in events[max(earliest - batch.first, 0) :]:
            names |= names_in(event.text)
            size += event.size
    for (body,) in db.execute("SELECT body FROM snapshot WHERE run = ?", (run,)):
        names |= names_in(body)
    _make_self_contained(db, batches)
    db.execute("UPDATE run SET earliest_offset = ?, bytes = ? WHERE id = ?", (earliest, size, run))
    seal_run(db, run)
    db.execute("DELETE FROM reference WHERE run = ?", (run,))
    db.executemany("INSERT INTO reference (run, name) VALUES (?, ?)", [(run, name) for name in names])
    return earliest


_Read = tuple[Batch, list[StoredEvent]]


def _kept_batches(db: sqlite3.Connection, run: int, start: int, last_offset: int) -> Iterator[_Read]:
    types = EventTypes()
    last_seq: int = db.execute("SELECT last_seq FROM run WHERE id = ?", (run,)).fetchone()[0]
    for batch in batches_of(db, run, start, last_seq, last_offset):
        yield batch, batch.events(db, types)


def _make_self_contained(db: sqlite3.Connection, batches: list[_Read]) -> None:
    """Store in the batches that are kept the values that they name in others, which will be swept.

    They were all read before the first is written: a value may be named in one that is written anew.
    """
    for batch, events in batches:
        if sources_of(batch.body):
            body = pack(events)
            crc = batch_crc(*batch[:7], body)
            db.execute("UPDATE batch SET body = ?, crc = ? WHERE seq = ?", (body, crc, batch.seq))


def delete(db: sqlite3.Connection, workflow_id: str, at: int) -> Tombstone:
    """Implement `EventLog.delete`: the run is hidden from now on; `sweep` frees its space."""
    found = delete_all(db, [workflow_id], at)[workflow_id]
    if isinstance(found, Tombstone):
        return found
    raise found


def delete_all(
    db: sqlite3.Connection, workflow_ids: Sequence[str], at: int
) -> dict[str, Tombstone | AgentflowError]:
    """Implement `EventLog.delete_all`, with few statements for all of them."""
    found: dict[str, Tombstone | AgentflowError] = {}
    gone: list[Any] = []
    ids: list[int] = []
    labels: list[tuple[str, str, int, str]] = []
    rows = find_rows(db, workflow_ids)
    for workflow_id in dict.fromkeys(workflow_ids):
        try:
            run, row = run_with_id(rows[workflow_id]) if workflow_id in rows else find_run(db, workflow_id)
            check_removable(workflow_id, row.state, row.ended)
        except AgentflowError as error:
            found[workflow_id] = error
            continue
        found[workflow_id] = tombstone = tombstone_of(row, at)
        values = msgspec.structs.astuple(tombstone)
        gone += (*values, row_crc(*values))
        ids.append(run)
        labels += [(name, value, row.created_at, workflow_id) for name, value in row.labels.items()]
    _INSERT_TOMBSTONES.execute(db, gone)
    _INSERT_DOOMED.execute(db, ids)
    if labels:
        db.executemany(
            "DELETE FROM label WHERE name = ? AND value = ? AND created_at = ? AND workflow_id = ?", labels
        )
    for statement in _DELETE_RUNS:
        statement.execute(db, ids)
    return found


def probe(db: sqlite3.Connection) -> None:
    """Implement `EventLog.probe`: the commit of this call is the answer."""
    db.execute("INSERT OR REPLACE INTO probe (id, at) VALUES (0, ?)", (_now(),))


def load_cursor(db: sqlite3.Connection, consumer: str) -> str | None:
    """Implement `EventLog.load_cursor`."""
    return _select(
        db, "SELECT position, crc FROM consumer WHERE name = ?", consumer, f"the position of {consumer}"
    )


def get_definition(db: sqlite3.Connection, hash: str) -> bytes | None:
    """Implement `EventLog.get_definition`."""
    return _select(db, "SELECT source, crc FROM definition WHERE hash = ?", hash, f"definition {hash}")


def get_blob(db: sqlite3.Connection, name: str) -> bytes | None:
    """Implement `EventLog.get_blob`."""
    return find_blob(db, name)


def _select(db: sqlite3.Connection, statement: str, key: str, what: str) -> Any:
    """Return a value that has a checksum, or None."""
    row = db.execute(statement, (key,)).fetchone()
    return None if row is None else check_value(what, *row)
