"""A clock of the Runtime that goes by the loop's: with `actors.testing.virtual`, waits of hours take no time
and end at the very second."""

from __future__ import annotations

import asyncio

__all__ = ["LoopClock", "seconds"]

_EPOCH = 1_700_000_000_000_000


def seconds() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()


class LoopClock:
    """Draws are always in the middle. `step` is what the wall clock is off (µs)."""

    step = 0

    def now(self) -> int:
        return _EPOCH + self.monotonic() + self.step

    def monotonic(self) -> int:
        return round(seconds() * 1e6)

    def draw(self) -> float:
        return 0.5
