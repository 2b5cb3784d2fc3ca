"""Yields the interpreter to the thread that writes the log, while the event loop is busy.

A loop that never sleeps keeps the interpreter (the GIL) from the writing thread: commits then take hundreds
of milliseconds or do not happen at all. While something is being written the loop looks, every 2 ms, whether
it was busy since the last look:

    loop    submit ──2 ms──► look: busy 95 % ► sleep ≤ 5 ms ──────► look: busy 30 % ► look again in 2 ms …
    thread          waits for the interpreter  │ writes, reports ►│

It sleeps until the commit is reported, for 5 ms at most: longer would make the loop late and gains little,
since a statement of many rows needs the interpreter seldom. A loop that was idle waits twice as long for its
next look, 16 ms at most: while a run awaits a disk of 5 ms, each look wakes it for nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

__all__ = ["WriterYield"]

_LOOK_INTERVAL_S = 0.002
_LONGEST_INTERVAL_S = 0.016
_BUSY_SHARE = 0.7
_IDLE_SHARE = 0.2  # a busy loop may look half idle on a machine with other work
_LONGEST_SLEEP_S = 0.005


class WriterYield:
    """Makes one event loop sleep for one writing thread. `is_writing` returns whether a job is unreported."""

    def __init__(self, is_writing: Callable[[], bool]) -> None:
        self._is_writing = is_writing
        self.looks = False
        """True while a next look is due; for the loop's thread."""
        self._cpu = self._wall = 0.0
        self._reported = threading.Event()
        self._sleeps = False

    def start(self, loop: asyncio.AbstractEventLoop, interval: float = _LOOK_INTERVAL_S) -> None:
        """Look at the loop from now on, until nothing is being written. Call it in the loop's thread."""
        self.looks = True
        self._cpu, self._wall = time.thread_time(), time.perf_counter()
        loop.call_later(interval, self._look, loop, interval)

    def report(self) -> None:
        """Wake the loop if it sleeps: a commit is reported. Call it in the writing thread."""
        if self._sleeps:
            self._reported.set()

    def _look(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        if not self._is_writing():
            self.looks = False
            return
        used, passed = time.thread_time() - self._cpu, time.perf_counter() - self._wall
        if used <= _BUSY_SHARE * passed:
            idle = used < _IDLE_SHARE * passed
            self.start(loop, min(2 * interval, _LONGEST_INTERVAL_S) if idle else _LOOK_INTERVAL_S)
            return
        self._reported.clear()
        self._sleeps = True
        if self._is_writing():
            self._reported.wait(_LONGEST_SLEEP_S)
        self._sleeps = False
        self.start(loop)
