"""Lists of runs: complete, or with the names of the runs that cannot be shown (page 000 §7).

A page of the database that is damaged may hide runs without any error: an index that has lost entries still
gives an answer. So before the first list of a process the indexes are compared with each other, and a store
of up to 20,000 runs gets SQLite's own check of that table, at 2 µs a run. A larger one is checked in the
background (`integrity`).
"""

from __future__ import annotations

import sqlite3
from typing import Any

from agentflow.errors import LogCorrupt
from agentflow.events.cursors import encode_cursor
from agentflow.events.listing import RunQuery, page_of_runs
from agentflow.events.rows import Page, RunRow
from agentflow.events.sqlite.checks import damaged
from agentflow.events.sqlite.run_rows import CREATED_AT, RUN_COLUMNS, WORKFLOW_ID, is_damage, run_row

__all__ = ["RunLists"]

_CHECKED_RUNS = 20_000
_COUNTS = {
    "run_by_time": "SELECT count(*) FROM run INDEXED BY run_by_time WHERE created_at > -9223372036854775808",
    "run_by_state": "SELECT count(*) FROM run INDEXED BY run_by_state WHERE state >= ''",
    "run_by_name": "SELECT (SELECT count(*) FROM run INDEXED BY run_by_name WHERE name IS NULL)"
    " + (SELECT count(*) FROM run INDEXED BY run_by_name WHERE name >= '')",
}
_SOURCES = (
    "INDEXED BY sqlite_autoindex_run_1 WHERE workflow_id >= ''",
    "INDEXED BY run_by_time WHERE created_at > -9223372036854775808",
    "INDEXED BY run_by_state WHERE state >= ''",
    "NOT INDEXED",
)
_LABELLED = "SELECT workflow_id AS labelled, created_at AS at FROM label WHERE name = ? AND value = ?"


class RunLists:
    """Answers lists of one store. `page` may run in several threads, each with a connection of its own."""

    def __init__(self) -> None:
        self._compared = False

    def page(self, db: sqlite3.Connection, query: RunQuery) -> Page[RunRow]:
        """Return a page of runs. Raises LogCorrupt if it cannot be told which runs are missing."""
        db.execute("BEGIN")  # one state of the store for all statements
        try:
            try:
                if query.label is None:  # else the runs are found by a table of their own
                    self._compare(db)
                return _page(db, query)
            except (sqlite3.DatabaseError, LogCorrupt) as error:
                if not (isinstance(error, LogCorrupt) or is_damage(error)):
                    raise
                return _page_without_indexes(db, query)
        finally:
            db.execute("ROLLBACK")

    def _compare(self, db: sqlite3.Connection) -> None:
        """Raise LogCorrupt if an index has lost entries; once, since it takes 10 ms for 100,000 runs."""
        if self._compared:
            return
        runs: int = db.execute("SELECT count(*) FROM run").fetchone()[0]
        for index, statement in _COUNTS.items():
            if db.execute(statement).fetchone()[0] != runs:
                raise damaged(f"the index {index}")
        if runs <= _CHECKED_RUNS:
            found: str = db.execute("PRAGMA integrity_check('run')").fetchone()[0]
            if found != "ok":
                raise damaged(f"the list of runs ({found})")
        self._compared = True


def _page(db: sqlite3.Connection, query: RunQuery) -> Page[RunRow]:
    statement, values = _statement(query)
    rows = db.execute(statement, (*values, query.limit + 1)).fetchall()
    keys = [(row[CREATED_AT], row[WORKFLOW_ID]) for row in rows]
    if keys != sorted(set(keys), reverse=query.order == "desc"):
        raise damaged("an index of the list of runs")
    items: list[RunRow] = []
    unreadable: set[str] = set()
    for row in rows[: query.limit]:
        try:
            items.append(run_row(row))
        except LogCorrupt:
            unreadable.add(str(row[WORKFLOW_ID]))
    more = len(rows) > query.limit
    cursor = encode_cursor(*keys[query.limit - 1]) if more else None
    return Page(items, cursor, tuple(sorted(unreadable)))


def _statement(query: RunQuery) -> tuple[str, list[Any]]:
    where, values = ["1"], list[Any]()
    table, created, key = "run", "created_at", "workflow_id"
    states, after = query.states(), query.after()
    if query.label is not None:
        # In the order of the labels, which is that of the list: no other run is read.
        table, created, key = f"({_LABELLED}) CROSS JOIN run ON workflow_id = labelled", "at", "labelled"
        values += query.label
    if states is not None:
        where.append(f"state IN ({', '.join('?' * len(states))})")
        values += states
    if query.name is not None:
        where.append("name = ?")
        values.append(query.name)
    if query.prefix is not None:
        # The planner would read the list in its order and look at every run: 8 ms instead of 0.1 for 10,000.
        if query.label is None:
            table = "run INDEXED BY sqlite_autoindex_run_1"
        where.append("workflow_id >= ? AND workflow_id < ?")
        values += (query.prefix, f"{query.prefix}~")  # no id has a character as high as this one
    if query.since is not None:
        where.append(f"{created} >= ?")
        values.append(query.since)
    if query.until is not None:
        where.append(f"{created} < ?")
        values.append(query.until)
    if after is not None:
        where.append(f"({created}, {key}) {'>' if query.order == 'asc' else '<'} (?, ?)")
        values += after
    direction = "ASC" if query.order == "asc" else "DESC"
    return (
        f"SELECT {RUN_COLUMNS} FROM {table} WHERE {' AND '.join(where)}"
        f" ORDER BY {created} {direction}, {key} {direction} LIMIT ?",
        values,
    )


def _page_without_indexes(db: sqlite3.Connection, query: RunQuery) -> Page[RunRow]:
    """Return the list of a damaged store: every run that any index knows is looked up by itself. Takes 10 s
    for a million runs."""
    found: dict[str, RunRow] = {}
    unreadable: set[str] = set()
    for number, workflow_id in _known_runs(db).items():
        try:
            row = db.execute(f"SELECT {RUN_COLUMNS} FROM run WHERE id = ?", (number,)).fetchone()
            if row is None:
                raise damaged(workflow_id)
            found[row[WORKFLOW_ID]] = run_row(row)
        except (sqlite3.DatabaseError, LogCorrupt) as error:
            if not (isinstance(error, LogCorrupt) or is_damage(error)):
                raise
            unreadable.add(workflow_id)
    keys = sorted((row.created_at, workflow_id) for workflow_id, row in found.items())
    page = page_of_runs(keys, found.get, query)
    return Page(page.items, page.next_cursor, tuple(sorted(unreadable)))


def _known_runs(db: sqlite3.Connection) -> dict[int, str]:
    """Return the numbers and names of all runs that one of the indexes or the table itself still shows."""
    known: dict[int, str] = {}
    whole = 0
    for source in _SOURCES:
        try:
            for number, workflow_id in db.execute(f"SELECT id, workflow_id FROM run {source}"):
                known.setdefault(number, workflow_id)
            whole += 1
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
    if not whole:
        raise damaged("the list of runs")
    return known
