"""The EventBus acknowledges together what became durable together, in order."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from actors import Actor, ActorSystem, ChildSpec, Ref, on
from agentflow.errors import StorageUnavailable
from agentflow.events.catalogue import WorkflowResumed
from agentflow.events.envelope import Ids
from agentflow.events.hub import Hub
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import this_process
from agentflow.runtime.event_bus import Commit, CommitFailed, Committed, EventBus
from agentflow.runtime.messages import Message


class HeldLog(MemoryLog):
    """A log that makes nothing durable by itself, and tells of the fifth batch."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[asyncio.Future[None]] = []
        self.full = asyncio.Event()

    def append(self, batch: Append) -> asyncio.Future[None]:
        self.held.append(asyncio.get_running_loop().create_future())
        if len(self.held) == 5:
            self.full.set()
        return self.held[-1]


class Send(Message, frozen=True, kw_only=True):
    """Send batches of one event at these offsets."""

    offsets: tuple[int, ...]


class Sender(Actor):
    """Sends batches as a RunSupervisor does, and keeps what it is told."""

    def __init__(self, bus: Ref[Any], told: list[Any], changed: asyncio.Event) -> None:
        self._bus = bus
        self._told = told
        self._changed = changed

    @on(Send)
    def send(self, message: Send) -> None:
        for offset in message.offsets:
            event = WorkflowResumed(by="test", reason="again")
            batch = Commit(
                workflow_id="wf_1", epoch=1, expected=offset, ts=1, events=(event,), state="running"
            )
            self._bus.tell(batch)

    @on(Committed, CommitFailed)
    def answered(self, message: Committed | CommitFailed) -> None:
        self._told.append(message)
        self._changed.set()


async def test_batches_that_became_durable_together_are_acknowledged_by_one_message_and_a_failure_follows():
    log, told, changed = HeldLog(), list[Any](), asyncio.Event()

    async def until(count: int) -> list[Any]:
        while len(told) < count:
            changed.clear()
            await changed.wait()
        return [msgspec.structs.asdict(message) for message in told]

    async with ActorSystem() as system:
        bus = await system.spawn(ChildSpec("bus", lambda: EventBus(log, Hub(log), Ids(), this_process())))
        sender = await system.spawn(ChildSpec("sender", lambda: Sender(bus, told, changed)))
        sender.tell(Send(offsets=(5, 6, 7, 8, 9)))
        await log.full.wait()
        first, *more = log.held
        for done in more[:2]:  # behind one that is not durable yet
            done.set_result(None)
        await asyncio.sleep(0)
        assert told == []
        first.set_result(None)
        assert await until(1) == [{"offset": 7}]
        more[2].set_result(None)
        more[3].set_exception(StorageUnavailable("full"))
        found = await until(3)
        assert found[1] == {"offset": 8}
        assert (found[2]["expected"], found[2]["transient"]) == (9, True)
