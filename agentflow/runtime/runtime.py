"""The Runtime: the facade that users embed, and that the command line and the daemon are clients of.

    async with Runtime("sqlite:runs.db") as runtime:
        result = await runtime.run("triage.yaml", {"ticket": "..."})

It owns one actor system, one event log, the model providers and the services of its runs. Everything it
gives back is a projection of the log. All methods are for the event loop that entered it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET

from actors import ActorSystem, Backoff, ChildSpec, OneForOne
from agentflow.definition.diagnostics import Diagnostic, sort_diagnostics
from agentflow.definition.loader import Definition, check_inputs
from agentflow.engine import Plan
from agentflow.engine.ids import named
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    ConfigurationError,
    DefinitionError,
    IdempotencyConflict,
    OutputNotReady,
    RunExists,
    RunGone,
    RunNotFound,
    StoreError,
    WorkflowCancelled,
    WorkflowFailed,
)
from agentflow.events.catalogue import ForkOrigin, WorkflowStarted
from agentflow.events.deltas import DeltaHub
from agentflow.events.envelope import Ids
from agentflow.events.forked import ForkGuard
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.models import ModelProvider, Models
from agentflow.runtime.admission import Admission
from agentflow.runtime.binding import Bound, Implicit, Pins, bind
from agentflow.runtime.clock import Clock, SystemClock
from agentflow.runtime.commands import RunCommands
from agentflow.runtime.event_bus import EventBus
from agentflow.runtime.forks import fork_base
from agentflow.runtime.gauges import dead_letters, mailbox_depths
from agentflow.runtime.handle import RunHandle
from agentflow.runtime.keeper import Keeper
from agentflow.runtime.messages import Suspend
from agentflow.runtime.options import checked_budget, checked_labels, checked_options
from agentflow.runtime.permanent import PermanentActor
from agentflow.runtime.records import RunResult, run_result
from agentflow.runtime.submission import Submission, is_repeat, load, started_event, submission_digest
from agentflow.runtime.workshop import Workshop
from agentflow.telemetry import telemetry_from_env
from agentflow.tools import Service, ToolRegistry

if TYPE_CHECKING:
    from agentflow.telemetry.telemetry import Telemetry

__all__ = ["Runtime"]

_RUN_ID = re.compile(r"wf_[A-Za-z0-9_-]{1,64}")
_DEFINITIONS = 1_024
_DEFINITION_KEPT = 60.0
"""Seconds; far less than what a sweep leaves to whoever has put a definition and is about to name it."""
_KEY_LABEL = "agentflow.idempotency_key"


class Runtime(RunCommands):
    """Runs workflows in this process on one store.

    `store`: `memory:`, `sqlite:FILE` or an open EventLog (which the caller then closes). `models` and
    `services` add to what documents declare. A function that is declared to change something, and
    that an agent has only because it may call "all", is asked about before each call; `implicit_side_effects`
    `allow` or `deny` gives it without, or not at all. Leaving `async with` parks the runs
    that are not at their end: they go on with `resume`, here or in another process. `telemetry` stands in
    for the one that the `OTEL_*` variables ask for, if they do; the Runtime starts and ends it.
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
        implicit_side_effects: Implicit = "ask",
        max_concurrent_runs: int = 64,
        max_queued_runs: int = 10_000,
        telemetry: Telemetry | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._log: EventLog | None = None
        self._fork_guard = ForkGuard("the Runtime")
        self.models = models if isinstance(models, Models) else Models(models)
        self.registry = ToolRegistry(services)
        self.clock: Clock = clock or SystemClock()
        self._ids = ids or Ids()
        # Two Runtimes of one process are two writers, and fence each other like two processes.
        self.owner = msgspec.structs.replace(this_process(), token=secrets.token_hex(8))
        self._grace = grace
        self._implicit: Implicit = implicit_side_effects
        self._system: ActorSystem | None = None
        if max_concurrent_runs < 1 or max_queued_runs < 0:
            raise ConfigurationError("max_concurrent_runs is at least 1, max_queued_runs at least 0")
        self._places = (max_concurrent_runs, max_queued_runs)
        self._definitions_put: dict[str, float] = {}  # seconds of the clock that the store stamps them with
        self._telemetry = telemetry

    # -- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Runtime:
        self._fork_guard = ForkGuard("the Runtime")
        ours = this_process()
        if self.owner.lock and self.owner.lock != ours.lock:  # made before this process was forked
            self.owner = msgspec.structs.replace(ours, token=self.owner.token)
        self._log = log = open_log(self._store) if isinstance(self._store, str) else self._store
        self.hub = Hub(log)
        self.delta_hub = DeltaHub()
        # The actors of services and providers restart as often as they must: one that fails for a while
        # is no reason to end all others.
        patient = OneForOne(max_restarts=1_000_000, within=60, backoff=Backoff(0.05, 5, jitter=0.2))
        # Messages hold prompts and arguments of tools: the report of a crash names their type alone.
        self._system = system = await ActorSystem(
            name="agentflow", supervise=patient, show_message=lambda message: type(message).__name__
        ).__aenter__()
        try:
            # The log, and what actors use, are closed when no actor is left: in the phases after theirs.
            limit, queue = self._places
            self._keeper = Keeper(
                log,
                self.clock,
                self.owner,
                prepare=self._prepare,
                directory=lambda bound: self._workshop.directory(bound, self.models),
                limit=limit,
                queue=queue,
            )
            system.on_shutdown("stop_admitting", self._keeper.close)
            system.on_shutdown("drain", self._park, self._grace + 5)
            system.on_shutdown("flush_log", self.hub.close, raises=True)
            system.on_shutdown("flush_log", self.models.aclose, 30, raises=True)
            system.on_shutdown("flush_log", self._release, 30, raises=True)
            telemetry = self._telemetry or telemetry_from_env()
            if telemetry is not None:  # it reads the log to the end
                system.on_shutdown("flush_log", telemetry.aclose, 15)
            if isinstance(self._store, str):
                system.on_shutdown("flush_log", log.close, 60, raises=True)
            self._workshop: Workshop = Workshop(system, self.delta_hub, self._keeper.work_began)
            system.on_shutdown("flush_log", self._workshop.loader.aclose, 30, raises=True)
            observer = telemetry.observer if telemetry is not None else None
            bus = partial(EventBus, log, self.hub, self._ids, self.owner, observer, {})
            self._bus = PermanentActor(system, ChildSpec("bus", bus))
            await self._bus.start()
            system.on_shutdown("flush_log", self._bus.close)
            if telemetry is not None:
                await telemetry.start(
                    log, depths=partial(mailbox_depths, system), letters=partial(dead_letters, system)
                )
            await self._keeper.start(system, self._bus)
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

    async def _release(self) -> None:
        for run_id, admission in list(self._keeper.admissions.items()):
            admission.fail(AgentflowError(f"the Runtime was closed before run {run_id} came to rest"))
            with suppress(StoreError):
                await self.log.release(run_id, self.owner)
        await self._keeper.ledger.close()

    async def _park(self) -> None:
        """Let every live run write down where it stopped, within the grace."""
        keeper = self._keeper
        live = [ref for run_id, ref in keeper.live.items() if not keeper.admissions[run_id].rested.done()]
        for ref in live:
            ref.tell(Suspend(reason="drain", grace=self._grace))
        for ref in live:
            await ref.terminated()

    @property
    def log(self) -> EventLog:
        """The open store."""
        if self._log is None:
            raise AgentflowError("the Runtime is not open: use `async with Runtime(...)`")
        self._fork_guard.check()
        return self._log

    @property
    def system(self) -> ActorSystem:
        """The actor system; for introspection."""
        if self._system is None:
            raise AgentflowError("the Runtime is not open: use `async with Runtime(...)`")
        self._fork_guard.check()
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
        budget: Mapping[str, Any] | None = None,
        input_from: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle:
        """Check, bind and begin a run; returns once `workflow.started` is durable.

        `options`: `on_failure` halt|continue|hold, `on_unknown` ask|fail, `max_parallel`,
        `traceparent`, `tracestate`. `budget`: limits beside those of the document. `input_from` {workflow_id,
        step_id?, as?}: the output of another run, or of one of its steps, as the input, or as the named one
        of its inputs. A repeated
        `workflow_id` or `idempotency_key` with the same submission gives the existing run. Not `trusted`: it
        comes from somebody who may not run code here, now or after a restart.

        Raises DefinitionError (nothing was written), RunExists, IdempotencyConflict, OutputNotReady,
        QueueFull, StoreError, ConfigurationError.
        """
        self._fork_guard.check()
        kept, limits = checked_options(options), checked_budget(budget)
        if not trusted:
            kept["trusted"] = False
        if input_from is not None:
            input = await self._input_from(input_from, input)
            kept["input_from"] = dict(input_from)
        definition = self.load(submission)
        value, problems = check_inputs(definition, input)
        run_id = self._run_id(workflow_id)
        said = started_event(definition, Bound(), value, checked_labels(labels), kept, [], by)
        if limits is not None:
            said = msgspec.structs.replace(said, budget=limits)

        async def bound() -> tuple[Bound, WorkflowStarted]:
            return await self._bound(definition, said, problems, trusted=trusted)

        if any(d.severity == "error" for d in problems):
            await bound()  # raises all there is to say
        if idempotency_key is not None:
            own_id = None if workflow_id is None else run_id
            return await self._begin_once(own_id, definition, said, bound, idempotency_key)
        if workflow_id is None:
            return await self._begin_run(run_id, definition, *await bound())
        async with self._keeper.alone(run_id):
            if await self._exists(run_id, said):
                return await self.attach(run_id)
            try:
                return await self._begin_run(run_id, definition, *await bound())
            except RunExists:  # another process began it just now
                if await self._exists(run_id, said):
                    return await self.attach(run_id)
                raise

    async def _bound(
        self, definition: Definition, said: WorkflowStarted, problems: list[Diagnostic], *, trusted: bool
    ) -> tuple[Bound, WorkflowStarted]:
        """Bind a submission that is new; return what it is bound to, and the event that begins its run."""
        bound = await self.bind(definition, trusted=trusted)
        found = sort_diagnostics([*definition.warnings, *bound.diagnostics, *problems])
        if any(d.severity == "error" for d in found):
            raise DefinitionError(found)
        limits = None if said.budget is UNSET else said.budget
        self._must_be_priced(definition, bound, limits)
        started = started_event(definition, bound, said.input, said.labels, said.options, found, said.by)
        return bound, started if limits is None else msgspec.structs.replace(started, budget=limits)

    async def _begin_once(
        self,
        own_id: str | None,
        definition: Definition,
        said: WorkflowStarted,
        bind: Callable[[], Awaitable[tuple[Bound, WorkflowStarted]]],
        key: str,
    ) -> RunHandle:
        """Begin the run of a key, or find it. A repeat is not bound: it is one though a service is not there
        now, or its sender may not use it."""
        async with self._keeper.alone(f"key {key}"), self._keeper.alone(own_id or f"id of {key}"):
            rows = (await self.log.runs(label=(_KEY_LABEL, key), limit=1)).items
            if rows:
                return await self._repeated(rows[0].workflow_id, said)
            bound, started = await bind()
            digest = submission_digest(started)
            started = msgspec.structs.replace(started, idempotency_key=key, body_hash=digest)
            run_id = own_id or await self._id_of_key(key)
            try:
                return await self._begin_run(run_id, definition, bound, started)
            except RunExists:  # another process began it just now; of two the store takes one
                if (await self._begin(run_id)).idempotency_key != key:
                    raise
                return await self._repeated(run_id, started)

    async def _repeated(self, run_id: str, started: WorkflowStarted) -> RunHandle:
        if not is_repeat(started, await self._begin(run_id)):
            raise IdempotencyConflict(f"the key was used for {run_id} with another submission")
        return await self.attach(run_id)

    async def _id_of_key(self, key: str) -> str:
        """The id that every process gives to a new run with this key: the first made from it that no deleted
        run had, and no run whose id somebody chose so."""
        turn = 0
        while True:
            run_id = named("wf_", _KEY_LABEL, key, turn)
            try:
                if (await self.log.run(run_id)).labels.get(_KEY_LABEL) == key:
                    return run_id
            except RunNotFound:
                return run_id
            except RunGone:
                pass
            turn += 1

    async def _begin_run(
        self, run_id: str, definition: Definition, bound: Bound, started: WorkflowStarted
    ) -> RunHandle:
        await self._put_definition(definition)
        labels = dict(started.labels)
        if started.idempotency_key is not UNSET:
            labels[_KEY_LABEL] = started.idempotency_key
        plan = self._plan(definition.workflow, definition.ir_hash)
        admission = await self._keeper.begin(run_id, plan, bound, [started], labels=labels)
        return RunHandle(self, run_id, admission, created=True)

    async def _put_definition(self, definition: Definition) -> None:
        """Have the graph in the store before a run names it: a commit, which the next runs are spared while
        what was put is safe from being swept away."""
        put_at, now = self._definitions_put.get(definition.ir_hash), time.time()
        if put_at is not None and 0 <= now - put_at < _DEFINITION_KEPT:
            return
        # In its own key order, which a model sees in schemas and inputs; the hash is over the canonical form.
        await self.log.put_definition(definition.ir_hash, msgspec.json.encode(definition.workflow))
        self._definitions_put.pop(definition.ir_hash, None)
        self._definitions_put[definition.ir_hash] = now
        if len(self._definitions_put) > _DEFINITIONS:
            del self._definitions_put[next(iter(self._definitions_put))]

    async def _input_from(self, source: Mapping[str, str], input: Any) -> Any:
        known = ("workflow_id", "step_id", "as")
        if "workflow_id" not in source or any(key not in known for key in source):
            raise ConfigurationError("input_from takes workflow_id, and step_id and as")
        state = await self.state(source["workflow_id"])
        step_id = source.get("step_id")
        if step_id is None:
            if state.status != "completed":
                raise OutputNotReady(f"{source['workflow_id']} is {state.status}, not completed")
            value = state.output
        else:
            if step_id not in state.nodes:
                raise CommandRefused(f'there is no step "{step_id}"', code="step_not_found")
            if state.nodes[step_id].status != "succeeded":
                raise OutputNotReady(f"step {step_id} of {source['workflow_id']} has no output yet")
            value = state.nodes_view[step_id]["output"]
        name = source.get("as")
        if name is not None:
            if input is not None and not isinstance(input, dict):
                raise ConfigurationError("input_from with `as` names one input: give the others by name too")
            others = cast("dict[str, Any]", input or {})
            return {**others, name: value}
        if input is not None:
            raise ConfigurationError("input_from without `as` is the whole input: give no other")
        return value

    def _must_be_priced(self, definition: Definition, bound: Bound, limits: Mapping[str, Any] | None) -> None:
        budgets = [definition.workflow.options.budget, *(n.budget for n in definition.workflow.nodes)]
        limited = any(b is not None and b.max_cost_usd is not None for b in budgets)
        if not limited and (limits or {}).get("max_cost_usd") is None:
            return
        for step, binding in bound.steps.items():
            for ref in binding.models:
                terms = binding.terms.get(ref.name)
                if terms is None or terms.worst_cost(0, 0) is None:
                    message = f'max_cost_usd is set, but the price of {ref.name} (step "{step}") is unknown'
                    details = {"model": ref.name}
                    raise CommandRefused(
                        message, code="budget_unpriced", details=details, hint=_price_hint(ref.name)
                    )

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
            return self._new_id("wf_")
        if not _RUN_ID.fullmatch(wanted):
            raise ConfigurationError(
                f"{wanted!r} is not a run id", hint='write "wf_" and 1 to 64 letters, digits, "_" or "-"'
            )
        return wanted

    def _new_id(self, prefix: str) -> str:
        return self._ids.ulid(prefix)

    async def _exists(self, run_id: str, said: WorkflowStarted) -> bool:
        try:
            first = await self._begin(run_id)
        except RunNotFound:
            return False
        if submission_digest(first) == submission_digest(said):
            return True
        same = first.definition.hash == said.definition.hash and first.input == said.input
        what = "other labels or options, or another budget" if same else "another definition or input"
        raise RunExists(f"{run_id} exists with {what}")

    # -- going on -------------------------------------------------------------------------------

    async def _prepare(self, workflow_id: str, bound: bool, *, trusted: bool = True) -> tuple[Plan, Bound]:
        """Return a stored run's graph, and what it was bound to when it began. Its services are loaded with
        the lower trust of the run, which its first event keeps, and of the caller."""
        begin = await self._begin(workflow_id)
        workflow = await self._graph(begin)
        plan = self._plan(workflow, begin.ir_hash)
        if not bound:
            return plan, Bound()
        options: dict[str, Any] = begin.options
        folder = options.get("folder")
        grants: Any = {} if begin.grants is UNSET else begin.grants
        found = await bind(
            workflow,
            registry=self.registry,
            models=self.models,
            loader=self._workshop.loader,
            folder=Path(folder) if folder else None,
            pins=Pins(options.get("models") or {}, grants),
            implicit=self._implicit,
            trusted=trusted and options.get("trusted", True),
        )
        errors = [d for d in found.diagnostics if d.severity == "error"]
        if errors:
            raise DefinitionError(errors)
        return plan, found

    async def fork(
        self,
        workflow_id: str,
        *,
        offset: int | None = None,
        from_step: str | None = None,
        from_failure: bool = False,
        as_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle:
        """A new run that goes on from a point of another: from an offset of its log (its end, when nothing
        is said), or before a step, or before the steps that failed, and all that comes after them.

        Recorded results are kept and not repeated; the old log stays as it is. The fork is trusted if both
        the caller and the old run are. Raises RunNotFound,
        RunExists, CommandRefused (invalid_parameter, step_not_found, not_failed), DefinitionError.
        """
        if sum((offset is not None, from_step is not None, from_failure)) > 1:
            raise CommandRefused("give one of offset, from_step and from_failure", code="invalid_parameter")
        row = await self.log.run(workflow_id)
        if offset is not None and not 0 <= offset <= row.last_offset:
            message = f"{workflow_id} has offsets 0 to {row.last_offset}"
            raise CommandRefused(message, code="invalid_parameter", details={"last_offset": row.last_offset})
        upto = row.last_offset if offset is None else offset
        begin = await self._begin(workflow_id)
        plan, bound = await self._prepare(workflow_id, True, trusted=trusted)
        source = await self.state(workflow_id, at=upto)
        base = await fork_base(
            self.log, source, plan, offset=upto, from_step=from_step, from_failure=from_failure
        )
        origin = ForkOrigin(workflow_id=workflow_id, offset=upto, from_step=from_step or UNSET)
        kept = begin.labels if labels is None else checked_labels(labels)
        started = msgspec.structs.replace(
            begin,
            forked_from=origin,
            by=by,
            labels=dict(kept),
            options=begin.options if trusted else {**begin.options, "trusted": False},
            idempotency_key=UNSET,
            body_hash=UNSET,
        )
        run_id = self._run_id(as_id)
        async with self._keeper.alone(run_id):
            if as_id is not None and await self._taken(run_id):
                raise RunExists(f"{run_id} exists already")
            admission = await self._keeper.begin(
                run_id, plan, bound, [started, base.saved], base=base.events, labels=dict(kept)
            )
        return RunHandle(self, run_id, admission)

    async def _check_untrusted(self, workflow_id: str) -> None:
        """Raise DefinitionError unless an untrusted client could have submitted this run. Binding is the
        check, as for a submission: what a service needs of this machine shows nowhere else."""
        row = await self.log.run(workflow_id)
        if not row.ended and (await self._begin(workflow_id)).options.get("trusted", True):
            await self._prepare(workflow_id, True, trusted=False)

    async def _taken(self, run_id: str) -> bool:
        try:
            await self.log.run(run_id)
        except RunNotFound:
            return False
        return True

    async def attach(self, workflow_id: str) -> RunHandle:
        """The handle of a run of this store, without going on with it. Raises RunNotFound."""
        if workflow_id not in self._keeper.admissions:
            await self.log.run(workflow_id)
        return self._handle(workflow_id)

    def _handle(self, workflow_id: str) -> RunHandle:
        return RunHandle(self, workflow_id, self._keeper.admissions.get(workflow_id))

    async def rest(self, workflow_id: str, admission: Admission | None = None) -> RunResult:
        """Wait until a run is terminal, paused or waits for a person, and return where it stands.

        `admission`: the one that began it here, which remembers how it ended. A run that another live process
        works on is returned as it stands, and so is one that this Runtime left when it was closed. Raises
        AgentflowError if no process works on a run that has not come to rest.
        """
        try:
            state = await self._keeper.rest(workflow_id, admission)
        except AgentflowError:
            row = await self.log.run(workflow_id)
            if not row.ended:
                raise
            state = None  # what kept it from its end was overcome since
        if state is not None:
            return run_result(state, self.clock.now())
        result = await self.result(workflow_id)
        if result.state in ("pending", "running") and not self._keeper.closed:
            owner = (await self.log.run(workflow_id)).owner
            if owner is not None and owner != self.owner and self.log.is_alive(owner):
                return result
            raise AgentflowError(
                f"{workflow_id} is {result.state}, but no process works on it",
                hint="`resume` takes it up here",
            )
        return result


def _price_hint(model: str) -> str:
    return (
        "state input_price and output_price in US dollars per million tokens: in agentflow.toml below"
        f' [prices."{model}"], or in the model object of the document'
    )
