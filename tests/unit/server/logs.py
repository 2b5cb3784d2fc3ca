"""A log that a test writes by itself: any number of events of any type, published as the runtime does it."""

from __future__ import annotations

import time

from agentflow import Runtime
from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append, RunMeta


class Writer:
    """The one writer of a run, in offsets from 0. `pad` bytes make events large."""

    def __init__(self, runtime: Runtime, workflow_id: str) -> None:
        self._runtime = runtime
        self.workflow_id = workflow_id
        self.next = 0

    async def write(
        self, count: int = 1, *, type: str = "agent.processing", step: str | None = "a", pad: int = 0
    ) -> None:
        """Append so many events and publish them."""
        events = [self._event(self.next + i, type, step, pad) for i in range(count)]
        meta = RunMeta(name="test", definition_hash="d", created_at=time.time_ns() // 1000)
        first = self.next
        batch = Append(self.workflow_id, 1, first, events, "running", None if first else meta)
        self.next += count
        await self._runtime.log.append(batch)
        self._runtime.hub.publish(self.workflow_id, events)

    async def end(self) -> None:
        """The terminal event."""
        await self.write(type="workflow.completed", step=None)

    def _event(self, offset: int, type: str, step: str | None, pad: int) -> StoredEvent:
        ts = time.time_ns() // 1000
        data = Unknown(type=type, data={"n": offset, "pad": "x" * pad})
        event = Event(
            id="e",
            offset=offset,
            timestamp=iso(ts),
            type=type,
            workflow_id=self.workflow_id,
            data=data,
            step=step,
        )
        return StoredEvent(offset, ts, type, encode(event))
