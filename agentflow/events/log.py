"""The event log: what every back end does (page 000 §7).

Appends are all or nothing and durable once their future is done; reads give the stored bytes of durable
events only. Each run has one writer: it names the offset it expects and its epoch, so a writer that lost its
run is refused, never merged. This module holds the protocol alone, in parts: log, runs, ownership, objects,
retention. Its values stand in `rows`, the rule by which a batch is accepted in `rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from agentflow.errors import AgentflowError
from agentflow.events.envelope import StoredEvent
from agentflow.events.owner import Owner
from agentflow.events.rows import (
    ENDED,
    FIRST_EPOCH,
    Append,
    Claimed,
    LoggedEvent,
    Notice,
    Order,
    Page,
    RunMeta,
    RunRow,
    Snapshot,
    Swept,
)
from agentflow.events.tombstone import Tombstone

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "ENDED",
    "FIRST_EPOCH",
    "Append",
    "Claimed",
    "EventLog",
    "Log",
    "LoggedEvent",
    "Notice",
    "Objects",
    "Ownership",
    "Page",
    "Retention",
    "RunMeta",
    "RunRow",
    "Runs",
    "Snapshot",
    "StoredEvent",
    "Swept",
    "Tombstone",
]


class Log(Protocol):
    """The events: appended by the one writer of a run, read by any number of readers."""

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Accept `batch`; the future is done once it is durable, or holds why nothing of it was written.

        OffsetConflict, Fenced, RunTerminal, RunGone, or a StoreError whose `transient` says whether the
        same batch may be taken later: StorageUnavailable (a full, busy or read-only store; `probe` tells when
        it is over) and LogClosed are, LogFailed and LogCorrupt are not. Whatever the error, nothing of the
        batch is in the log and no offset is used; but after CommitUnknown, which a store raises whose answer
        was lost, `holds` tells. Batches of one run commit in the order of their calls.
        Cancelling the future takes nothing back. ValueError if the batch is malformed.
        """
        ...

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Return up to `limit` durable events from `from_offset` on, in order; empty beyond the end.

        RunNotFound; RunGone; OffsetTrimmed before the earliest offset that is left; LogCorrupt from where the
        run is damaged on.
        """
        ...

    async def last(self, workflow_id: str) -> int:
        """Return the offset of the last durable event. Raises RunNotFound, RunGone or LogCorrupt."""
        ...

    async def query(
        self,
        types: Sequence[str] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        cursor: str | None = None,
        limit: int = 256,
    ) -> Page[LoggedEvent]:
        """Return events of all runs in commit order. `types` may end in `.*`; times as in `runs`, of the
        events.

        Without a cursor: from the oldest on. `next_cursor` is never None here, not even in an empty store:
        kept, it continues with what is committed later, so a consumer with a stored cursor misses nothing and
        sees nothing twice. A page that is not full was all there was. A damaged event is left out and its run
        named in `Page.damaged`; LogCorrupt is raised only where it cannot be told what is missing.
        """
        ...

    async def latest_cursor(self) -> str:
        """Return a cursor for `query` behind everything that is committed now: it gives only what comes
        later."""
        ...

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """Keep the place of a consumer in `query`, durably; the last one that was saved holds."""
        ...

    async def load_cursor(self, consumer: str) -> str | None:
        """Return the cursor that was last saved for `consumer`, or None: it starts at the beginning."""
        ...

    async def drop_cursor(self, consumer: str) -> None:
        """Forget where a consumer stood; does nothing if it is unknown."""
        ...

    async def cursors(self, prefix: str) -> dict[str, str]:
        """Return the saved cursors of all consumers whose names begin with `prefix`."""
        ...

    async def foreign_writes(self) -> int:
        """Return a number that changes when another process has written since it was asked for; always 0
        where none can. StoreError when it cannot be known now."""
        ...

    async def holds(self, batch: Append) -> bool:
        """Return whether the log has this batch at its offset, after an append raised CommitUnknown.

        A batch is known by the id of its first event. False if it may be appended again; OffsetConflict if
        another batch stands there. Raises StorageUnavailable as long as it cannot be told.
        """
        ...


class Runs(Protocol):
    """The rows of runs, found by id, state, name, label and time."""

    async def run(self, workflow_id: str) -> RunRow:
        """Return the run's row. Raises RunNotFound, RunGone or LogCorrupt."""
        ...

    async def runs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        prefix: str | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "desc",
    ) -> Page[RunRow]:
        """Return runs by (created_at, workflow_id); `since` ≤ created_at < `until` (µs).

        `prefix` is of the id. Raises ValueError if the cursor is not one of this list.
        """
        ...

    async def is_archived(self, workflow_id: str) -> bool:
        """Return whether a run is read from an archive. Raises RunNotFound or RunGone."""
        ...

    async def count_runs(self) -> dict[str, int]:
        """Return how many runs there are, by state; states without a run are left out."""
        ...


