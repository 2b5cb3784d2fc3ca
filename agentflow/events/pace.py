"""How long commits took lately, and so whether the next one may be made on the event loop.

Reads no clock: what a commit took is told to it. A disk whose syncs are short now and long then is left to
the writing thread, since one long sync sends the next commits there and the median of those decides.
"""

from __future__ import annotations

from collections import deque

__all__ = ["CommitPace"]

LONGEST_SYNC_S = 0.001
LONGEST_HOLD_S = 0.002
PROBES = 8
"""Commits that the thread makes before one may be made on the loop, at first and after each long one."""

_NEW_SHARE = 0.1  # of the newest commit in the average of what a job costs beside the sync


class CommitPace:
    """The durations of the newest commits, in seconds. Used by one thread at a time."""

    def __init__(self) -> None:
        self._syncs: deque[float] = deque(maxlen=PROBES)
        self._median = 0.0
        self._job_s = LONGEST_HOLD_S
        self._probes = PROBES

    def is_short(self, jobs: int) -> bool:
        """Return whether a commit of so many jobs may hold the loop: its sync is short, and all of it takes
        no more than 2 ms."""
        return (
            not self._probes
            and self._median <= LONGEST_SYNC_S
            and self._median + jobs * self._job_s <= LONGEST_HOLD_S
        )

    def took(self, jobs: int, whole: float, sync: float, *, on_loop: bool) -> None:
        """Note a commit that took `whole` seconds, of which the sync took `sync`."""
        if on_loop and whole > LONGEST_HOLD_S:
            self.start_again()
            return
        if not on_loop and self._probes:
            self._probes -= 1
        self._syncs.append(sync)
        self._median = sorted(self._syncs)[len(self._syncs) // 2]
        cost = (whole - sync) / jobs
        known = self._job_s < LONGEST_HOLD_S
        self._job_s += (cost - self._job_s) * (_NEW_SHARE if known else 1)

    def start_again(self) -> None:
        """Leave the next commits to the thread, whatever is known: one was long, or failed."""
        self._syncs.clear()
        self._probes = PROBES
