"""Workflows as functions of agents: each call is a run of its own (page 001 §5.6, page 003 §12).

The run is an ordinary one whose id follows from the call, so that a call which is made again after a crash
finds the run that the first one began. How deep such runs may be nested stands in their options, which no
model and no submission can set. A run draws on what is left of its caller's budgets, and its usage is that of
the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.call_schema import input_of_call, input_schema
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ServiceSpec
from agentflow.engine.ids import named
from agentflow.errors import AgentflowError, ConfigurationError, DefinitionError
from agentflow.runtime.submission import load, load_aside
from agentflow.runtime.workflow_code import WorkflowWithCode
from agentflow.tools import Service, Tool, ToolContext, ToolError
from agentflow.tools.problems import denied, unavailable, unknown_functions
from agentflow.tools.python import function, make_tool
from agentflow.tools.tool import settled

if TYPE_CHECKING:
    from agentflow.definition.loader import Definition, Submission
    from agentflow.records.runs import RunResult

__all__ = ["RUN_GRAPH", "GraphCalls", "WorkflowService", "graph_service"]

RUN_GRAPH = "run_workflow_graph"
_SERVICE = "agentflow"
_MAX_DEPTH = 3
_TIMEOUT_S = 3_600.0
_AT_ONCE = 64
_FILES = (".yaml", ".yml", ".json")


class GraphCalls(NamedTuple):
    """What the functions ask of the Runtime."""

    begin: Callable[[Definition | str, Any, str, ToolContext, int], Awaitable[None]]
    """Begin the run of a definition or of a registered workflow, or find it: input, id of the run, the call,
    and how deep it may be. Raises ToolError."""
    end_of: Callable[[str], Awaitable[RunResult[Any]]]
    """Wait until a run has ended."""
    cancel: Callable[[str, str], None]
    """Cancel a run if its caller is being cancelled or has ended."""
    find: Callable[[str, bool], Awaitable[Definition | None]]
    """Return the workflow of this name that is registered, for a caller that is trusted or is not."""

    async def run(
        self, graph: Definition | str, name: str, input: Any, ctx: ToolContext, max_depth: int
    ) -> RunResult[Any]:
        """Run a workflow to its end. Raises ToolError if it cannot begin or does not complete."""
        run_id = named("wf_", RUN_GRAPH, ctx.idempotency_key)
        try:
            await self.begin(graph, input, run_id, ctx, max_depth)
            result = await self.end_of(run_id)
        except asyncio.CancelledError:
            self.cancel(run_id, ctx.workflow_id)
            raise
        except ToolError:
            raise
        except AgentflowError as error:
            raise ToolError.of("tool", "subgraph_failed", f"{name}: {error}") from error
        ctx.signals.usage = result.usage
        if result.state != "completed":
            why = "" if result.error is None else f": {result.error.message}"
            message = f"the run of {name} is {result.state}{why}"
            raise ToolError.of("tool", "subgraph_failed", message, details={"workflow_id": run_id})
        return result


def graph_service(calls: GraphCalls) -> Service:
    """Return the service that has `run_workflow_graph`; nodes are offered it by name alone."""

    @function(name=RUN_GRAPH, side_effect="external", idempotent=True, timeout=_TIMEOUT_S)
    async def run_workflow_graph(workflow_id: str, ctx: ToolContext, input: Any = None) -> dict[str, Any]:
        """Run a registered workflow with an input, and return its output."""
        result = await calls.run(workflow_id, workflow_id, input, ctx, _MAX_DEPTH)
        return {"workflow_id": result.workflow_id, "status": result.state, "output": result.output}

    spec = ServiceSpec(type="python", max_concurrency=_AT_ONCE, functions={RUN_GRAPH: {"private": True}})
    tool = make_tool(_SERVICE, run_workflow_graph, spec)
    return Service(_SERVICE, spec, {tool.function: tool})


class WorkflowService(Service):
    """Workflows as functions of agents, for `Runtime(services=[...])`.

    A call runs the workflow as a run of its own and gives its output; its arguments are the inputs of the
    workflow. `workflows` has them by the names of the functions: definitions, documents, paths of files, and
    workflows that were built in Python. `functions` says of each what a document says of a function:
    `side_effect`, `description`, `timeout` (3,600 s), `approval`. A document declares the same as a service
    of type `workflow`. Raises DefinitionError for a document that is not valid.
    """

    def __init__(
        self,
        name: str,
        workflows: Mapping[str, Submission | WorkflowWithCode],
        *,
        functions: Mapping[str, Mapping[str, Any]] | None = None,
        max_concurrency: int = 8,
    ) -> None:
        given = {key: dict(value) for key, value in (functions or {}).items()}
        spec = ServiceSpec(type="workflow", functions=given, max_concurrency=max_concurrency)
        self.coded = [one for one in workflows.values() if isinstance(one, WorkflowWithCode)]
        self._definitions = {key: load(workflow) for key, workflow in workflows.items()}
        self._calls: GraphCalls | None = None
        tools = {key: _tool(name, key, one, spec) for key, one in self._definitions.items()}
        super().__init__(name, spec, tools)
        problems = unknown_functions(name, list(spec.functions), list(tools), {})
        if problems:
            raise DefinitionError(problems)

    def of_runtime(self, calls: GraphCalls) -> WorkflowService:
        """Return this service as one of a Runtime, whose runs its calls begin."""
        made = object.__new__(WorkflowService)
        made.__dict__.update(self.__dict__)
        made._calls = calls
        return made

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Implement Service."""
        if self._calls is None:
            raise ConfigurationError("a WorkflowService runs its workflows only in a Runtime")
        definition = self._definitions[tool.function]
        given = input_of_call(definition, arguments)
        return (await self._calls.run(definition, tool.function, given, ctx, _DEEPEST)).output


