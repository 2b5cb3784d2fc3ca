"""The Python code of workflows that a Runtime knows.

Code belongs to a graph by name and hash, so that a run goes on with the code that it began with, in this
process or in another one that has registered the same workflow.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol, runtime_checkable

from agentflow.definition.ir import AgentSpec
from agentflow.definition.loader import Definition
from agentflow.errors import ConfigurationError
from agentflow.events.catalogue import WorkflowStarted
from agentflow.executors.callables import Callables

__all__ = ["CodeTable", "RegisteredAgent", "WorkflowWithCode", "encode_input"]

_MAX_RUNS = 100_000


@runtime_checkable
class WorkflowWithCode(Protocol):
    """A workflow that was built in Python: its graph, and the code that the names in it mean."""

    @property
    def definition(self) -> Definition: ...

    @property
    def callables(self) -> Callables: ...


@runtime_checkable
class RegisteredAgent(Protocol):
    """An agent that nodes may name."""

    def spec(self) -> AgentSpec: ...


class CodeTable:
    """The code that a Runtime knows, by name and hash of the graph, and by run."""

    def __init__(self) -> None:
        self._by_graph: dict[tuple[str, str], Callables] = {}
        self._by_run: OrderedDict[str, Callables] = OrderedDict()

    def add(self, workflow: WorkflowWithCode) -> Callables:
        """Register a workflow and those that are nested in it. Raises ConfigurationError if one of its
        reducers has the name of another one."""
        from agentflow.definition.reducers import register

        definition, code = workflow.definition, workflow.callables
        for name, fn in code.reducers.items():
            try:
                register(name, fn)
            except ValueError as error:
                raise ConfigurationError(str(error), hint="give the reducer another name") from None
        self._by_graph[definition.name, definition.ir_hash] = code
        for nested in code.workflows.values():
            if isinstance(nested, WorkflowWithCode) and nested.callables is not code:
                self.add(nested)
        return code

    def begin(self, workflow_id: str, code: Callables) -> None:
        """Keep the code of one run: another workflow with an equal graph may have other functions."""
        self._by_run[workflow_id] = code
        if len(self._by_run) > _MAX_RUNS:
            self._by_run.popitem(last=False)

    def end(self, workflow_id: str) -> None:
        """Let go of the code of a run that has ended."""
        self._by_run.pop(workflow_id, None)

    def find(self, name: str, *hashes: str) -> Callables | None:
        """Return the code of the graph that has one of these hashes; None if it is not registered here.

        Options of a run change the hash of its graph, and not that of its definition: look for both.
        """
        found = (self._by_graph.get((name, each)) for each in hashes)
        return next((code for code in found if code is not None), None)

    def of_run(self, workflow_id: str, begin: WorkflowStarted | None = None) -> Callables | None:
        """Return the code of a run; with its first event that of its graph, if it has none of its own."""
        known = self._by_run.get(workflow_id)
        if known is not None or begin is None:
            return known
        return self.find(begin.definition.name or "", begin.ir_hash, begin.definition.hash)


def encode_input(code: Callables, value: Any) -> tuple[Any, str]:
    """Return the JSON of an input and its type tag. Raises MessageNotEncodable."""
    payload = code.payloads.encode(value)
    return payload.value, payload.tag
