"""What was committed just now is read on the loop itself, if that is short; everything else by a thread."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from agentflow.events import pace
from agentflow.events.log import Append, RunMeta
from agentflow.events.sqlite import SqliteLog
from tests.unit.events.support import event


@pytest.fixture
async def log(tmp_path, monkeypatch):
    """A store whose commits count as short, and that counts the queries of threads."""
    monkeypatch.setattr(pace.CommitPace, "is_short", lambda self, jobs: True)
    log = SqliteLog(tmp_path / "log.db")
    log.in_threads = 0
    call = log._readers.call

    async def counted(*arguments):
        log.in_threads += 1
        return await call(*arguments)

    monkeypatch.setattr(log._readers, "call", counted)
    yield log
    await log.close()


async def write(log, workflow_id, first, count=1, size=10):
    events = [event(first + n, size, workflow_id=workflow_id) for n in range(count)]
    meta = RunMeta(name=None, definition_hash="d", created_at=1) if first == 0 else None
    await log.append(Append(workflow_id, 1, first, events, "running", meta))
    return [(workflow_id, each.offset) for each in events]


async def read(log, cursor, **more):
    """Return the events of a page, the next cursor, and whether a thread read it."""
    before = log.in_threads
    page = await log.query(cursor=cursor, **more)
    return [(w, e.offset) for w, e in page.items], page.next_cursor, log.in_threads > before


async def begun(log):
    await write(log, "wf_a", 0)
    return await log.latest_cursor()


async def test_what_was_written_just_now_is_read_at_once_and_once(log):
    cursor = await begun(log)
    found = []
    for first in range(1, 9, 2):
        wrote = [*await write(log, "wf_a", first, 2), *await write(log, "wf_b", first // 2)]
        items, cursor, threaded = await read(log, cursor)
        assert (items, threaded) == (wrote, False)
        found += items
    everything, _, _ = await read(log, None)
    assert found == everything[1:]


@pytest.mark.parametrize("limit", [1, 2, 256])
async def test_pages_follow_each_other(log, limit):
    cursor = await begun(log)
    wrote = [*await write(log, "wf_a", 1, 3), *await write(log, "wf_b", 0, 2)]
    found = []
    while len(found) < len(wrote):
        items, cursor, threaded = await read(log, cursor, limit=limit)
        assert not threaded
        assert 0 < len(items) <= limit
        found += items
    assert found == wrote
    assert await read(log, cursor) == ([], cursor, True)


async def test_much_is_read_by_a_thread(log):
    cursor = await begun(log)
    wrote = await write(log, "wf_a", 1, 100)
    items, cursor, threaded = await read(log, cursor)
    assert (items, threaded) == (wrote, True)
    wrote = await write(log, "wf_a", 101, 1, 100_000)
    items, cursor, threaded = await read(log, cursor)
    assert (items, threaded) == (wrote, True)
    wrote = await write(log, "wf_a", 102)
    assert await read(log, cursor) == (wrote, (await log.latest_cursor()), False)


async def test_some_types_are_asked_of_a_thread(log):
    cursor = await begun(log)
    wrote = await write(log, "wf_a", 1)
    items, _, threaded = await read(log, cursor, types=["tool.*", "workflow.*", "custom.*", "agent.*"])
    assert threaded
    assert set(items) <= set(wrote)


async def test_what_another_process_wrote_is_complete(log, tmp_path):
    cursor = await begun(log)
    other = SqliteLog(tmp_path / "log.db")
    wrote = await write(other, "wf_other", 0, 2, 50_000)
    items, cursor, threaded = await read(log, cursor)
    assert (items, threaded) == (wrote, True)
    wrote = [*await write(other, "wf_other", 2), *await write(log, "wf_a", 1)]
    items, cursor, _ = await read(log, cursor)
    assert items == wrote
    await other.close()


async def test_a_damaged_batch_is_named(log, tmp_path):
    cursor = await begun(log)
    await write(log, "wf_b", 0)
    wrote = await write(log, "wf_a", 1)
    with closing(sqlite3.connect(tmp_path / "log.db")) as db:
        db.execute(
            "UPDATE batch SET crc = crc + 1 WHERE run = (SELECT id FROM run WHERE workflow_id = 'wf_b')"
        )
        db.commit()
    page = await log.query(cursor=cursor)
    assert [(w, e.offset) for w, e in page.items] == wrote
    assert page.damaged == ("wf_b",)
