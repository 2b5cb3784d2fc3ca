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
from agentflow.events.rows import FIRST_EPOCH, RunRow
from agentflow.events.rules import no_run
from agentflow.events.segments.lines import Line, Range, RunIdentity
from agentflow.events.tombstone import Tombstone

__all__ = ["Index", "Place", "RunIndex", "Segment", "unattributable"]

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

    identity: FileIdentity
    first_version: bool = False
    size: int = 0
    batch: int = 0
    """The last one in it."""
    runs: int = 0
    """Number of runs that have lines in it."""
    gone: list[str] = field(default_factory=list[str])
    """The deleted runs whose tombstones stand in it."""


class Index:
    """All runs, tombstones and segments; built from lines by `add` alone, at a start and behind each sync.

    Changed by the writer thread, and for damage by the reader thread; both and the loop look single entries
    up, and copy what they go through.
    """

    def __init__(self) -> None:
        self.runs: dict[str, RunIndex] = {}
        self.gone: dict[str, Tombstone] = {}
        self.order: list[tuple[int, str]] = []  # (created_at, workflow_id), sorted
        self.segments: dict[int, Segment] = {}
        self.dropped: list[Range] = []
        """The numbers of the segments that were removed, as the newest line about that has it."""
        self.ends: list[tuple[int, int]] = []
        """As `Head.ends`, from the same line."""
        self.damaged: dict[str, list[Place]] = {}
        """The quarantined runs, and where bytes are that cannot be read."""
        self.end: Place = (1, 0)
        """Up to where everything is durable, and shown to readers."""
        self.batch = 0
        """The last batch before `end`."""
        self.last: tuple[str, int] | None = None
        """What that batch is about (see `Head.p`)."""

    def find(self, workflow_id: str) -> RunIndex:
        """Return the run. Raises RunNotFound or RunGone."""
        run = self.runs.get(workflow_id)
        if run is None:
            raise no_run(workflow_id, self.gone.get(workflow_id))
        return run

    def create(self, workflow_id: str, identity: RunIdentity) -> RunIndex:
        """Add a run without events."""
        names = frozenset((identity.definition_hash,))
        run = RunIndex(workflow_id, identity, None, names, updated_at=identity.created_at)
        self.runs[workflow_id] = run
        key = (identity.created_at, workflow_id)
        if not self.order or key > self.order[-1]:
            self.order.append(key)  # nearly always
        else:
            insort(self.order, key)
        return run

    def add(self, place: Place, line: Line) -> None:
        """Add an intact line, the one behind the last; a gap in the offsets of its run is damage."""
        head = line.head
        if head.w is None:
            alone = len(head.gone) == 1 and not head.dropped
            self.last = (head.gone[0].workflow_id, -1) if alone else None
            for gone in head.gone:
                self._bury(gone, place[0])
            if head.dropped:
                self.dropped, self.ends = head.dropped, head.ends
        else:
            self.last, run = (head.w, head.o), self.runs.get(head.w)
            if run is not None and run.damaged is None and head.o == run.last + 1:
                self._extend(run, place, line)  # nearly always
            elif head.w not in self.gone:
                self._begin_or_damage(run, head.w, place, line)
        end, segment = place[1] + len(line.raw) + 1, self.segments[place[0]]
        if end > segment.size:
            segment.size = end
        segment.batch = self.batch = head.b
        self.end = (place[0], end)

    def _begin_or_damage(self, run: RunIndex | None, workflow_id: str, place: Place, line: Line) -> None:
        head = line.head
        if run is None and head.r is not None and head.r.run is not None and not head.o:
            run = self.create(workflow_id, head.r.run)
            run.parent = parent_of(line.raw[line.start : line.start + head.m[0][2]])
            self._extend(run, place, line)
        elif run is None:  # its beginning is lost: only its id is known
            self.damage(workflow_id, 0, place)
        elif run.damaged is None and head.o >= run.earliest:  # else it was trimmed away
            self.damage(workflow_id, run.last + 1, place)

    def _extend(self, run: RunIndex, place: Place, line: Line) -> None:
        """Add a line to its run. `last` grows last, because a reader in another thread goes by it."""
        head, lines, names = line.head, run.lines, names_in(line.raw)
        if head.r is not None and head.r.state is not None:
            run.state = sys.intern(head.r.state)
        if head.r is not None and head.r.epoch is not None:
            run.stored_epoch = head.r.epoch
            run.epoch = max(run.epoch, head.r.epoch)
        if not names <= run.names:
            run.names |= names
        if not lines or lines[-2] >> _POSITION_BITS != place[0]:
            self.segments[place[0]].runs += 1
        lines.extend((place[0] << _POSITION_BITS | place[1], head.o << _POSITION_BITS | len(line.raw)))
        run.bytes += line.size
        run.updated_at = head.m[-1][0]
        run.last = head.o + len(head.m) - 1

    def _bury(self, gone: Tombstone, segment: int) -> None:
        self.segments[segment].gone.append(gone.workflow_id)
        self.gone[gone.workflow_id] = gone
        self.damaged.pop(gone.workflow_id, None)
        run = self.runs.pop(gone.workflow_id, None)
        if run is not None:
            del self.order[bisect_left(self.order, (run.identity.created_at, run.workflow_id))]
            for number in {place >> _POSITION_BITS for place in run.lines[::2]}:
                self.segments[number].runs -= 1

    def damage(self, workflow_id: str, offset: int, *places: Place) -> None:
        """Quarantine a run, of which perhaps nothing is known, from `offset` on or from where it ends.

        `places` are those of the bytes that cannot be read.
        """
        run = self.runs.get(workflow_id)
        if run is None:
            nothing = RunIdentity(name=None, definition_hash="", created_at=0, labels={})
            run = self.create(workflow_id, nothing)
        offset = max(0, min(offset, run.last + 1))
        run.damaged = offset if run.damaged is None else min(run.damaged, offset)
        self.damaged.setdefault(workflow_id, []).extend(places)

    def damage_at(self, segment: int, start: int, end: int) -> None:
        """Quarantine the runs with lines between two positions. Looks at every run: for damage alone."""
        for run in list(self.runs.values()):
            for k in range(len(run.lines) // 2):
                (number, position), _, first = run.line(k)
                if number == segment and start <= position < end:
                    self.damage(run.workflow_id, first, (number, start))


def unattributable(place: Place) -> LogCorrupt:
    """Return what is raised if an event of any run could be missing."""
    problem = f"segment {place[0]} is damaged at or after byte {place[1]}, and whose events are lost"
    return LogCorrupt(f"{problem} cannot be told", hint="restore the store from a copy")
