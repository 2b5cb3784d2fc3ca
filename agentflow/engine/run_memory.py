"""What a run remembers for its caches and gates: folded from the ends of their activations (page 003 §10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation

__all__ = ["CacheEntry", "Gate", "Gates", "RunMemory"]


class CacheEntry(NamedTuple):
    """A value that a cache_write kept, and until when (µs); None: for good."""

    value: Any
    until: int | None


class Gate:
    """One key at one debounce or throttle: places are times in µs, or counts of steps of a path."""

    __slots__ = ("latest", "passes", "queue", "seen")

    def __init__(self) -> None:
        self.seen: int | None = None
        """Where the key came last."""
        self.passes: list[int] = []
        """Where the last tokens passed, oldest first: as many as the limit."""
        self.latest: Activation | None = None
        """The arrival that waits for a quiet window."""
        self.queue: list[Activation] = []
        """The arrivals that wait for their turn, first come first served."""


Gates = dict[tuple[str, str], Gate]
"""By node and key."""


class RunMemory:
    """The cache of a run, and its gates whose windows are times. Those that count steps belong to a path."""

    __slots__ = ("cache", "gates")

    def __init__(self) -> None:
        self.cache: dict[str, CacheEntry] = {}
        self.gates: Gates = {}

    def shift(self, step: int) -> None:
        """Move every time by a step of the wall clock (µs)."""
        for key, entry in self.cache.items():
            if entry.until is not None:
                self.cache[key] = CacheEntry(entry.value, entry.until + step)
        for gate in self.gates.values():
            gate.seen = None if gate.seen is None else gate.seen + step
            gate.passes = [at + step for at in gate.passes]
