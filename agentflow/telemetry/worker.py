"""A thread for work that must not happen on the event loop: folding, encoding, waiting for a collector.

A daemon thread, never joined: a collector that never answers must not keep the process from ending. It shares
the interpreter with the loop, so it works in small pieces, and in smaller ones while the loop is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Pacer", "Worker", "WorkerFailed"]

T = TypeVar("T")


class WorkerFailed(Exception):
    """A call ended with something that is not an Exception; its cause."""


class Worker:
    """Runs calls one after another in a thread of its own. Belongs to the loop that awaits them."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        """The thread's id."""
        return self._thread.ident

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of the call, or raise its error. The call goes on if the caller is cancelled.

        Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError("this worker is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put((loop, future, function, arguments))
        return await future

    def close(self) -> None:
        """End the thread after the call that is under way; never waits for it."""
        self._closed = True
        self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            loop, future, function, arguments = job
            result = error = None
            try:
                result = function(*arguments)
            except Exception as raised:
                error = raised
            except BaseException as raised:
                # A third-party exporter calls sys.exit, or is cancelled: in this thread that means nothing.
                error = WorkerFailed(f"{type(raised).__name__}: {raised}")
                error.__cause__ = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all waiters
                loop.call_soon_threadsafe(_settle, future, result, error)
            del job, future, function, arguments, result, error  # keep nothing while there is nothing to do


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():  # the waiter was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Pacer:
    """Makes a working thread give way to the loop: `pause` is called after each small piece of work.

    A thread that computes takes the interpreter for 5 ms at a time, which the loop feels as delay. So every
    pause gives it away, and while the rest of the process is busy this thread works a quarter of the time.
    """

    SHARE_WHEN_BUSY = 0.25
    _BUSY = 0.5
    _LONGEST = 0.02

    def __init__(self) -> None:
        self._wall = self._process = self._own = 0.0

    def start(self) -> None:
        """Begin to count; in the thread that will pause."""
        self._wall, self._process, self._own = time.perf_counter(), time.process_time(), time.thread_time()

    def pause(self) -> None:
        """Give way; longer while others have work for more than half of the time."""
        own = time.thread_time() - self._own
        others = time.process_time() - self._process - own
        wall = time.perf_counter() - self._wall
        pause = 0.00005
        if others > self._BUSY * wall:
            pause = min(self._LONGEST, max(pause, own * (1 / self.SHARE_WHEN_BUSY - 1)))
        time.sleep(pause)
        self.start()
