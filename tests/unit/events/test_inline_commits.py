"""Which commits the loop makes itself, which it leaves to the thread, and that both mean the same."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
import pytest

from agentflow.errors import LogFailed, OffsetConflict, StorageUnavailable, StoreError
from agentflow.events import group as groups
from agentflow.events import pace
from agentflow.events.group import GroupCommit, Job
from agentflow.events.pace import PROBES, CommitPace
from agentflow.events.rows import Append
from agentflow.events.segments import SegmentLog
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.writer import SqliteStore
from tests.unit.events.support import batch

LOOP = threading.main_thread()
STORES = pytest.mark.parametrize("kind", [SqliteLog, SegmentLog])


@pytest.fixture
def short(monkeypatch):
    """Whatever a commit takes here, it counts as short."""
    monkeypatch.setattr(pace, "LONGEST_SYNC_S", 1e9)
    monkeypatch.setattr(pace, "LONGEST_HOLD_S", 2e9)
    monkeypatch.setattr(
        groups, "_WATCH_INTERVAL_S", 3_600.0
    )  # the thread has the store for a moment when it looks after it


class Store:
    """Notes which thread wrote how many batches."""

    failure = None
    due = False
    sync_s = 0.0

    def __init__(self) -> None:
        self.written: list[tuple[bool, int]] = []
        self.offsets: list[int] = []
        self.busy = False
        self.raises: BaseException | None = None
        self.tended: list[bool] = []

    def write(self, group: list[Job], leaving: Callable[[], None], *, patient: bool) -> bool:
        if self.busy and not patient:
            return False
        on_loop = threading.current_thread() is LOOP
        assert on_loop is not patient
        self.written.append((on_loop, len(group)))
        if self.raises is not None:
            raise self.raises
        for job in group:
            if job.batch is not None:
                self.offsets.append(job.batch.expected)
            elif job.call is not None:
                job.result = job.call()
        return True

    def tend(self) -> None:
        self.due = False
        self.tended.append(threading.current_thread() is LOOP)

    def finish(self) -> None:
        pass


@pytest.fixture
async def store():
    return Store()


@pytest.fixture
async def group(store, short):
    """A group commit that has measured enough."""
    made = GroupCommit(store)
    for offset in range(PROBES):
        await made.append(batch(offset))
    assert store.written == [(False, 1)] * PROBES
    store.written.clear()
    store.offsets.clear()
    yield made
    await asyncio.to_thread(made.stop)


def lazy(offset: int) -> Append:
    return msgspec.structs.replace(batch(offset), lazy=True)


async def test_a_lone_commit_is_made_on_the_loop_and_is_done_at_once(group, store):
    future = group.append(batch(1))
    assert future.done()
    assert store.written == [(True, 1)]
    await future


async def test_what_is_appended_in_one_pass_shares_a_commit(group, store):
    first = group.append(batch(0))
    rest = [group.append(batch(n)) for n in range(1, 5)]
    assert first.done()  # there were none lately
    assert not any(future.done() for future in rest)
    await asyncio.gather(*rest)
    again = [group.append(batch(n)) for n in range(5, 10)]
    assert not any(future.done() for future in again)
    await asyncio.gather(*again)
    assert [count for _, count in store.written] == [1, 4, 5]
    assert store.offsets == list(range(10))


async def test_a_batch_that_nobody_waits_for_is_written_with_the_next_that_somebody_does(group, store):
    waiting = [group.append(lazy(n)) for n in range(3)]
    await asyncio.sleep(0)
    assert store.written == []
    assert group.append(batch(3)).done()
    assert all(future.done() for future in waiting)
    assert (store.written, store.offsets) == ([(True, 4)], [0, 1, 2, 3])


async def test_a_batch_that_nobody_waits_for_is_written_soon_by_itself(group, store):
    await group.append(lazy(0))
    await asyncio.gather(*(group.append(lazy(n)) for n in range(1, 4)))
    assert store.written == [(True, 1), (True, 3)]


async def test_many_that_nobody_waits_for_are_written_when_there_are_32(group, store):
    waiting = [group.append(lazy(n)) for n in range(32)]
    assert all(future.done() for future in waiting)
    assert store.written == [(True, 32)]


async def test_a_long_commit_leaves_the_next_ones_to_the_thread(group, store, monkeypatch):
    monkeypatch.setattr(pace, "LONGEST_HOLD_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(CommitPace, "is_short", lambda _self, _jobs: True)
        await group.append(batch(0))
    monkeypatch.setattr(pace, "LONGEST_HOLD_S", 2e9)
    for offset in range(1, PROBES + 2):
        await group.append(batch(offset))
    assert [on_loop for on_loop, _ in store.written] == [True, *[False] * PROBES, True]


async def test_a_long_sync_is_left_to_the_thread(group, store, monkeypatch):
    monkeypatch.setattr(pace, "LONGEST_SYNC_S", 0.001)
    store.sync_s = 0.01
    offsets = iter(range(100))
    while not store.written or store.written[-1][0]:
        await group.append(batch(next(offsets)))
    for _ in range(20):
        await group.append(batch(next(offsets)))
    assert store.written[-20:] == [(False, 1)] * 20


async def test_the_store_of_a_busy_process_is_waited_for_by_the_thread(group, store):
    store.busy = True
    await group.append(batch(0))
    assert store.written == [(False, 1)]


async def test_nothing_is_written_on_the_loop_before_what_the_thread_has(group, store):
    held, began = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        held.wait()

    call = asyncio.ensure_future(group.call(hold))
    await asyncio.to_thread(began.wait)
    first = group.append(batch(0))
    assert not first.done()
    held.set()
    await call
    await first
    assert store.written == [(False, 1), (False, 1)]


async def test_a_large_batch_and_a_call_are_left_to_the_thread(group, store):
    await group.append(batch(0, 4_000))
    await group.call(lambda: None)
    assert store.written == [(False, 1), (False, 1)]


async def test_what_is_due_after_a_commit_on_the_loop_is_tended_by_the_thread(group, store):
    store.due = True
    await group.append(batch(0))
    for _ in range(2):  # the second is written when what was due then is done
        await group.call(lambda: None)
    assert store.written[0] == (True, 1)
    assert store.tended == [False]


async def test_a_failure_on_the_loop_is_told_to_those_who_wait(group, store):
    store.raises = OSError("gone")
    with pytest.raises(StoreError, match="gone"):
        await group.append(batch(0))
    assert store.written == [(True, 1)]
    with pytest.raises(StoreError, match="gone"):
        await group.append(batch(0))
    assert store.written[1:] == [(False, 1)]  # one that failed says nothing of how long others take


async def test_what_was_gathered_is_written_before_the_end(store, short):
    group = GroupCommit(store)
    waiting = group.append(lazy(0))
    group.refuse()
    await asyncio.to_thread(group.stop)
    await waiting
    assert store.offsets == [0]


async def test_an_interrupted_commit_fails_its_group_and_all_that_follows(group, store):
    store.raises = KeyboardInterrupt()
    waiting = group.append(lazy(0))
    with pytest.raises(KeyboardInterrupt):
        group.append(batch(1))
    for future in (waiting, group.append(batch(2)), group.append(batch(3))):
        with pytest.raises(LogFailed, match="interrupted"):
            await future
    assert store.written == [(True, 2)]


@STORES
@pytest.mark.parametrize("is_written", [True, False])
async def test_a_store_that_was_interrupted_closes_and_opens_again(
    kind, is_written, short, tmp_path, monkeypatch
):
    log = kind(tmp_path / "store")
    for offset in range(PROBES):
        await log.append(batch(offset))
    name = "_commit" if kind is SqliteLog else "_write_batches"
    store: Any = log._store  # pyright: ignore[reportPrivateUsage]
    commit = getattr(store, name)

    def interrupted(*arguments: Any) -> None:
        if is_written:
            commit(*arguments)
        elif kind is SqliteLog:
            store._begin_writing()
        raise KeyboardInterrupt

    monkeypatch.setattr(store, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(batch(PROBES))
    monkeypatch.setattr(store, name, commit)
    with pytest.raises(LogFailed, match="interrupted"):
        await log.append(batch(PROBES + 1))
    await log.close()
    log = kind(tmp_path / "store")
    assert (await log.run("wf_a")).last_offset == PROBES - (not is_written)
    await log.append(batch(PROBES + is_written))
    await log.close()


@STORES
def test_what_was_gathered_is_written_though_its_loop_has_ended(kind, short, tmp_path):
    path = tmp_path / "store"

    async def fill() -> Any:
        log = kind(path)
        for offset in range(PROBES):
            await log.append(batch(offset))
        log.append(lazy(PROBES)).add_done_callback(lambda _: None)
        return log

    async def close(log: Any) -> None:
        await log.close()

    async def last() -> int:
        log = kind(path)
        row = await log.run("wf_a")
        await log.close()
        return row.last_offset

    log = asyncio.run(fill())
    asyncio.run(close(log))
    assert asyncio.run(last()) == PROBES


async def test_a_forked_child_writes_nothing_that_was_gathered(group, store, monkeypatch):
    waiting = group.append(lazy(0))
    with monkeypatch.context() as patch:
        patch.setattr("agentflow.events.forked._generation", -1)
        group._give()  # pyright: ignore[reportPrivateUsage]
        assert store.written == []
    group._give()  # pyright: ignore[reportPrivateUsage]
    await waiting


def test_the_time_of_a_job_bounds_how_many_are_committed_on_the_loop():
    measured = CommitPace()
    assert not measured.is_short(1)
    for _ in range(PROBES):
        measured.took(1, 0.0004, 0.0003, on_loop=False)
    assert measured.is_short(16)
    assert not measured.is_short(18)


def test_the_median_of_the_syncs_decides():
    measured = CommitPace()
    for number in range(PROBES):
        measured.took(1, 0.0101, 0.01 if number % 4 == 0 else 0.0001, on_loop=False)
    assert measured.is_short(1) is False  # a job seems to take 10 ms
    measured = CommitPace()
    for number in range(PROBES):
        sync = 0.01 if number % 4 == 0 else 0.0001
        measured.took(1, sync + 0.0001, sync, on_loop=False)
    assert measured.is_short(1)
    for _ in range(PROBES // 2 + 1):
        measured.took(1, 0.0101, 0.01, on_loop=False)
    assert not measured.is_short(1)


async def measured(log) -> int:
    """Have the log measure enough; return the next offset."""
    for offset in range(PROBES):
        await log.append(batch(offset))
    return PROBES


@pytest.fixture
def threads(monkeypatch):
    """Of each group that is written from now on: whether it was on the loop."""
    seen: list[bool] = []
    write = GroupCommit._write

    def noting(self, group, leaving, *, on_loop):
        seen.append(on_loop)
        return write(self, group, leaving, on_loop=on_loop)

    monkeypatch.setattr(GroupCommit, "_write", noting)
    return seen


@STORES
async def test_what_the_loop_wrote_is_in_the_log(kind, tmp_path, short, threads):
    log = kind(tmp_path / "log")
    first = await measured(log)
    threads.clear()
    for offset in range(first, 20):
        await log.append(batch(offset))
    with pytest.raises(OffsetConflict):
        await log.append(batch(5))
    assert threads == [True] * (20 - first + 1)
    await log.close()
    log = kind(tmp_path / "log")
    assert [event.offset for event in await log.read("wf_a")] == list(range(20))
    await log.close()


async def test_another_process_that_has_the_store_holds_the_thread_and_not_the_loop(tmp_path, short, threads):
    log = SqliteLog(tmp_path / "log.db")
    first = await measured(log)
    threads.clear()
    with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        future = log.append(batch(first))
        assert not future.done()
        other.execute("COMMIT")
        await future
    assert threads == [True, False]
    await log.append(batch(first + 1))
    assert log.append(batch(first + 2)).done() is False  # it commits anew, and is measured first
    await log.close()


async def test_a_full_disk_refuses_on_the_loop_as_in_the_thread(tmp_path, short, threads, monkeypatch):
    log = SqliteLog(tmp_path / "log.db")
    first = await measured(log)
    threads.clear()
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"

    def full(_store: SqliteStore, *_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "_commit", full)
        for _ in range(2):
            with pytest.raises(StorageUnavailable):
                await log.append(batch(first))
    assert threads == [True, False]
    await log.append(batch(first))
    await log.close()


async def test_a_failed_sync_on_the_loop_is_final(tmp_path, short, threads, monkeypatch):
    log = SegmentLog(tmp_path / "log")
    first = await measured(log)
    threads.clear()

    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(LogFailed):
            await log.append(batch(first))
    with pytest.raises(LogFailed):
        await log.append(batch(first))
    assert threads == [True, False]
    assert isinstance(log.failure, LogFailed)
    await log.close()


@STORES
async def test_a_store_that_was_replaced_is_noticed_by_the_commit_on_the_loop(kind, tmp_path, short, threads):
    log = kind(tmp_path / "log")
    first = await measured(log)
    threads.clear()
    path = tmp_path / "log"
    if path.is_dir():
        path = next((path / "segments").iterdir())
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(LogFailed):
        await log.append(batch(first))
    assert threads[0] is True
    with pytest.raises(LogFailed):
        await log.close()


def test_the_bounds_are_those_of_the_design():
    assert (pace.LONGEST_SYNC_S, pace.LONGEST_HOLD_S, groups._LAZY_S) == (0.001, 0.002, 0.002)
