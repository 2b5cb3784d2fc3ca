"""The function `run_workflow_graph`: a model runs a registered workflow (page 003 §12).

The run is an ordinary one whose id follows from the call, so that a call which is made again after a crash
finds the run that the first one began. How deep such runs may be nested stands in their options, which no
model and no submission can set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.ir import ServiceSpec
from agentflow.engine.ids import named
from agentflow.errors import AgentflowError
from agentflow.tools import Service, ToolContext, ToolError
from agentflow.tools.python import function, make_tool

if TYPE_CHECKING:
    from agentflow.records.runs import RunResult

__all__ = ["RUN_GRAPH", "GraphCalls", "graph_service"]

RUN_GRAPH = "run_workflow_graph"
_SERVICE = "agentflow"
_MAX_DEPTH = 3
_TIMEOUT_S = 3_600.0


class GraphCalls(NamedTuple):
    """What the function asks of the Runtime."""

    begin: Callable[[str, Any, str, str, int], Awaitable[None]]
    """Begin the run of a registered workflow, or find it: name, input, id of the run and of its caller, and
    how deep it may be. Raises ToolError."""
    end_of: Callable[[str], Awaitable[RunResult[Any]]]
    """Wait until a run has ended."""
    cancel: Callable[[str, str], None]
    """Cancel a run if its caller is being cancelled or has ended."""


def graph_service(calls: GraphCalls) -> Service:
    """Return the service that has the function; nodes are offered it by name alone."""

    @function(name=RUN_GRAPH, side_effect="external", idempotent=True, timeout=_TIMEOUT_S)
    async def run_workflow_graph(workflow_id: str, ctx: ToolContext, input: Any = None) -> dict[str, Any]:
        """Run a registered workflow with an input, and return its output."""
        run_id = named("wf_", RUN_GRAPH, ctx.idempotency_key)
        try:
            await calls.begin(workflow_id, input, run_id, ctx.workflow_id, _MAX_DEPTH)
            result = await calls.end_of(run_id)
        except asyncio.CancelledError:
            calls.cancel(run_id, ctx.workflow_id)
            raise
        except ToolError:
            raise
        except AgentflowError as error:
            raise ToolError.of("tool", "subgraph_failed", f"{workflow_id}: {error}") from error
        if result.state != "completed":
            why = "" if result.error is None else f": {result.error.message}"
            message = f"the run of {workflow_id} is {result.state}{why}"
            raise ToolError.of("tool", "subgraph_failed", message, details={"workflow_id": run_id})
        return {"workflow_id": run_id, "status": result.state, "output": result.output}

    spec = ServiceSpec(type="python", max_concurrency=64, functions={RUN_GRAPH: {"private": True}})
    tool = make_tool(_SERVICE, run_workflow_graph, spec)
    return Service(_SERVICE, spec, {tool.function: tool})
