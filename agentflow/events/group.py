"""Group commit: what one pass of the loop gives is written together, by one thread or on the loop itself.

A commit that will be short is made by the loop, which spares waking the thread and being woken by it, and
that is most of what a short commit costs. Any other is made by the thread, which takes whatever has gathered
and reports all of it by one wake-up. A lone job is written at once; a thousand runs that append together
share one sync. Either way it is `Store.write`, under one lock, and nothing is written by the loop while the
thread has anything to write or to report: jobs commit in the order of their calls.

    loop    append a ► append b, c, d ────────► a is resolved, append e ────► b, c, d are resolved …
    thread  gather [a] ► write, sync ► gather [b, c, d] ► report [a] ► write, sync ► gather [e] ► …

Three policies stand apart: how many of the queued jobs are a group (`_group_size`), which commits are short
enough for the loop (`pace`), and when the loop, being busy, sleeps for the thread (`writer_yield`).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from agentflow.errors import AgentflowError, LogClosed, LogFailed, StoreError
from agentflow.events.forked import ForkGuard
from agentflow.events.pace import CommitPace
from agentflow.events.rows import Append
from agentflow.events.rules import check_batch
from agentflow.events.sealing import size_of
from agentflow.events.writer_yield import WriterYield

__all__ = ["GroupCommit", "Job", "Store", "fail"]

T = TypeVar("T")

_GROUP_EVENTS = 4_096  # beyond this a larger commit is no faster, only later

_HALVED_FROM_JOBS = 64
_LARGEST_SYNC_SHARE = 0.5

_WATCH_INTERVAL_S = 0.5
"""How often an idle store is looked at; a fault is known within a second."""


_LAZY_S = 0.002
"""How long a lazy batch waits for others before it goes to the store with them, in seconds."""
_LAZY_JOBS = 32
_INLINE_BYTES = 64 << 10  # of events: compressing and copying more takes its time


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
    """What is written to, by one thread at a time."""

    @property
    def failure(self) -> AgentflowError | None:
        """Why nothing can be written any more; read by every thread."""
        ...

    @property
    def sync_s(self) -> float:
        """How many seconds the sync of the last group took."""
        ...

    def write(self, group: list[Job], leaving: Callable[[], None], *, patient: bool) -> bool:
        """Make the group durable, in order, and set each job's result or error. Never raises. `leaving` is
        called when the interpreter is about to be left for long: what the loop is given to do then, it does
        meanwhile. Returns False, with nothing written, if another process has the store, for which one that
        is not `patient` does not wait."""
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
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._gathered: list[Job] = []
        self._hurried = 0  # jobs of this pass of the loop that are not lazy
        self._lone = True  # whether the last pass had one such job at most
        self._timer: asyncio.TimerHandle | None = None
        self._submitted = 0  # jobs given to the thread
        self._reported = 0  # and those that it told the loop of
        self._resolved = 0  # and those that the loop has told their waiters of
        self._yield = WriterYield(self._is_writing)
        self._done: list[Job] = []  # written, and not reported yet
        self._backlog: list[Job] = []  # taken from the queue by the thread, and in no group yet
        self._stopping = False
        self._interrupted = False
        self._sync_share = 0.0
        self._store_lock = threading.Lock()  # held by the thread that uses the store
        self._pace = CommitPace()
        self._thread = threading.Thread(target=self._work, name="agentflow-log-writer", daemon=True)
        self._thread.start()

    # -- the loop's thread

    @property
    def closed(self) -> bool:
        """True if nothing is accepted any more. Raises LogFailed in a child of `os.fork`."""
        self._fork_guard.check()
        return self._closed

    def call_here(self, call: Callable[[], T | None]) -> T | None:
        """Run a short `call`, which writes nothing, on the loop; None if the thread uses the store now, or if
        the disk is so slow that the loop makes no commit either."""
        if not self._pace.is_short(1) or not self._store_lock.acquire(blocking=False):
            return None
        try:
            return call()
        finally:
            self._store_lock.release()

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Implement `EventLog.append`."""
        self._fork_guard.check()
        check_batch(batch)
        loop = self._running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._closed:
            future.set_exception(LogClosed())
            return future
        self._gathered.append(Job(future, batch))
        if batch.lazy:
            if len(self._gathered) >= _LAZY_JOBS:
                self._give()
            elif self._timer is None:
                self._timer = loop.call_later(_LAZY_S, self._end_lazy)
            return future
        self._hurry()
        if self._lone and self._hurried == 1:
            self._give()
        return future

    async def call(self, call: Callable[[], T]) -> T:
        """Run `call` in the thread, after all that was submitted before it. LogClosed."""
        if self.closed:
            raise LogClosed
        future: asyncio.Future[T] = self._running_loop().create_future()
        self._gathered.append(Job(future, call=call))
        self._hurry()
        return await future

    def stop(self) -> None:
        """Write what was accepted, then end the thread; blocks, so call it from another one."""
        self._queue.put(None)
        self._thread.join()

    def refuse(self) -> bool:
        """Accept nothing more; False if that was so already."""
        self._fork_guard.check()
        was, self._closed = self._closed, True
        if not was and self._gathered:
            if asyncio.get_running_loop() is self._loop:
                self._give()
            else:  # that one has ended, and can be told nothing
                self._hand_over(self._take())
        return not was

    def _hurry(self) -> None:
        """Have what was gathered written at the end of this pass of the loop, with all that follows in it."""
        self._hurried += 1
        if self._hurried == 1:
            assert self._loop is not None
            self._loop.call_soon(self._end_pass)

    def _end_pass(self) -> None:
        self._lone, self._hurried = self._hurried == 1, 0
        if self._gathered:
            self._give()

    def _end_lazy(self) -> None:
        """Give what is lazy 2 ms after the first that was, or sooner: a batch that went with others left the
        timer as it was."""
        self._timer = None
        if self._gathered:
            self._give()

    def _give(self) -> None:
        """Have what was gathered written: here if that is short, else by the thread."""
        if self._fork_guard.forked:  # a loop that goes on in the child: the store is its parent's
            return
        group = self._take()
        if self._resolved == self._submitted and self._pace.is_short(len(group)) and self._write_here(group):
            return
        self._hand_over(group)
        if not self._yield.looks:
            assert self._loop is not None
            self._yield.start(self._loop)

    def _take(self) -> list[Job]:
        """Return what was gathered; nothing is gathered then."""
        group, self._gathered = self._gathered, []
        return group

    def _hand_over(self, group: list[Job]) -> None:
        self._submitted += len(group)
        self._queue.put(group)

    def _is_writing(self) -> bool:
        return self._reported < self._submitted

    def _write_here(self, group: list[Job]) -> bool:
        """Write a group on the loop's own thread; False if it is left to the other one."""
        size = 0
        for job in group:
            if job.batch is None:
                return False
            size += size_of(job.batch.events)
        if size > _INLINE_BYTES or not self._store_lock.acquire(blocking=False):
            return False
        try:
            written, due = self._write(group, _nothing, on_loop=True), self._store.due
        finally:
            self._store_lock.release()
        if written:
            _resolve(group)
            if due:
                self._queue.put([])  # the thread tends the store
        return written

    def _settle(self, group: list[Job]) -> None:
        self._resolved += len(group)
        _resolve(group)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                raise RuntimeError("this log belongs to another event loop")
            self._loop = loop
        return loop

    # -- either thread

    def _write(self, group: list[Job], leaving: Callable[[], None], *, on_loop: bool) -> bool:
        """Write a group; the one place where that is done. False if the store is another process's now.

        Raises what a signal raises while the loop writes, as Ctrl-C does: the group is failed then, and so is
        all that follows, since the store is in the middle of something.
        """
        store = self._store
        if self._interrupted:
            fail(group, _interruption())
            return True
        began = time.perf_counter()
        try:
            written = store.write(group, leaving, patient=not on_loop)
        except Exception as error:  # a bug of the store must leave no caller waiting for ever
            fail(group, StoreError(f"the store failed: {error!r}"))
            written = True
        except BaseException:
            self._interrupted = True
            fail(group, _interruption())
            _resolve(group)
            raise
        if not written or group[0].error is not None:
            self._pace.start_again()
            return written
        took = time.perf_counter() - began
        self._sync_share = store.sync_s / took
        self._pace.took(len(group), took, store.sync_s, on_loop=on_loop)
        return True

    # -- the writing thread

    def _work(self) -> None:
        while not self._stopping or self._backlog:
            group = self._gather()
            if group:
                with self._store_lock:
                    self._write(group, self._report, on_loop=False)
                self._report()
                self._done = group
            # The next group is prepared before this one is reported: both need the interpreter, and the loop
            # has it for itself while SQLite or the disk works. If there is none, no caller waits for it.
            if self._stopping or self._store.due or not (self._backlog or self._queue.qsize()):
                self._report()
                if not self._stopping and self._store.due:
                    with self._store_lock:
                        self._store.tend()
            self._watch_if_due()
        self._store.finish()

    def _watch_if_due(self) -> None:
        if self._watch is not None and time.monotonic() - self._watched_at >= _WATCH_INTERVAL_S:
            with self._store_lock:
                self._watch()
            self._watched_at = time.monotonic()

    def _gather(self) -> list[Job]:
        """Return the queued jobs, up to one group; waits for the first, or until the file is to be
        watched."""
        jobs = self._backlog
        with contextlib.suppress(queue.Empty):
            timeout = None if self._watch is None else _WATCH_INTERVAL_S
            given = self._queue.get_nowait() if jobs else self._queue.get(timeout=timeout)
            while given is not None:
                jobs += given
                given = self._queue.get_nowait()
            self._stopping = True
        most = _group_size(len(jobs), self._sync_share)
        size = count = 0
        while count < min(most, len(jobs)) and size < _GROUP_EVENTS:
            batch = jobs[count].batch
            size += len(batch.events) if batch is not None else 1
            count += 1
        group, self._backlog = jobs[:count], jobs[count:]
        return group

    def _report(self) -> None:
        """Tell the loop of the group that was written last, unless it knows."""
        group, self._done = self._done, []
        if not group:
            return
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all waiters
            self._loop.call_soon_threadsafe(self._settle, group)
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


def _interruption() -> LogFailed:
    return LogFailed(
        "the program was interrupted while it wrote to the store",
        hint="open the store again: all that was acknowledged is there",
    )


def _nothing() -> None:
    """The loop cannot do anything meanwhile: it writes."""


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
