"""Holds in memory where each batch of each run lies; rebuilt by a scan at every start. No I/O."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from agentflow.errors import LogCorrupt
from agentflow.events.identity import FileIdentity
from agentflow.events.owner import Owner
from agentflow.events.references import names_in, parent_of
from agentflow.events.rows import ENDED, FIRST_EPOCH, RunRow
from agentflow.events.rules import no_run
from agentflow.events.segments.lines import Range, RunChange, RunIdentity
from agentflow.events.tombstone import Tombstone

__all__ = ["Index", "Place", "RunIndex", "Segment", "merge_ranges"]

_POSITION_BITS = 40
_POSITION = (1 << _POSITION_BITS) - 1

Place = tuple[int, int]
"""A segment and a position in it."""


@dataclass(slots=True, eq=False)
class RunIndex:
    """One run. `lines` holds two numbers a line: segment and position, then first offset and length."""

    workflow_id: str
    identity: RunIdentity
    parent: str | None = None
    names: frozenset[str] = frozenset()
    """The blobs and definitions that its events name."""
    earliest: int = 0
    last: int = -1
    state: str = "pending"
    epoch: int = FIRST_EPOCH
    stored_epoch: int = FIRST_EPOCH
    updated_at: int = 0
    bytes: int = 0
    owner: Owner | None = None
    damaged: int | None = None
    """The offset from which on this run is lost, if it is."""
    lines: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def find(self, offset: int) -> int:
        """Return the number of the line that holds `offset`."""
        lines = self.lines
        return (
            bisect_right(range(len(lines) // 2), offset, key=lambda k: lines[2 * k + 1] >> _POSITION_BITS) - 1
        )

    def line(self, number: int) -> tuple[Place, int, int]:
        """Return place, length and first offset of a line."""
        place, size = self.lines[2 * number], self.lines[2 * number + 1]
        return (place >> _POSITION_BITS, place & _POSITION), size & _POSITION, size >> _POSITION_BITS

    def apply(self, change: RunChange) -> None:
        """Take over what a line says beside its events."""
        if change.state is not None:
            self.state = sys.intern(change.state)
        if change.epoch is not None:
            self.stored_epoch = change.epoch
            self.epoch = max(self.epoch, change.epoch)

    def check_whole(self) -> None:
        """Raise LogCorrupt if the run is quarantined."""
        if self.damaged is not None:
            raise LogCorrupt(
                f"{self.workflow_id} is damaged from offset {self.damaged} on",
                hint="restore the store from a copy; its other runs are not touched",
            )

    def row(self) -> RunRow:
        """Return the run's row."""
        return RunRow(
            workflow_id=self.workflow_id,
            name=self.identity.name,
            definition_hash=self.identity.definition_hash,
            state=self.state,
            labels=dict(self.identity.labels),
            created_at=self.identity.created_at,
            updated_at=self.updated_at,
            last_offset=self.last,
            epoch=self.epoch,
            owner=self.owner,
            parent=self.parent,
            earliest_offset=self.earliest,
            bytes=self.bytes,
        )


@dataclass(slots=True, eq=False)
class Segment:
    """A file of lines."""

    number: int
    identity: FileIdentity
    size: int = 0
    live: int = 0
    """Number of runs that have lines in it."""
    gone: list[str] = field(default_factory=list[str])
    """The deleted runs whose tombstones stand in it."""
    gone_bytes: int = 0
    first_form: bool = False
    """True if it has lines of the first version."""


