"""The log in memory: for tests and embedding. Lost on exit; an append is done when the call returns."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

from msgspec.structs import replace

from agentflow.errors import AgentflowError, LogClosed
from agentflow.events.base import BaseLog, EventQuery
from agentflow.events.blobs import blob_hash
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.forked import ForkGuard
from agentflow.events.listing import RunQuery, page_of_runs
from agentflow.events.owner import Owner, next_epoch, this_process
from agentflow.events.references import named_by, names_in, parent_of
from agentflow.events.rows import (
    ENDED,
    FIRST_EPOCH,
    Append,
    LoggedEvent,
    Page,
    RunMeta,
    RunRow,
    Snapshot,
    Swept,
)
from agentflow.events.rules import (
    check_batch,
    check_removable,
    check_start,
    first_kept,
    no_run,
    refusal,
    state_after,
    tombstone_of,
)
from agentflow.events.sealing import UnsealedBatch
from agentflow.events.tombstone import Tombstone

__all__ = ["MemoryLog"]


class _Blobs(dict[str, bytes]):
    """All blobs by name: a value is in memory once, however many events hold it."""

    def share(self, events: Sequence[StoredEvent]) -> Sequence[StoredEvent]:
        """Return these events with the blobs that are here already; the others are added."""
        if not any(event.blobs for event in events):
            return events
        return [self._shared(event) if event.blobs else event for event in events]

    def _shared(self, event: StoredEvent) -> StoredEvent:
        blobs = [replace(blob, data=self.setdefault(blob.name, blob.data)) for blob in event.blobs]
        return replace(event, blobs=tuple(blobs))


class _Run:
    """`events` begins at offset `earliest`; `names` are the blobs and definitions that the run names, `bytes`
    their size, both of the first `measured` of the events."""

    __slots__ = (
        "_blobs",
        "_events",
        "_late",
        "_parent",
        "bytes",
        "earliest",
        "ended",
        "epoch",
        "last",
        "measured",
        "meta",
        "names",
        "owner",
        "snapshots",
        "state",
        "updated_at",
    )

    def __init__(self, meta: RunMeta, first: int, blobs: _Blobs) -> None:
        self.meta = meta
        self._blobs = blobs
        self._parent: str | None = ""  # not looked for yet
        self.owner: Owner | None = meta.owner or this_process()
        self.epoch = FIRST_EPOCH
        self._events: list[StoredEvent] = []
        self._late: list[UnsealedBatch] = []  # behind `_events`, not encoded yet
        self.earliest = first
        self.last = first - 1
        self.bytes = self.measured = 0
        self.names = {meta.definition_hash}
        self.snapshots: dict[str, dict[int, bytes]] = {}
        self.state = "pending"
        self.updated_at = meta.created_at
        self.ended = False

    @property
    def events(self) -> list[StoredEvent]:
        """The events that are left, encoded by now."""
        if self._late:
            for batch in self._late:
                stored = batch.stored()
                stored[:] = self._blobs.share(stored)  # the batch keeps them too
                self._events += stored
            self._late.clear()
        return self._events

    @property
    def parent(self) -> str | None:
        if self._parent == "":
            self._parent = parent_of(self.events[0].text)
        return self._parent

    def take_late(self, events: UnsealedBatch, batch: Append) -> bool:
        """Append a batch that is encoded when it is first read, if it is the next of the run: `refusal` has
        no answer to it. Return false for others, which are checked by the rule."""
        if (
            batch.run is not None
            or not (events.first == batch.expected == self.last + 1)
            or batch.epoch != self.epoch
            or self.ended
            or not events.length
        ):
            return False
        self._late.append(events)
        self.updated_at = events.ts
        self.last += events.length
        if events.ends_run or batch.state != self.state:
            self.state = state_after(batch, self.state)
            self.ended = self.state in ENDED
        return True

    def extend(self, batch: Append) -> None:
        events = batch.events
        if isinstance(events, UnsealedBatch) and self.take_late(events, batch):
            return
        self.events.extend(events)
        self.updated_at = events[-1].ts
        self.last += len(events)
        self.state = state_after(batch, self.state)
        self.ended = self.state in ENDED

    def measure(self) -> None:
        """Bring `bytes` and `names` up to date; seldom asked for, so not done with each append."""
        for event in self.events[self.measured :]:
            self.bytes += event.size
            self.names |= names_in(event.text)
        self.measured = len(self.events)

    def trim(self, before: int) -> int:
        earliest = first_kept(self.earliest, self.last, before)
        _ = self.parent  # its event may go
        del self.events[: earliest - self.earliest]
        self.earliest = earliest
        kept = [data for snapshots in self.snapshots.values() for data in snapshots.values()]
        self.names = {self.meta.definition_hash}.union(*map(names_in, kept))
        self.bytes = self.measured = 0
        return earliest

    def row(self, workflow_id: str) -> RunRow:
        self.measure()
        return RunRow(
            workflow_id=workflow_id,
            name=self.meta.name,
            definition_hash=self.meta.definition_hash,
            state=self.state,
            labels=dict(self.meta.labels),
            created_at=self.meta.created_at,
            updated_at=self.updated_at,
            last_offset=self.last,
            epoch=self.epoch,
            owner=self.owner,
            parent=self.parent,
            earliest_offset=self.earliest,
            bytes=self.bytes,
        )


_Entry = tuple[int, str, Sequence[StoredEvent]]
"""A batch in the order of commits, by the number of its first event, with its run; numbers of events that are
gone are not used again."""


class MemoryLog(BaseLog):
    """An EventLog in dictionaries of this process. Methods never suspend."""

    durable = False
    seals_late = True
    shared = False
    url = "memory:"
    failure: AgentflowError | None = None

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._gone: dict[str, Tombstone] = {}
        self._order: list[tuple[int, str]] = []  # (created_at, workflow_id), sorted
        self._all: list[_Entry] = []
        self._count = 0  # events ever appended
        self._blobs = _Blobs()
        self._definitions: dict[str, bytes] = {}
        self._put_at: dict[str, int] = {}
        self._inner: dict[str, frozenset[str]] = {}  # what blobs name themselves
        self._cursors: dict[str, str] = {}
        self._closed = False
        self._done: asyncio.Future[None] | None = None
        self._fork_guard = ForkGuard("the store")

    # -- writing

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Implement `EventLog.append`; the future is already done."""
        self._fork_guard.check()
        workflow_id = batch.workflow_id
        run = self._runs.get(workflow_id)
        events = batch.events
        if (
            isinstance(events, UnsealedBatch)
            and run is not None
            and not self._closed
            and run.take_late(events, batch)
        ):
            self._all.append((self._count, workflow_id, events))
            self._count += events.length
            return self._acknowledged()
        check_batch(batch)
        if self._closed:
            return _failed(LogClosed())
        if run is None:
            error = refusal(batch, -1, 0, False, self._gone.get(workflow_id))
        else:
            error = refusal(batch, run.last, run.epoch, run.ended)
        if error is not None:
            return _failed(error)
        if run is None:
            assert batch.run is not None  # refusal() let only a first batch pass
            run = self._put_run(workflow_id, batch.run, batch.expected)
        self._take(run, batch)
        return self._acknowledged()

    def _put_run(self, workflow_id: str, meta: RunMeta, first: int) -> _Run:
        """Add a run without events, which begins at offset `first`."""
        run = self._runs[workflow_id] = _Run(meta, first, self._blobs)
        key = (meta.created_at, workflow_id)
        self._order.insert(bisect_left(self._order, key), key)
        return run

    def _take(self, run: _Run, batch: Append) -> None:
        if not isinstance(batch.events, UnsealedBatch):
            batch = replace(batch, events=self._blobs.share(batch.events))
        run.extend(batch)
        self._all.append((self._count, batch.workflow_id, batch.events))
        self._count += len(batch.events)

    def _acknowledged(self) -> asyncio.Future[None]:
        # One future that is done serves every append: awaiting it again gives the same None at once.
        done = self._done
        loop = asyncio.get_running_loop()
        if done is None or done.get_loop() is not loop:
            done = self._done = loop.create_future()
            done.set_result(None)
        return done

    async def put_blob(self, data: bytes) -> str:
        """Implement `EventLog.put_blob`."""
        name = blob_hash(data)
        self._put(self._blobs, name, data)
        self._inner[name] = names_in(data)
        return name

    async def put_definition(self, hash: str, source: bytes) -> None:
        """Implement `EventLog.put_definition`."""
        self._put(self._definitions, hash, source)

    def _put(self, into: dict[str, bytes], name: str, data: bytes) -> None:
        self._check_open()
        into.setdefault(name, data)
        self._put_at[name] = time.time_ns() // 1000

    async def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """Implement `EventLog.put_snapshot`."""
        self._find(workflow_id).snapshots.setdefault(kind, {})[offset] = data

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """Implement `EventLog.save_cursor`."""
        self._check_open()
        self._cursors[consumer] = cursor

    async def drop_cursor(self, consumer: str) -> None:
        """Implement `EventLog.drop_cursor`."""
        self._check_open()
        self._cursors.pop(consumer, None)

    async def cursors(self, prefix: str) -> dict[str, str]:
        """Implement `EventLog.cursors`."""
        self._check_open()
        return {name: cursor for name, cursor in self._cursors.items() if name.startswith(prefix)}

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """Implement `EventLog.claim`."""
        self._check_open()
        if workflow_id not in self._runs and workflow_id not in self._gone:
            return FIRST_EPOCH
        run = self._find(workflow_id)
        run.epoch = next_epoch(workflow_id, run.epoch, run.owner, owner)
        run.owner = owner
        return run.epoch

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """Implement `EventLog.release`."""
        self._check_open()
        run = self._runs.get(workflow_id)
        if run is not None and run.owner == owner:
            run.owner = None

    # -- reading

    def _find(self, workflow_id: str) -> _Run:
        self._check_open()
        run = self._runs.get(workflow_id)
        if run is None:
            raise no_run(workflow_id, self._gone.get(workflow_id))
        return run

    def _check_open(self) -> None:
        self._fork_guard.check()
        if self._closed:
            raise LogClosed

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Implement `EventLog.read`."""
        run, start = self._find(workflow_id), max(from_offset, 0)
        check_start(workflow_id, run.earliest, start)
        first = start - run.earliest
        return run.events[first : first + limit]

    async def run(self, workflow_id: str) -> RunRow:
        """Implement `EventLog.run`."""
        return self._find(workflow_id).row(workflow_id)

    async def _list(self, query: RunQuery) -> Page[RunRow]:
        return page_of_runs(self._order, lambda found: self._runs[found].row(found), query)

    async def _query(self, query: EventQuery) -> Page[LoggedEvent]:
        found: list[LoggedEvent] = []
        after = 0 if query.cursor is None else decode_cursor(query.cursor, tuple[int])[0]
        position = max(bisect_right(self._all, after, key=itemgetter(0)) - 1, 0)
        while position < len(self._all) and len(found) < query.limit:
            first, workflow_id, events = self._all[position]
            position += 1
            earliest = self._runs[workflow_id].earliest
            for number, event in enumerate(events, start=first):
                if number < after:
                    continue
                after = number + 1
                if event.offset >= earliest and query.takes(event.type, event.ts):
                    found.append(LoggedEvent(workflow_id, event))
                    if len(found) == query.limit:
                        break
        return Page(found, encode_cursor(after))

    async def latest_cursor(self) -> str:
        """Implement `EventLog.latest_cursor`."""
        self._check_open()
        return encode_cursor(self._count)

    async def load_cursor(self, consumer: str) -> str | None:
        """Implement `EventLog.load_cursor`."""
        self._check_open()
        return self._cursors.get(consumer)

    async def get_blob(self, name: str) -> bytes | None:
        """Implement `EventLog.get_blob`."""
        self._check_open()
        return self._blobs.get(name)

    async def get_definition(self, hash: str) -> bytes | None:
        """Implement `EventLog.get_definition`."""
        self._check_open()
        return self._definitions.get(hash)

    async def latest_snapshot(
        self, workflow_id: str, kind: str, at_or_before: int | None = None
    ) -> Snapshot | None:
        """Implement `EventLog.latest_snapshot`."""
        kept = self._find(workflow_id).snapshots.get(kind, {})
        offsets = [offset for offset in kept if at_or_before is None or offset <= at_or_before]
        return Snapshot(max(offsets), kept[max(offsets)]) if offsets else None

    # -- retention

    async def trim(self, workflow_id: str, before: int) -> int:
        """Implement `EventLog.trim`."""
        run = self._find(workflow_id)
        check_removable(workflow_id, run.state, run.ended)
        earliest = run.trim(before)
        self._all = [e for e in self._all if e[1] != workflow_id or e[2][-1].offset >= earliest]
        return earliest

    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """Implement `EventLog.delete`."""
        run = self._find(workflow_id)
        check_removable(workflow_id, run.state, run.ended)
        gone = self._gone[workflow_id] = tombstone_of(run.row(workflow_id), at)
        del self._runs[workflow_id]
        self._order.remove((run.meta.created_at, workflow_id))
        self._all = [entry for entry in self._all if entry[1] != workflow_id]
        return gone

    async def sweep(self, before: int) -> Swept:
        """Implement `EventLog.sweep`."""
        self._check_open()
        for run in self._runs.values():
            run.measure()
        young = {name for name, at in self._put_at.items() if at >= before}
        named = named_by(young.union(*(run.names for run in self._runs.values())), self._inner)
        old = (self._blobs.keys() | self._definitions.keys()) - named
        counts = [
            sum(kept.pop(name, None) is not None for name in old) for kept in (self._blobs, self._definitions)
        ]
        for name in old:
            self._put_at.pop(name, None)
            self._inner.pop(name, None)
        return Swept(blobs=counts[0], definitions=counts[1])

    # -- life

    async def probe(self) -> None:
        """Implement `EventLog.probe`."""
        self._check_open()

    async def close(self) -> None:
        """Implement `EventLog.close`; what was stored is gone."""
        self._fork_guard.check()
        self._closed = True


def _failed(error: AgentflowError) -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
