"""`subgraph` whose graph becomes known with its activation, in the same log: a value of the run, such as a
plan (`graph_path`), or one that has a name (`graph` with `isolation: inline`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.dynamic_graph import fitted_graph
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import SubgraphNode
from agentflow.engine.bindings import BoundGraph, StepBinding
from agentflow.engine.budgets import limits_of
from agentflow.engine.grants import grants_of
from agentflow.engine.graph import Graph, compile_inner
from agentflow.engine.kinds.child_workflow import (
    as_value,
    compiled,
    graph_not_found,
    graph_problem,
    input_of,
    value_at_path,
)
from agentflow.engine.kinds.kind import BindGraph, Prepared
from agentflow.engine.kinds.subgraph import Subgraph
from agentflow.engine.path import NodeState

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.graph import Node
    from agentflow.engine.state import RunState

__all__ = ["BROUGHT_GRAPH"]


class BroughtGraph(Subgraph):
    """Runs a graph that becomes known with its activation. The runtime binds its nodes first, and finds it if
    it is a registered one; graph and bindings stand in `workflow.step_started`, so that the log alone says
    what ran, and with what."""

    admits = True
    brings_graph = True

    def compile(self, node: Node) -> Any:
        """Return the template of the input, and the expression of the graph."""
        return compiled(node)

    def link(self, graph: Graph, node: Node) -> None:
        """Compile nothing: the graph is not known yet."""

    def probe(self, state: RunState, activation: Activation) -> BindGraph | None:
        """Return the graph whose nodes are to be bound; None if it is wrong, which `prepare` says."""
        value = _graph(state, activation)
        return None if isinstance(value, ErrorInfo) else BindGraph(activation.key, value)

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate input and graph, and check the graph; of a registered one only the name is known."""
        prepared = input_of(state, activation)
        if not isinstance(prepared, Prepared):
            return prepared
        value = _graph(state, activation)
        if isinstance(value, ErrorInfo):
            return value
        return Prepared(prepared.input, {**prepared.subject, "graph": value})

    def with_probe(
        self, state: RunState, activation: Activation, prepared: Prepared, looked: Any
    ) -> Prepared | ErrorInfo:
        """Return the input with what the nodes are bound to, or why they cannot be."""
        assert isinstance(looked, BoundGraph)
        if looked.diagnostics:
            return graph_problem(looked.diagnostics)
        graph = prepared.subject["graph"]
        if looked.graph is not None:
            found = fitted_graph(looked.graph, grants_of(activation), in_run=True)
            if isinstance(found, list):
                return graph_problem(found)
            graph = as_value(found)
        elif isinstance(graph, str):
            return graph_not_found(graph)
        return Prepared(prepared.input, {**prepared.subject, "graph": graph, "bindings": looked.to_value()})

    def started_fields(self, state: RunState, activation: Activation, prepared: Prepared) -> dict[str, Any]:
        """Return the graph, and what its nodes are bound to."""
        subject = prepared.subject
        return {"child": {"graph": subject["graph"], "bindings": subject["bindings"]}}

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Compile the graph and begin it."""
        spec, prefix = activation.node.spec, f"{activation.node.id}/"
        assert isinstance(spec, SubgraphNode)
        graph = compile_inner(data.child["graph"], prefix, state.graph)
        bindings = msgspec.convert(data.child["bindings"], dict[str, StepBinding])
        state.has_mail |= graph.has_mail
        for node_id, node in graph.all_nodes.items():
            node.binding = bindings.get(node_id.removeprefix(prefix))
            if not node.is_silent:
                state.root.nodes[node_id] = NodeState(node, len(node.dependencies))
            if limits := limits_of(node.spec.budget):
                state.step_budgets[node_id] = limits
        activation.graph = graph
        super().started(state, activation, data, ts)

    def graph_of(self, activation: Activation) -> Graph:
        """Return the graph that the activation began with."""
        assert activation.graph is not None
        return activation.graph


def _graph(state: RunState, activation: Activation) -> dict[str, Any] | str | ErrorInfo:
    """Return the graph in normal form, the name of a registered one, or why there is none."""
    spec = activation.node.spec
    assert isinstance(spec, SubgraphNode)
    if spec.graph is None:
        return value_at_path(state, activation)
    known = state.graph.workflow.graphs.get(spec.graph)
    if known is None:
        return spec.graph
    found = fitted_graph(known, grants_of(activation), in_run=True)
    return graph_problem(found) if isinstance(found, list) else as_value(found)


BROUGHT_GRAPH = BroughtGraph()
