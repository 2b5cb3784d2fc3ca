"""Where each event of each run lies: in memory, 26 bytes an event, rebuilt at every start."""

from __future__ import annotations

from array import array
from bisect import insort

from agentflow.errors import LogCorrupt, RunNotFound
from agentflow.events.log import ENDED, FIRST_EPOCH, RunRow
from agentflow.events.owner import Owner
from agentflow.events.segments.lines import RunChange, RunIdentity

__all__ = ["PLACE_BITS", "Index", "RunIndex"]

PLACE_BITS = 40  # of a place, for the position in its segment


class RunIndex:
    """One run. `places` hold segment and position of the line, `sizes` its length, `bodies` the event's."""

    __slots__ = (
        "bodies",
        "damaged",
        "epoch",
        "identity",
        "owner",
        "places",
        "sizes",
        "state",
        "stored_epoch",
        "times",
        "types",
        "updated_at",
        "workflow_id",
    )

    def __init__(self, workflow_id: str, identity: RunIdentity) -> None:
        self.workflow_id = workflow_id
        self.identity = identity
        self.owner: Owner | None = None
        self.state = "pending"
        self.epoch = self.stored_epoch = FIRST_EPOCH
        self.updated_at = identity.created_at
        self.damaged = False
        """The log of this run is not whole: what lies beyond the last place is lost."""
        self.places = array("Q")
        self.sizes = array("I")
        self.bodies = array("I")
        self.times = array("q")
        self.types = array("H")

    @property
    def last(self) -> int:
        return len(self.types) - 1

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def add(self, segment: int, position: int, size: int, body: int, ts: int, type_id: int) -> None:
        """The next event. `types` grows last: a reader in another thread goes by its length."""
        self.places.append(segment << PLACE_BITS | position)
        self.sizes.append(size)
        self.bodies.append(body)
        self.times.append(ts)
        self.types.append(type_id)
        self.updated_at = ts

    def apply(self, change: RunChange) -> None:
        """What a line said beside its event."""
        if change.state is not None:
            self.state = change.state
        if change.epoch is not None:
            self.stored_epoch = change.epoch
            self.epoch = max(self.epoch, change.epoch)

    def check_whole(self) -> None:
        """LogCorrupt if the run is quarantined."""
        if self.damaged:
            raise LogCorrupt(
                f"{self.workflow_id} is damaged from offset {self.last + 1} on",
                hint="restore the store from a copy; its other runs are not touched",
            )

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
        )


class Index:
    """All runs, and the names of event types. Changed by the writing thread alone."""

    def __init__(self) -> None:
        self.runs: dict[str, RunIndex] = {}
        self.order: list[tuple[int, str]] = []  # (created_at, workflow_id), sorted
        self.type_names: list[str] = []
        self._type_ids: dict[str, int] = {}

    def create(self, workflow_id: str, identity: RunIdentity) -> RunIndex:
        """A run without events."""
        run = self.runs[workflow_id] = RunIndex(workflow_id, identity)
        insort(self.order, (identity.created_at, workflow_id))
        return run

    def find(self, workflow_id: str) -> RunIndex:
        """The run. RunNotFound."""
        run = self.runs.get(workflow_id)
        if run is None:
            raise RunNotFound(f"no run {workflow_id}")
        return run

    def type_id(self, name: str) -> int:
        """The number that stands for a type; it holds for this process only."""
        found = self._type_ids.get(name)
        if found is None:
            found = self._type_ids[name] = len(self.type_names)
            self.type_names.append(name)
        return found
