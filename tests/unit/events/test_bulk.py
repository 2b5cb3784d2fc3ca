"""Statements of many rows write what single ones would, in the same order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from agentflow.events.sqlite import bulk
from agentflow.events.sqlite.bulk import Bulk


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute("CREATE TABLE t (seq INTEGER PRIMARY KEY AUTOINCREMENT, a INTEGER UNIQUE, b TEXT)")
    yield made
    made.close()


INSERT = Bulk("INSERT INTO t (a, b) VALUES", 2)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 100, bulk._MOST, bulk._MOST + 1, 3 * bulk._MOST - 1])
def test_any_number_of_rows_in_their_order(db, count):
    rows = [(count - n, f"row {n}") for n in range(count)]
    INSERT.execute(db, [value for row in rows for value in row])
    assert db.execute("SELECT a, b FROM t ORDER BY seq").fetchall() == rows


def test_a_row_in_the_middle_that_is_refused_refuses_its_statement(db):
    db.execute("BEGIN")
    with pytest.raises(sqlite3.IntegrityError):
        INSERT.execute(db, [1, "a", 2, "b", 2, "again", 3, "c"])
    db.execute("ROLLBACK")
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_rows_may_stand_before_the_end_of_a_statement(db):
    INSERT.execute(db, [1, "a", 2, "b", 3, "c"])
    update = Bulk("WITH new (a, b) AS (VALUES", 2, ") UPDATE t SET b = new.b FROM new WHERE t.a = new.a")
    update.execute(db, [3, "C", 1, "A", 9, "nobody"])
    assert db.execute("SELECT a, b FROM t ORDER BY a").fetchall() == [(1, "A"), (2, "b"), (3, "C")]


def test_the_largest_statement_is_within_what_sqlite_takes(db):
    assert db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) >= bulk._MOST * 6
