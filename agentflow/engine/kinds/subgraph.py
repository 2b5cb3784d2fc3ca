"""`subgraph`: another graph as one node, in the same log or as a run of its own (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import NodeBase, SubgraphNode
from agentflow.definition.kinds.subgraph import is_run
from agentflow.definition.pipeline_nodes import stage_of
from agentflow.engine import arrivals
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_failed
from agentflow.engine.kinds.child_workflow import CHILD_RUN, EXCHANGE, Program, compiled, input_of
from agentflow.engine.kinds.group import Group, Spawning
from agentflow.engine.kinds.kind import Kind, Prepared
from agentflow.engine.path import Path
from agentflow.engine.run_end import end_failure, output_of
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph, Node

__all__ = ["KIND"]


class Subgraph(Spawning):
    """Runs its graph on a path of its own. The ids of the nodes are `<id>/<node>`; their expressions see the
    nodes of their own graph, its input, and the global values of the run."""

    name = "subgraph"
    shows_more = False

    def form_of(self, spec: NodeBase) -> Kind:
        """Return the kind of a graph that runs as a run of its own, if this is one."""
        assert isinstance(spec, SubgraphNode)
        if stage_of(spec) is not None:
            from agentflow.engine.kinds.stage_execute import EXECUTE

            return EXECUTE
        if spec.exchange is not None:
            return EXCHANGE
        if is_run(spec):
            return CHILD_RUN
        if spec.inline is None:
            from agentflow.engine.kinds.brought_graph import BROUGHT_GRAPH

            return BROUGHT_GRAPH
        return self

    def compile(self, node: Node) -> Any:
        """Return the template of the input; None without one."""
        return compiled(node)

    def link(self, graph: Graph, node: Node) -> None:
        """Compile the inner graph."""
        spec = node.spec
        assert isinstance(spec, SubgraphNode)
        assert spec.inline is not None
        node.program = Program(node.program.input, graph.inline(node, spec.inline))

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate the input: without a template that of the caller."""
        return input_of(state, activation)

    def total(self, state: RunState, activation: Activation) -> int:
        """Return 1: the path of its graph."""
        return 1

    def graph_of(self, activation: Activation) -> Graph:
        """Return the inner graph."""
        return activation.node.program.graph

    def begin_path(self, state: RunState, activation: Activation, path: Path) -> None:
        """Begin the inner graph with the input."""
        path.depth, path.input, path.item_path = path.depth + 1, activation.input, None
        path.stop_at = frozenset()
        arrivals.begin_path(state, path, activation.input)

    def path_failed(self, state: RunState, path: Path, error: ErrorInfo) -> None:
        """End the graph with the failure, as a run ends: at once, or after its other paths."""
        path.error = path.error or error
        if state.on_failure != "continue":
            arrivals.stop_path(state, path)

    def finish(self, state: RunState, activation: Activation, group: Group, now: int) -> Decisions:
        """Return what the graph came to, or the failure that ended it."""
        path = group.results[0]
        node, graph = activation.node, path.graph
        error = path.error or end_failure(state, path)
        if error is not None:
            message = f"the graph of {node.id} failed: {error.message}"
            failure = ErrorInfo(category="agent", code="subgraph_failed", message=message, cause=error)
            return step_failed(activation, failure, now)
        try:
            output = output_of(state, path)
        except EvaluationError as error:
            return step_failed(activation, expression_error(error, "/inline/output"), now)
        terminal = path.terminal if path.terminal is not None else next(iter(graph.ends), None)
        nodes = path.frame.nodes
        outputs = {name: view["output"] for name, view in nodes.items() if view["status"] == "succeeded"}
        found = {
            "terminal_node_id": None if terminal is None else terminal.name,
            "output": output,
            "node_outputs": outputs,
            "workflow_id": None,
        }
        return self.complete(state, activation, group, now, output=found)


KIND = Subgraph()
