"""Where each event of each run lies: in memory, 26 bytes an event, rebuilt at every start."""

from __future__ import annotations

import threading
from array import array
from bisect import insort

from agentflow.errors import LogCorrupt, RunGone
from agentflow.events.owner import Owner
from agentflow.events.rows import ENDED, FIRST_EPOCH, RunRow
from agentflow.events.rules import no_run
from agentflow.events.segments.lines import RunChange, RunIdentity
from agentflow.events.segments.removed import Removed

__all__ = ["PLACE_BITS", "POSITION", "Index", "RunIndex", "Segment"]

PLACE_BITS = 40  # of a place, for the position in its segment
POSITION = (1 << PLACE_BITS) - 1


class RunIndex:
    """One run. `places` hold segment and position of the line, `sizes` its length, `bodies` the event's; all
    begin at offset `earliest`. `names` are the blobs and definitions that its events name."""

    __slots__ = (
        "bodies",
        "bytes",
        "damaged",
        "earliest",
        "epoch",
        "identity",
        "names",
        "owner",
        "parent",
        "places",
        "sizes",
        "state",
        "stored_epoch",
        "times",
        "types",
        "updated_at",
        "workflow_id",
    )

    def __init__(self, workflow_id: str, identity: RunIdentity, earliest: int = 0) -> None:
        self.workflow_id = workflow_id
        self.identity = identity
        self.parent: str | None = None
        self.names = {identity.definition_hash}
        self.owner: Owner | None = None
        self.state = "pending"
        self.epoch = self.stored_epoch = FIRST_EPOCH
        self.updated_at = identity.created_at
        self.damaged: int | None = None
        """The offset from which on this run is lost, if it is."""
        self.earliest = earliest
        self.bytes = 0
        self.places = array("Q")
        self.sizes = array("I")
        self.bodies = array("I")
        self.times = array("q")
        self.types = array("H")

    @property
    def last(self) -> int:
        return self.earliest + len(self.types) - 1

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def add(self, place: int, size: int, body: int, ts: int, type_id: int) -> None:
        """The next event. `types` grows last: a reader in another thread goes by its length."""
        self.places.append(place)
        self.sizes.append(size)
        self.bodies.append(body)
        self.times.append(ts)
        self.bytes += body
        self.updated_at = ts
        self.types.append(type_id)

    def apply(self, change: RunChange) -> None:
        """What a line said beside its event."""
        if change.state is not None:
            self.state = change.state
        if change.epoch is not None:
            self.stored_epoch = change.epoch
            self.epoch = max(self.epoch, change.epoch)

    def damage(self, offset: int) -> None:
        """Quarantine the run: what lies from `offset` on is not to be believed."""
        self.damaged = offset if self.damaged is None else min(self.damaged, offset)

    def check_whole(self) -> None:
        """LogCorrupt if the run is quarantined."""
        if self.damaged is not None:
            raise LogCorrupt(
                f"{self.workflow_id} is damaged from offset {self.damaged} on",
                hint="restore the store from a copy; its other runs are not touched",
            )

    def trimmed(self, earliest: int, names: set[str]) -> RunIndex:
        """The run without what lies before `earliest`; readers keep the one they have."""
        run = RunIndex(self.workflow_id, self.identity, earliest)
        for name in ("parent", "owner", "state", "epoch", "stored_epoch", "updated_at"):
            setattr(run, name, getattr(self, name))
        run.names = names
        start = earliest - self.earliest
        for name in ("places", "sizes", "bodies", "times", "types"):
            setattr(run, name, getattr(self, name)[start:])
        run.bytes = sum(run.bodies)
        return run

    def row(self) -> RunRow:
        """As `EventLog.run`."""
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
    """What is known of a file of lines: its batches from `first` to `last`, how often it was rewritten, and
    of each run the first offset and the number of events that it held when it was last written."""

    __slots__ = ("first", "generation", "last", "number", "size", "spans")

    def __init__(self, number: int, first: int, generation: int = 0) -> None:
        self.number = number
        self.first = first
        self.last = first - 1
        self.generation = generation
        self.size = 0
        self.spans: dict[str, tuple[int, int]] = {}

    def grow(self, workflow_id: str, offset: int, count: int) -> None:
        """`count` events of a run were added, the first of them at `offset`."""
        first, before = self.spans.get(workflow_id, (offset, 0))
        self.spans[workflow_id] = (first, before + count)


class Index:
    """All runs, all segments, and the names of event types. Changed by the writing thread alone, except that
    compaction moves places; `moving` is held for that, and where runs are replaced or taken out."""

    def __init__(self, removed: Removed) -> None:
        self.removed = removed
        self.runs: dict[str, RunIndex] = {}
        self.order: list[tuple[int, str]] = []  # (created_at, workflow_id), sorted
        self.segments: dict[int, Segment] = {}
        self.type_names: list[str] = []
        self.moving = threading.Lock()
        self._type_ids: dict[str, int] = {}

    def create(self, workflow_id: str, identity: RunIdentity, earliest: int = 0) -> RunIndex:
        """A run without events."""
        run = self.runs[workflow_id] = RunIndex(workflow_id, identity, earliest)
        insort(self.order, (identity.created_at, workflow_id))
        return run

    def take_out(self, run: RunIndex) -> None:
        """The run is gone."""
        with self.moving:
            del self.runs[run.workflow_id]
            self.order.remove((run.identity.created_at, run.workflow_id))

    def find(self, workflow_id: str) -> RunIndex:
        """The run. RunNotFound, RunGone."""
        run = self.runs.get(workflow_id)
        if run is None:
            raise no_run(workflow_id, self.removed.gone.get(workflow_id))
        return run

    def check_not_gone(self, workflow_id: str) -> None:
        """RunGone if the run was deleted."""
        gone = self.removed.gone.get(workflow_id)
        if gone is not None:
            raise RunGone(gone)

    def has_damage(self) -> bool:
        """Whether a run is quarantined. For any thread."""
        return any(run.damaged is not None for run in list(self.runs.values()))

    def type_id(self, name: str) -> int:
        """The number that stands for a type; it holds for this process only."""
        found = self._type_ids.get(name)
        if found is None:
            found = self._type_ids[name] = len(self.type_names)
            self.type_names.append(name)
        return found
