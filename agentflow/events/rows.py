"""The values of the event log: what goes in with an append and what comes out of a read. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.envelope import StoredEvent, id_of
from agentflow.events.owner import Owner

__all__ = [
    "ENDED",
    "FIRST_EPOCH",
    "OPEN",
    "VERIFY_HINT",
    "Append",
    "Claimed",
    "LoggedEvent",
    "Notice",
    "Order",
    "Page",
    "RunMeta",
    "RunRow",
    "Snapshot",
    "Swept",
]

FIRST_EPOCH = 1
"""The epoch of a run's first append."""

ENDED = frozenset(name.partition(".")[2] for name in TERMINAL_TYPES)
"""The states in which a run's log is complete for ever."""

OPEN = ("pending", "running", "waiting", "paused")
"""The states of runs that have not ended."""

VERIFY_HINT = "`agentflow verify` names what is damaged; restore the store from a copy"
"""What to do about `Page.damaged`."""

T = TypeVar("T")
Order = Literal["asc", "desc"]


class RunMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What the log records of a run beside its events, given with its first batch. `created_at` in µs."""

    name: str | None
    definition_hash: str
    created_at: int
    labels: Mapping[str, str] = {}
    owner: Owner | None = None


class Append(msgspec.Struct, frozen=True):
    """A batch for one run: `events` at the offsets `expected`, `expected` + 1 ….

    `state` is the run's state after the batch (None: as before); a terminal event decides it by itself.
    `run` comes with the first batch of a run and with no other. `lazy`: nothing waits for it to be durable;
    it may wait 2 ms for others.
    """

    workflow_id: str
    epoch: int
    expected: int
    events: Sequence[StoredEvent]
    state: str | None = None
    run: RunMeta | None = None
    lazy: bool = False

    @property
    def batch_id(self) -> str:
        """The id of the batch: that of its first event, which no other batch has."""
        return id_of(self.events[0])


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the log knows it, without decoding any event. Times in µs since the epoch.

    `bytes` is the size of its events as JSON; `earliest_offset` is above 0 once leading events were trimmed;
    `parent` is the run that this one is a step of.
    """

    workflow_id: str
    name: str | None
    definition_hash: str
    state: str
    labels: dict[str, str]
    created_at: int
    updated_at: int
    last_offset: int
    epoch: int
    owner: Owner | None
    parent: str | None = None
    earliest_offset: int = 0
    bytes: int = 0

    @property
    def ended(self) -> bool:
        """Whether the log is complete for ever."""
        return self.state in ENDED

    @property
    def ended_at(self) -> int | None:
        """When the terminal event was written; None before."""
        return self.updated_at if self.ended else None


class Claimed(NamedTuple):
    """A run that a process owns from now on, and the epoch that its appends must carry."""

    workflow_id: str
    epoch: int


class LoggedEvent(NamedTuple):
    """An event found across runs."""

    workflow_id: str
    event: StoredEvent


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some items, and the cursor that continues after them; None when there is nothing after them."""

    items: list[T]
    next_cursor: str | None
    damaged: tuple[str, ...] = ()
    """Ids of the runs of which something in the range of this page could not be read; sorted. What is intact
    is in `items`, so a consumer that goes on must report these ids."""


class Snapshot(msgspec.Struct, frozen=True):
    """A cache of what the events up to `offset` (inclusive) say; `kind` is the name its writer gave it."""

    offset: int
    data: bytes


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What `EventLog.sweep` took away; `bytes` is how much smaller the store's files are now."""

    blobs: int = 0
    definitions: int = 0
    bytes: int = 0


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that opening the store found or mended. `workflow_id` when it is about one run.

    `torn_tail`: bytes of a batch, never acknowledged, were cut off. `damaged_run`: the run is quarantined.
    `rebuilt`: a cache was missing or damaged and was made again. Only the last needs no attention.
    """

    kind: Literal["torn_tail", "damaged_run", "rebuilt"]
    text: str
    workflow_id: str | None = None
    bytes: int = 0