class Index:
    """All runs, tombstones and segments.

    Changed by the writer thread alone; the reader thread and the loop look single entries up, and copy what
    they go through.
    """

    def __init__(self) -> None:
        self.runs: dict[str, RunIndex] = {}
        self.gone: dict[str, Tombstone] = {}
        self.order: list[tuple[int, str]] = []  # (created_at, workflow_id), sorted
        self.segments: dict[int, Segment] = {}
        self.dropped: list[Range] = []
        """The numbers of the segments that were removed."""
        self.bad: set[tuple[Place, str]] = set()
        """Where bytes cannot be read, and the run whose events they held."""
        self.quarantined: set[str] = set()
        """The runs that are damaged."""

    def find(self, workflow_id: str) -> RunIndex:
        """Return the run. Raises RunNotFound or RunGone."""
        run = self.runs.get(workflow_id)
        if run is None:
            raise no_run(workflow_id, self.gone.get(workflow_id))
        return run

    def create(self, workflow_id: str, identity: RunIdentity, first: bytes = b"") -> RunIndex:
        """Add a run without events; `first` is the body of the event that begins it."""
        names = frozenset((identity.definition_hash,))
        run = RunIndex(workflow_id, identity, parent_of(first), names, updated_at=identity.created_at)
        self.runs[workflow_id] = run
        key = (identity.created_at, workflow_id)
        if not self.order or key > self.order[-1]:
            self.order.append(key)  # nearly always
        else:
            insort(self.order, key)
        return run

    def add(
        self,
        run: RunIndex,
        place: Place,
        length: int,
        first: int,
        meta: list[tuple[int, str, int]],
        change: RunChange | None,
        text: bytes,
    ) -> None:
        """Add a line to a run; `text` holds its events, of which `meta` gives times, types and lengths.

        `last` grows last, because a reader in another thread goes by it.
        """
        if change is not None:
            run.apply(change)
        lines, names = run.lines, names_in(text)
        if not names <= run.names:
            run.names |= names
        if not lines or lines[-2] >> _POSITION_BITS != place[0]:
            self.segments[place[0]].live += 1
        lines.extend((place[0] << _POSITION_BITS | place[1], first << _POSITION_BITS | length))
        for _, _, size in meta:
            run.bytes += size
        run.updated_at = meta[-1][0]
        run.last = first + len(meta) - 1

    def bury(self, tombstones: list[Tombstone], segment: int, length: int) -> None:
        """Remove deleted runs; their tombstones stand in a line of `segment` that is `length` bytes long."""
        holder = self.segments[segment]
        holder.gone_bytes += length
        for gone in tombstones:
            holder.gone.append(gone.workflow_id)
            self.gone[gone.workflow_id] = gone
            run = self.runs.pop(gone.workflow_id, None)
            if run is None:
                continue
            del self.order[bisect_left(self.order, (run.identity.created_at, run.workflow_id))]
            for number in {place >> _POSITION_BITS for place in run.lines[::2]}:
                self.segments[number].live -= 1
            if run.damaged is not None:
                self.quarantined.discard(run.workflow_id)
                self.bad = {bad for bad in self.bad if bad[1] != run.workflow_id}

    def lose(self, workflow_id: str, offset: int, *places: Place) -> None:
        """Quarantine a run, of which perhaps nothing is known, from `offset` on or from where it ends.

        `places` are those of the bytes that cannot be read.
        """
        run = self.runs.get(workflow_id)
        if run is None:
            run = self.create(
                workflow_id, RunIdentity(name=None, definition_hash="", created_at=0, labels={})
            )
        self.damage(run, min(offset, run.last + 1), *places)

    def damage(self, run: RunIndex, offset: int, *places: Place) -> None:
        """Quarantine a run: what lies from `offset` on cannot be relied on. `places` cannot be read."""
        run.damaged = offset if run.damaged is None else min(run.damaged, offset)
        self.quarantined.add(run.workflow_id)
        self.bad.update((place, run.workflow_id) for place in places)

    def damage_at(self, segment: int, start: int, end: int) -> None:
        """Quarantine the runs with lines between two positions. Looks at every run: for damage alone."""
        for run in list(self.runs.values()):
            for k in range(len(run.lines) // 2):
                (number, position), _, first = run.line(k)
                if number == segment and start <= position < end:
                    self.damage(run, first, (number, start))

    def drop(self, numbers: list[int], dropped: list[Range]) -> None:
        """Forget segments that are removed; `dropped` is all that ever were."""
        for number in numbers:
            self.segments.pop(number, None)
        self.dropped = dropped


def merge_ranges(ranges: list[Range], numbers: list[int]) -> list[Range]:
    """Return the ranges that hold `ranges` and `numbers`, sorted, with neighbours joined."""
    merged: list[Range] = []
    for first, last in sorted([*ranges, *((number, number) for number in numbers)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
