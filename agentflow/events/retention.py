"""Which runs retention takes (page 000 §7), decided row by row: no I/O, and 16 bytes for each ended run."""

from __future__ import annotations

from array import array
from typing import Literal

import msgspec

from agentflow.events.rows import RunRow

__all__ = [
    "HOLD_LABEL",
    "LISTED",
    "Kept",
    "Removal",
    "RetentionPlan",
    "RetentionPolicy",
    "RetentionScan",
]

LISTED = 1_000
"""How many runs a plan and a report name; of the others they have the number and the bytes."""

_NEVER = (1 << 63) - 1

HOLD_LABEL = "hold"
"""A run with this label, whatever its value, is never taken."""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What goes. `max_age` in seconds since the end of a run, `max_bytes` of the events of all runs.

    `keep_failed` spares failed runs; with `archive_first` a run is written to the archive before it goes.
    With `trim_to_events` a run that is due keeps its last so many events, its row and its records, instead of
    going altogether. ValueError for members that do not fit the mode.
    """

    mode: Literal["infinite", "age", "size"] = "infinite"
    max_age: float | None = None
    max_bytes: int | None = None
    keep_failed: bool = True
    trim_to_events: int | None = None
    archive_first: bool = False

    def __post_init__(self) -> None:
        for mode, name, value in (("age", "max_age", self.max_age), ("size", "max_bytes", self.max_bytes)):
            if self.mode == mode and value is None:
                raise ValueError(f'mode = "{mode}" needs {name}')
            if self.mode != mode and value is not None:
                raise ValueError(f'{name} has no effect with mode = "{self.mode}"; write mode = "{mode}"')
            if value is not None and value < 0:
                raise ValueError(f"{name} is negative")
        if self.trim_to_events is not None and self.trim_to_events < 1:
            raise ValueError("trim_to_events is at least 1: the last event of a run stays")


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A run that goes, or loses the events before offset `before`. `bytes` is about what that frees."""

    workflow_id: str
    action: Literal["delete", "trim"]
    state: str
    ended_at: int
    bytes: int
    reason: str
    before: int | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A run that would be due, and why it stays."""

    workflow_id: str
    reason: str


class RetentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. `runs` and `bytes` are those of the store as it is.

    `removals` and `kept` name the first 1,000 runs of each, `removal_count` and `kept_count` say how many
    there are; `freed` is about the bytes of all removals.
    """

    removals: list[Removal]
    kept: list[Kept]
    runs: int
    bytes: int
    removal_count: int = 0
    kept_count: int = 0
    freed: int = 0

    @property
    def bytes_after(self) -> int:
        """About what the events of all runs take when it is done."""
        return self.bytes - self.freed


