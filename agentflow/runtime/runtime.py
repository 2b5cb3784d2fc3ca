"""The Runtime: the facade that users embed, and that the command line and the daemon are clients of.

    async with Runtime("sqlite:runs.db") as runtime:
        result = await runtime.run("triage.yaml", {"ticket": "..."})

It owns one actor system, one event log, the model providers and the services of its runs. Everything it
gives back is a projection of the log. All methods are for the event loop that entered it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from agentflow.aside import import_aside
from agentflow.definition.loader import Definition
from agentflow.definition.pipeline_nodes import PIPELINE
from agentflow.errors import (
    AgentflowError,
    ConfigurationError,
    DefinitionError,
    LogFailed,
    StoreError,
)
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.deltas import DeltaHub
from agentflow.events.envelope import Ids, StoredEvent
from agentflow.events.forked import ForkGuard
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog
from agentflow.events.owner import this_process
from agentflow.executors.callables import Callables
from agentflow.forked_child import end_forked_child, is_on_inherited_loop
from agentflow.models import ModelProvider, Models
from agentflow.records.answers import ToolView
from agentflow.records.read_model import started_in
from agentflow.runtime.child_runs import ChildRunCommands
from agentflow.runtime.clock import Clock, SystemClock
from agentflow.tools import Service, ToolRegistry
from agentflow.tools.listing import listed_tools

if TYPE_CHECKING:
    from actors import ActorSystem
    from agentflow.definition.ir import ServiceSpec
    from agentflow.engine import Graph
    from agentflow.runtime.actor_pools import ActorPools
    from agentflow.runtime.binding import Implicit
    from agentflow.runtime.bound import BindingCache, Bound, Pins
    from agentflow.runtime.graph_calls import GraphCalls
    from agentflow.runtime.listeners import Listener, Listeners
    from agentflow.runtime.run_launch import RunLaunch
    from agentflow.runtime.run_registry import RunRegistry
    from agentflow.telemetry.telemetry import Telemetry
    from agentflow.tools.recorded import RecordedTool

__all__ = ["Runtime"]

_RUNNING: Final = (
    "agentflow.events.open",
    "agentflow.judge",
    "agentflow.engine",
    "agentflow.runtime.binding",
    "agentflow.runtime.event_bus",
    "agentflow.runtime.actor_pools",
    "agentflow.runtime.run_registry",
    "agentflow.runtime.permanent_actor",
    "agentflow.telemetry",
)
"""Modules that an open Runtime needs, and that making one does not: half of all imports."""


_STATE_WRITER = "agentflow.pipeline.state_writer"
FORMAT_SERVICES = {"pipeline": "agentflow.pipeline.services"}
"""Modules with the services that a format brings along, by format: they stand above the runtime, and are
imported when a run of the format is bound, here or after a restart."""


class Runtime(ChildRunCommands):
    """Run workflows in this process on one store.

    `store`: `memory:`, `sqlite:FILE` or an open EventLog (which the caller then closes). `models` and
    `services` add to what documents declare; `workers` are the handlers that nodes call as `worker:NAME`,
    each `handler(*, context, payload)`. A function that is declared to change something, and
    that an agent has only because it may call "all", is asked about before each call; `implicit_side_effects`
    `allow` or `deny` gives it without, or not at all. Leaving `async with` parks the runs
    that are not at their end: they go on with `resume`, here or in another process. `telemetry` stands in
    for the one that the `OTEL_*` variables ask for, if they do; the Runtime starts and ends it. With a
    `tracer_provider` of OpenTelemetry's SDK, spans go through its processors instead; it stays the caller's.
    `listeners` get the durable events of all runs of the store, at least once, see `Listener`.

    `recover`: entering takes up what the last process left, as `recover()` does, so that runs of a process
    that was killed go on by themselves. The default is false, because a Runtime that only reads a store,
    or runs one workflow on it, must not begin other work.
    """

    def __init__(
        self,
        store: str | EventLog = "memory:",
        *,
        models: Models | Iterable[ModelProvider] | None = None,
        services: Iterable[Service] = (),
        workers: Mapping[str, Callable[..., Any]] | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        grace: float = 10.0,
        implicit_side_effects: Implicit = "ask",
        max_concurrent_runs: int = 64,
        max_queued_runs: int = 10_000,
        telemetry: Telemetry | None = None,
        tracer_provider: object | None = None,
        listeners: Iterable[Listener] = (),
        recover: bool = False,
    ) -> None:
        super().__init__()
        self._given_listeners = tuple(listeners)
        self._store = store
        self._fork_guard = ForkGuard("the Runtime")
        self.models = models if isinstance(models, Models) else Models(models)
        self.registry = ToolRegistry(services, workers)
        self.clock: Clock = clock or SystemClock()
        self._ids = ids or Ids()
        # Two Runtimes of one process are two writers, and fence each other like two processes.
        self.owner = msgspec.structs.replace(this_process(), token=secrets.token_hex(8))
        self._grace = grace
        self._implicit: Implicit = implicit_side_effects
        self._system: ActorSystem | None = None
        if max_concurrent_runs < 1 or max_queued_runs < 0:
            raise ConfigurationError("max_concurrent_runs is at least 1, max_queued_runs at least 0")
        self._run_limits = (max_concurrent_runs, max_queued_runs)
        if telemetry is not None and tracer_provider is not None:
            raise ConfigurationError("telemetry and tracer_provider exclude each other: both receive spans")
        self._telemetry = telemetry
        self._tracer_provider = tracer_provider
        self._recovers = recover
        self._graph_calls: Service | None = None
        self._followers: Any = None
        self._bindings: BindingCache | None = None

    # -- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Runtime:
        await import_aside(*_RUNNING)
        from actors import ActorSystem, Backoff, OneForOne
        from agentflow.events.open import open_log
        from agentflow.judge import install_judge, release_judge

        self._fork_guard = ForkGuard("the Runtime")
        ours = this_process()
        if self.owner.lock and self.owner.lock != ours.lock:  # made before this process was forked
            self.owner = msgspec.structs.replace(ours, token=self.owner.token)
        self._log = open_log(self._store) if isinstance(self._store, str) else self._store
        self._forget()
        self.hub = Hub(self._log)
        self.delta_hub = DeltaHub()
        # The actors of services and providers restart as often as they must: one that fails for a while
        # is no reason to end all others.
        patient = OneForOne(max_restarts=1_000_000, within=60, backoff=Backoff(0.05, 5, jitter=0.2))
        # Messages hold prompts and arguments of tools: the report of a crash names their type alone.
        self._system = system = await ActorSystem(
            name="agentflow", supervise=patient, show_message=lambda message: type(message).__name__
        ).__aenter__()
        install_judge()
        try:
            await self._start_actors(system, self._log)
            if self._recovers:
                await self.recover()
        except BaseException as error:
            try:
                await system.__aexit__(type(error), error, error.__traceback__)
            finally:
                await release_judge()
                if isinstance(
                    self._store, str
                ):  # what was refused may have come before the log had its phase
                    await self._log.close()
            raise
        return self

    async def _start_actors(self, system: ActorSystem, log: EventLog) -> None:
        """Start the registry, the pools and the bus, and say in which order the system closes them.

        The log, and what actors use, are closed when no actor is left: in the phases after theirs. Those
        of one phase follow each other in the order in which they stand here.
        """
        from actors import ChildSpec
        from agentflow.runtime.actor_pools import ActorPools
        from agentflow.runtime.event_bus import EventBus
        from agentflow.runtime.gauges import gauges_of
        from agentflow.runtime.permanent_actor import PermanentActor
        from agentflow.telemetry import telemetry_from_env

        registry = self._registry = self._new_registry(log)
        registry.child_links = self._child_links()
        system.on_shutdown("stop_admitting", registry.close)
        system.on_shutdown("drain", self._park, self._grace + 5)
        system.on_shutdown("drain", self._close_followers, 15)
        system.on_shutdown("flush_log", self.hub.close, raises=True)
        system.on_shutdown("flush_log", self.models.aclose, 30, raises=True)
        system.on_shutdown("flush_log", self._release, 30, raises=True)
        telemetry = self._telemetry or telemetry_from_env(self._tracer_provider)
        if telemetry is not None:  # it reads the log to the end
            system.on_shutdown("flush_log", telemetry.aclose, 15)
        listeners = await self._start_listeners(log)
        if listeners is not None:
            system.on_shutdown("flush_log", listeners.aclose, 10)
        if isinstance(self._store, str):
            system.on_shutdown("flush_log", log.close, 60, raises=True)
        self._pools: ActorPools = ActorPools(system, self.delta_hub, registry.call_started, self.clock)
        self._pools.loader.workflows = self._declared_workflows
        self._attach_workflows()
        system.on_shutdown("flush_log", self._pools.loader.aclose, 30, raises=True)
        observer = telemetry.observer if telemetry is not None else None
        bus = partial(EventBus, log, self.hub, self._ids, self.owner, observer, {})
        self._bus = PermanentActor(system, ChildSpec("bus", bus))
        await self._bus.start()
        system.on_shutdown("flush_log", self._bus.close)
        if telemetry is not None:
            gauges = gauges_of(system, self._pools, registry)
            await telemetry.start(log, gauges=gauges, describe=self._describe)
        await registry.start(system, self._bus)

    async def _start_listeners(self, log: EventLog) -> Listeners | None:
        """Find the places of the listeners before anything is committed here."""
        if not self._given_listeners:
            return None
        from agentflow.runtime.listeners import Listeners

        listeners = Listeners(self._given_listeners)
        await listeners.start(log)
        return listeners

    def _new_registry(self, log: EventLog) -> RunRegistry:
        from agentflow.runtime.run_registry import RunRegistry

        limit, queue = self._run_limits
        return RunRegistry(
            log,
            self.clock,
            self.owner,
            prepare=self._prepare,
            directory=lambda bound: self._pools.directory(bound, self.models),
            find_code=self._code.of_run,
            is_child=self._is_child,
            find_deadlines=self._find_deadlines,
            limit=limit,
            queue=queue,
            on_launch=self._launched,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._fork_guard.forked:
            self._leave_in_child(error)
            return
        from agentflow.judge import release_judge

        try:
            await self.system.__aexit__(kind, error, traceback)
        finally:
            await release_judge()

    def _leave_in_child(self, error: BaseException | None) -> None:
        """Close nothing: all of it is the parent's. Raises LogFailed unless `error` is on its way already.

        In the loop of the parent it does not return: the process ends, by `sys.exit()` with its code.
        """
        try:
            if error is None:
                self._fork_guard.check()
        except LogFailed as refused:
            error = refused
            if not is_on_inherited_loop():
                raise
        if is_on_inherited_loop():
            end_forked_child(error)

    async def _release(self) -> None:
        for run_id, launch in list(self._registry.launches.items()):
            launch.fail(AgentflowError(f"the Runtime was closed before run {run_id} came to rest"))
            with suppress(StoreError):
                await self.log.release(run_id, self.owner)
        await self._registry.ledger.close()

    def _launched(self, launch: RunLaunch) -> None:
        """Begin to write the state file of a request."""
        settings = launch.plan.workflow.metadata.get(PIPELINE)
        if settings and settings.get("state_file"):
            if self._followers is None:
                self._followers = import_module(_STATE_WRITER).StateWriters(self)
            self._followers.follow(launch)

    async def _close_followers(self) -> None:
        if self._followers is not None:
            await self._followers.aclose()

    async def _park(self) -> None:
        """Suspend every live run and wait until each has recorded where it stopped, within the grace."""
        from agentflow.runtime.supervisor_messages import Suspend

        registry = self._registry
        live = [ref for run_id, ref in registry.live.items() if not registry.launches[run_id].rested.done()]
        for ref in live:
            ref.tell(Suspend(reason="drain", grace=self._grace))
        for ref in live:
            await ref.terminated()

    @property
    def log(self) -> EventLog:
        """Open store."""
        if self._log is None:
            raise AgentflowError("the Runtime is not open: use `async with Runtime(...)`")
        self._fork_guard.check()
        return self._log

    @property
    def system(self) -> ActorSystem:
        """Actor system, for introspection."""
        if self._system is None:
            raise AgentflowError("the Runtime is not open: use `async with Runtime(...)`")
        self._fork_guard.check()
        return self._system

    async def bind(
        self,
        definition: Definition,
        pins: Pins | None = None,
        *,
        trusted: bool = True,
        code: Callables | None = None,
        recorded: Sequence[RecordedTool] | None = None,
    ) -> Bound:
        """Resolve models and functions (page 001, phase B); see `.diagnostics`. Opens the declared services;
        a submission that is not `trusted` gets none that could harm this machine. `code`: that of the
        workflow; without it, what was registered for this graph. `recorded`: what a recorded run found of
        declared services, none of which is opened then."""
        from agentflow.runtime.binding import bind
        from agentflow.runtime.bound import BindingCache

        code = code or self._code.find(definition.name, definition.ir_hash, definition.hash)
        registry = self._registry_for(definition.format, trusted=trusted)
        cache = self._bindings = self._bindings or BindingCache()
        key = (definition.ir_hash, definition.format, definition.folder, trusted)
        is_plain = pins is None and recorded is None and registry is self.registry
        if is_plain and (known := cache.find(key, registry, code)) is not None:
            return known
        bound = await bind(
            definition.workflow,
            registry=registry,
            models=self.models,
            loader=self._pools.loader,
            folder=definition.folder,
            locate=definition.positions.find,
            file=definition.file,
            format=definition.format,
            pins=pins,
            implicit=self._implicit,
            trusted=trusted,
            code=code,
            has_graph=partial(self._has_graph, trusted=trusted),
            find_graph=partial(self._find_graph, trusted=trusted),
            named=self._graph_service(),
            recorded=recorded,
        )
        if is_plain:
            cache.keep(key, registry, definition.workflow, bound)
        return bound

    def _graph_service(self) -> Service:
        """Return the service of the function by which models run registered workflows."""
        if self._graph_calls is None:
            from agentflow.runtime.graph_calls import graph_service

            self._graph_calls = graph_service(self._calls_of_graphs())
        return self._graph_calls

    def _calls_of_graphs(self) -> GraphCalls:
        from agentflow.runtime.graph_calls import GraphCalls

        return GraphCalls(self._begin_graph, self._end_of, self._cancel_with, self._registered_definition)

    def _declared_workflows(
        self, name: str, spec: ServiceSpec, folder: Path | None, trusted: bool
    ) -> Service:
        from agentflow.runtime.graph_calls import DeclaredWorkflows

        return DeclaredWorkflows(name, spec, folder, trusted, self._calls_of_graphs())

    def _describe(self, service: str, name: str) -> str | None:
        """Return the description of a function that this process knows, by the name that models see."""
        known = self.registry.services.get(service) or self._pools.loader.find(service)
        tool = None if known is None else known.tools.get(name.removeprefix(f"{service}__"))
        return None if tool is None else tool.description

    def _attach_workflows(self) -> None:
        """Bind the registered services of workflows to this Runtime, whose runs their calls begin."""
        for service in [*self.registry.services.values()]:
            if service.spec.type == "workflow":
                from agentflow.runtime.graph_calls import WorkflowService

                assert isinstance(service, WorkflowService)
                for workflow in service.coded:
                    self._code.add(workflow)
                self.registry.add(service.of_runtime(self._calls_of_graphs()))

    def _registry_for(self, format: str, *, trusted: bool = True) -> ToolRegistry:
        """Return the registered services, with those that runs of this format bring along. A document that is
        not trusted gets none that runs code; a request does, because its steps wait for approvals."""
        module = FORMAT_SERVICES.get(format)
        if module is None:
            services = self.registry.services.values()
            if trusted or not any(service.needs_trust for service in services):
                return self.registry
            return ToolRegistry(service for service in services if not service.needs_trust)
        registry = self.registry.copy()
        for service in import_module(module).services():
            registry.add(service)
        return registry

    async def tools(self) -> list[ToolView]:
        """Return the functions that documents may name without declaring a service, by service and name."""
        return listed_tools(self.registry)

    # -- going on -------------------------------------------------------------------------------

    async def _prepare(
        self,
        workflow_id: str,
        bound: bool,
        page: Sequence[StoredEvent] = (),
        *,
        trusted: bool = True,
        served: bool = False,
    ) -> tuple[Graph, Bound]:
        """Return a stored run's graph, and what it was bound to when it began; `page` holds the first events
        of its log, if they were read already. Its services are loaded with
        the lower trust of the run, which its first event keeps, and of the caller. `served`: nothing is
        loaded, because all of it is served from a record; so is a replay with `Always`."""
        from agentflow.runtime.binding import bind
        from agentflow.runtime.bound import Bound, Pins

        begin = await started_in(workflow_id, page) if page else await self._begin(workflow_id)
        workflow = await self._graph(begin.ir_hash)
        plan = self._plan(workflow, begin.ir_hash)
        if not bound:
            return plan, Bound()
        options: dict[str, Any] = begin.options
        folder = options.get("folder")
        grants: Any = {} if begin.grants is UNSET else begin.grants
        served = served or (begin.replay_of is not UNSET and begin.replay_of.policy == "Always")
        is_trusted: bool = trusted and options.get("trusted", True)
        found = await bind(
            workflow,
            registry=self._registry_for(begin.definition.format),
            models=self.models,
            loader=self._pools.loader,
            folder=Path(folder) if folder else None,
            format=begin.definition.format,
            pins=Pins(options.get("models") or {}, grants),
            implicit=self._implicit,
            trusted=is_trusted,
            find_graph=partial(self._find_graph, trusted=is_trusted),
            code=self._code.of_run(workflow_id, begin),
            named=self._graph_service(),
            recorded=await self._recorded_functions(begin) if served else None,
        )
        if any(node.kind.brings_graph for node in plan.all_nodes.values()):
            found.graphs = [one async for one in self._bound_graphs(workflow_id, found)]
        every = (one for part in (found, *found.graphs) for one in part.diagnostics)
        errors = [one for one in every if one.severity == "error"]
        if errors:
            raise DefinitionError(errors)
        found.replay = await self._replay_source(begin)
        return plan, found

    async def _recorded_functions(self, begin: WorkflowStarted) -> list[RecordedTool] | None:
        """Return the functions of declared services as a run found them; None if an older version began it,
        which did not keep them."""
        from agentflow.tools.recorded import tools_from_record

        if begin.functions is UNSET:
            declares = bool((await self._graph(begin.ir_hash)).services)
            return None if declares else []
        body = await self.log.get_blob(begin.functions["$blob"])
        return None if body is None else tools_from_record(body)

    async def _bound_graphs(self, workflow_id: str, outer: Bound) -> AsyncGenerator[Bound]:
        """Bind the graphs that became known in a stored run, which keep the models that they had."""
        from agentflow.definition.ir import canonical_json, decode_ir
        from agentflow.engine import StepBinding
        from agentflow.events.decoding import decode_page

        assert outer.bind_graph is not None
        offset = 0
        while rows := await self.log.read(workflow_id, offset):
            for event in await decode_page(rows):
                child = getattr(event.data, "child", UNSET)
                if child is not UNSET and "graph" in child and "bindings" in child:
                    bound = await outer.bind_graph(decode_ir(canonical_json(child["graph"])))
                    bound.steps = msgspec.convert(child["bindings"], dict[str, StepBinding])
                    yield bound
            offset = rows[-1].offset + 1

    async def _check_untrusted(self, workflow_id: str) -> None:
        """Raise DefinitionError unless an untrusted client could have submitted this run. Binding is the
        check, as for a submission: what a service needs of this machine shows nowhere else."""
        row = await self.log.run(workflow_id)
        if not row.ended and (await self._begin(workflow_id)).options.get("trusted", True):
            await self._prepare(workflow_id, True, trusted=False)