class Ownership(Protocol):
    """Which process may write to which run.

    A process registers once and renews while it works. How long that holds a store decides by its own means:
    a lock of the operating system, or a lease that ends by the clock of a database. Every claim raises the
    epoch of the run, which every append names, so that the last owner is fenced.
    """

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """Become the one writer of a run; the epoch that its appends must carry from now on.

        Fenced while another live process owns it; RunGone. A run that does not exist yet is not created: its
        first append carries epoch 1.
        """
        ...

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """Give the run up, so that another process may claim it; nothing happens if it is not `owner`'s."""
        ...

    def is_alive(self, owner: Owner) -> bool:
        """Return whether the process of `owner` still has the store open. Blocks for some µs."""
        ...

    async def register(self, owner: Owner) -> None:
        """Make `owner` known as a live process, so that it can own runs. Idempotent.

        Raises StorageUnavailable if that cannot be recorded, Fenced if it was known and has expired: an
        incarnation that expired is never live again.
        """
        ...

    async def renew(self, owner: Owner) -> None:
        """Confirm that `owner` is live. Raises Fenced once it is not: it stops working on all its runs."""
        ...

    async def expired(self) -> list[Owner]:
        """Return the owners of runs that have not ended whose processes are not live, each once."""
        ...

    async def claim_next(self, owner: Owner, limit: int) -> list[Claimed]:
        """Claim up to `limit` runs that have not ended and that no live process owns, oldest first."""
        ...


class Objects(Protocol):
    """What events name and what may be derived from them: blobs, definitions, snapshots."""

    async def put_blob(self, data: bytes) -> str:
        """Store `data` once; its name `sha256:…` is valid in events appended after this call was made.

        It stays as long as an event of a run names it as `{"$blob": name}`.
        """
        ...

    async def get_blob(self, name: str) -> bytes | None:
        """Return the bytes of a blob, or None."""
        ...

    async def put_definition(self, hash: str, source: bytes) -> None:
        """Store a definition under its hash; the first one stays, as long as an event names it."""
        ...

    async def get_definition(self, hash: str) -> bytes | None:
        """Return the bytes of a definition, or None."""
        ...

    async def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """Keep `data`, which the events up to `offset` imply; it goes with the run. RunNotFound, RunGone."""
        ...

    async def latest_snapshot(
        self, workflow_id: str, kind: str, at_or_before: int | None = None
    ) -> Snapshot | None:
        """Return the newest intact snapshot of this kind, or None: a cache may be missing at any time, so its
        reader must be able to do without. RunNotFound, RunGone."""
        ...


class Retention(Protocol):
    """The removal of what is not needed any more."""

    async def trim(self, workflow_id: str, before: int) -> int:
        """Take the events before offset `before` away; the earliest offset that is left.

        The last event, the row and the snapshots stay. Durable at return. RunNotTerminal, RunNotFound,
        RunGone, LogCorrupt; Unsupported if the store does not trim.
        """
        ...

    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """Take the run away; what is left of it. `at` is now, in µs. Durable at return.

        From then on reads and appends get RunGone for ever. RunNotTerminal, RunNotFound, RunGone.
        """
        ...

    async def delete_all(self, workflow_ids: Sequence[str], at: int) -> dict[str, Tombstone | AgentflowError]:
        """Take runs away as `delete` does, many in one commit; of each what is left of it, or why it stays:
        LogCorrupt and what `delete` raises. Raises any other StoreError; some of them are gone then."""
        ...

    async def sweep(self, before: int) -> Swept:
        """Give back the space of what was trimmed and deleted, and of blobs and definitions that no run names
        and that were put before `before` (µs): a younger one may be named by an event on its way."""
        ...


class EventLog(Log, Runs, Ownership, Objects, Retention, Protocol):
    """One store of runs and their events. All methods are for one event loop; none blocks it."""

    @property
    def url(self) -> str:
        """How the store was named."""
        ...

    @property
    def durable(self) -> bool:
        """Whether acknowledged events outlive the process and a power failure."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes may write to this store while it is open."""
        ...

    @property
    def read_only(self) -> bool:
        """True if nothing can be written, however long it is waited."""
        ...

    @property
    def trims(self) -> bool:
        """True if `trim` can remove leading events of a run; where it cannot, it raises Unsupported."""
        ...

    @property
    def failure(self) -> AgentflowError | None:
        """Why the log stopped for good, if it did."""
        ...

    @property
    def notices(self) -> Sequence[Notice]:
        """What opening the store found or mended, for its logs and for `system.error`."""
        ...

    async def probe(self) -> None:
        """Check that the store takes appends now, by a small durable write. Raises StorageUnavailable if not
        yet, LogFailed or LogClosed if never again."""
        ...

    async def close(self) -> None:
        """Write what was accepted, then refuse everything with LogClosed. Idempotent.

        Raises LogFailed if the files of the store were deleted or replaced while it was open: what was
        acknowledged may be lost.
        """
        ...
