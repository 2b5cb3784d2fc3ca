"""SharedStore: the records that runs share, of caches and gates (page 003 §4).

An access loads the record, applies the pure function of the engine and saves what came of it. The accesses to
one key go one after the other, because two arrivals at a gate must not both read what stood there before.
That holds for the runs of one process; processes that share a store read each other's records, but two
accesses within the few milliseconds of a save may both see the older one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentflow.engine.shared_store import CacheRecord, Record, StoreAccess, applied
from agentflow.events.log import EventLog
from agentflow.runtime.clock import Clock

__all__ = ["SharedStore", "sweep_records"]

_PREFIX = "shared/"
_encode = msgspec.json.Encoder(order="sorted").encode


class SharedStore:
    """The shared records of one store, for all runs of a process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._busy: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    async def access(self, access: StoreAccess) -> Any:
        """Carry out an access; return the answer once what it changed is durable."""
        key = access.key
        lock = self._busy.setdefault(key, asyncio.Lock())
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            async with lock:
                return await self._apply(access)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._busy[key]

    async def _apply(self, access: StoreAccess) -> Any:
        name = _PREFIX + access.key
        saved = await self._log.load_cursor(name)
        before = None if saved is None else _decode(saved)
        after, answer = applied(access.operation, before)
        if after is not None and after is not before:
            await self._log.save_cursor(name, _encode(after).decode())
        return answer


async def sweep_records(log: EventLog, clock: Clock) -> int:
    """Remove the values whose time is over, and the gates that nothing can ask about; return how many."""
    now, count = clock.now(), 0
    for name, saved in (await log.cursors(_PREFIX)).items():
        until = _decode(saved).until
        if until is not None and until <= now:
            await log.drop_cursor(name)
            count += 1
    return count


_decoder = msgspec.json.Decoder(Record)


def _decode(saved: str) -> CacheRecord | Any:
    return _decoder.decode(saved)
