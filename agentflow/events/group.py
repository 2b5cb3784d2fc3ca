"""Group commit: the loop queues, one thread writes whatever has gathered, one wake-up reports all of it.

A lone job is written at once; a thousand runs that append together share one sync. The loop's thread never
touches the store, and the writing thread never touches a future.

    loop    append a ► append b, c, d ────────► a is resolved, append e ────► b, c, d are resolved …
    thread  gather [a] ► write, sync ► gather [b, c, d] ► report [a] ► write, sync ► gather [e] ► …

Two policies stand apart: how many of the queued jobs are a group (`_group_size`), and when the loop, being
busy, sleeps for the thread (`writer_yield`).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from agentflow.errors import AgentflowError, LogClosed, StoreError
from agentflow.events.forked import ForkGuard
from agentflow.events.rows import Append
from agentflow.events.rules import check_batch
from agentflow.events.writer_yield import WriterYield

__all__ = ["GroupCommit", "Job", "Store", "fail"]

T = TypeVar("T")

_GROUP_EVENTS = 4_096  # beyond this a larger commit is no faster, only later

_HALVED_FROM_JOBS = 64
_LARGEST_SYNC_SHARE = 0.5

_WATCH_INTERVAL_S = 0.5
"""How often an idle store is looked at; a fault is known within a second."""


class Job:
    """One thing to write: a batch, or a call between batches; and what became of it."""

    __slots__ = ("batch", "call", "error", "future", "result")

    def __init__(
        self, future: asyncio.Future[Any], batch: Append | None = None, call: Callable[[], Any] | None = None
    ) -> None:
        self.future = future
        self.batch = batch
        self.call = call
        self.result: Any = None
        self.error: AgentflowError | None = None


class Store(Protocol):
    """What the thread writes to. Its methods are called from that thread alone."""

    @property
    def failure(self) -> AgentflowError | None:
        """Why nothing can be written any more; read by every thread."""
        ...

    @property
    def sync_share(self) -> float:
        """How much of the time of the last group its sync took, from 0 to 1; for the thread alone."""
        ...

    def write(self, group: list[Job], leaving: Callable[[], None]) -> None:
        """Make the group durable, in order, and set each job's result or error. Never raises. `leaving` is
        called when the interpreter is about to be left for long: what the loop is given to do then, it does
        meanwhile."""
        ...

    @property
    def due(self) -> bool:
        """Whether there is something to tend."""
        ...

    def tend(self) -> None:
        """Do maintenance after every group was reported, without a caller. Never raises."""
        ...

    def finish(self) -> None:
        """Close, because no group will follow."""
        ...


class GroupCommit:
    """The queue, the thread, and the futures. Belongs to the event loop of its first use.

    `watch` is called in the thread every 0.5 s, between two groups, also while nothing is written. It must
    not raise. In a child of `os.fork` every method raises LogFailed, because the thread is not there.
    """

    def __init__(self, store: Store, watch: Callable[[], None] | None = None) -> None:
        self._store = store
        self._watch = watch
        self._watched_at = time.monotonic()
        self._fork_guard = ForkGuard("the store")
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._submitted = 0
        self._reported = 0
        self._yield = WriterYield(self._is_writing)
        self._done: list[Job] = []  # written, and not reported yet
        self._thread = threading.Thread(target=self._work, name="agentflow-log-writer", daemon=True)
        self._thread.start()

    # -- the loop's thread

    @property
    def closed(self) -> bool:
        """True if nothing is accepted any more. Raises LogFailed in a child of `os.fork`."""
        self._fork_guard.check()
        return self._closed

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Implement `EventLog.append`."""
        self._fork_guard.check()
        check_batch(batch)
        future: asyncio.Future[None] = self._running_loop().create_future()
        if self._closed:
            future.set_exception(LogClosed())
        else:
            self._submit(Job(future, batch))
        return future

    async def call(self, call: Callable[[], T]) -> T:
        """Run `call` in the thread, after all that was submitted before it. LogClosed."""
        if self.closed:
            raise LogClosed
        future: asyncio.Future[T] = self._running_loop().create_future()
        self._submit(Job(future, call=call))
        return await future

    def stop(self) -> None:
        """Write what was accepted, then end the thread; blocks, so call it from another one."""
        self._queue.put(None)
        self._thread.join()

    def refuse(self) -> bool:
        """Accept nothing more; False if that was so already."""
        self._fork_guard.check()
        was, self._closed = self._closed, True
        return not was

    def _submit(self, job: Job) -> None:
        self._submitted += 1
        self._queue.put(job)
        if not self._yield.looks:
            assert self._loop is not None
            self._yield.start(self._loop)

    def _is_writing(self) -> bool:
        return self._reported < self._submitted

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                raise RuntimeError("this log belongs to another event loop")
            self._loop = loop
        return loop

    # -- the writing thread

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._gather()
            if group:
                try:
                    self._store.write(group, self._report)
                except Exception as error:  # a bug of the store must leave no caller waiting for ever
                    fail(group, StoreError(f"the store failed: {error!r}"))
                self._report()
                self._done = group
            # The next group is prepared before this one is reported: both need the interpreter, and the loop
            # has it for itself while SQLite or the disk works. If there is none, no caller waits for it.
            if self._queue.empty() or stopping or self._store.due:
                self._report()
                if not stopping and self._store.due:
                    self._store.tend()
            self._watch_if_due()
        self._store.finish()

    def _watch_if_due(self) -> None:
        if self._watch is not None and time.monotonic() - self._watched_at >= _WATCH_INTERVAL_S:
            self._watch()
            self._watched_at = time.monotonic()

    def _gather(self) -> tuple[list[Job], bool]:
        """Return the queued jobs, up to one group, and whether it is the last; waits for the first job, or
        until the file is to be watched."""
        group: list[Job] = []
        try:
            job = self._queue.get(timeout=None if self._watch is None else _WATCH_INTERVAL_S)
        except queue.Empty:
            return group, False
        size = 0
        most = _group_size(self._queue.qsize() + 1, self._store.sync_share)
        try:
            while job is not None:
                group.append(job)
                size += len(job.batch.events) if job.batch is not None else 1
                if size >= _GROUP_EVENTS or len(group) >= most:
                    return group, False
                job = self._queue.get_nowait()
        except queue.Empty:
            return group, False
        return group, True

    def _report(self) -> None:
        """Tell the loop of the group that was written last, unless it knows."""
        group, self._done = self._done, []
        if not group:
            return
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all waiters
            self._loop.call_soon_threadsafe(_resolve, group)
        self._reported += len(group)
        self._yield.report()


def _group_size(queued: int, sync_share: float) -> int:
    """Return how many of the queued jobs may be one group.

    Writers that wait for the same commit come back together, and thread and loop then work by turns. So of
    many jobs half are left for the next group: the loop runs ahead with one half while the other is written.
    Where a commit spends its time on the sync there should be few, so a group takes all.
    """
    if queued < _HALVED_FROM_JOBS or sync_share > _LARGEST_SYNC_SHARE:
        return _GROUP_EVENTS
    return (queued + 1) // 2


def _resolve(group: list[Job]) -> None:
    for job in group:
        future = job.future
        if future.done():  # cancelled by its waiter; what was written stays written
            continue
        if job.error is None:
            future.set_result(job.result)
        else:
            future.set_exception(job.error)


def fail(group: list[Job], failure: AgentflowError) -> None:
    """Fail the group, which is not in the store; jobs that were rejected keep their own error."""
    for job in group:
        if job.error is None:
            job.error = failure
