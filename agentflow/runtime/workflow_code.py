"""The Python code of workflows that a Runtime knows.

Code belongs to a graph by name and hash, so that a run goes on with the code that it began with, in this
process or in another one that has registered the same workflow.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol, runtime_checkable

from msgspec import UNSET

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
        self._by_signature: dict[tuple[str, str], tuple[str, Callables]] = {}
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
        self._by_signature[definition.name, signature_of(definition)] = definition.hash, code
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
        """Return the code of a run; with its first event that of its graph, if it has none of its own: of the
        definition that it began with, else of the latest with the same name and signature."""
        known = self._by_run.get(workflow_id)
        if known is not None or begin is None:
            return known
        known = self.find(begin.definition.name or "", begin.ir_hash, begin.definition.hash)
        return known or self._alike(begin)[1]

    def other_definition(self, workflow_id: str, begin: WorkflowStarted) -> str | None:
        """Return the hash of the definition whose code a run goes on with, if it began with another one that
        is not registered here."""
        if workflow_id in self._by_run:
            return None
        known = self.find(begin.definition.name or "", begin.ir_hash, begin.definition.hash)
        return None if known is not None else self._alike(begin)[0]

    def _alike(self, begin: WorkflowStarted) -> tuple[str | None, Callables | None]:
        if begin.definition.signature is UNSET:
            return None, None
        place = (begin.definition.name or "", begin.definition.signature)
        return self._by_signature.get(place, (None, None))


_MAX_SIGNATURES = 1_024
_signatures: dict[str, str] = {}


def signature_of(definition: Definition) -> str:
    """Return the signature of a graph that was built in Python: its code may change while its runs go on."""
    known = _signatures.get(definition.ir_hash)
    if known is None:
        from agentflow.definition.signature import signature

        if len(_signatures) >= _MAX_SIGNATURES:
            _signatures.clear()
        known = _signatures[definition.ir_hash] = signature(definition.workflow)
    return known


def encode_input(code: Callables, value: Any) -> tuple[Any, str]:
    """Return the JSON of an input and its type tag. Raises MessageNotEncodable."""
    payload = code.payloads.encode(value)
    return payload.value, payload.tag
