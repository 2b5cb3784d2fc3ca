"""A SQLite store while the process has no free file descriptor: nothing fails that cannot be tried again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from agentflow.errors import LogFailed, StorageUnavailable, StoreError
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.failures import failure_of
from agentflow.events.sqlite.presence import takes_writes
from tests.unit.events.support import all_offsets, batch


@contextmanager
def free_descriptors(count: int) -> Generator[None]:
    """Leave the process so many descriptors, then EMFILE; those that are open go on working."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = open_descriptors()
    soft = next(n for n in range(4_096) if n - len([fd for fd in used if fd < n]) == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def open_descriptors() -> set[int]:
    """Return those of this process, without that of the look itself."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return {number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")}


async def test_an_open_store_reads_and_writes_without_a_free_descriptor(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    await log.append(batch(0))  # the file of the owner's lock is made
    with free_descriptors(0):
        for offset in range(1, 12):  # more than 4 MiB: they are copied by the thread that checkpoints
            await log.append(batch(offset, size=1 << 20))
        pages = await asyncio.gather(*(all_offsets(log, "wf_a") for _ in range(8)))
        assert pages == [list(range(12))] * 8
        log._store.checkpoint()
        await log.probe()
    assert log.failure is None
    await log.close()


async def test_a_first_run_without_a_free_descriptor_is_refused_and_can_be_tried_again(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    with free_descriptors(0), pytest.raises(StorageUnavailable):
        await log.append(batch(0))
    assert log.failure is None
    await log.append(batch(0))
    assert await all_offsets(log, "wf_a") == [0]
    await log.close()


def test_a_file_that_cannot_be_opened_took_nothing_and_stops_no_log(tmp_path):
    with free_descriptors(0):
        error = cannot_open(tmp_path)
    failure, effect = failure_of(error, tmp_path / "log.db")
    assert (type(failure), effect) == (StorageUnavailable, "later")
    assert "descriptors" in (failure.hint or "")
    assert not isinstance(failure, LogFailed)


def cannot_open(folder):
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(folder / "log.db")
    assert caught.value.sqlite_errorname == "SQLITE_CANTOPEN"
    return caught.value


def test_a_probe_of_the_disk_without_a_free_descriptor_finds_no_broken_disk(tmp_path):
    (tmp_path / "log.db").write_bytes(bytes(4096))
    assert takes_writes(tmp_path / "log.db")
    with free_descriptors(0):
        assert not takes_writes(tmp_path / "log.db")


@pytest.mark.parametrize("count", range(11))
def test_a_store_opens_whole_or_not_at_all(tmp_path, count):
    path = tmp_path / "log.db"
    asyncio.run(SqliteLog(path).close())
    before = open_descriptors()
    with free_descriptors(count):
        log = None
        with pytest.raises(StoreError) if count < 9 else contextlib.nullcontext():
            log = SqliteLog(path)
    if log is not None:
        assert log.failure is None
        asyncio.run(log.close())
    assert open_descriptors() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("agentflow")]
