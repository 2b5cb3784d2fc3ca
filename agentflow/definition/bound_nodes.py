"""What each node of a graph needs from outside, and where its source says so; binding and `check` read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from agentflow.definition.graph import Workflow
from agentflow.definition.kinds import kind_of
from agentflow.definition.node import AgentSpec, Binds, NodeBase

__all__ = ["BoundNode", "bound_nodes"]

_PLACES = {"linear": "/agents/{}", "agent-workflow/1.0": "/workflow/steps/{}"}
_FUNCTIONS = {"linear": "tools", "agent-workflow/1.0": "attachedFunctions"}


class BoundNode(NamedTuple):
    """A node of the graph or of one of its inline graphs. `id` names it in the run."""

    id: str
    spec: NodeBase
    place: str
    """The JSON pointer of the node in the source."""
    binds: Binds
    format: str

    @property
    def agent(self) -> AgentSpec | None:
        """Its agent, of those kinds that have one."""
        return self.binds.agent

    @property
    def agent_place(self) -> str:
        """The JSON pointer of its agent; an agent list has no object around one."""
        is_apart = self.binds.agent_field and self.format != "linear"
        return f"{self.place}/{self.binds.agent_field}" if is_apart else self.place

    @property
    def functions_place(self) -> str:
        """The JSON pointer of the list of functions that its agent is offered."""
        return f"{self.agent_place}/{_FUNCTIONS.get(self.format, 'functions')}"

    def function_place(self, index: int, member: str = "") -> str:
        """Return the JSON pointer of a function in that list; an agent list writes it as one text."""
        place = f"{self.functions_place}/{index}"
        return f"{place}/{member}" if member and self.format != "linear" else place


def bound_nodes(workflow: Workflow, format: str = "ir/v0") -> Iterator[BoundNode]:
    """Yield the nodes of a graph in the order of the source, each with those of its inline graph behind it.

    `format` is that of the definition: it says how JSON pointers of the source look. Those of formats that
    write the graph itself are the graph's own.
    """
    return _nodes(workflow, format, "", "")


def _nodes(workflow: Workflow, format: str, prefix: str, parent: str) -> Iterator[BoundNode]:
    for position, node in enumerate(workflow.nodes):
        kind = kind_of(node)
        place = f"{parent}/nodes/{position}"
        if format in _PLACES:
            place = _PLACES[format].format(node.index)
        yield BoundNode(prefix + node.id, node, place, kind.binds(node), format)
        inner = kind.inner(node)
        if inner is not None:
            values = zip(node.__struct_fields__, msgspec.structs.astuple(node), strict=True)
            field = next(name for name, value in values if value is inner)
            yield from _nodes(inner, format, f"{prefix}{node.id}/", f"{place}/{field}")
