"""A store whose files go or break while it is open (durability 1 and 9)."""

from __future__ import annotations

import asyncio
import os
import shutil
import time

import pytest

from agentflow.errors import LogFailed
from agentflow.events.owner import this_process
from agentflow.events.sqlite import SqliteLog
from agentflow.server.app import Application
from tests.unit.events.support import all_offsets, batch


def delete_folder(path):
    shutil.rmtree(path.parent)


def move_away_and_put_a_new_one(path):
    path.rename(path.with_name("old.db"))
    asyncio.run(SqliteLog(path).close())


def replace_by_a_copy(path):
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.rename(path)


def delete_log(path):
    path.with_name("log.db-wal").unlink()


def delete_index(path):
    path.with_name("log.db-shm").unlink()


def empty_file(path):
    os.truncate(path, 0)


def delete_locks(path):
    shutil.rmtree(path.with_name("log.db-owners"))


LOSSES = [
    delete_folder,
    move_away_and_put_a_new_one,
    replace_by_a_copy,
    delete_log,
    delete_index,
    empty_file,
    delete_locks,
]


async def open_written(tmp_path):
    path = tmp_path / "data" / "log.db"
    log = SqliteLog(path)
    await log.append(batch(0))
    return path, log


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
async def test_nothing_is_acknowledged_after_the_store_is_gone(tmp_path, lose):
    path, log = await open_written(tmp_path)
    await asyncio.to_thread(lose, path)
    answers = await asyncio.gather(*(log.append(batch(n)) for n in range(1, 36)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [LogFailed] * 35
    assert "log.db" in str(answers[0])
    assert answers[0].hint
    for call in (log.probe(), log.put_blob(b"x"), log.claim("wf_a", this_process())):
        with pytest.raises(LogFailed):
            await call
    with pytest.raises(LogFailed):
        await log.close()


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
async def test_an_idle_log_notices(tmp_path, lose):
    path, log = await open_written(tmp_path)
    await asyncio.to_thread(lose, path)
    async with asyncio.timeout(10):  # a second where nothing else runs
        while log.failure is None:  # noqa: ASYNC110 — a store has no signal for it
            await asyncio.sleep(0.01)
    assert isinstance(log.failure, LogFailed)
    with pytest.raises(LogFailed):
        await log.close()


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
async def test_close_does_not_say_that_all_is_well(tmp_path, lose):
    path, log = await open_written(tmp_path)
    await asyncio.to_thread(lose, path)
    with pytest.raises(LogFailed, match=r"deleted or moved|replaced by another file|emptied"):
        await log.close()
    await log.close()


async def test_closing_a_store_that_was_moved_leaves_the_new_one_as_it_is(tmp_path):
    path, log = await open_written(tmp_path)
    path.rename(path.with_name("old.db"))
    second = SqliteLog(path)
    await second.append(batch(0, 3, workflow_id="wf_b"))
    with pytest.raises(LogFailed):
        await log.close()
    assert path.with_name("log.db-wal").exists()
    await second.append(batch(3, workflow_id="wf_b"))
    assert await all_offsets(second, "wf_b") == [0, 1, 2, 3]
    await second.close()


async def test_a_symbolic_link_to_a_store_is_followed(tmp_path):
    path, log = await open_written(tmp_path)
    await log.close()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    log = SqliteLog(link)
    await log.append(batch(1))
    path.with_name("log.db-wal").unlink()
    with pytest.raises(LogFailed):
        await log.append(batch(2))
    with pytest.raises(LogFailed):
        await log.close()


async def test_a_burst_leaves_no_long_write_ahead_log_behind(tmp_path):
    """50 MB, then nothing: the file is cut while the store is open."""
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    wal = path.with_name("log.db-wal")
    largest = 0
    for n in range(0, 500, 10):
        await log.append(batch(n, 10, size=100_000))
        largest = max(largest, wal.stat().st_size)
    assert largest > 8 << 20
    until = time.monotonic() + 15
    while wal.stat().st_size > 4 << 20:
        assert time.monotonic() < until, wal.stat().st_size
        await log.foreign_writes()  # as a hub does while a run is followed
    assert log.failure is None
    await log.append(batch(500))
    assert await log.last("wf_a") == 500
    await log.close()


async def test_health_says_that_the_store_is_gone(tmp_path):
    """Over the API of a daemon that has nothing to do."""
    import httpx

    from agentflow.config import ServerConfig
    from agentflow.runtime import Runtime

    path = tmp_path / "data" / "log.db"
    with pytest.raises(LogFailed):  # noqa: PT012
        async with Runtime(f"sqlite:{path}") as runtime:
            transport = httpx.ASGITransport(Application(runtime, ServerConfig(), None))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                assert (await client.get("/healthz")).status_code == 200
                shutil.rmtree(path.parent)
                async with asyncio.timeout(10):
                    while (answer := await client.get("/healthz")).status_code == 200:
                        pass
                assert answer.status_code == 503
