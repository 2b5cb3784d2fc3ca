"""The SQLite log when things go wrong: kill -9, full disk, failed sync, other processes, a busy loop."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentflow.errors import Fenced, LogClosed, OffsetConflict, StoreError
from agentflow.events.log import Append, RunMeta, StoredEvent
from agentflow.events.owner import this_process
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.database import connect_reader

APPENDER = Path(__file__).parent / "appender.py"
ROOT = Path(__file__).parents[3]


def event(offset, size=20, type="agent.processing"):
    return StoredEvent(offset, 1 + offset, type, b"x" * size)


def batch(expected, count=1, *, size=20, epoch=1, workflow_id="wf_a", type="agent.processing"):
    run = RunMeta(name=None, definition_hash="d", created_at=1) if expected == 0 else None
    events = [event(expected + i, size, type) for i in range(count)]
    return Append(workflow_id, epoch, expected, events, "running", run)


def start_appender(path, run, *count, **environment):
    return subprocess.Popen(
        [sys.executable, str(APPENDER), str(path), run, *map(str, count)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def run_appender(path, run, *count, **environment):
    with start_appender(path, run, *count, **environment) as process:
        lines = process.stdout.read().decode().split()
    assert process.returncode == 0
    return lines


async def all_offsets(log, workflow_id):
    found, page = [], None
    while page is None or page:
        page = await log.read(workflow_id, len(found), 1_000)
        found += [e.offset for e in page]
    return found


async def check_gapless(path, workflow_id, acknowledged):
    log = SqliteLog(path)
    offsets = await all_offsets(log, workflow_id)
    assert offsets == list(range(len(offsets)))
    assert len(offsets) > acknowledged
    assert await log.last(workflow_id) == len(offsets) - 1
    await log.close()


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path):
    path, seed = tmp_path / "log.db", random.Random(7)
    acknowledged = -1
    for _ in range(15):
        process = start_appender(path, "wf_k")
        with process:
            lines = [process.stdout.readline()]  # it runs, and at least one batch is acknowledged
            time.sleep(seed.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        assert all(line.strip().isdigit() for line in lines[:-1]), lines
        whole = [int(line) for line in lines if line.endswith(b"\n")]
        assert whole == sorted(whole)
        acknowledged = max(acknowledged, *whole)
        asyncio.run(check_gapless(path, "wf_k", acknowledged))
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert db.execute("SELECT epoch FROM run").fetchone() == (15,)  # each took it over from the dead one
    db.close()


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


FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int left = -1;
static int fails(void) {
    if (left < 0) left = atoi(getenv("SYNCS_THAT_SUCCEED"));
    if (left == 0) { left = 1000000; errno = EIO; return 1; }  /* one failure; later ones succeed, falsely */
    left--;
    return 0;
}
int fsync(int fd) { return fails() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { return fails() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""


@pytest.fixture(scope="module")
def failing_sync(tmp_path_factory):
    """A library that makes one sync of a program fail, as a dying disk does."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    directory = tmp_path_factory.mktemp("sync")
    source, library = directory / "sync.c", directory / "sync.so"
    source.write_text(FAILING_SYNC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def test_the_first_failed_sync_ends_the_log(tmp_path, failing_sync):
    path = tmp_path / "log.db"
    run_appender(path, "wf_s", 5)
    lines = run_appender(path, "wf_s", 400, LD_PRELOAD=str(failing_sync), SYNCS_THAT_SUCCEED="12")
    failed = lines.index("LogClosed")
    acknowledged = [int(line) for line in lines[:failed]]
    assert acknowledged, "the sync failed before anything was acknowledged; raise the number"
    assert {line for line in lines[failed:] if line != "failure"} == {"LogClosed"}
    assert lines[-2:] == ["failure", "LogClosed"]
    asyncio.run(check_gapless(path, "wf_s", acknowledged[-1]))
    assert int(run_appender(path, "wf_s", 1)[-1]) > acknowledged[-1]  # a new process goes on


async def test_a_value_that_cannot_be_stored_fails_alone(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    await log.append(batch(0))
    futures = [
        log.append(batch(1)),
        log.append(Append("wf_b", 1, 0, [event(0, type="\ud800")], None, batch(0).run)),
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
    with start_appender(path, "wf_theirs") as process:
        process.stdout.readline()
        with pytest.raises(Fenced, match=f"process {process.pid}, which is running"):
            await log.claim("wf_theirs", this_process())
        for n in range(1, 50):  # both write, each its own run
            await log.append(batch(n, workflow_id="wf_ours"))
        process.kill()
    assert await log.claim("wf_theirs", this_process()) == 2
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
    loop = asyncio.get_running_loop()
    acknowledged, until = 0, loop.time() + 1.0

    async def append():
        nonlocal acknowledged
        offset = 1
        while loop.time() < until:
            await log.append(batch(offset))
            acknowledged += 1
            offset += 1

    async def burn():
        while loop.time() < until:
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
