"""The checkpoint thread copies what was committed since it last copied, and never begins without that."""

from __future__ import annotations

import sqlite3
import time

import pytest

from agentflow.events.sqlite.checkpoint import Checkpointer
from tests.unit.events.support import batch


@pytest.fixture
def store(tmp_path):
    """A database with a write-ahead log, and a function that commits a page to it."""
    path = tmp_path / "log.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("CREATE TABLE t (body BLOB)")
    yield path, lambda: db.execute("INSERT INTO t VALUES (zeroblob(50000))")
    db.close()


def taken_up(checkpointer):
    """Wait until the thread has seen that it was nudged."""
    until = time.monotonic() + 10
    while checkpointer._due.is_set():
        assert time.monotonic() < until


def test_it_begins_only_behind_a_commit_that_it_has_not_copied(store):
    path, commit = store
    begun = 0
    checkpointer = Checkpointer(path, lambda error: True, lambda: begun)
    for written, copies in ((1, True), (1, False), (2, True), (2, False), (4, True), (3, False)):
        before = path.stat().st_size
        begun = max(begun, written)
        commit()
        checkpointer.nudge(written)
        taken_up(checkpointer)
        until = time.monotonic() + 10
        while copies and path.stat().st_size == before:
            assert time.monotonic() < until
        while copies and checkpointer._copied != begun:
            assert time.monotonic() < until
    before = path.stat().st_size
    checkpointer.stop()
    assert path.stat().st_size == before  # the last commit is still in the write-ahead log alone


def test_what_the_writer_has_copied_is_not_copied_again(store):
    path, commit = store
    checkpointer = Checkpointer(path, lambda error: True, lambda: 7)
    checkpointer.rest_is_copied()
    before = path.stat().st_size
    commit()
    checkpointer.nudge(7)
    taken_up(checkpointer)
    checkpointer.stop()
    assert path.stat().st_size == before


async def test_blobs_count_for_the_length_of_the_write_ahead_log(tmp_path):
    from agentflow.events.sqlite import SqliteLog

    path = tmp_path / "log.db"
    log = SqliteLog(path)
    await log.append(batch(0))
    for n in range(12):
        await log.put_blob(bytes([n]) * 1_000_000)
    until = time.monotonic() + 10
    while path.stat().st_size < 3_000_000:
        assert time.monotonic() < until
        await log.last("wf_a")
    await log.close()
