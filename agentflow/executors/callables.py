"""Callables: the Python code that a workflow brings beside its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentflow.executors.executor import Executor
from agentflow.executors.payloads import Payloads

__all__ = ["NO_CALLABLES", "Callables", "Predicate", "Reducer", "Selection"]

Predicate = Callable[..., bool]
Selection = Callable[[Any, list[str]], Sequence[str]]
Reducer = Callable[[Any, Any], Any]


class Callables(msgspec.Struct, frozen=True, kw_only=True):
    """What the names in a graph mean. All are looked up by the names that the IR has."""

    executors: Mapping[str, Executor | Callable[[], Executor]] = {}
    """By `ExecutorNode.executor`: a template, or a class or factory that makes one for each run."""
    predicates: Mapping[str, Predicate] = {}
    """By `Edge.name`: `fn(data)` or `fn(data, shared)`, synchronous and pure."""
    selections: Mapping[str, Selection] = {}
    """By `Edge.selection`: `fn(data, targets)`, the ids of the chosen targets."""
    reducers: Mapping[str, Reducer] = {}
    """By `SharedKey.reducer`, beside those of `agentflow.reducers`."""
    payloads: Payloads = msgspec.field(default_factory=Payloads)
    """The types that the workflow can send, by tag."""
    shared: Mapping[str, Any] = {}
    """The types of the declared keys of the shared state."""
    agents: Mapping[str, Any] = {}
    workflows: Mapping[str, Any] = {}
    """Nested workflows by name; each has `definition` and `callables`."""
    workers: Mapping[str, Callable[..., Any]] = {}
    """By handler: what `worker:<handler>` calls, before those that the Runtime has."""
    llm_executor: Any = None
    """What makes the model calls of the run in place of all providers: an LlmExecutor."""
    tool_executor: Any = None
    """What makes the calls of functions that are registered nowhere: a ToolExecutor."""

    @property
    def makes_calls(self) -> bool:
        """True if it has handlers of workers, or makes the calls of models or functions of its run."""
        return bool(self.workers) or self.llm_executor is not None or self.tool_executor is not None

    def injected(self, nested: Callables | None) -> Callables | None:
        """Return the code of a child run: its own, with the handlers and executors of its parent."""
        if not self.makes_calls:
            return nested
        return msgspec.structs.replace(
            nested or NO_CALLABLES,
            workers=self.workers,
            llm_executor=self.llm_executor,
            tool_executor=self.tool_executor,
        )


NO_CALLABLES = Callables()
"""What a document brings."""
