"""The one seam for time and chance: everything in the runtime that asks for either asks here."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "SystemClock", "monotonic_of"]


class Clock(Protocol):
    """Times are integer microseconds; draws are in [0, 1).

    A clock may also have `monotonic() -> int`, which never steps; without it the time of the event loop is
    taken. Events record `now`; delays and durations go by the monotonic time.
    """

    def now(self) -> int:
        """Return the wall time since the epoch; it may step."""
        ...

    def draw(self) -> float:
        """Return a random number."""
        ...


def monotonic_of(clock: Clock) -> Callable[[], int]:
    """Return the monotonic time of a clock, as a function."""
    return getattr(clock, "monotonic", _loop_time)


def _loop_time() -> int:
    return round(asyncio.get_running_loop().time() * 1e6)


class SystemClock:
    """Wall time that runs on from a monotonic anchor; anchored anew when it is off by more than 1 s."""

    __slots__ = ("_anchor", "_random", "_start")

    def __init__(self) -> None:
        self._random = random.Random()
        self._anchor = time.time_ns() // 1000
        self._start = time.perf_counter_ns() // 1000

    def now(self) -> int:
        """Return the wall time."""
        passed = time.perf_counter_ns() // 1000 - self._start
        if passed > 1_000_000:
            self._anchor_anew(passed)
            passed = time.perf_counter_ns() // 1000 - self._start
        return self._anchor + passed

    def monotonic(self) -> int:
        """Return the time since some moment in the past, whatever the wall clock does."""
        return time.perf_counter_ns() // 1000

    def _anchor_anew(self, passed: int) -> None:
        wall = time.time_ns() // 1000
        self._anchor = wall if abs(wall - self._anchor - passed) > 1_000_000 else self._anchor + passed
        self._start = time.perf_counter_ns() // 1000

    def draw(self) -> float:
        """Return a random number."""
        return self._random.random()
