"""Time and chance: the one seam through which the runtime asks for either, and steps of the wall clock.

Events hold wall time, but durations are monotonic (page 000 §1). When the wall clock steps, the times in the
state of a run are moved by the step, so that every delay goes on as if the clock had not stepped. A replay of
the log makes the same state by moving it at the same offsets. A step is not stored: after a restart the wall
clock alone says how much time has passed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from agentflow.events.rows import RunRow

if TYPE_CHECKING:
    from agentflow.engine.state import RunState

__all__ = ["Clock", "SystemClock", "Timeline", "monotonic_of"]


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


_TOLERANCE_US = 100_000
"""A smaller difference of wall and monotonic time is no step: the wall clock is slewed, or a reading late."""


class Timeline:
    """`end` is the next offset of the log when the run came to rest, None while a supervisor is at work."""

    __slots__ = ("_offset", "_steps", "end")

    def __init__(self) -> None:
        self._offset: int | None = None  # wall minus monotonic time at the last look (µs)
        self._steps: tuple[tuple[int, int], ...] = ()  # log offset, and the step before it (µs)
        self.end: int | None = None

    @classmethod
    def at_rest(cls, clock: Clock, row: RunRow) -> Timeline:
        """Return that of a run which rests from now on.

        If the wall clock is behind the end of its log, it has stepped back by so much at least.
        """
        made = cls()
        now = clock.now()
        made._offset = now - monotonic_of(clock)()
        made.end = row.last_offset + 1
        if now < row.updated_at:
            made._steps = ((made.end, now - row.updated_at),)
        return made

    @property
    def stepped(self) -> bool:
        """True if the wall clock has stepped while the run was known here."""
        return bool(self._steps)

    def move(self, state: RunState, now: int, monotonic: Callable[[], int]) -> None:
        """Move the times of a live state if the clock has stepped since the last look. `now` is wall time."""
        offset = now - monotonic()
        if self._offset is None:
            self._offset = offset
        step = offset - self._offset
        if abs(step) > _TOLERANCE_US:
            self._offset = offset
            self._steps = (*self._steps, (state.next_offset, step))
            state.shift_times(step)

    def following(self, state: RunState, see: Callable[[Any], object]) -> Callable[[Any], object]:
        """Return `see` for a fold of the log into `state`, which moves it where the live state was moved."""
        left = [step for step in self._steps if step[0] > state.next_offset]
        if not left:
            return see

        def moving(data: Any) -> None:
            see(data)
            while left and left[0][0] <= state.next_offset:
                state.shift_times(left.pop(0)[1])

        return moving

    def taken_up(self, state: RunState, now: int) -> None:
        """Record that the replay is done and a supervisor goes on with the state.

        A run that was not known here, or that another process has moved on, has only the wall clock; if that
        is behind the end of the log, it has stepped back by so much at least.
        """
        if self._offset is None or self.end not in (None, state.next_offset):
            self._offset, self._steps = None, ()
            if now < state.last_ts:
                state.shift_times(now - state.last_ts)
        self.end = None