_DEEPEST = 8


class DeclaredWorkflows(Service):
    """A service of type `workflow` in a document: files beside it, and registered workflows."""

    def __init__(
        self, name: str, spec: ServiceSpec, folder: Path | None, trusted: bool, calls: GraphCalls
    ) -> None:
        super().__init__(name, spec, {})
        self._folder = folder
        self._trusted = trusted
        self._calls = calls
        self._definitions: dict[str, Definition] = {}

    async def open(self) -> list[Diagnostic]:
        """Read the workflows as they are now."""
        found: dict[str, Definition] = {}
        problems: list[Diagnostic] = []
        declared: Mapping[str, str] = self.spec.options.get("workflows") or {}
        for function_name, source in declared.items():
            path = f"/workflows/{function_name.replace('~', '~0').replace('/', '~1')}"
            if not source.endswith(_FILES):
                definition = await self._calls.find(source, self._trusted)
                if definition is None:
                    hint = "register it, or name a file that ends in .yaml or .json"
                    text = f'no workflow "{source}" is registered'
                    problems.append(unavailable(self.name, text, path, hint))
                    continue
            elif not self._trusted:
                problems.append(denied(self.name, "reads a file, this submission may not", path))
                continue
            else:
                try:
                    definition = (await load_aside((self._folder or Path()) / source, None))[0]
                except DefinitionError as error:
                    problems.append(unavailable(self.name, f"{source}: {error}", path))
                    continue
            found[function_name] = definition
        problems += unknown_functions(self.name, list(self.spec.functions), list(found), {})
        if not problems:
            self._definitions = found
            self.tools = {key: _tool(self.name, key, one, self.spec) for key, one in found.items()}
        return problems

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Implement Service."""
        definition = self._definitions[tool.function]
        given = input_of_call(definition, arguments)
        return (await self._calls.run(definition, tool.function, given, ctx, _DEEPEST)).output


def _tool(service: str, name: str, definition: Definition, spec: ServiceSpec) -> Tool:
    about = f"Run the workflow {definition.name}."
    options = settled(spec, name, idempotent=True, description=about, timeout=_TIMEOUT_S)
    return Tool(service=service, function=name, input_schema=input_schema(definition), **options)
