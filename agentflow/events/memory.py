"""The log in memory: for tests and embedding. Lost on exit; an append is done when the call returns."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import Literal

from agentflow.errors import AgentflowError, LogClosed, RunNotFound
from agentflow.events.envelope import StoredEvent
from agentflow.events.filters import TypeFilter
from agentflow.events.listing import RunQuery, page_of_runs
from agentflow.events.log import (
    FIRST_EPOCH,
    Append,
    LoggedEvent,
    Page,
    RunMeta,
    RunRow,
    blob_hash,
    check_batch,
    decode_cursor,
    encode_cursor,
    refusal,
    state_after,
)
from agentflow.events.owner import Owner, next_epoch, this_process

__all__ = ["MemoryLog"]


class _Run:
    __slots__ = ("ended", "epoch", "events", "meta", "owner", "state", "updated_at")

    def __init__(self, meta: RunMeta) -> None:
        self.meta = meta
        self.owner: Owner | None = meta.owner or this_process()
        self.epoch = FIRST_EPOCH
        self.events: list[StoredEvent] = []
        self.state = "pending"
        self.updated_at = meta.created_at
        self.ended = False

    def row(self, workflow_id: str) -> RunRow:
        return RunRow(
            workflow_id=workflow_id,
            name=self.meta.name,
            definition_hash=self.meta.definition_hash,
            state=self.state,
            labels=dict(self.meta.labels),
            created_at=self.meta.created_at,
            updated_at=self.updated_at,
            last_offset=len(self.events) - 1,
            epoch=self.epoch,
            owner=self.owner,
        )


class MemoryLog:
    """An EventLog in dictionaries of this process. Methods never suspend."""

    durable = False
    shared = False
    url = "memory:"
    failure: AgentflowError | None = None

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._order: list[tuple[int, str]] = []  # (created_at, workflow_id), sorted
        self._all: list[tuple[str, StoredEvent]] = []  # in commit order
        self._blobs: dict[str, bytes] = {}
        self._definitions: dict[str, bytes] = {}
        self._cursors: dict[str, str] = {}
        self._closed = False
        self._done: asyncio.Future[None] | None = None

    def append(self, batch: Append) -> asyncio.Future[None]:
        """As `EventLog.append`; the future is already done."""
        check_batch(batch)
        workflow_id = batch.workflow_id
        run = self._runs.get(workflow_id)
        if self._closed:
            return _failed(LogClosed())
        if run is None:
            error = refusal(batch, -1, 0, False)
        else:
            error = refusal(batch, len(run.events) - 1, run.epoch, run.ended)
        if error is not None:
            return _failed(error)
        if run is None:
            assert batch.run is not None  # refusal() let only a first batch pass
            run = self._runs[workflow_id] = _Run(batch.run)
            key = (batch.run.created_at, workflow_id)
            self._order.insert(bisect_left(self._order, key), key)
        run.events.extend(batch.events)
        run.updated_at = batch.events[-1].ts
        self._all.extend(zip(repeat(workflow_id), batch.events, strict=False))
        before = run.state
        run.state = state_after(batch, before)
        if run.state != before:
            run.ended = run.row(workflow_id).ended
        return self._acknowledged()

    def _acknowledged(self) -> asyncio.Future[None]:
        # One future that is done serves every append: awaiting it again gives the same None at once.
        done = self._done
        loop = asyncio.get_running_loop()
        if done is None or done.get_loop() is not loop:
            done = self._done = loop.create_future()
            done.set_result(None)
        return done

    def _find(self, workflow_id: str) -> _Run:
        self._check_open()
        run = self._runs.get(workflow_id)
        if run is None:
            raise RunNotFound(f"no run {workflow_id}")
        return run

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """As `EventLog.read`."""
        return self._find(workflow_id).events[max(from_offset, 0) :][:limit]

    async def last(self, workflow_id: str) -> int:
        """As `EventLog.last`."""
        return len(self._find(workflow_id).events) - 1

    async def run(self, workflow_id: str) -> RunRow:
        """As `EventLog.run`."""
        return self._find(workflow_id).row(workflow_id)

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
        order: Literal["asc", "desc"] = "desc",
    ) -> Page[RunRow]:
        """As `EventLog.runs`."""
        self._check_open()
        query = RunQuery(
            state=state,
            name=name,
            label=label,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
            order=order,
        )
        return page_of_runs(self._order, lambda found: self._runs[found].row(found), query)

    async def query(
        self,
        types: Sequence[str] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        cursor: str | None = None,
        limit: int = 256,
    ) -> Page[LoggedEvent]:
        """As `EventLog.query`."""
        self._check_open()
        wanted = None if types is None else TypeFilter(types)
        found: list[LoggedEvent] = []
        position = 0 if cursor is None else decode_cursor(cursor, tuple[int])[0]
        while position < len(self._all) and len(found) < limit:
            workflow_id, event = self._all[position]
            position += 1
            if (
                (wanted is None or wanted(event.type))
                and (since is None or event.ts >= since)
                and (until is None or event.ts < until)
            ):
                found.append(LoggedEvent(workflow_id, event))
        return Page(found, encode_cursor(position))

    async def latest_cursor(self) -> str:
        """As `EventLog.latest_cursor`."""
        self._check_open()
        return encode_cursor(len(self._all))

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """As `EventLog.save_cursor`."""
        self._check_open()
        self._cursors[consumer] = cursor

    async def load_cursor(self, consumer: str) -> str | None:
        """As `EventLog.load_cursor`."""
        self._check_open()
        return self._cursors.get(consumer)

    async def put_blob(self, data: bytes) -> str:
        """As `EventLog.put_blob`."""
        self._check_open()
        name = blob_hash(data)
        self._blobs.setdefault(name, data)
        return name

    async def get_blob(self, name: str) -> bytes | None:
        """As `EventLog.get_blob`."""
        self._check_open()
        return self._blobs.get(name)

    async def put_definition(self, hash: str, source: bytes) -> None:
        """As `EventLog.put_definition`."""
        self._check_open()
        self._definitions.setdefault(hash, source)

    async def get_definition(self, hash: str) -> bytes | None:
        """As `EventLog.get_definition`."""
        self._check_open()
        return self._definitions.get(hash)

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`."""
        self._check_open()
        run = self._runs.get(workflow_id)
        if run is None:
            return FIRST_EPOCH
        run.epoch = next_epoch(workflow_id, run.epoch, run.owner, owner)
        run.owner = owner
        return run.epoch

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """As `EventLog.release`."""
        self._check_open()
        run = self._runs.get(workflow_id)
        if run is not None and run.owner == owner:
            run.owner = None

    async def close(self) -> None:
        """As `EventLog.close`; what was stored is gone."""
        self._closed = True


def _failed(error: AgentflowError) -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
