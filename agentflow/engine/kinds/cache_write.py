"""`cache_write`: keeps a value for a `cache_read` (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import CacheWriteNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.kinds.caches import CacheKind, CacheProgram
from agentflow.engine.run_memory import CacheEntry
from agentflow.engine.shared_store import Operation, Write
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, path_expression

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


def _spec(node: Node) -> CacheWriteNode:
    spec = node.spec
    assert isinstance(spec, CacheWriteNode)
    return spec


class CacheWrite(CacheKind):
    """Keeps the value at its path. An entry of the run is made by the end of the step; one of a wider scope
    is in the store before the step ends. Its time counts from the beginning of the step."""

    name = "cache_write"
    remembers = True

    def compile(self, node: Node) -> Any:
        """Return the key and the path of the value."""
        program: CacheProgram = super().compile(node)
        return program._replace(value=path_expression(_spec(node).value_path))

    def operation(self, state: RunState, activation: Activation) -> Operation | None:
        """Return the write."""
        value = _value(state, activation)
        if isinstance(value, ErrorInfo):
            return None
        return Write(value, activation.started, _until(activation))

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once; the fold of the end writes the entry of the run."""
        return self.store_answered(state, activation, None, now)

    def store_answered(self, state: RunState, activation: Activation, answer: Any, now: int) -> Decisions:
        """Complete: the entry is in the store."""
        for found in (key := self.key(state, activation), value := _value(state, activation)):
            if isinstance(found, ErrorInfo):
                return step_failed(activation, found, now)
        return step_completed(state, activation, now, output={"key": key, "value": value})

    def remember(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep the entry of the run."""
        if _spec(activation.node).scope == "run":
            written = data.output
            state.memory.cache[written["key"]] = CacheEntry(written["value"], _until(activation))


def _value(state: RunState, activation: Activation) -> Any:
    try:
        return activation.node.program.value.evaluate(state.scope(activation))
    except EvaluationError as error:
        return expression_error(error, "/value_path")


def _until(activation: Activation) -> int | None:
    ttl = _spec(activation.node).ttl
    return None if ttl is None else activation.started + round(ttl * 1e6)


KIND = CacheWrite()
