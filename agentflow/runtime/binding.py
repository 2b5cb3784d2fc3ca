"""Binding: which models and functions a definition's agents get (page 001 §2 phase B).

Reports every problem at once. It opens services, which runs share; a definition that does not bind leaves no
run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from agentflow.definition.bound_nodes import BoundNode, bound_nodes
from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.ir import AgentSpec, FunctionRef, ModelRef, Workflow
from agentflow.definition.kinds import kind_of
from agentflow.definition.node import WORKER_PREFIX, WORKERS, Needed, ToolDeclaration
from agentflow.definition.reducers import REDUCERS
from agentflow.definition.report import NOWHERE
from agentflow.definition.source_tree import Place
from agentflow.engine import StepBinding, ToolInfo
from agentflow.engine.agents.function_search import FIND_FUNCTIONS, MAX_FOUND, search_tool
from agentflow.engine.agents.handoffs import handoff_tools
from agentflow.executors.callables import NO_CALLABLES, Callables
from agentflow.models import ModelResolutionError, Models
from agentflow.models.llm_executor import ExecutorModels
from agentflow.models.parameters import parameter_problems
from agentflow.runtime.adapters import import_adapters
from agentflow.runtime.bound import Bound, Pins
from agentflow.runtime.bound_infos import changes_something, declared_info, info_of, terms_of
from agentflow.tools import Service, ServiceLoader, Tool, ToolRegistry
from agentflow.tools.loading import Loaded
from agentflow.tools.recorded import RecordedTool, recorded_service
from agentflow.tools.tool_executor import ExecutorTool, ToolExecutor, executor_service, executor_tool
from agentflow.tools.workers import (
    HANDLERS_FILE,
    Handlers,
    load_handlers,
    worker_service,
    worker_tools,
)

__all__ = ["Implicit", "bind"]

Implicit = Literal["ask", "allow", "deny"]
"""What becomes of functions that are declared to change something and granted only by "all" or `*`: offered,
and a person is asked before each call; offered; not offered (page 001 §5.6)."""

Locate = Callable[[str], tuple[Place, str]]
"""A JSON pointer of the document as the graph says it to its place, and to the pointer in the source."""


HasGraph = Callable[[str], Awaitable[bool]]
"""Whether a graph is registered under a name."""


FindsGraph = Callable[["Workflow | str"], Awaitable["Workflow | None"]]
"""Return a graph as it is to run: of a name the graph that is registered under it, None without one; of a
graph the same one with its registered agents. Raises DefinitionError."""


async def _has_none(name: str) -> bool:
    return False


async def _find_none(graph: Workflow | str) -> Workflow | None:
    return None if isinstance(graph, str) else graph


@dataclass(kw_only=True)
class _Binder:
    """One pass over a graph. `run` fills `bound`, and reports each problem there at its place."""

    workflow: Workflow
    registry: ToolRegistry
    models: Models
    locate: Locate
    file: str | None
    format: str
    pins: Pins | None
    implicit: Implicit
    code: Callables | None
    has_graph: HasGraph
    named: Service | None
    recorded: Sequence[RecordedTool] | None

    def __post_init__(self) -> None:
        self.registry = self.registry.copy()
        self.bound = Bound()
        self.bound.code = self.code
        self.asks: ToolExecutor | None = None
        if self.code is not None:
            self.asks = self.code.tool_executor
            if self.code.llm_executor is not None:
                self.bound.own_models = self.models = ExecutorModels(self.code.llm_executor)
        self.asked: dict[str, ExecutorTool] = {}
        self.nodes = tuple(bound_nodes(self.workflow, self.format))
        self.reported: set[tuple[str, str]] = set()  # code and place
        self.without_model: list[tuple[str, str, ModelResolutionError]] = []
        self.handlers: dict[str, Handlers] = {}  # by file; "" has those that need none
        self.may_lack = self.format == "pipeline"  # what steps of a plan lack, they are skipped or failed for
        self.called: dict[str, Tool] = {}
        self.broken: set[str] = set()  # what refers to these services is not reported once more

    async def run(self, loader: ServiceLoader, folder: Path | None, trusted: bool) -> Bound:
        declared = self.workflow.services
        if self.recorded is None:
            loaded = await asyncio.gather(
                *(loader.load(name, spec, folder, trusted=trusted) for name, spec in declared.items())
            )
        else:
            tools = self.recorded
            loaded = [Loaded(recorded_service(name, spec, tools), []) for name, spec in declared.items()]
        for name, (service, problems) in zip(declared, loaded, strict=True):
            for p in problems:
                self._report(
                    p.code, p.message, f"/services/{_escape(name)}{p.path or ''}", p.hint, p.severity
                )
            if service is not None:
                self.registry.add(service)
            else:
                self.broken.add(name)
                self.registry.services.pop(name, None)
        await self._load_workers(folder if trusted and self.recorded is None else None)
        await import_adapters(self.models, self._wanted(), self._resolve)
        for node in self.nodes:
            if node.agent is not None:
                self._agent(node, node.agent)
            if node.binds.tools:
                self._tools(node)
            self._callables(node)
        self._check_code(self.workflow)
        if self.pins is None:
            await self._check_graphs(self.workflow, "", {})
        self._report_missing_default()
        for service in self.registry.services.values():
            self.bound.services.setdefault(service.name, service)
        if self.called:
            self.bound.services[WORKERS] = worker_service(self.called.values())
        by_service: dict[str, list[ExecutorTool]] = {}
        for tool in self.asked.values():
            by_service.setdefault(tool.service, []).append(tool)
        for name, tools in by_service.items():
            self.bound.services[name] = executor_service(name, tools)
        self.bound.declared = list(self._declared())
        return self.bound

    def _declared(self) -> Iterator[Tool]:
        granted = {name for names in self.bound.grants.values() for name in names}
        for name in self.workflow.services:
            service = self.bound.services.get(name)
            for tool in () if service is None else service.tools.values():
                if f"{tool.service}.{tool.function}" in granted:
                    yield tool
        registered = self.handlers[""].tools
        for name, tool in self.called.items():
            if name not in registered and not isinstance(tool, ExecutorTool):
                yield tool

    def _executed(self, name: str) -> ExecutorTool | None:
        """Return what the injected executor is asked for by this name; None without one. A service of the
        Runtime or the document keeps its name."""
        if self.asks is None or name.rpartition(".")[0] in self.registry.services:
            return None
        if name not in self.asked:
            self.asked[name] = executor_tool(self.asks, name)
        return self.asked[name]

    async def _load_workers(self, folder: Path | None) -> None:
        """Find the handlers that nodes call: those of the workflow's code, then the registered ones, then
        those of files in the folder; without one no file is imported."""
        known: dict[str, Tool] = {
            **{tool.function: tool for tool in self.recorded or () if tool.service == WORKERS},
            **self.registry.workers,
            **worker_tools({} if self.code is None else self.code.workers),
        }
        wanted: dict[str, dict[str, None]] = {}
        for node in self.nodes:
            for needed in node.binds.tools:
                handler = _handler(needed.name)
                if handler is not None and handler not in known:
                    wanted.setdefault(needed.file or HANDLERS_FILE, {})[handler] = None
        self.handlers = {"": Handlers(known)}
        for file, names in wanted.items() if folder is not None else ():
            assert folder is not None
            self.handlers[file] = await load_handlers(file, folder, names)

    def _worker(self, needed: Needed, handler: str, place: str) -> Tool | None:
        """Return a handler; None, reported, if there is none."""
        file = needed.file or HANDLERS_FILE
        registered, beside = self.handlers[""], self.handlers.get(file)
        for found in (registered, beside):
            if found is not None and handler in found.tools:
                if WORKERS in self.workflow.services or WORKERS in self.registry.services:
                    message = f'a service is called "{WORKERS}", as the handlers of workers are'
                    self._report("E_MISSING_WORKER", message, place, "give the service another name")
                    return None
                return found.tools[handler]
        if self.asks is not None:
            return executor_tool(self.asks, needed.name)
        problem = None if beside is None else beside.problem
        if problem is not None:
            message = f'no worker is registered as "{handler}", and {problem.message}'
            self._report("E_MISSING_WORKER", message, place, problem.hint or _WORKER_HINT)
        else:
            hint = did_you_mean(handler, list(registered.tools)) or _WORKER_HINT
            self._report("E_MISSING_WORKER", f'no worker is registered as "{handler}"', place, hint)
        return None

    def _wanted(self) -> Iterator[ModelRef | str | None]:
        """Yield every model that an agent may call, as the document or the bound run names it."""
        default = self.workflow.models.get("default")
        for node in self.nodes:
            if node.agent is None:
                continue
            if self.pins is not None and node.id in self.pins.models:
                yield from self.pins.models[node.id]
            else:
                yield node.agent.model or default
                yield from node.agent.fallback

    def _report(
        self,
        code: str,
        message: str,
        path: str,
        hint: str | None = None,
        severity: Literal["error", "warning"] = "error",
    ) -> None:
        (line, column), path = self.locate(path)
        self.bound.diagnostics.append(
            Diagnostic(
                code=code,
                severity=severity,
                message=message,
                file=self.file,
                line=line,
                column=column,
                path=path,
                hint=hint,
            )
        )

    def _callables(self, node: BoundNode) -> None:
        """Report the callables that a node names and that are not registered here."""
        for needed in node.binds.callables:
            if self.code is None or needed.name not in self.code.executors:
                self._unregistered(needed.role, needed.name, f"{node.place}/{needed.field}")

    def _check_code(self, workflow: Workflow) -> None:
        """Report predicates, selections and reducers that are not registered here."""
        code = self.code or NO_CALLABLES
        for i, edge in enumerate(workflow.edges):
            if edge.predicate is not None and edge.predicate not in code.predicates:
                self._unregistered("predicate", edge.predicate, f"/edges/{i}/predicate")
            if edge.selection is not None and edge.selection not in code.selections:
                self._unregistered("selection", edge.selection, f"/edges/{i}/selection")
        for key, shared in workflow.shared.items():
            if shared.reducer is not None and shared.reducer not in REDUCERS:
                self._unregistered("reducer", shared.reducer, f"/shared/{_escape(key)}/reducer")
        for node in workflow.nodes:
            inner = kind_of(node).inner(node)
            if inner is not None:
                self._check_code(inner)

    async def _check_graphs(self, workflow: Workflow, at: str, outer: dict[str, Workflow]) -> None:
        """Report graphs that subgraphs name and that neither the document has nor this Runtime. A run that
        goes on is not judged again: what it names may come later."""
        known = {**outer, **workflow.graphs}
        for node in bound_nodes(workflow, self.format if not at else "ir/v0"):
            needed = node.binds.graph
            if needed is None or needed.name in known or await self.has_graph(needed.name):
                continue
            hint = (
                did_you_mean(needed.name, list(known)) or "add it to graphs, or register it under this name"
            )
            message = f'there is no graph "{needed.name}"'
            self._report("E_UNKNOWN_SUBGRAPH", message, f"{at}{node.place}/{needed.field}", hint)
        for name, graph in workflow.graphs.items():
            await self._check_graphs(graph, f"{at}/graphs/{_escape(name)}", known)

    def _unregistered(self, what: str, name: str, path: str) -> None:
        hint = (
            "register the workflow that has it: Runtime.register(workflow), or serve --load module:workflow"
        )
        if what == "reducer":
            hint = "call agentflow.reducers.register in this process"
        if what == "agent":
            hint = "register it: Runtime.register(agent), or serve --load module:agent"
        self._report("E_UNREGISTERED_CALLABLE", f'no {what} is registered as "{name}"', path, hint)

    # -- agents ---------------------------------------------------------------------------------

    def _agent(self, node: BoundNode, spec: AgentSpec) -> None:
        if spec.registered:
            self._unregistered("agent", spec.name, node.agent_place)
            return
        tools = self._functions(node, spec)
        refs = self._models(node.id, spec, node.agent_place, is_pool=node.binds.agent_is_pool)
        self._check_capability(node, spec, refs, tools)
        terms = {ref.name: terms_of(self.models, ref) for ref in refs}
        hidden = sum(tool.searched is True for tool in tools.values())
        searching = {FIND_FUNCTIONS: search_tool(hidden)} if hidden else {}
        offered = {**tools, **searching, **handoff_tools(spec)}
        self.bound.steps[node.id] = StepBinding(models=refs, tools=offered, terms=terms)
        self.bound.grants[node.id] = [f"{t.service}.{t.function}" for t in tools.values()]
        if node.spec.cache is not None:
            self._check_cache(node, tools)

    def _check_cache(self, node: BoundNode, tools: dict[str, ToolInfo]) -> None:
        """Report a cached agent whose functions may change something: a cached result repeats no effect."""
        for tool in tools.values():
            if tool.side_effect not in ("none", "read"):
                name = f"{tool.service}.{tool.function}"
                effect = {"write": "write", "irreversible": "do what cannot be undone"}.get(
                    tool.side_effect, "change something outside"
                )
                message = f'step "{node.id}" may {effect} ({name}) and cannot be cached'
                self._report(
                    "E_CACHE_SIDE_EFFECT",
                    message,
                    f"{node.place}/cache",
                    "take the function or the cache away",
                )
                return

    def _models(self, step: str, spec: AgentSpec, place: str, *, is_pool: bool) -> tuple[ModelRef, ...]:
        if self.pins is not None and step in self.pins.models:
            return self.pins.models[step]
        default = self.workflow.models.get("default")
        wanted: list[tuple[ModelRef | str | None, str]] = [(spec.model or default, f"{place}/model")]
        wanted += [(name, f"{place}/fallback/{i}") for i, name in enumerate(spec.fallback)]
        refs: list[ModelRef] = []
        for name, written in wanted:
            try:
                ref = self._resolve(name)
                refs.append(ref)
                self._check_parameters(ref, written)
            except ModelResolutionError as error:
                if is_pool and self.may_lack:
                    return ()
                if name is None:
                    self.without_model.append((step, place, error))
                else:
                    path = self._declaration(name) or written
                    self._report_once("E_UNKNOWN_MODEL", str(error), path, error.hint)
        return tuple(refs)

    def _check_parameters(self, ref: ModelRef, place: str) -> None:
        """Report what the provider would be sent and cannot know, where the document says it: at the agent's
        own model object, else at the alias that has it."""
        for problem in parameter_problems(ref.parameters, ref.name, self.models.profile(ref)):
            key = _escape(problem.name)
            homes = [f"{place}/{key}", *self._alias_places(problem.name, key)]
            path = next((p for p in homes if self._place(p) != self._place(p.rpartition("/")[0])), homes[0])
            self._report_once(problem.code, problem.message, path, problem.hint)

    def _place(self, path: str) -> Place:
        return self.locate(path)[0]

    def _alias_places(self, name: str, key: str) -> list[str]:
        roots = ("/models",) if self.format == "linear" else ("/workflow/models", "/models")
        return [
            f"{root}/{_escape(alias)}/{key}"
            for root in roots
            for alias, ref in self.workflow.models.items()
            if name in ref.parameters
        ]

    def _declaration(self, wanted: ModelRef | str) -> str | None:
        """Return the pointer of the declared alias that a model comes from, None if the agent names it."""
        for alias, ref in self.workflow.models.items():
            same = (
                (ref.provider, ref.model) == (wanted.provider, wanted.model)
                if isinstance(wanted, ModelRef)
                else not ref.provider and ref.model == wanted
            )
            if same:
                return f"/models/{_escape(alias)}"
        return None

    def _report_once(self, code: str, message: str, path: str, hint: str | None) -> None:
        """Report a problem of a place that several agents share."""
        if (code, path) not in self.reported:
            self.reported.add((code, path))
            self._report(code, message, path, hint)

    def _report_missing_default(self) -> None:
        """Report once that there is no model for the agents that name none."""
        if not self.without_model:
            return
        step, place, error = self.without_model[0]
        others = len(self.without_model) - 1
        more = f" and {others} more" if others else ""
        self._report("E_UNKNOWN_MODEL", f'no model for step "{step}"{more}: {error}', place, error.hint)

    def _resolve(self, wanted: ModelRef | str | None) -> ModelRef:
        """Resolve a model. A reference without a provider names an alias, or none, and adds parameters."""
        aliases = self.workflow.models
        if not isinstance(wanted, ModelRef) or wanted.provider:
            return self.models.resolve(wanted, aliases=aliases)
        known = {k: v for k, v in aliases.items() if v is not wanted}
        base = self.models.resolve(wanted.model or None, aliases=known)
        return msgspec.structs.replace(base, parameters={**base.parameters, **wanted.parameters})

    def _check_capability(
        self, node: BoundNode, spec: AgentSpec, refs: tuple[ModelRef, ...], tools: dict[str, ToolInfo]
    ) -> None:
        if node.binds.agent_is_pool:
            return
        hidden = sum(tool.searched is True for tool in tools.values())
        count = len(tools) - hidden + (1 + min(hidden, MAX_FOUND) if hidden else 0)
        for ref in refs:
            profile = self.models.profile(ref)
            lacks = profile.lacks(functions=count, json_schema=spec.output_schema is not None)
            if lacks is None:
                continue
            offered = f', "{node.id}" attaches {count:,}' if count != 1 else f', step "{node.id}"'
            hint = "choose another model"
            if profile.max_functions is not None and count > profile.max_functions:
                hint = "name fewer in `include`, or declare the service with `search: true`"
            elif tools:
                hint = "attach one function, or choose another model"
            self._report("E_MODEL_CAPABILITY", f"{ref.name} {lacks}{offered}", node.functions_place, hint)

    def _functions(self, node: BoundNode, spec: AgentSpec) -> dict[str, ToolInfo]:
        own = dict(node.binds.declared)
        declared: dict[Tool, ToolDeclaration] = {}
        granted: dict[Tool, bool] = {}  # whether it is granted only by "all" or `*`
        places: dict[Tool, str] = {}
        if spec.functions is None:
            granted = dict.fromkeys(self.registry.all_public(), True)
        else:
            for i, ref in enumerate(spec.functions):
                for tool in self._resolve_ref(ref, node, i):
                    granted[tool] = granted.get(tool, True) and ref.function == "*"
                    places.setdefault(tool, node.function_place(i))
                    if i in own:
                        declared[tool] = own[i]
        tools = [tool for tool, implied in granted.items() if not implied or self._offered(tool)]
        for tool, problem in self.registry.duplicates(tools):
            self._report(problem.code, problem.message, places.get(tool, node.agent_place), problem.hint)
        if self.pins is not None and node.id in self.pins.grants:
            kept = self.pins.grants[node.id]
            tools = [t for t in tools if f"{t.service}.{t.function}" in kept]
        asks = self.implicit == "ask"
        infos = (
            declared_info(info_of(t, implied=granted[t] and changes_something(t), asks=asks), declared.get(t))
            for t in tools
        )
        found = {info.name: info for info in infos}
        for name, info in found.items():
            service = self.registry.services.get(info.service)
            if service is not None and service.spec.options.get("search") is True:
                found[name] = msgspec.structs.replace(info, searched=True)
        return found

    def _resolve_ref(self, ref: FunctionRef, node: BoundNode, index: int) -> list[Tool]:
        found, problems = self.registry.resolve(ref)
        if ref.service in self.broken or (self.broken and not ref.service and not found):
            return []  # reported where the service is declared
        if problems and node.binds.agent_is_pool and self.may_lack and self.pins is not None:
            return []
        if problems and not ref.service and self.named is not None and ref.function in self.named.tools:
            self.bound.services[self.named.name] = self.named
            return [self.named.tools[ref.function]]
        if problems and ref.function != "*":
            executed = self._executed(f"{ref.service}.{ref.function}" if ref.service else ref.function)
            if executed is not None:
                return [executed]
        for problem in problems:
            place = node.function_place(index, "service" if "SERVICE" in problem.code else "function")
            self._report(problem.code, problem.message, place, problem.hint)
        return found

    def _offered(self, tool: Tool) -> bool:
        """Return whether "all" and `*` grant this function: one that is declared to change something must be
        named, unless the Runtime allows it (page 001 §5.6)."""
        return self.implicit != "deny" or not changes_something(tool)

    def _tools(self, node: BoundNode) -> None:
        """Bind the functions that a node calls itself, beside those that its agent is offered."""
        tools: dict[str, ToolInfo] = {}
        for needed in node.binds.tools:
            place = f"{node.place}/{needed.field}"
            handler = _handler(needed.name)
            if handler is not None:
                worker = self._worker(needed, handler, place)
                if worker is not None:
                    self.called[handler] = worker
                    tools[worker.name] = info_of(worker)
                continue
            service, _, function = needed.name.rpartition(".")
            found, problems = self.registry.resolve(FunctionRef(service, function))
            executed = self._executed(needed.name) if problems else None
            if executed is not None:
                found = [executed]
            elif service not in self.broken and not (
                node.binds.agent_is_pool and self.may_lack and self.pins is not None
            ):
                for problem in problems:
                    self._report(problem.code, problem.message, place, problem.hint)
            tools |= {t.name: info_of(t) for t in found[:1]}
        before = self.bound.steps.get(node.id, StepBinding())
        self.bound.steps[node.id] = msgspec.structs.replace(before, tools={**tools, **before.tools})
        granted = self.bound.grants.setdefault(node.id, [])
        granted += [name for t in tools.values() if (name := f"{t.service}.{t.function}") not in granted]


def _handler(name: str) -> str | None:
    """Return the handler that the name of a function means; None if it is the function of a service."""
    return name.removeprefix(WORKER_PREFIX).strip() if name.startswith(WORKER_PREFIX) else None


_WORKER_HINT = (
    "register it: Runtime(workers=...) or serve --load MODULE:HANDLERS; or write it in handlers.py beside a"
    " document of this machine"
)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


async def bind(
    workflow: Workflow,
    *,
    registry: ToolRegistry,
    models: Models,
    loader: ServiceLoader,
    folder: Path | None = None,
    locate: Locate = lambda path: (NOWHERE, path),
    file: str | None = None,
    format: str = "ir/v0",
    pins: Pins | None = None,
    implicit: Implicit = "deny",
    trusted: bool = True,
    code: Callables | None = None,
    has_graph: HasGraph | None = None,
    find_graph: FindsGraph = _find_none,
    named: Service | None = None,
    recorded: Sequence[RecordedTool] | None = None,
) -> Bound:
    """Resolve every model and function of the graph; see `Bound.diagnostics`.

    `code` is what the names of executors, predicates and selections mean; `named` has functions that only a
    node which names them is offered.

    Imports the modules of its python services and starts, connects and lists its other ones, all at the same
    time, each for 30 s at most. A submission that is not `trusted` gets no service that runs code, needs a
    secret or has a private address. With `pins`, an existing run keeps its models and is offered no function
    that it was not granted. With `recorded` nothing is imported, started or connected: declared services have
    these functions, which nothing calls.
    """
    binder = _Binder(
        workflow=workflow,
        registry=registry,
        models=models,
        locate=locate,
        file=file,
        format=format,
        pins=pins,
        implicit=implicit,
        code=code,
        has_graph=has_graph or _has_none,
        named=named,
        recorded=recorded,
    )
    bound = await binder.run(loader, folder, trusted)

    async def bind_graph(asked: Workflow | str) -> Bound:
        graph = await find_graph(asked)
        if graph is None:
            return Bound()
        of_run = {field: getattr(workflow, field) for field in ("services", "models", "graphs")}
        bound = await bind(
            msgspec.structs.replace(graph, **of_run),
            registry=registry,
            models=models,
            loader=loader,
            folder=folder,
            implicit=implicit,
            trusted=trusted,
            code=code,
            has_graph=has_graph,
            find_graph=find_graph,
            named=named,
            recorded=recorded,
        )
        bound.graph = None if graph is asked else graph
        return bound

    bound.bind_graph = bind_graph
    return bound
