"""`cache_read`: the value that a `cache_write` kept (page 003 §4)."""

from __future__ import annotations

from typing import Any

from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.caches import CacheKind
from agentflow.engine.run_memory import CacheEntry
from agentflow.engine.shared_store import CacheRecord, Operation, Read
from agentflow.engine.state import RunState

__all__ = ["KIND"]


class CacheRead(CacheKind):
    """Goes on with what stands under its key. An entry is read until its time is over, by the time at which
    the step began."""

    name = "cache_read"

    def operation(self, state: RunState, activation: Activation) -> Operation | None:
        """Return a look-up."""
        return Read()

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once, with the entry of the run."""
        key = self.key(state, activation)
        if isinstance(key, ErrorInfo):
            return step_failed(activation, key, now)
        return _completed(state, activation, key, state.memory.cache.get(key), now)

    def store_answered(self, state: RunState, activation: Activation, answer: Any, now: int) -> Decisions:
        """Complete with the entry that the store has."""
        key = self.key(state, activation)
        assert isinstance(key, str)
        record: CacheRecord | None = answer
        entry = None if record is None else CacheEntry(record.value, record.until)
        return _completed(state, activation, key, entry, now)


def _completed(
    state: RunState, activation: Activation, key: str, entry: CacheEntry | None, now: int
) -> Decisions:
    hit = entry is not None and (entry.until is None or activation.started < entry.until)
    output = {"key": key, "hit": hit, "value": entry.value if hit and entry is not None else None}
    port = "next" if hit or not activation.node.targets("on_miss") else "on_miss"
    return step_completed(state, activation, now, output=output, next_port=port)


KIND = CacheRead()
