"""Batches of a run are found wherever the index of places ends."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from agentflow.errors import OffsetConflict
from agentflow.events.sqlite import SqliteLog, writer
from agentflow.events.sqlite.batches import indexed_up_to
from agentflow.events.sqlite.blocks import BLOCK_BATCHES, Block, count_unindexed
from tests.unit.events.support import batch

SIZES = [1, 3, 2, 1, 4, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("indexed", range(len(SIZES) + 1))
async def test_every_page_of_a_run_is_found_from_every_offset(tmp_path, indexed):
    """`indexed` batches of the run stand in the index; the others are found by their chain."""
    path, total = tmp_path / "log.db", sum(SIZES)
    log, offset = SqliteLog(path), 0
    for number, size in enumerate(SIZES):
        if number == indexed:
            await log.close()  # which fills the index
            log = SqliteLog(path)
        for run in ("wf_a", "wf_b"):
            await log.append(batch(offset, size, workflow_id=run))
        offset += size
    with closing(sqlite3.connect(path)) as db:
        assert count_unindexed(db) == (2 * (len(SIZES) - indexed) if indexed < len(SIZES) else 2 * len(SIZES))
    for start in range(total + 1):
        for limit in (1, 2, 5, 100):
            wanted = list(range(start, min(start + limit, total)))
            assert [e.offset for e in await log.read("wf_b", start, limit)] == wanted
    await log.close()


async def test_the_index_follows_a_block_at_a_time_and_queries_do_not_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "BLOCK_BATCHES", 8)
    path = tmp_path / "log.db"
    log, cursor, seen, most = SqliteLog(path), None, [], 0
    for offset in range(60):
        await log.append(batch(offset))
        page = await log.query(cursor=cursor)
        seen += [event.offset for _, event in page.items]
        cursor = page.next_cursor
        with closing(sqlite3.connect(path)) as db:
            most = max(most, count_unindexed(db))
    assert seen == list(range(60))
    assert 8 <= most <= 9
    await log.close()
    with closing(sqlite3.connect(path)) as db:
        assert count_unindexed(db) == 0
        blocks = [Block(*row) for row in db.execute("SELECT * FROM block ORDER BY stop")]
    assert [block.start for block in blocks] == [1, *(block.stop for block in blocks[:-1])]
    assert (sum(block.batches for block in blocks), blocks[-1].stop) == (60, 61)
    assert all(block.is_intact() for block in blocks)


async def test_a_query_passes_over_blocks_without_its_types_or_times(tmp_path, monkeypatch):
    path = tmp_path / "log.db"
    monkeypatch.setattr(writer, "_SHARED_ROW_BYTES", -1)  # a row a batch
    log = SqliteLog(path)
    for offset in range(2 * BLOCK_BATCHES):
        await log.append(batch(offset)) if offset % 100 == 0 else log.append(batch(offset))
    await log.close()
    log = SqliteLog(path)
    with closing(sqlite3.connect(path)) as db:
        end = indexed_up_to(db)
        db.execute("UPDATE batch SET crc = 0")  # whatever is read is damage
        db.commit()
    for page in (
        await log.query(["workflow.completed"]),
        await log.query(since=end + 1),
        await log.query(until=1),
    ):
        assert (page.items, page.damaged) == ([], ())
        assert page.next_cursor == await log.latest_cursor()
    assert (await log.query(since=1)).damaged == ("wf_a",)
    await log.close()


async def test_batches_of_one_run_that_are_committed_together_share_a_row(tmp_path, monkeypatch):
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    began, held = threading.Event(), threading.Event()

    def hold():
        began.set()
        held.wait()

    await log.append(batch(0))
    holding = asyncio.ensure_future(log._group.call(hold))
    await asyncio.to_thread(began.wait)
    appended = [log.append(batch(offset, 2)) for offset in range(1, 21, 2)]
    appended.append(log.append(batch(30)))  # refused alone
    other = log.append(batch(0, workflow_id="wf_b"))
    await asyncio.sleep(0)  # they are given to the thread when this pass of the loop ends
    held.set()
    await holding
    await asyncio.gather(*appended[:-1], other)
    with pytest.raises(OffsetConflict):
        await appended[-1]
    await log.close()
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT run, first, count FROM batch ORDER BY seq").fetchall()
        assert found == [(1, 0, 1), (1, 1, 20), (2, 0, 1)]
        (since, until) = db.execute("SELECT since, until FROM block").fetchone()
        assert (since, until) == (1, 21)  # by the times in the body
    log = SqliteLog(path)
    assert [(e.offset, e.ts) for e in await log.read("wf_a")] == [(n, n + 1) for n in range(21)]
    assert [e.offset for e in await log.read("wf_a", 7, 3)] == [7, 8, 9]
    assert [e.event.offset for e in (await log.query(since=5, until=7)).items] == [4, 5]
    await log.close()


async def test_a_large_batch_takes_several_rows_and_is_committed_whole(tmp_path):
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    await log.append(batch(0, 1_000))
    assert [e.offset for e in await log.read("wf_a", 0, 2_000)] == list(range(1_000))
    assert [e.offset for e in await log.read("wf_a", 255, 3)] == [255, 256, 257]
    row = await log.run("wf_a")
    assert (row.last_offset, row.updated_at) == (999, 1_000)
    await log.close()
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT first, count, prev FROM batch ORDER BY seq").fetchall()
    assert found == [(0, 256, 0), (256, 256, 1), (512, 256, 257), (768, 232, 513)]
