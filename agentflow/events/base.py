"""Base of the back ends of the event log: the arguments of lists and queries as values.

Holds no state of any store and does no I/O.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import cast

import msgspec

from agentflow.errors import (
    AgentflowError,
    Fenced,
    LogCorrupt,
    OffsetConflict,
    RunGone,
    RunNotFound,
    RunNotTerminal,
)
from agentflow.events.envelope import StoredEvent, id_of
from agentflow.events.filters import TypeFilter
from agentflow.events.listing import RunQuery
from agentflow.events.owner import Owner
from agentflow.events.rows import OPEN, Append, Claimed, LoggedEvent, Notice, Order, Page, RunRow
from agentflow.events.tombstone import Tombstone

__all__ = ["BaseLog", "EventQuery"]


_PAGE_RUNS = 500
_KEEPS_RUN = (LogCorrupt, RunGone, RunNotFound, RunNotTerminal)
"""Why a run is not deleted, though others are."""


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `EventLog.query`. `wanted` is None for all types."""

    wanted: TypeFilter | None
    since: int | None
    until: int | None
    cursor: str | None
    limit: int

    def takes(self, type: str, ts: int) -> bool:
        """Return whether an event of this type and time (µs) is asked for."""
        return (
            (self.wanted is None or self.wanted(type))
            and (self.since is None or ts >= self.since)
            and (self.until is None or ts < self.until)
        )


class BaseLog(ABC):
    """The parts of an EventLog that are the same in every back end."""

    seals_late = False
    """True if an append may hold an UnsealedBatch, because the store needs no bytes before they are read."""

    @property
    def read_only(self) -> bool:
        """As `EventLog.read_only`."""
        return False

    @property
    def trims(self) -> bool:
        """As `EventLog.trims`."""
        return True

    @property
    def notices(self) -> Sequence[Notice]:
        """As `EventLog.notices`."""
        return ()

    async def foreign_writes(self) -> int:
        """Implement `EventLog.foreign_writes`."""
        return 0

    def is_alive(self, owner: Owner) -> bool:
        """Implement `EventLog.is_alive`: by the id of the process."""
        return owner.alive()

    async def is_archived(self, workflow_id: str) -> bool:
        """Implement `EventLog.is_archived`: this store has no archive."""
        return False

    async def holds(self, batch: Append) -> bool:
        """Implement `EventLog.holds`, by the id of the event that stands at the offset of the batch."""
        try:
            found = await self.read(batch.workflow_id, batch.expected, 1)
        except RunNotFound:
            return False
        if found and id_of(found[0]) != batch.batch_id:
            raise OffsetConflict(batch.workflow_id, batch.expected, await self.last(batch.workflow_id) + 1)
        return bool(found)

    async def register(self, owner: Owner) -> None:
        """Implement `EventLog.register`: a process is live as long as it runs."""
        self._check_open()

    async def renew(self, owner: Owner) -> None:
        """Implement `EventLog.renew`."""
        self._check_open()
        if not self.is_alive(owner):
            raise Fenced(f"process {owner.pid} is not known as live any more")

    async def expired(self) -> list[Owner]:
        """Implement `EventLog.expired`."""
        owners: dict[Owner, None] = {}
        async for row in self._open_runs():
            if row.owner is not None and not self.is_alive(row.owner):
                owners[row.owner] = None
        return list(owners)

    async def claim_next(self, owner: Owner, limit: int) -> list[Claimed]:
        """Implement `EventLog.claim_next`: each run by itself, so that of two claimants one gets it."""
        claimed: list[Claimed] = []
        async for row in self._open_runs():
            if len(claimed) == limit:
                break
            if row.owner is not None and self.is_alive(row.owner):
                continue
            try:
                claimed.append(Claimed(row.workflow_id, await self.claim(row.workflow_id, owner)))
            except (Fenced, RunGone):  # another process was faster
                continue
        return claimed

    async def _open_runs(self) -> AsyncGenerator[RunRow]:
        """Yield the runs that have not ended, oldest first."""
        cursor: str | None = None
        while True:
            page = await self._list(RunQuery(state=OPEN, limit=_PAGE_RUNS, cursor=cursor, order="asc"))
            for row in page.items:
                yield row
            cursor = page.next_cursor
            if cursor is None:
                return

    @abstractmethod
    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """Implement `EventLog.delete`."""

    async def delete_all(self, workflow_ids: Sequence[str], at: int) -> dict[str, Tombstone | AgentflowError]:
        """Implement `EventLog.delete_all`: each by itself, committed together."""
        runs = list(dict.fromkeys(workflow_ids))
        found = await asyncio.gather(*(self.delete(run, at) for run in runs), return_exceptions=True)
        for answer in found:
            if isinstance(answer, BaseException) and not isinstance(answer, _KEEPS_RUN):
                raise answer
        return dict(zip(runs, cast("list[Tombstone | AgentflowError]", found), strict=True))

    @abstractmethod
    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """Implement `EventLog.claim`."""

    @abstractmethod
    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Implement `EventLog.read`."""

    async def last(self, workflow_id: str) -> int:
        """Implement `EventLog.last`."""
        return (await self.run(workflow_id)).last_offset

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
        """Implement `EventLog.runs`."""
        self._check_open()
        return await self._list(
            RunQuery(
                state=state,
                name=name,
                label=label,
                prefix=prefix,
                since=since,
                until=until,
                limit=limit,
                cursor=cursor,
                order=order,
            )
        )

    async def count_runs(self) -> dict[str, int]:
        """Implement `EventLog.count_runs`, by reading the list."""
        self._check_open()
        found, cursor = Counter[str](), None
        while True:
            page = await self._list(RunQuery(limit=500, cursor=cursor))
            found.update(row.state for row in page.items)
            cursor = page.next_cursor
            if cursor is None:
                return dict(found)

    async def query(
        self,
        types: Sequence[str] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        cursor: str | None = None,
        limit: int = 256,
    ) -> Page[LoggedEvent]:
        """Implement `EventLog.query`."""
        self._check_open()
        wanted = None if types is None else TypeFilter(types)
        return await self._query(
            EventQuery(wanted=wanted, since=since, until=until, cursor=cursor, limit=limit)
        )

    @abstractmethod
    def _check_open(self) -> None:
        """Raise LogClosed once the log is closed."""

    @abstractmethod
    async def run(self, workflow_id: str) -> RunRow:
        """Implement `EventLog.run`."""

    @abstractmethod
    async def _list(self, query: RunQuery) -> Page[RunRow]:
        """Return a page of runs."""

    @abstractmethod
    async def _query(self, query: EventQuery) -> Page[LoggedEvent]:
        """Return a page of events of all runs."""
