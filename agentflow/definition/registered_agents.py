"""Agents that a node names (page 003 §4): found when a run begins, so that its graph holds them whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentflow.definition.graph import Workflow
from agentflow.definition.node import AgentSpec, NodeBase

__all__ = ["with_agents"]


def with_agents(workflow: Workflow, agents: Mapping[str, AgentSpec]) -> Workflow:
    """Return a graph in which each registered agent that a node names stands whole; what the node states
    itself wins. A name that `agents` does not have stays, and binding reports it."""
    if not agents:
        return workflow
    nodes = tuple(_node(node, agents) for node in workflow.nodes)
    graphs = {name: with_agents(graph, agents) for name, graph in workflow.graphs.items()}
    same = all(a is b for a, b in zip(nodes, workflow.nodes, strict=True))
    if same and all(graphs[name] is graph for name, graph in workflow.graphs.items()):
        return workflow
    return msgspec.structs.replace(workflow, nodes=nodes, graphs=graphs)


def _node(node: NodeBase, agents: Mapping[str, AgentSpec]) -> Any:
    changed: dict[str, Any] = {}
    for field in node.__struct_fields__:
        value = getattr(node, field)
        if isinstance(value, AgentSpec) and value.registered and value.name in agents:
            changed[field] = _whole(value, agents[value.name])
        elif isinstance(value, Workflow) and (inner := with_agents(value, agents)) is not value:
            changed[field] = inner
    return msgspec.structs.replace(node, **changed) if changed else node


def _whole(named: AgentSpec, registered: AgentSpec) -> AgentSpec:
    default = AgentSpec(name=named.name, system_prompt="")
    stated = {
        field: getattr(named, field)
        for field in AgentSpec.__struct_fields__
        if getattr(named, field) != getattr(default, field)
    }
    return msgspec.structs.replace(registered, **{**stated, "registered": False})
