"""Holds in memory where each batch of each run lies; rebuilt by a scan at every start. No I/O."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right, insort

from agentflow.errors import LogCorrupt
from agentflow.events.identity import FileIdentity
from agentflow.events.owner import Owner
from agentflow.events.rows import ENDED, FIRST_EPOCH, RunRow
from agentflow.events.rules import no_run
from agentflow.events.segments.lines import Range, RunChange, RunIdentity
from agentflow.events.tombstone import Tombstone

__all__ = ["BadLine", "Index", "Place", "RunIndex", "Segment", "merge_ranges"]

_POSITION_BITS = 40
_POSITION = (1 << _POSITION_BITS) - 1

Place = tuple[int, int]
"""A segment and a position in it."""

BadLine = tuple[int, int, str]
"""Segment and position of bytes that could not be read, and the run whose events they held."""


class RunIndex:
    """One run. `lines` holds two numbers a line: segment and position, then first offset and length."""

    __slots__ = (
        "bytes",
        "damaged",
        "earliest",
        "epoch",
        "identity",
        "last",
        "lines",
        "names",
        "owner",
        "parent",
        "state",
        "stored_epoch",
        "updated_at",
        "workflow_id",
    )

    def __init__(self, workflow_id: str, identity: RunIdentity, earliest: int = 0) -> None:
        self.workflow_id = workflow_id
        self.identity = identity
        self.parent: str | None = None
        self.names = frozenset((identity.definition_hash,))
        """The blobs and definitions that its events name."""
        self.owner: Owner | None = None
        self.state = "pending"
        self.epoch = self.stored_epoch = FIRST_EPOCH
        self.updated_at = identity.created_at
        self.damaged: int | None = None
        """The offset from which on this run is lost, if it is."""
        self.earliest = earliest
        self.last = earliest - 1
        self.bytes = 0
        self.lines = array("Q")

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def add(self, place: Place, length: int, first: int, count: int, bytes: int, ts: int) -> None:
        """Add a line with `count` events. `last` grows last: a reader in another thread goes by it."""
        self.lines.extend((place[0] << _POSITION_BITS | place[1], first << _POSITION_BITS | length))
        self.bytes += bytes
        self.updated_at = ts
        self.last = first + count - 1

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

    def segments(self) -> set[int]:
        """Return the numbers of the segments that hold lines of this run."""
        return {place >> _POSITION_BITS for place in self.lines[::2]}

    def newest_segment(self) -> int:
        """Return the segment of the last line, 0 if there is none."""
        return self.lines[-2] >> _POSITION_BITS if self.lines else 0

    def apply(self, change: RunChange) -> None:
        """Take over what a line said beside its events."""
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


class Segment:
    """A file of lines. `live` counts the runs that have lines in it; `gone` names the deleted runs whose
    tombstones stand in it, which take `gone_bytes`."""

    __slots__ = ("first_form", "gone", "gone_bytes", "identity", "live", "number", "size")

    def __init__(self, number: int, identity: FileIdentity) -> None:
        self.number = number
        self.identity = identity
        self.size = 0
        self.live = 0
        self.gone: list[str] = []
        self.gone_bytes = 0
        self.first_form = False
        """True if its lines are of the first version."""


class Index:
    """All runs, tombstones and segments. Changed by the writer thread alone; the reader thread and the loop
    look single entries up, and copy what they go through."""

    def __init__(self) -> None:
        self.runs: dict[str, RunIndex] = {}
        self.gone: dict[str, Tombstone] = {}
        self.order: list[tuple[int, str]] = []  # (created_at, workflow_id), sorted
        self.segments: dict[int, Segment] = {}
        self.dropped: list[Range] = []
        """The numbers of the segments that were removed."""
        self.bad: set[BadLine] = set()
        """Bytes that could not be read, as far as their run is known."""
        self.quarantined: set[str] = set()
        """The runs that are damaged."""

    def create(self, workflow_id: str, identity: RunIdentity, earliest: int = 0) -> RunIndex:
        """Add a run without events."""
        run = self.runs[workflow_id] = RunIndex(workflow_id, identity, earliest)
        key = (identity.created_at, workflow_id)
        if not self.order or key > self.order[-1]:
            self.order.append(key)  # nearly always
        else:
            insort(self.order, key)
        return run

    def add(
        self, run: RunIndex, place: Place, length: int, first: int, count: int, bytes: int, ts: int
    ) -> None:
        """Add a line to a run."""
        if run.newest_segment() != place[0]:
            self.segments[place[0]].live += 1
        run.add(place, length, first, count, bytes, ts)

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
            key = (run.identity.created_at, run.workflow_id)
            del self.order[bisect_left(self.order, key)]
            for number in run.segments():
                self.segments[number].live -= 1
        buried = {gone.workflow_id for gone in tombstones}
        self.quarantined -= buried
        if self.bad:
            self.bad = {bad for bad in self.bad if bad[2] not in buried}

    def find(self, workflow_id: str) -> RunIndex:
        """Return the run. Raises RunNotFound or RunGone."""
        run = self.runs.get(workflow_id)
        if run is None:
            raise no_run(workflow_id, self.gone.get(workflow_id))
        return run

    def damage(self, run: RunIndex, offset: int) -> None:
        """Quarantine a run: what lies from `offset` on cannot be relied on."""
        run.damaged = offset if run.damaged is None else min(run.damaged, offset)
        self.quarantined.add(run.workflow_id)

    def at(self, segment: int, start: int, end: int) -> list[tuple[RunIndex, int]]:
        """Return the runs with lines between two positions of a segment, and the first offset of each line.
        Looks at every run: asked only of damage."""
        found: list[tuple[RunIndex, int]] = []
        for run in list(self.runs.values()):
            for k in range(len(run.lines) // 2):
                (number, position), _, first = run.line(k)
                if number == segment and start <= position < end:
                    found.append((run, first))
        return found

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
