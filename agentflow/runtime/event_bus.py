"""The EventBus: the one actor through which every event enters the log.

It gives events their envelopes in the order of the batches of each run, hands them to the log's writer, and
after the commit publishes and then acknowledges. Nothing is visible to a reader before it is durable.
It never waits for the disk: an append returns a future, and many runs share one commit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from actors import Actor, Ref, on
from agentflow.errors import AgentflowError, CommitUnknown, StorageUnavailable, StoreError
from agentflow.events.catalogue import RunEvent
from agentflow.events.envelope import Event, Ids, StoredEvent
from agentflow.events.hub import Hub
from agentflow.events.log import Append, EventLog, RunMeta
from agentflow.events.owner import Owner
from agentflow.events.sealing import UnsealedBatch, store
from agentflow.events.tracing import RunTracer
from agentflow.runtime.messages import HANDLER_LIMIT_S, Message

__all__ = [
    "Barrier",
    "Commit",
    "CommitFailed",
    "Committed",
    "EventBus",
    "Observer",
    "Receipt",
    "Republish",
]


class Commit(Message, frozen=True, kw_only=True):
    """Append these events at `expected` at the time `ts`; answered by Committed or CommitFailed.

    `state` is the run's state after the batch, `name` and `labels` go with the first batch of a run. `tracer`
    follows the run: it gives the spans when the EventBus makes the envelopes. It stays in this process.
    `lazy`: nothing waits for the batch to be durable.
    """

    workflow_id: str
    epoch: int
    expected: int
    ts: int
    events: tuple[RunEvent, ...]
    state: str
    tracer: RunTracer | None = None
    definition_hash: str | None = None
    name: str | None = None
    labels: dict[str, str] | None = None
    lazy: bool = False
    receipt: Receipt | None = None


class Receipt:
    """Where the bus notes that a batch is durable while its sender waits in `tell_now`, which spares both a
    message. Once the sender has gone on (`open` is false) it is told Committed."""

    __slots__ = ("committed", "open")

    def __init__(self) -> None:
        self.open = False
        self.committed: Committed | None = None


class Barrier(Message, frozen=True, kw_only=True):
    """Asks the bus to answer once every earlier batch of this run is settled."""

    workflow_id: str


class Committed(Message, frozen=True, kw_only=True):
    """Everything up to `offset` is durable and was published."""

    offset: int


class Republish(Message, frozen=True, kw_only=True):
    """Show readers the durable events from `first` on, whose publication was lost."""

    workflow_id: str
    first: int


class CommitFailed(Message, frozen=True, kw_only=True):
    """The batch at `expected` was not appended. `transient`: the store may take the same batch later."""

    expected: int
    error: str
    kind: str
    transient: bool = False


Observer = Callable[[str, int, Sequence[RunEvent], float], None]
"""Told of each batch that is durable: workflow id, time of the events (µs), events, seconds that it took."""


_PAGE_EVENTS = 1_024
_ASK_INTERVAL_S = 0.25


_LARGE_BYTES = 256 * 1024


_OpenBatch = tuple["asyncio.Future[None]", Commit, Append, "Ref[Any] | None", float]
"""A batch on its way: what the log says of it, the batch in both forms, its sender, when it was sent."""

_Acknowledgement = tuple["Ref[Any]", Committed]
"""Who is to be told that its batches are durable, and up to where."""


def _tell_failure(batch: Commit, error: Exception, sender: Ref[Any] | None) -> None:
    if sender is not None:
        text = f"{type(error).__name__}: {error}"
        sender.tell(CommitFailed(expected=batch.expected, error=text, kind="internal_error"))


def _failed(batch: Commit, error: BaseException) -> CommitFailed:
    kind = error.code if isinstance(error, StoreError) else "storage_unavailable"
    transient = isinstance(error, StorageUnavailable)
    return CommitFailed(expected=batch.expected, error=str(error), kind=kind, transient=transient)


def _ignore(_: object) -> None:
    """Ignore the outcome: readers that miss this read the log themselves at the next event."""


class EventBus(Actor, mailbox=100_000, handler_timeout=HANDLER_LIMIT_S):
    """Single writer of a store. A batch is refused whole when it does not continue its run's log.

    `observer` must neither wait nor raise. `open_appends` holds the newest append of each run that has one;
    it outlives this instance, so that its successor after a failure still knows what is on its way to the
    disk. A batch that a failure here leaves without an answer is found by its supervisor.
    """

    def __init__(
        self,
        log: EventLog,
        hub: Hub,
        ids: Ids,
        owner: Owner,
        observer: Observer | None = None,
        open_appends: dict[str, asyncio.Future[None]] | None = None,
    ) -> None:
        self._log = log
        self._seals_late = getattr(log, "seals_late", False)
        self._hub = hub
        self._ids = ids
        self._owner = owner
        self._observer = observer
        self._last: dict[str, asyncio.Future[None]] = {} if open_appends is None else open_appends
        self._open: dict[str, deque[_OpenBatch]] = {}
        """The batches of each run whose outcome is not told, the oldest first."""

    @on(Commit)
    def commit(self, batch: Commit) -> Coroutine[Any, Any, None] | None:
        """Append a batch. One with an event of more than 256 KiB lets the loop go on between its events."""
        sender = self.ctx.sender
        try:
            unsealed = UnsealedBatch(
                batch.events, batch.workflow_id, batch.expected, batch.ts, self._ids, batch.tracer
            )
            # The first events hold values of the caller of `submit`, who may change them later.
            if self._seals_late and batch.expected:
                self._enter(batch, unsealed, sender)
                return None
            made = unsealed.envelopes()
            stored: list[StoredEvent] = []
            for event in made:
                sealed = store(event, batch.ts)
                stored.append(sealed)
                is_large = sealed.blobs or len(sealed.text) > _LARGE_BYTES
                if is_large and len(stored) < len(made):
                    return self._commit_slowly(batch, made[len(stored) :], stored, sender)
        except Exception as error:  # fails this run alone: the bus serves all others
            _tell_failure(batch, error, sender)
            return None
        # Stores that take batches unsealed know what to do about the first ones by their form.
        self._enter(batch, stored if self._seals_late else unsealed.sealed_as(stored), sender)
        return None

    async def _commit_slowly(
        self, batch: Commit, left: list[Event[Any]], stored: list[StoredEvent], sender: Ref[Any] | None
    ) -> None:
        """Encode the events that are left one by one, then append; later batches wait in the mailbox."""
        try:
            for event in left:
                await asyncio.sleep(0)
                stored.append(store(event, batch.ts))
        except Exception as error:
            _tell_failure(batch, error, sender)
            return
        await asyncio.sleep(0)
        self._enter(batch, stored, sender)

    def _enter(self, batch: Commit, stored: Sequence[StoredEvent], sender: Ref[Any] | None) -> None:
        meta = None
        if batch.name is not None:
            meta = RunMeta(
                name=batch.name,
                definition_hash=batch.definition_hash or "",
                created_at=batch.ts,
                labels=batch.labels or {},
                owner=self._owner,
            )
        began = 0.0 if self._observer is None else time.perf_counter()
        append = Append(batch.workflow_id, batch.epoch, batch.expected, stored, batch.state, meta, batch.lazy)
        try:
            done = self._log.append(append)
        except Exception as error:
            done = asyncio.get_running_loop().create_future()
            done.set_exception(StoreError(f"the store cannot take this: {error}"))
        workflow_id = batch.workflow_id
        if done.done() and workflow_id not in self._open and not isinstance(done.exception(), CommitUnknown):
            told = self._finish(done, batch, append, sender, began)
            if told is not None:
                told[0].tell(told[1])
            return
        self._last[workflow_id] = done
        opened = self._open.get(workflow_id)
        if opened is not None:  # looked at when the batches before it are finished
            opened.append((done, batch, append, sender, began))
            if done.done() and opened[0][0].done():  # lazy ones that went to the store with this one
                self._finish_in_order(workflow_id)
            return
        self._open[workflow_id] = deque(((done, batch, append, sender, began),))
        self._finish_when_done(done, workflow_id)

    def _finish_when_done(self, done: asyncio.Future[None], workflow_id: str) -> None:
        def finish(_: object) -> None:
            batches = self._open.get(workflow_id)
            if batches and batches[0][0] is done:  # else it was finished with a later one
                self._finish_in_order(workflow_id)

        done.add_done_callback(finish)

    def _finish_in_order(self, workflow_id: str) -> None:
        """Finish the batches of a run whose outcome is known, up to the first that is still open: what
        becomes of a batch is told before what becomes of the next, whenever the store says it. Those that
        became durable together are acknowledged by one message."""
        batches = self._open.get(workflow_id)
        told: _Acknowledgement | None = None
        try:
            while batches and batches[0][0].done():
                done, batch, append, sender, began = batches[0]
                if isinstance(done.exception(), CommitUnknown):
                    asking = asyncio.ensure_future(self._ask_log(append))
                    self._last[workflow_id] = asking
                    batches[0] = asking, batch, append, sender, began
                    break
                batches.popleft()
                if not batches:
                    del self._open[workflow_id]
                if told is not None and (done.exception() is not None or sender is not told[0]):
                    told[0].tell(told[1])
                    told = None
                told = self._finish(done, batch, append, sender, began) or told
        except BaseException:
            asyncio.get_running_loop().call_soon(self._finish_in_order, workflow_id)
            raise
        finally:
            if told is not None:
                told[0].tell(told[1])
        if batches:
            self._finish_when_done(batches[0][0], workflow_id)

    async def _ask_log(self, batch: Append) -> None:
        """Return once the log is known to hold a batch.

        Raises StorageUnavailable if it does not, so that it is sent again, and OffsetConflict if another
        batch stands there.
        """
        while True:
            try:
                held = await self._log.holds(batch)
                break
            except AgentflowError as error:
                if not getattr(error, "transient", False):
                    raise
            await asyncio.sleep(_ASK_INTERVAL_S)
        if not held:
            raise StorageUnavailable(f"{batch.workflow_id}: the batch at {batch.expected} is not in the log")

    @on(Barrier)
    def barrier(self, message: Barrier) -> None:
        """Reply once every earlier batch of the run is in the log, or has failed."""
        reply = self.ctx.defer()
        last = self._last.get(message.workflow_id)
        if last is None or last.done():
            reply.set(None)
        else:
            last.add_done_callback(lambda _: reply.set(None))

    @on(Republish)
    def republish(self, message: Republish) -> None:
        """Publish durable events whose publication was lost; readers skip those that they have."""

        async def read() -> None:
            rows = await self._log.read(message.workflow_id, message.first, _PAGE_EVENTS)
            self._hub.publish(message.workflow_id, rows)

        self.ctx.pipe(read(), _ignore, _ignore)

    def _finish(
        self,
        done: asyncio.Future[None],
        batch: Commit,
        append: Append,
        sender: Ref[Any] | None,
        began: float,
    ) -> _Acknowledgement | None:
        """Publish a batch that is durable and return what its sender is to be told; tell it of a failure."""
        workflow_id, stored = batch.workflow_id, append.events
        if self._last and self._last.get(workflow_id) is done:
            del self._last[workflow_id]
        error = done.exception()
        if error is not None:
            if sender is not None:
                sender.tell(_failed(batch, error))
            return None
        self._hub.publish(workflow_id, stored)
        if self._observer is not None:
            self._observer(workflow_id, batch.ts, batch.events, time.perf_counter() - began)
        if sender is None:
            return None
        committed = Committed(offset=batch.expected + len(stored) - 1)
        receipt = batch.receipt
        if receipt is not None and receipt.open:
            receipt.committed = committed
            return None
        return sender, committed
