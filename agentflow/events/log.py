"""The event log: what every back end does (page 000 §7).

Appends are all or nothing and durable once their future is done; reads give the stored bytes of durable
events only. Each run has one writer: it names the offset it expects and its epoch, so a writer that lost its
run is refused, never merged. This module holds the protocol, its values, and the one rule by which a batch is
accepted; it does no I/O.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from agentflow.errors import AgentflowError, Fenced, OffsetConflict, RunTerminal, StoreError
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.envelope import StoredEvent
from agentflow.events.owner import Owner

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "ENDED",
    "FIRST_EPOCH",
    "Append",
    "EventLog",
    "LoggedEvent",
    "Page",
    "RunMeta",
    "RunRow",
    "StoredEvent",
    "blob_hash",
    "check_batch",
    "decode_cursor",
    "encode_cursor",
    "refusal",
    "state_after",
]

FIRST_EPOCH = 1
"""The epoch of a run's first append."""

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
    `run` comes with the first batch of a run and with no other.
    """

    workflow_id: str
    epoch: int
    expected: int
    events: Sequence[StoredEvent]
    state: str | None = None
    run: RunMeta | None = None


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the log knows it, without decoding any event. Times in µs since the epoch."""

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

    @property
    def ended(self) -> bool:
        """Whether the log is complete for ever."""
        return self.state in ENDED


class LoggedEvent(NamedTuple):
    """An event found across runs."""

    workflow_id: str
    event: StoredEvent


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some items, and the cursor that continues after them; None when there is nothing after them."""

    items: list[T]
    next_cursor: str | None


class EventLog(Protocol):
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
    def failure(self) -> AgentflowError | None:
        """Why the log stopped for good, if it did."""
        ...

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Accept `batch`; the future is done once it is durable, or holds why nothing of it was written.

        OffsetConflict, Fenced, RunTerminal, LogClosed or StoreError. Batches of one run commit in the order
        of their calls. Cancelling the future takes nothing back. ValueError if the batch is malformed.
        """
        ...

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Up to `limit` durable events from `from_offset` on, in order; empty beyond the end. RunNotFound."""
        ...

    async def last(self, workflow_id: str) -> int:
        """The offset of the last durable event. RunNotFound."""
        ...

    async def run(self, workflow_id: str) -> RunRow:
        """The run's row. RunNotFound."""
        ...

    async def runs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "desc",
    ) -> Page[RunRow]:
        """Runs by (created_at, workflow_id); `since` ≤ created_at < `until` (µs). ValueError: bad cursor."""
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
        """Events of all runs in commit order. `types` may end in `.*`; times as in `runs`, of the events.

        Without a cursor: from the oldest on. `next_cursor` is never None here, not even in an empty store:
        kept, it continues with what is committed later, so a consumer with a stored cursor misses nothing
        and sees nothing twice. A page that is not full was all there was.
        """
        ...

    async def latest_cursor(self) -> str:
        """A cursor for `query` behind everything that is committed now: it gives only what comes later."""
        ...

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """Keep the place of a consumer in `query`, durably; the last one that was saved holds."""
        ...

    async def load_cursor(self, consumer: str) -> str | None:
        """The cursor that was last saved for `consumer`, or None: it starts at the beginning."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """Store `data` once; its name `sha256:…` is valid in events appended after this call was made."""
        ...

    async def get_blob(self, name: str) -> bytes | None:
        """The bytes of a blob, or None."""
        ...

    async def put_definition(self, hash: str, source: bytes) -> None:
        """Store a definition under its hash; the first one stays."""
        ...

    async def get_definition(self, hash: str) -> bytes | None:
        """The bytes of a definition, or None."""
        ...

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """Become the one writer of a run; the epoch that its appends must carry from now on.

        Fenced while another live process owns it. A run that does not exist yet is not created: its first
        append carries epoch 1.
        """
        ...

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """Give the run up, so that another process may claim it; nothing happens if it is not `owner`'s."""
        ...

    async def close(self) -> None:
        """Write what was accepted, then refuse everything with LogClosed. Idempotent."""
        ...


ENDED = frozenset(name.partition(".")[2] for name in TERMINAL_TYPES)
"""The states in which a run's log is complete for ever."""


def check_batch(batch: Append) -> None:
    """ValueError unless the batch is well formed by itself; a caller's mistake, not a conflict."""
    events = batch.events
    if not events:
        raise ValueError("a batch holds at least one event")
    if (batch.run is None) != (batch.expected > 0):
        raise ValueError("`run` comes with the batch at offset 0, and with no other")
    offset = batch.expected
    for event in events:
        if event.offset != offset:
            raise ValueError(f"event at offset {event.offset} where {offset} was due")
        offset += 1
    if len(events) > 1 and any(event.type in TERMINAL_TYPES for event in events[:-1]):
        raise ValueError("no event may follow a terminal one")


def refusal(batch: Append, last: int, epoch: int, ended: bool) -> StoreError | RunTerminal | None:
    """Why a log that ends at `last` (-1: no such run) must not take this batch, or None.

    Creation is answered first: two that start one run both believe that it is theirs.
    """
    if batch.run is not None or last < 0:
        if last >= 0 or batch.expected != 0:
            return OffsetConflict(batch.workflow_id, batch.expected, last + 1)
        if batch.epoch != FIRST_EPOCH:
            return Fenced(f"{batch.workflow_id}: a new run has epoch {FIRST_EPOCH}, not {batch.epoch}")
        return None
    if batch.epoch != epoch:
        return Fenced(f"{batch.workflow_id}: epoch {batch.epoch} is over, the run is at epoch {epoch}")
    if ended:
        return RunTerminal(f"{batch.workflow_id} has ended at offset {last}")
    if batch.expected != last + 1:
        return OffsetConflict(batch.workflow_id, batch.expected, last + 1)
    return None


def state_after(batch: Append, before: str) -> str:
    """The run's state once the batch is in the log."""
    last = batch.events[-1].type
    if last in TERMINAL_TYPES:
        return last.partition(".")[2]
    return batch.state or before


def blob_hash(data: bytes) -> str:
    """The name of a blob with these bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def encode_cursor(*position: int | str) -> str:
    """An opaque, URL-safe cursor for a position."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).rstrip(b"=").decode()


def decode_cursor(cursor: str, shape: type[T]) -> T:
    """The position of a cursor; ValueError when it is not one of ours."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=shape)
    except (ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"{cursor!r} is not a cursor of this list") from error
