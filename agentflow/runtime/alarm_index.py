"""AlarmIndex: when waiting runs, which have no supervisor, must be looked at next. Bounded: it knows the
earliest deadlines, and from when on the store must be asked for the others."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest

__all__ = ["MAX_ALARMS", "AlarmIndex"]

MAX_ALARMS = 8_192
"""Deadlines that are kept for certain; up to twice as many are, so that the latest are dropped rarely."""


class AlarmIndex:
    """The earliest deadlines by run id, in seconds of the loop's clock.

    All alarms before `horizon` are known. Later ones are dropped: the caller that reaches the horizon calls
    `forget_horizon` and sets those that the store has.
    """

    def __init__(self, limit: int = MAX_ALARMS) -> None:
        self._limit = limit
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # an entry that is no alarm any more is skipped
        self.horizon: float | None = None

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._at

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def set(self, run_id: str, at: float) -> None:
        """Set the alarm of a run; beyond the horizon the store keeps it alone."""
        if self.horizon is not None and at >= self.horizon:
            self._at.pop(run_id, None)
            return
        self._at[run_id] = at
        heappush(self._heap, (at, run_id))
        if len(self._at) > 2 * self._limit:
            kept = nsmallest(self._limit + 1, ((at, run_id) for run_id, at in self._at.items()))
            self.horizon = kept.pop()[0]
            self._at = {run_id: at for at, run_id in kept}
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at, run_id) for run_id, at in self._at.items()]
            heapify(self._heap)

    def remove(self, run_id: str) -> None:
        """Remove the alarm of a run: it has passed, or a supervisor watches it from now on."""
        self._at.pop(run_id, None)

    def first(self) -> tuple[float, str] | None:
        """Return the earliest alarm, None without one."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def forget_horizon(self) -> None:
        """Take in alarms of any time again."""
        self.horizon = None
