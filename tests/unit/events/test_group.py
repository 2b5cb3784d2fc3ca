"""How the writing thread and the loop take turns."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable

import pytest

from agentflow.errors import Fenced, StoreError
from agentflow.events.envelope import StoredEvent
from agentflow.events.group import GroupCommit, Job
from agentflow.events.log import Append
from agentflow.events.segments import SegmentLog
from agentflow.events.sqlite import SqliteLog
from tests.unit.events.support import batch

MANY = 100


class Store:
    """Notes its groups; holds each at its sync until the test lets it go on."""

    failure = None

    def __init__(self, sync_s: float = 0.0) -> None:
        self.sync_s = sync_s
        self.due = False
        self.groups: list[int] = []
        self.told: list[str] = []
        self.syncing = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.raises: Exception | None = None

    def write(self, group: list[Job], leaving: Callable[[], None], *, patient: bool = True) -> bool:
        self.groups.append(len(group))
        if self.raises is not None:
            raise self.raises
        for job in group:
            assert job.call is not None
            job.result = job.call()
        leaving()
        self.syncing.release()
        self.go_on.acquire()
        return True

    def tend(self) -> None:
        self.due = False
        self.told.append("tended")

    def finish(self) -> None:
        self.told.append("finished")


@pytest.fixture
def store() -> Store:
    return Store()


def calls(group: GroupCommit, count: int) -> list[asyncio.Task[int]]:
    async def one(number: int) -> int:
        return await group.call(lambda: number)

    return [asyncio.ensure_future(one(n)) for n in range(count)]


async def reached(store: Store) -> None:
    """The thread is at its next sync."""
    await asyncio.to_thread(store.syncing.acquire)


async def ended(group: GroupCommit, store: Store) -> None:
    store.go_on.release(1_000)
    await asyncio.to_thread(group.stop)


def given(group: GroupCommit) -> list[list[Job]]:
    """What waits in the queue of the thread."""
    found = [group._queue.get_nowait() for _ in range(group._queue.qsize())]
    for jobs in found:
        group._queue.put(jobs)
    return [jobs for jobs in found if jobs is not None]


async def gathered(group: GroupCommit, store: Store, count: int) -> list[asyncio.Task[int]]:
    """`count` jobs that wait together behind one that is being written."""
    first = calls(group, 1)
    await reached(store)
    tasks = first + calls(group, count)
    await asyncio.sleep(0)  # each task runs up to its wait
    await asyncio.sleep(0)  # what one pass of the loop gives is given together
    assert [len(jobs) for jobs in given(group)] == [count]
    return tasks


async def test_of_many_jobs_half_are_left_for_the_next_group(store):
    group = GroupCommit(store)
    tasks = await gathered(group, store, MANY)
    store.go_on.release()
    await reached(store)
    assert store.groups == [1, MANY // 2]
    store.go_on.release()
    await reached(store)
    assert store.groups == [1, MANY // 2, MANY // 2]
    await ended(group, store)
    assert await asyncio.gather(*tasks) == [0, *range(MANY)]


async def test_a_slow_sync_takes_all_at_once():
    store = Store(sync_s=9.0)
    group = GroupCommit(store)
    tasks = await gathered(group, store, MANY)
    store.go_on.release()
    await reached(store)
    assert store.groups == [1, MANY]
    await ended(group, store)
    await asyncio.gather(*tasks)


async def test_a_group_is_reported_while_the_next_is_synced(store):
    group = GroupCommit(store)
    first, *others = await gathered(group, store, MANY)
    store.go_on.release()
    await reached(store)
    assert await first == 0
    assert not any(task.done() for task in others)
    store.go_on.release()
    await reached(store)
    done = await asyncio.gather(*others[: MANY // 2])
    assert done == list(range(MANY // 2))
    assert not any(task.done() for task in others[MANY // 2 :])
    await ended(group, store)
    await asyncio.gather(*others)


async def test_the_last_group_waits_for_no_other(store):
    group = GroupCommit(store)
    (task,) = calls(group, 1)
    await reached(store)
    store.go_on.release()
    assert await task == 0
    await ended(group, store)


async def test_a_store_that_fails_leaves_nobody_waiting(store):
    group = GroupCommit(store)
    first, *others = await gathered(group, store, 3)
    store.raises = OSError("gone")
    store.go_on.release()
    assert await first == 0
    for task in others:
        with pytest.raises(StoreError, match="gone"):
            await task
    await ended(group, store)


async def test_what_is_due_is_tended_when_all_is_reported(store):
    group = GroupCommit(store)
    first, *others = await gathered(group, store, 3)
    store.due = True
    unreported: list[list[Job]] = []
    tend, store.tend = store.tend, lambda: (unreported.append(group._done), tend())[1]
    store.go_on.release()
    await reached(store)
    await first
    assert unreported == [[]]
    await ended(group, store)
    await asyncio.gather(*others)
    assert store.told == ["tended", "finished"]


def job(batch: Append | None = None, call: Callable[[], object] | None = None) -> Job:
    return Job(asyncio.get_running_loop().create_future(), batch, call)


@pytest.mark.parametrize("kind", [SqliteLog, SegmentLog])
async def test_what_was_written_is_told_before_a_call_that_may_take_its_time(tmp_path, kind):
    log = kind(tmp_path / "log")
    order: list[str] = []
    called, written = job(call=lambda: order.append("call")), job(batch(0))
    store = log._store
    store.write([called, written], lambda: order.append("told"))
    assert order[:2] == ["told", "call"]
    assert written.error is None
    await log.close()


async def test_what_was_written_is_told_before_another_process_is_waited_for(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    await log.append(batch(0))
    other.execute("CREATE TABLE of_another (a)")
    await log.append(batch(1))
    other.execute("BEGIN IMMEDIATE")
    third = job(batch(2))
    log._store.write([third], lambda: other.in_transaction and other.execute("COMMIT"))
    assert third.error is None  # else it would have waited for the lock in vain
    other.close()
    await log.close()


async def test_a_call_that_was_refused_in_what_was_rolled_back_is_asked_again(tmp_path):
    log = SqliteLog(tmp_path / "log.db")
    await log.append(batch(0))
    answers: list[Exception | int] = [Fenced("another has it"), 7]

    def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    asked = job(call=call)
    unstorable = job(Append("wf_c", 1, 0, [StoredEvent(0, 2**70, "output", b"")], None, batch(0).run))
    log._store.write([asked, unstorable])
    assert (asked.error, asked.result) == (None, 7)
    assert isinstance(unstorable.error, StoreError)
    await log.close()
