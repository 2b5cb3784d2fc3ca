"""Giving back the space of what was trimmed and deleted, a little at a time.

Each step is one short call in the writer's transaction, so appends wait for milliseconds and a crash in
between loses nothing: what is left to do stands in the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentflow.events.rows import Swept
from agentflow.events.sqlite.blocks import index_batches, remove_batches

__all__ = ["sweep"]

T = TypeVar("T")
Run = Callable[..., Awaitable[T]]

_ROWS = 500  # batches deleted in one step
_PAGES = 200  # 0.8 MB of the file given back in one step


async def sweep(call: Callable[..., Awaitable[int]], before: int) -> Swept:
    """Implement `EventLog.sweep`; `call(step, *arguments)` runs a step in the writer's transaction."""
    await call(index_batches)  # what is removed stands in a block
    while await call(_remove_doomed):
        pass
    while await call(_remove_trimmed):
        pass
    blobs = await call(_remove_unnamed, "blob", "name", before)
    definitions = await call(_remove_unnamed, "definition", "hash", before)
    await call(_remove_notes, before)
    freed = 0
    while pages := await call(_shrink):
        freed += pages
    return Swept(blobs=blobs, definitions=definitions, bytes=freed)


def _remove_doomed(db: sqlite3.Connection) -> int:
    """Remove some batches of deleted runs; return how many. The newest batch of all stays: see the schema."""
    places = db.execute(
        "SELECT run, first, seq FROM doomed JOIN place USING (run)"
        " WHERE seq < (SELECT max(seq) FROM batch) LIMIT ?",
        (_ROWS,),
    ).fetchall()
    remove_batches(db, places)
    if not places:
        db.execute("DELETE FROM doomed WHERE NOT EXISTS (SELECT 1 FROM place WHERE place.run = doomed.run)")
    return len(places)


def _remove_trimmed(db: sqlite3.Connection) -> int:
    """Remove some batches of which every event was trimmed; return how many."""
    places = db.execute(
        "SELECT place.run, place.first, place.seq FROM run JOIN place ON place.run = run.id"
        " AND place.first < run.earliest_offset JOIN batch USING (seq)"
        " WHERE run.earliest_offset > 0 AND batch.first + batch.count <= run.earliest_offset LIMIT ?",
        (_ROWS,),
    ).fetchall()
    remove_batches(db, places)
    return len(places)


def _remove_unnamed(db: sqlite3.Connection, table: str, key: str, before: int) -> int:
    """Remove blobs and definitions that no run names, directly or through a blob, and that were not put
    lately."""
    return db.execute(
        f"""DELETE FROM {table} WHERE {key} NOT IN (
                WITH RECURSIVE named (name) AS (
                    SELECT name FROM reference
                    UNION SELECT name FROM stored WHERE at >= ?
                    UNION SELECT inner_reference.name FROM named JOIN inner_reference ON blob = named.name
                )
                SELECT name FROM named
            )""",
        (before,),
    ).rowcount


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