class RetentionScan:
    """Decides which runs a policy takes at `now` (µs), while the rows of a store pass by.

    First `note` every row that has not ended and, by size, `weigh` every one that has; `begin` ends that.
    Then `take` says of each ended row what becomes of it; the rows may come in any order.
    """

    def __init__(self, policy: RetentionPolicy, now: int) -> None:
        self._policy = policy
        self._now = now
        self._open: dict[str, str] = {}  # state by id
        self._open_children: dict[str, str] = {}  # by parent: what hinders it
        self._ended = array("q")  # when each run ended that may go, and below what that would free
        self._freed = array("q")
        self._cutoff = 0
        self._excess = 0  # of the runs that ended at the cutoff itself
        self._removals: list[Removal] = []
        self._kept: list[Kept] = []
        self._removal_count = self._kept_count = self._freed_bytes = self._runs = self._bytes = 0

    def note(self, row: RunRow) -> None:
        """Take note of a run that has not ended."""
        self._count(row)
        self._open[row.workflow_id] = row.state
        if row.parent is not None:
            self._open_children.setdefault(row.parent, f"its child {row.workflow_id} is {row.state}")

    @property
    def weighs(self) -> bool:
        """True if ended runs must be weighed before the first is taken."""
        return self._policy.max_bytes is not None

    def weigh(self, row: RunRow) -> None:
        """Take note of a run that has ended."""
        self._count(row)
        if self._obstacle(row) is None:
            removal = _removal(self._policy, row, "")
            if removal is not None:
                self._ended.append(row.updated_at)
                self._freed.append(removal.bytes)

    def _count(self, row: RunRow) -> None:
        self._runs += 1
        self._bytes += row.bytes

    def begin(self) -> None:
        """Choose up to which end runs go, so that the others fit; all rows were seen."""
        self._cutoff, left = -1, self._bytes - (self._policy.max_bytes or 0)
        for place in sorted(range(len(self._ended)), key=self._ended.__getitem__):
            if left <= 0:
                break
            if self._ended[place] != self._cutoff:
                self._cutoff, self._excess = self._ended[place], left
            left -= self._freed[place]
        if left > 0:  # also when all of them are gone
            self._cutoff = _NEVER
        del self._ended[:], self._freed[:]

    def take(self, row: RunRow) -> Removal | None:
        """Return what is to be done with a run that has ended; None if it stays as it is."""
        if not self.weighs:
            self._count(row)
        due = self._due(row)
        if due is None:
            return None
        obstacle = self._obstacle(row)
        if obstacle is not None:
            self._kept_count += 1
            if len(self._kept) < LISTED:
                self._kept.append(Kept(workflow_id=row.workflow_id, reason=obstacle))
            return None
        removal = _removal(self._policy, row, due)
        if removal is not None:
            if row.updated_at == self._cutoff:
                self._excess -= removal.bytes
            self._removal_count += 1
            self._freed_bytes += removal.bytes
            if len(self._removals) < LISTED:
                self._removals.append(removal)
        return removal

    def plan(self) -> RetentionPlan:
        """Return what was decided so far."""
        return RetentionPlan(
            removals=sorted(self._removals, key=lambda removal: (removal.ended_at, removal.workflow_id)),
            kept=self._kept,
            runs=self._runs,
            bytes=self._bytes,
            removal_count=self._removal_count,
            kept_count=self._kept_count,
            freed=self._freed_bytes,
        )

    def _due(self, row: RunRow) -> str | None:
        """Return why the policy wants this run, or None."""
        policy = self._policy
        if policy.max_age is not None:
            age = (self._now - row.updated_at) / 1e6
            return f"ended {_age(age)} ago, beyond {_age(policy.max_age)}" if age > policy.max_age else None
        if policy.max_bytes is not None:
            last = row.updated_at == self._cutoff and self._excess > 0
            over = row.updated_at < self._cutoff or last
            return f"the store is above {policy.max_bytes:,} bytes" if over else None
        return None

    def _obstacle(self, row: RunRow) -> str | None:
        if self._policy.keep_failed and row.state == "failed":
            return "it failed, and keep_failed is set"
        if HOLD_LABEL in row.labels:
            return f'it is labelled "{HOLD_LABEL}"'
        if row.parent in self._open:
            return f"its parent {row.parent} is {self._open[row.parent]}"
        return self._open_children.get(row.workflow_id)


def _removal(policy: RetentionPolicy, row: RunRow, reason: str) -> Removal | None:
    """Return what to do with a run that is due; None when there is nothing left to trim."""
    whole = Removal(
        workflow_id=row.workflow_id,
        action="delete",
        state=row.state,
        ended_at=row.updated_at,
        bytes=row.bytes,
        reason=reason,
    )
    if policy.trim_to_events is None:
        return whole
    before = row.last_offset + 1 - policy.trim_to_events
    if before <= row.earliest_offset:
        return None
    share = (before - row.earliest_offset) / (row.last_offset + 1 - row.earliest_offset)
    return msgspec.structs.replace(whole, action="trim", bytes=int(row.bytes * share), before=before)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.3g}s"
