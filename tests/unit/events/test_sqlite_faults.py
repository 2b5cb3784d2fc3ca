"""The SQLite log when things go wrong: a full disk, bad data, other processes, a loop that never sleeps."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import pytest

from agentflow.errors import Fenced, LogClosed, OffsetConflict, StoreError
from agentflow.events.envelope import StoredEvent
from agentflow.events.log import Append
from agentflow.events.owner import this_process
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.database import connect_reader
from tests.unit.events.support import all_offsets, batch, start_appender


async def test_a_full_disk_takes_nothing_and_the_log_goes_on_when_there_is_space(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    await log.append(batch(0, 2))
    limit_pages(log, extra=4)
    first, second = log.append(batch(2, 3, size=100_000)), log.append(batch(5))
    errors = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(errors[0], StoreError)
    assert not isinstance(errors[0], OffsetConflict | LogClosed)
    assert "SQLITE_FULL" in str(errors[0])
    assert errors[0].hint
    assert isinstance(errors[1], StoreError)  # its predecessor is not there
    assert log.failure is None
    assert await all_offsets(log, "wf_a") == [0, 1]
    limit_pages(log, extra=1_000)
    await log.append(batch(2, 3, size=100_000))
    assert await all_offsets(log, "wf_a") == [0, 1, 2, 3, 4]
    await log.close()


def limit_pages(log, extra):
    """Let the database file grow by so many pages and no more: SQLite answers as on a full disk."""
    db = log._store._db  # the limit belongs to a connection; the writer is idle between two awaits
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages + extra}")


async def test_a_value_that_cannot_be_stored_fails_alone(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    await log.append(batch(0))
    futures = [
        log.append(batch(1)),
        log.append(Append("wf_b", 1, 0, [StoredEvent(0, 1, "\ud800", b"{}")], None, batch(0).run)),
        log.append(Append("wf_c", 1, 0, [StoredEvent(0, 2**70, "output", b"")], None, batch(0).run)),
        log.append(Append("wf_d", 1, 0, [StoredEvent(0, 1, "output", "text")], None, batch(0).run)),
        log.append(batch(2)),
    ]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(r) for r in results] == [type(None), StoreError, StoreError, StoreError, type(None)]
    assert await all_offsets(log, "wf_a") == [0, 1, 2]
    assert [row.workflow_id for row in (await log.runs()).items] == ["wf_a"]
    assert log.failure is None
    await log.close()


async def test_two_processes_share_a_store_but_not_a_run(tmp_path):
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    await log.append(batch(0, workflow_id="wf_ours"))
    with start_appender(f"sqlite:{path}", "wf_theirs") as process:
        process.stdout.readline()
        with pytest.raises(Fenced, match=f"process {process.pid}, which is running"):
            await log.claim("wf_theirs", this_process())
        for n in range(1, 50):  # both write, each its own run
            await log.append(batch(n, workflow_id="wf_ours"))
        process.kill()
    assert await log.claim("wf_theirs", this_process()) == 2  # it is dead now
    end = await log.last("wf_theirs") + 1
    await log.append(batch(end, epoch=2, workflow_id="wf_theirs"))
    assert await all_offsets(log, "wf_theirs") == list(range(end + 1))
    assert await all_offsets(log, "wf_ours") == list(range(50))
    await log.close()


async def test_a_writer_that_lost_its_run_is_fenced_at_its_next_append(tmp_path):
    """Two logs on one file stand for two processes; the first one never learns of the takeover."""
    first, second = SqliteLog(tmp_path / "log.db"), SqliteLog(tmp_path / "log.db")
    await first.append(batch(0))
    await first.release("wf_a", this_process())
    epoch = await second.claim("wf_a", this_process())
    await second.append(batch(1, epoch=epoch))
    futures = [first.append(batch(1)), first.append(batch(2)), first.append(batch(0, workflow_id="wf_b"))]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(r) for r in results] == [Fenced, Fenced, type(None)]
    assert await all_offsets(first, "wf_a") == [0, 1]
    await first.close()
    await second.close()


async def test_a_loop_that_never_sleeps_still_gets_its_commits(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    await log.append(batch(0))
    acknowledged, until = 0, time.process_time() + 1.0  # other processes take no part of it

    async def append():
        nonlocal acknowledged
        offset = 1
        while time.process_time() < until:
            await log.append(batch(offset))
            acknowledged += 1
            offset += 1

    async def burn():
        while time.process_time() < until:
            sum(range(2_000))
            await asyncio.sleep(0)

    await asyncio.gather(append(), burn(), burn())
    assert acknowledged > 50  # without help from the loop there are about a dozen
    await log.close()


async def test_the_write_ahead_log_is_folded_in_while_events_come(tmp_path):
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    largest = 0
    for n in range(120):
        await log.append(batch(n * 100, 100, size=10_000))
        largest = max(largest, (tmp_path / "log.db-wal").stat().st_size)
    assert largest < 90_000_000, largest  # 64 MiB, and what came while the rest was copied
    assert path.stat().st_size > 10_000_000
    await log.close()
    assert path.stat().st_size > 120_000_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.db"]


def test_readers_cannot_write(tmp_path):
    async def make():
        await SqliteLog(tmp_path / "log.db").close()

    asyncio.run(make())
    db = connect_reader(tmp_path / "log.db")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM run")
    db.close()


def test_a_log_serves_one_loop(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    asyncio.run(log.put_blob(b"x"))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(log.put_blob(b"y"))
    asyncio.run(log.close())


async def test_the_file_gets_shorter_when_runs_are_deleted(tmp_path):
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    for run in ("wf_a", "wf_b"):
        for n in range(0, 1_000, 100):
            await log.append(batch(n, 100, size=3_000, workflow_id=run, noise=True))
        end = StoredEvent(1_000, 1_001, "workflow.completed", b"{}")
        await log.append(Append(run, 1, 1_000, [end]))
    await log.close()
    full = path.stat().st_size
    log = SqliteLog(path)
    await log.delete("wf_a", 1)
    swept = await log.sweep(4 * 10**15)
    assert swept.bytes > 1_000_000
    assert await all_offsets(log, "wf_b") == list(range(1_001))
    await log.close()
    assert path.stat().st_size < full * 0.6
