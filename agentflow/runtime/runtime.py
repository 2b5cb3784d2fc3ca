"""The Runtime: the facade that users embed, and that the command line and the daemon are clients of.

    async with Runtime("sqlite:runs.db") as runtime:
        result = await runtime.run("triage.yaml", {"ticket": "..."})

It owns one actor system, one event log, the model providers and the services of its runs. Everything it
gives back is a projection of the log. All methods are for the event loop that entered it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec import UNSET

from actors import ActorStopped, ActorSystem, Backoff, ChildSpec, OneForOne, Ref
from agentflow.definition.diagnostics import did_you_mean, sort_diagnostics
from agentflow.definition.ir import Workflow, canonical_json, ir_hash
from agentflow.definition.loader import Definition, check_inputs
from agentflow.errors import (
    AgentflowError,
    ConfigurationError,
    DefinitionError,
    InvalidAnswer,
    RunExists,
    RunNotFound,
    StoreError,
    UnknownRequest,
    WorkflowCancelled,
    WorkflowFailed,
)
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import Ids
from agentflow.events.hub import Hub
from agentflow.events.log import FIRST_EPOCH, EventLog
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.models import ModelProvider, Models
from agentflow.runtime.admission import Admission
from agentflow.runtime.binding import Bound, Implicit, Pins, bind
from agentflow.runtime.clock import Clock, SystemClock
from agentflow.runtime.event_bus import EventBus
from agentflow.runtime.handle import RunHandle
from agentflow.runtime.messages import Answer, Cancel, StartRun, Suspend
from agentflow.runtime.reader import RunReader
from agentflow.runtime.records import RunResult
from agentflow.runtime.runs import Runs
from agentflow.runtime.submission import Submission, load, started_event
from agentflow.runtime.workshop import Workshop
from agentflow.tools import Service, ToolRegistry

__all__ = ["Runtime"]

_RUN_ID = re.compile(r"wf_[A-Za-z0-9_-]{1,64}")


class Runtime(RunReader):
    """Runs workflows in this process on one store.

    `store`: `memory:`, `sqlite:FILE` or an open EventLog (which the caller then closes). `models` and
    `services` add to what documents declare. `implicit_side_effects` says whether an agent that may call
    "all" functions gets those that are declared to change something. Leaving `async with` parks the runs
    that are not at their end: they go on with `resume`, here or in another process.
    """

    def __init__(
        self,
        store: str | EventLog = "memory:",
        *,
        models: Models | Iterable[ModelProvider] | None = None,
        services: Iterable[Service] = (),
        clock: Clock | None = None,
        ids: Ids | None = None,
        grace: float = 10.0,
        implicit_side_effects: Implicit = "deny",
    ) -> None:
        super().__init__()
        self._store = store
        self._log: EventLog | None = None
        self.models = models if isinstance(models, Models) else Models(models)
        self.registry = ToolRegistry(services)
        self.clock: Clock = clock or SystemClock()
        self._ids = ids or Ids()
        # Two Runtimes of one process are two writers, and fence each other like two processes.
        self.owner = msgspec.structs.replace(this_process(), token=secrets.token_hex(8))
        self._grace = grace
        self._implicit: Implicit = implicit_side_effects
        self._system: ActorSystem | None = None
        self._admissions: dict[str, Admission] = {}
        self._live: dict[str, Ref[Any]] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._closing = False

    # -- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Runtime:
        self._log = log = open_log(self._store) if isinstance(self._store, str) else self._store
        self.hub = Hub(log)
        # The actors of services and providers restart as often as they must: one that fails for a while
        # is no reason to end all others.
        patient = OneForOne(max_restarts=1_000_000, within=60, backoff=Backoff(0.05, 5, jitter=0.2))
        self._system = system = await ActorSystem(name="agentflow", supervise=patient).__aenter__()
        try:
            # The log, and what actors use, are closed when no actor is left: in the phases after theirs.
            system.on_shutdown("stop_admitting", self._refuse)
            system.on_shutdown("drain", self._park, self._grace + 5)
            system.on_shutdown("flush_log", self.hub.close, raises=True)
            system.on_shutdown("flush_log", self.models.aclose, 30, raises=True)
            system.on_shutdown("flush_log", self._release, 30, raises=True)
            if isinstance(self._store, str):
                system.on_shutdown("flush_log", log.close, 60, raises=True)
            self._workshop = Workshop(system)
            system.on_shutdown("flush_log", self._workshop.loader.aclose, 30, raises=True)
            bus = partial(EventBus, log, self.hub, self._ids, self.owner)
            self._bus = await system.spawn(ChildSpec("bus", bus))
            runs = partial(Runs, self._admissions, self._live, self._bus, log, self.clock, self.owner)
            self._runs = await system.spawn(ChildSpec("runs", runs, shutdown=30.0))
        except BaseException as error:
            await system.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.system.__aexit__(kind, error, traceback)

    def _refuse(self) -> None:
        self._closing = True

    async def _release(self) -> None:
        for run_id, admission in list(self._admissions.items()):
            admission.fail(AgentflowError(f"the Runtime was closed before run {run_id} came to rest"))
            with suppress(StoreError):
                await self.log.release(run_id, self.owner)

    async def _park(self) -> None:
        """Let every live run write down where it stopped, within the grace."""
        live = [ref for run_id, ref in self._live.items() if not self._admissions[run_id].rested.done()]
        for ref in live:
            ref.tell(Suspend(reason="drain", grace=self._grace))
        for ref in live:
            await ref.terminated()

    @property
    def log(self) -> EventLog:
        """The open store."""
        if self._log is None:
            raise AgentflowError("the Runtime is not open: use `async with Runtime(...)`")
        return self._log

    @property
    def system(self) -> ActorSystem:
        """The actor system; for introspection."""
        if self._system is None:
            raise AgentflowError("the Runtime is not open: use `async with Runtime(...)`")
        return self._system

    # -- submitting -----------------------------------------------------------------------------

    def load(self, submission: Submission) -> Definition:
        """The definition of a submission. Raises DefinitionError with every diagnostic."""
        return load(submission)

    async def bind(self, definition: Definition, pins: Pins | None = None, *, trusted: bool = True) -> Bound:
        """Phase B of page 001: resolve models and functions; see `.diagnostics`. Opens the declared
        services; a submission that is not `trusted` gets none that could harm this machine."""
        return await bind(
            definition.workflow,
            registry=self.registry,
            models=self.models,
            loader=self._workshop.loader,
            folder=definition.folder,
            locate=definition.positions.at,
            file=definition.file,
            linear=definition.format == "linear",
            pins=pins,
            implicit=self._implicit,
            trusted=trusted,
        )

    async def submit(
        self,
        submission: Submission,
        input: Any = None,
        *,
        workflow_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle:
        """Check, bind and begin a run; returns once `workflow.started` is durable.

        Not `trusted`: it comes from somebody who may not run code here, now or after a restart.
        `options`: `on_failure` halt|continue, `on_unknown` ask|fail. A repeated `workflow_id` with the same
        definition and input gives the existing run. Raises DefinitionError (nothing was written),
        RunExists, StoreError, ConfigurationError.
        """
        definition = self.load(submission)
        value, problems = check_inputs(definition, input)
        bound = await self.bind(definition, trusted=trusted)
        found = sort_diagnostics([*definition.warnings, *bound.diagnostics, *problems])
        if any(d.severity == "error" for d in found):
            raise DefinitionError(found)
        run_id = self._run_id(workflow_id)
        kept = _options(options) if trusted else {**_options(options), "trusted": False}
        started = started_event(definition, bound, value, _labels(labels), kept, found, by)
        if workflow_id is None:
            return await self._begin_run(run_id, definition, bound, started, by)
        async with self._alone(run_id):
            if await self._exists(run_id, definition, value):
                return await self.attach(run_id)
            return await self._begin_run(run_id, definition, bound, started, by)

    async def _begin_run(
        self, run_id: str, definition: Definition, bound: Bound, started: WorkflowStarted, by: str
    ) -> RunHandle:
        await self.log.put_definition(definition.ir_hash, canonical_json(definition.workflow))
        return await self._admit(run_id, definition, bound, FIRST_EPOCH, started, by)

    async def run(
        self,
        submission: Submission,
        input: Any = None,
        *,
        raise_on_failure: bool = True,
        **more: Any,
    ) -> RunResult:
        """Submit and wait. Raises WorkflowFailed or WorkflowCancelled unless told otherwise."""
        handle = await self.submit(submission, input, **more)
        result = await handle.result()
        if raise_on_failure and result.state in ("failed", "cancelled"):
            kind = WorkflowFailed if result.state == "failed" else WorkflowCancelled
            message = result.error.message if result.error else None
            raise kind(message, result=result)
        return result

    def _run_id(self, wanted: str | None) -> str:
        if wanted is None:
            return self._ids.ulid("wf_")
        if not _RUN_ID.fullmatch(wanted):
            raise ConfigurationError(
                f"{wanted!r} is not a run id", hint='write "wf_" and 1 to 64 letters, digits, "_" or "-"'
            )
        return wanted

    async def _exists(self, run_id: str, definition: Definition, value: Any) -> bool:
        try:
            state = await self.state(run_id)
        except RunNotFound:
            return False
        begin = state.begin
        if begin is not None and begin.definition.hash == definition.hash and begin.input == value:
            return True
        raise RunExists(f"{run_id} exists with another definition or input")

    async def _admit(
        self,
        run_id: str,
        definition: Definition | None,
        bound: Bound,
        epoch: int,
        started: WorkflowStarted | None,
        by: str,
        workflow: Workflow | None = None,
        cancel: Cancel | None = None,
    ) -> RunHandle:
        if self._closing:
            raise AgentflowError("the Runtime is closed; nothing was begun")
        graph = definition.workflow if definition is not None else workflow
        assert graph is not None
        admission = Admission(
            run_id,
            self._plan(graph, definition.ir_hash if definition is not None else ir_hash(graph)),
            bound.bindings,
            self._workshop.directory(bound, self.models),
            epoch=epoch,
            started=started,
            by=by,
            cancel=cancel,
        )
        self._admissions[run_id] = admission
        self._runs.tell(StartRun(workflow_id=run_id))
        await asyncio.shield(admission.accepted)
        return RunHandle(self, run_id, admission)

    @asynccontextmanager
    async def _alone(self, workflow_id: str) -> AsyncGenerator[None]:
        """Commands that take a run up come one after another."""
        lock, users = self._locks.get(workflow_id, (asyncio.Lock(), 0))
        self._locks[workflow_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[workflow_id]
            if users == 1:
                del self._locks[workflow_id]
            else:
                self._locks[workflow_id] = (lock, users - 1)

    async def _at_work(self, workflow_id: str) -> Admission | None:
        """The run's admission when its supervisor is here to stay; waits for one that is about to end."""
        live = self._admissions.get(workflow_id)
        if live is not None and live.leaving:
            await asyncio.shield(live.gone)
            live = self._admissions.get(workflow_id)
        return live

    # -- going on -------------------------------------------------------------------------------

    async def resume(self, workflow_id: str, *, by: str = "local") -> RunHandle:
        """Go on with a run that another process left, or that was paused (page 000 §11 rule 4).

        Recorded model and tool results are never repeated. A run that has ended gives its handle. Raises
        RunNotFound, Fenced (another live process owns it), DefinitionError (its code is not here).
        """
        async with self._alone(workflow_id):
            live = await self._at_work(workflow_id)
            if live is not None:
                return RunHandle(self, workflow_id, live)
            return await self._take_up(workflow_id, by)

    async def _take_up(self, workflow_id: str, by: str) -> RunHandle:
        begin = await self._begin(workflow_id)
        row = await self.log.run(workflow_id)
        if row.ended:
            return RunHandle(self, workflow_id, None)
        workflow = await self._graph(begin)
        options: dict[str, Any] = begin.options
        folder = options.get("folder")
        grants: Any = {} if begin.grants is UNSET else begin.grants
        pins = Pins(options.get("models") or {}, grants)
        bound = await bind(
            workflow,
            registry=self.registry,
            models=self.models,
            loader=self._workshop.loader,
            folder=Path(folder) if folder else None,
            pins=pins,
            implicit=self._implicit,
            trusted=options.get("trusted", True),
        )
        errors = [d for d in bound.diagnostics if d.severity == "error"]
        if errors:
            raise DefinitionError(errors)
        epoch = await self.log.claim(workflow_id, self.owner)
        return await self._admit(workflow_id, None, bound, epoch, None, by, workflow)

    async def attach(self, workflow_id: str) -> RunHandle:
        """The handle of a run of this store, without going on with it. Raises RunNotFound."""
        live = self._admissions.get(workflow_id)
        if live is None:
            await self.log.run(workflow_id)
        return RunHandle(self, workflow_id, live)

    async def cancel(self, workflow_id: str, reason: str | None = None, *, mode: str = "soft") -> None:
        """Cancel a run; one that nobody is at work on is closed in the log. An ended one is left alone."""
        request = Cancel(mode=mode, reason=reason, by="local")
        async with self._alone(workflow_id):
            if await self._at_work(workflow_id) is not None:
                with suppress(ActorStopped):  # it came to its end first
                    await self._live[workflow_id].ask(request, timeout=60)
                    return
            await self._close_log(workflow_id, request)

    async def _close_log(self, workflow_id: str, request: Cancel) -> None:
        begin = await self._begin(workflow_id)
        if (await self.log.run(workflow_id)).ended:
            return
        # Its models and functions need not be here: nothing of it will be carried out any more.
        epoch = await self.log.claim(workflow_id, self.owner)
        workflow = await self._graph(begin)
        handle = await self._admit(workflow_id, None, Bound(), epoch, None, "local", workflow, request)
        await handle.result()

    async def answer(self, workflow_id: str, request_id: str, value: Any, *, via: str = "api") -> RunHandle:
        """Answer an open request; the run goes on here, its handle tells where it rests next.

        Raises UnknownRequest, InvalidAnswer; neither changes anything.
        """
        from agentflow.definition.schemas import validate

        state = await self.state(workflow_id)
        request = state.requests.get(request_id)
        if request is None:
            raise UnknownRequest(f"{workflow_id} has no open request {request_id}")
        issues = validate(request.data.response_schema, value)
        if issues:
            raise InvalidAnswer(f"{issues[0].message} at {issues[0].path or '/'}")
        await self.resume(workflow_id)
        ref = self._live.get(workflow_id)
        if ref is None:
            raise UnknownRequest(f"{workflow_id} has no open request {request_id}")
        taken = await ref.ask(Answer(request_id=request_id, value=value, by="local", via=via), timeout=60)
        if taken != "taken":
            raise UnknownRequest(f"{workflow_id} has no open request {request_id}")
        return await self.attach(workflow_id)


_CHOICES = {"on_failure": ("halt", "continue"), "on_unknown": ("ask", "fail")}


def _options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    options = dict(given or {})
    for key, value in options.items():
        if key not in _CHOICES:
            raise ConfigurationError(
                f"unknown option {key!r}",
                hint=did_you_mean(key, list(_CHOICES)) or f"known: {', '.join(_CHOICES)}",
            )
        if value not in _CHOICES[key]:
            raise ConfigurationError(f"option {key}: {value!r} is not one of {', '.join(_CHOICES[key])}")
    return options


def _labels(given: Mapping[str, str] | None) -> dict[str, str]:
    labels = dict(given or {})
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"label {key!r}: names and values of labels are strings")
    return labels
