"""Stage 3 of the request pipeline: the graph of the accepted plan, in the log of the run (page 004 §8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.engine.decisions import Decisions
from agentflow.engine.kinds.group import Group
from agentflow.engine.kinds.kind import Prepared
from agentflow.engine.kinds.subgraph import Subgraph
from agentflow.engine.pipeline import executor_output
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.definition.failure import ErrorInfo
    from agentflow.engine.activation import Activation
    from agentflow.engine.graph import Graph, Node
    from agentflow.engine.path import Path
    from agentflow.engine.state import RunState

__all__ = ["EXECUTE"]


class Execute(Subgraph):
    """Runs the steps of the plan. A step that fails ends neither its siblings nor the stage."""

    announces_end = True

    def compile(self, node: Node) -> Any:
        """Return nothing: the graph is that of `plan.compiled`."""
        return None

    def link(self, graph: Graph, node: Node) -> None:
        """Compile nothing."""

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return which plan is executed, and how."""
        assert state.pipeline is not None
        data = {"plan_digest": state.pipeline.digest, **state.pipeline.execution}
        return Prepared(data, {"input": data})

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Begin the graph of the plan."""
        assert state.pipeline is not None
        activation.item = state.pipeline.graph
        super().started(state, activation, data, ts)

    def graph_of(self, activation: Activation) -> Graph:
        """Return the graph of the plan."""
        return activation.item

    def path_failed(self, state: RunState, path: Path, error: ErrorInfo) -> None:
        """Go on with the other steps."""

    def finish(self, state: RunState, activation: Activation, group: Group, now: int) -> Decisions:
        """Return the end of the stage: what every step came to."""
        assert state.pipeline is not None
        output = executor_output(state.pipeline, group.results[0])
        return self.complete(state, activation, group, now, output=output)

    def before_end(self, state: RunState, activation: Activation, output: Any, now: int) -> Decisions:
        """Return `plan.executed`."""
        assert state.pipeline is not None
        known = state.pipeline.executor_output is not None
        return [] if known else [ev.PlanExecuted(executor_output=output)]


EXECUTE = Execute()
