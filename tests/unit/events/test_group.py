"""How the writing thread and the loop take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from agentflow.errors import StoreError
from agentflow.events.group import GroupCommit, Job

MANY = 100


class Store:
    """Notes its groups; holds each at its sync until the test lets it go on."""

    failure = None

    def __init__(self, sync_share: float = 0.0) -> None:
        self.sync_share = sync_share
        self.due = False
        self.groups: list[int] = []
        self.told: list[str] = []
        self.syncing = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.raises: Exception | None = None

    def write(self, group: list[Job], leaving: Callable[[], None]) -> None:
        self.groups.append(len(group))
        if self.raises is not None:
            raise self.raises
        for job in group:
            assert job.call is not None
            job.result = job.call()
        leaving()
        self.syncing.release()
        self.go_on.acquire()

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


async def gathered(group: GroupCommit, store: Store, count: int) -> list[asyncio.Task[int]]:
    """`count` jobs that wait together behind one that is being written."""
    first = calls(group, 1)
    await reached(store)
    tasks = first + calls(group, count)
    await asyncio.sleep(0)  # each task runs up to its wait
    assert group._queue.qsize() == count
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
    store = Store(sync_share=0.9)
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
    first.add_done_callback(lambda _: store.told.append("reported"))
    store.go_on.release()
    await reached(store)
    await first
    assert store.told[0] == "tended"
    await ended(group, store)
    await asyncio.gather(*others)
    assert store.told[-1] == "finished"
    assert store.told.count("tended") == 1
