"""The one seam for time and chance: everything in the runtime that asks for either asks here."""

from __future__ import annotations

import random
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Times are integer microseconds since the epoch; draws are in [0, 1)."""

    def now(self) -> int: ...

    def draw(self) -> float: ...


class SystemClock:
    """Wall time that runs on from a monotonic anchor, so that durations inside a process are true though
    the wall clock may step; it is anchored anew when it drifts from the wall by over a second."""

    __slots__ = ("_anchor", "_random", "_start")

    def __init__(self) -> None:
        self._random = random.Random()
        self._anchor = time.time_ns() // 1000
        self._start = time.perf_counter_ns() // 1000

    def now(self) -> int:
        passed = time.perf_counter_ns() // 1000 - self._start
        if passed > 1_000_000:
            self._anchor_anew(passed)
            passed = time.perf_counter_ns() // 1000 - self._start
        return self._anchor + passed

    def _anchor_anew(self, passed: int) -> None:
        wall = time.time_ns() // 1000
        self._anchor = wall if abs(wall - self._anchor - passed) > 1_000_000 else self._anchor + passed
        self._start = time.perf_counter_ns() // 1000

    def draw(self) -> float:
        return self._random.random()
