"""Times at which a run has something due, as its events say (page 000 §9): deadlines, retries, approvals.

A key is `KIND ACTIVATION`, `approval REQUEST`, `input REQUEST`, `run` (the limit of the whole run) or
`resume` (the end of a quota pause); times are microseconds since the epoch. Nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["RESUME", "RUN", "Clocks"]

RUN, RESUME = "run", "resume"
_WALL_CLOCK = ("retry ", "approval ", "input ", "timer ")
"""Kinds that stand for a time of day, and so run on while the run stands still."""


class Clocks:
    """The running timers of one run, and those that a pause has stopped."""

    __slots__ = ("due", "paused")

    def __init__(self) -> None:
        self.due: dict[str, int] = {}
        self.paused: dict[str, int] = {}
        """What was left of each timer when the run was paused (µs)."""

    def start(self, key: str, ts: int, seconds: float) -> None:
        """Set a timer to fall due so many seconds after `ts`."""
        self.due[key] = ts + round(seconds * 1e6)

    def stop(self, *keys: str) -> None:
        """Remove these timers, also those that a pause has stopped."""
        for key in keys:
            self.due.pop(key, None)
            self.paused.pop(key, None)

    def hold(self, keys: Collection[str], ts: int) -> dict[str, int]:
        """Stop these timers and return what is left of each, also of those that a pause has stopped."""
        left = {key: max(0, self.due.pop(key) - ts) for key in keys if key in self.due}
        return left | {key: self.paused.pop(key) for key in keys if key in self.paused}

    def release(self, left: dict[str, int], ts: int) -> None:
        """Let timers that `hold` stopped go on."""
        self.due.update((key, ts + rest) for key, rest in left.items())

    def pause(self, ts: int) -> None:
        """Stop all that a pause of the run stops."""
        self.paused |= self.hold([key for key in self.due if not key.startswith(_WALL_CLOCK)], ts)

    def resume(self, ts: int) -> None:
        """Let what the pause stopped go on."""
        self.release(self.paused, ts)
        self.stop(RESUME)
        self.paused = {}

    def extend(self, gap: int) -> None:
        """Move running limits by a time in which no process worked on the run."""
        for key in self.due:
            if not key.startswith(_WALL_CLOCK):
                self.due[key] += gap

    def shift(self, step: int, *, but: str = "") -> None:
        """Move every timer but one, because the wall clock stepped or a fork goes on later."""
        self.due = {key: due if key == but else due + step for key, due in self.due.items()}
