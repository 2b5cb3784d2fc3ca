"""Cache of step results: where the log holds them (page 001 §5.8).

Only the place is stored, durably, under the key that the engine gives; the result stays in the log of the run
that made it. A place that has expired, or whose run is gone, is a miss.
"""

from __future__ import annotations

import msgspec

from agentflow.engine import CacheHit
from agentflow.errors import AgentflowError
from agentflow.events.catalogue import WorkflowStepCompleted
from agentflow.events.envelope import decode
from agentflow.events.log import EventLog
from agentflow.runtime.clock import Clock
from agentflow.runtime.messages import Message
from agentflow.runtime.shared_store import sweep_records

__all__ = ["KeepResult", "ResultCache"]


class KeepResult(Message, frozen=True, kw_only=True):
    """The durable `workflow.step_completed` at `offset` may serve again under `key` for `ttl` seconds."""

    key: str
    workflow_id: str
    offset: int
    ttl: float


_PREFIX = "result/"


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """An event of a run, and until when its result may serve (µs)."""

    workflow_id: str
    offset: int
    until: int


class ResultCache:
    """The cached results of one store."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    async def find(self, key: str) -> CacheHit | None:
        """Return the result that is cached under `key`, None on a miss."""
        saved = await self._log.load_cursor(_PREFIX + key)
        if saved is None:
            return None
        place = _decode(saved)
        try:
            rows = await self._log.read(place.workflow_id, place.offset, 1)
        except AgentflowError:  # the run is gone, or its events were taken away
            return None
        data = decode(rows[0].body).data if rows else None
        if place.until <= self._clock.now() or not isinstance(data, WorkflowStepCompleted):
            return None
        return CacheHit(data.output, place.workflow_id, place.offset)

    async def keep(self, key: str, workflow_id: str, offset: int, ttl: float) -> None:
        """Cache the result of the `workflow.step_completed` at this place for `ttl` seconds."""
        until = self._clock.now() + round(ttl * 1e6)
        place = msgspec.json.encode(_Place(workflow_id, offset, until)).decode()
        await self._log.save_cursor(_PREFIX + key, place)

    async def sweep(self) -> int:
        """Remove the expired entries, and the expired records that runs share; return how many there were."""
        now, count = self._clock.now(), await sweep_records(self._log, self._clock)
        for name, saved in (await self._log.cursors(_PREFIX)).items():
            if _decode(saved).until <= now:
                await self._log.drop_cursor(name)
                count += 1
        return count


def _decode(saved: str) -> _Place:
    return msgspec.json.decode(saved, type=_Place)
