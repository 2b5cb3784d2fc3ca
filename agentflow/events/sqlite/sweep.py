"""Giving back the space of what was trimmed and deleted, a little at a time.

Each step is one short call in the writer's transaction, so appends wait for milliseconds and a crash in
between loses nothing: what is left to do stands in the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agentflow.events.rows import Swept
from agentflow.events.sqlite.blocks import index_batches, remove_batches

__all__ = ["sweep"]

T = TypeVar("T")
Run = Callable[..., Awaitable[T]]

_ROWS = 1_000  # batches deleted in one step
_RUNS = 20_000  # rows of runs that one step looks at
_PAGES = 200  # 0.8 MB of the file given back in one step


async def sweep(call: Callable[..., Awaitable[Any]], before: int) -> Swept:
    """Implement `EventLog.sweep`; `call(step, *arguments)` runs a step in the writer's transaction."""
    await call(index_batches)  # what is removed stands in a block
    while await call(_remove_doomed):
        pass
    run = 0
    while (run := await call(_remove_trimmed, run)) >= 0:
        pass
    blobs = await _sweep_unnamed(call, "blob", "name", before)
    definitions = await _sweep_unnamed(call, "definition", "hash", before)
    await call(_remove_notes, before)
    freed = 0
    while pages := await call(_shrink):
        freed += pages
    return Swept(blobs=blobs, definitions=definitions, bytes=freed)


def _remove_doomed(db: sqlite3.Connection) -> int:
    """Remove some batches of deleted runs; return how many. The newest batch of all stays: see the schema."""
    newest = db.execute("SELECT seq, run FROM batch ORDER BY seq DESC LIMIT 1").fetchone() or (0, 0)
    # One row more than is removed, so that a run is known to have no more; those are forgotten at once, and
    # are not looked at again by the next step.
    places = db.execute(
        "SELECT doomed.run, first, seq FROM doomed LEFT JOIN place ON place.run = doomed.run AND seq < ?"
        " ORDER BY doomed.run, first LIMIT ?",
        (newest[0], _ROWS + 1),
    ).fetchall()
    last = places[_ROWS][0] if len(places) > _ROWS else None
    places = places[:_ROWS]
    remove_batches(db, [place for place in places if place[2] is not None])
    over = {run for run, _, _ in places} - {last, newest[1]}
    db.executemany("DELETE FROM doomed WHERE run = ?", [(run,) for run in over])
    return 0 if last is None else len(places)


def _remove_trimmed(db: sqlite3.Connection, after: int) -> int:
    """Remove some batches of runs behind the number `after` of which every event was trimmed; return the run
    to go on behind, -1 at the end."""
    stop = db.execute(
        "SELECT max(id) FROM (SELECT id FROM run WHERE id > ? ORDER BY id LIMIT ?)", (after, _RUNS)
    )
    last = stop.fetchone()[0]
    if last is None:
        return -1
    places = db.execute(
        "SELECT place.run, place.first, place.seq FROM run JOIN place ON place.run = run.id"
        " AND place.first < run.earliest_offset JOIN batch USING (seq)"
        " WHERE run.id > ? AND run.id <= ? AND run.earliest_offset > 0"
        " AND batch.first + batch.count <= run.earliest_offset ORDER BY run.id LIMIT ?",
        (after, last, _ROWS),
    ).fetchall()
    remove_batches(db, places)
    return places[-1][0] - 1 if len(places) == _ROWS else last


async def _sweep_unnamed(call: Callable[..., Awaitable[Any]], table: str, key: str, before: int) -> int:
    removed, name = 0, ""
    while True:
        name, count = await call(_remove_unnamed, table, key, before, name)
        removed += count
        if not name:
            return removed


def _remove_unnamed(db: sqlite3.Connection, table: str, key: str, before: int, after: str) -> tuple[str, int]:
    """Remove what no run names, directly or through a blob, and what was not put lately, of the names behind
    `after`; return the name to go on behind, "" at the end, and how many."""
    last: str | None = db.execute(
        f"SELECT max({key}) FROM (SELECT {key} FROM {table} WHERE {key} > ? ORDER BY {key} LIMIT ?)",
        (after, _ROWS),
    ).fetchone()[0]
    if last is None:
        return "", 0
    removed = db.execute(
        f"""DELETE FROM {table} WHERE {key} > ?1 AND {key} <= ?2
            AND NOT EXISTS (SELECT 1 FROM reference WHERE reference.name = {table}.{key})
            AND NOT EXISTS (SELECT 1 FROM stored WHERE stored.name = {table}.{key} AND at >= ?3)
            AND {key} NOT IN (
                WITH RECURSIVE named (name) AS (
                    SELECT blob FROM inner_reference
                    WHERE EXISTS (SELECT 1 FROM reference WHERE reference.name = blob)
                        OR EXISTS (SELECT 1 FROM stored WHERE stored.name = blob AND at >= ?3)
                    UNION SELECT inner_reference.name FROM named JOIN inner_reference ON blob = named.name
                )
                SELECT name FROM named
            )""",
        (after, last, before),
    ).rowcount
    return last, removed


def _remove_notes(db: sqlite3.Connection, before: int) -> int:
    """Remove the put times of blobs and definitions that are gone, or old enough not to need one."""
    db.execute("DELETE FROM inner_reference WHERE blob NOT IN (SELECT name FROM blob)")
    return db.execute("DELETE FROM stored WHERE at < ?", (before,)).rowcount


def _shrink(db: sqlite3.Connection) -> int:
    """Cut free pages off the file; the bytes. 0 too where the file was made before it could be cut: its free
    pages are used again."""
    free: int = db.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(free, _PAGES)):
        # This statement gives no rows, so the module steps it once, which frees one page whatever it says.
        db.execute("PRAGMA incremental_vacuum(1)")
    left: int = db.execute("PRAGMA freelist_count").fetchone()[0]
    return (free - left) * db.execute("PRAGMA page_size").fetchone()[0]
