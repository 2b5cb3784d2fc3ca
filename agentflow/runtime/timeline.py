"""Steps of the wall clock, as one run sees them in this process (page 000 §1: durations are monotonic).

Events hold wall time, and the state of a run is made from them. When the wall clock steps, the state's times
are moved by the step, so that every delay goes on as if the clock had not stepped. A fold of the log makes
the same state again by moving it at the same offsets. Nothing of this outlives the process: after a restart
the wall clock alone says how much time has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentflow.engine.state import RunState
from agentflow.events.rows import RunRow
from agentflow.runtime.clock import Clock, monotonic_of

__all__ = ["Timeline"]

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
        """Whether the clock has stepped while the run was known here."""
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
        """Take note that the fold is done and a supervisor goes on with it.

        A run that was not known here, or that another process has moved on, has only the wall clock; if that
        is behind the end of the log, it has stepped back by so much at least.
        """
        if self._offset is None or self.end not in (None, state.next_offset):
            self._offset, self._steps = None, ()
            if now < state.last_ts:
                state.shift_times(now - state.last_ts)
        self.end = None
