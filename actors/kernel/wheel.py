"""The deadlines of all asks of a system, in buckets of 50 ms: far cheaper than a timer each."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

from actors.errors import AskTimeout
from actors.question import Question

__all__ = ["TICKS", "Target", "Wheel"]

TICKS = 20
"""Ticks of the wheel in a second: a deadline is met up to 1/20 s late, never early."""

SWEEP = 1024
"""Buckets from which on the empty ones are thrown away."""


class Target(Protocol):
    """The actor that is asked, as far as a late answer is concerned."""

    @property
    def path(self) -> str: ...

    @property
    def depth(self) -> int: ...

    def busy(self) -> tuple[str | None, float | None]: ...


def _late(target: Target) -> str:
    """Return what is to be said of an actor that did not answer in time: what it does instead."""
    busy, seconds = target.busy()
    waiting = target.depth
    doing = "" if busy is None or seconds is None else f"; it has been at {busy} for {seconds:.1f} s"
    return f"{target.path} did not answer in time{doing}" + (f"; {waiting} messages wait" if waiting else "")


class Wheel:
    """See the module."""

    __slots__ = ("_handle", "_loop", "_next", "_roomy", "buckets")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.buckets: dict[int, dict[Question, Target]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._next: float = inf
        self._roomy = SWEEP

    def bucket(self, tick: int) -> dict[Question, Target]:
        """Make a bucket, which keeps questions until loop time `tick / TICKS`, or until they are settled."""
        if len(self.buckets) >= self._roomy:  # of long deadlines whose questions were answered long ago
            self.buckets = {tick: bucket for tick, bucket in self.buckets.items() if bucket}
            self._roomy = max(SWEEP, 2 * len(self.buckets))
        bucket = self.buckets[tick] = {}
        if tick < self._next:
            self._arm(tick)
        return bucket

    def _arm(self, tick: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next = tick
        self._handle = self._loop.call_at(tick / TICKS, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        for tick in sorted(tick for tick in self.buckets if tick / TICKS <= now):
            for question, target in self.buckets.pop(tick).items():
                if not question.future.done():
                    question.future.set_exception(AskTimeout(_late(target)))
        self._handle, self._next = None, inf
        if self.buckets:
            self._arm(min(self.buckets))

    def close(self) -> None:
        """Forget all deadlines."""
        self.buckets.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self._next = None, inf
