"""The command `submit`, and what stands on it: `run` and `validate` (page 000 §2).

A submission is checked whole before anything is written; `workflow.started` is its first effect.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec import UNSET

from agentflow.definition.diagnostics import Diagnostic, or_which, sort_diagnostics
from agentflow.definition.ir import AgentSpec, ir_hash
from agentflow.definition.loader import Definition, Submission
from agentflow.definition.registered_agents import with_agents
from agentflow.errors import (
    CommandRefused,
    ConfigurationError,
    DefinitionError,
    IdempotencyConflict,
    OutputNotReady,
    RunExists,
    RunGone,
    RunNotFound,
)
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import Ids
from agentflow.events.tracing import submitter_options
from agentflow.executors.callables import Callables
from agentflow.records.answers import Validation
from agentflow.records.pipeline import REQUESTER_LABEL, requester_of
from agentflow.records.runs import RunResult, T
from agentflow.runtime.run_handle import RunHandle
from agentflow.runtime.run_results import RunResults
from agentflow.runtime.submission import (
    FORMAT_LABEL,
    body_hash,
    checked_budget,
    checked_labels,
    checked_options,
    is_repeat,
    load,
    load_aside,
    opening_events,
    started_event,
    submission_digest,
    with_deadline,
    with_options,
)
from agentflow.runtime.workflow_code import CodeTable, WorkflowWithCode, encode_input
from agentflow.typed_output import check_output_type

if TYPE_CHECKING:
    from agentflow.runtime.bound import Bound, Pins
    from agentflow.tools.recorded import RecordedTool

__all__ = ["SubmitCommand"]

_RUN_ID = re.compile(r"wf_[A-Za-z0-9_-]{1,64}")


def is_run_id(text: str) -> bool:
    """Return whether a text may be the id of a run."""
    return _RUN_ID.fullmatch(text) is not None


_MAX_DEFINITIONS = 1_024
_DEFINITION_FRESH_S = 60.0
"""Seconds; far less than a sweep leaves to a process that has put a definition and is about to name it."""
_KEY_LABEL = "agentflow.idempotency_key"


class _Checked(NamedTuple):
    """A submission whose document and input are right: its first event as far as it is known before binding,
    and the binding itself, which raises DefinitionError."""

    definition: Definition
    said: WorkflowStarted
    bind: Callable[[], Awaitable[tuple[Bound, WorkflowStarted]]]


class SubmitCommand(RunResults):
    """The half of a Runtime that begins runs."""

    _ids: Ids

    def __init__(self) -> None:
        super().__init__()
        self._code = CodeTable()
        self._agents: dict[str, AgentSpec] = {}
        """By name: the agents that nodes may name."""
        self._definitions_put: dict[str, float] = {}  # seconds of the clock that the store stamps them with

    async def bind(
        self,
        definition: Definition,
        pins: Pins | None = None,
        *,
        trusted: bool = True,
        code: Callables | None = None,
        recorded: Sequence[RecordedTool] | None = None,
    ) -> Bound:
        """Resolve models and functions."""
        raise NotImplementedError

    async def _other_definition(self, workflow_id: str) -> str | None:
        return self._code.other_definition(workflow_id, await self._begin(workflow_id))

    async def _load_aside(
        self, submission: Submission | WorkflowWithCode, input: Any
    ) -> tuple[Definition, Any, list[Diagnostic]]:
        """Load a submission with the registered agents that it names: see `load_aside`."""
        definition, value, problems = await load_aside(submission, input)
        workflow = with_agents(definition.workflow, self._agents)
        if workflow is not definition.workflow:
            definition = msgspec.structs.replace(definition, workflow=workflow, ir_hash=ir_hash(workflow))
        return definition, value, problems

    def inject(self, workflow_id: str, code: Callables) -> None:
        """Let a run, and those that are forked or replayed from it, go on with these handlers and executors.

        They take effect the next time that the run is taken up.
        """
        known = self._code.of_run(workflow_id)
        self._code.begin(workflow_id, code if known is None else code.injected(known) or code)

    def load(self, submission: Submission) -> Definition:
        """Return the definition of a submission. Raises DefinitionError with every diagnostic."""
        return load(submission)

    async def submit(
        self,
        submission: Submission | WorkflowWithCode,
        input: Any = None,
        *,
        workflow_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        input_from: Mapping[str, str] | None = None,
        state_from: str | None = None,
        idempotency_key: str | None = None,
        asked: Any = None,
        output_type: type[T] | None = None,
        by: str = "local",
        trusted: bool = True,
        code: Callables | None = None,
    ) -> RunHandle[T]:
        """Check, bind and begin a run; returns once `workflow.started` is durable.

        `options`: `on_failure` halt|continue|hold, `on_unknown` ask|fail, `max_parallel`,
        `concurrency_key`, `on_conflict` queue|reject|cancel_previous, `traceparent`, `tracestate`, `baggage`,
        and those of `definition.run_options`, among them `deadline`, a duration as "90s", and `retry`. Of
        the runs of one `concurrency_key` the oldest is at work until it has ended; the others stay pending,
        are rejected, or cancel those before them. Submitted inside an active span of the application, or
        inside a call of another run, the run is a part of that
        trace unless `traceparent` is given, or None. `budget`: limits beside those
        of the document. `input_from` {workflow_id,
        step_id?, as?}: the output of another run, or of one of its steps, as the input, or as the named one
        of its inputs. `state_from`: a checkpoint `<workflow_id>@<offset>` whose private and shared state the
        run begins with. A repeated
        `workflow_id` or `idempotency_key` with the same submission gives the existing run. `asked`: what a
        caller said of which this submission was made, a JSON value: repeats are told by it instead, see
        `find_repeat`. Not `trusted`: it
        comes from a caller that may not run code here, now or after a restart. `output_type`: see `result`.
        `code`: worker handlers and executors of this run alone; a run that goes on in another process needs
        them again.

        Raises DefinitionError (nothing was written), RunExists, IdempotencyConflict, OutputNotReady,
        ConcurrencyRejected, CheckpointNotFound, InvalidEdit, QueueFull, StoreError, ConfigurationError.
        """
        from agentflow.runtime.bound import Bound

        self._fork_guard.check()
        if output_type is not None:
            check_output_type(output_type)
        given = dict(options or {})
        if "traceparent" not in given:
            given |= submitter_options()
        kept = checked_options(given)
        limits = with_deadline(checked_budget(budget), kept)
        if not trusted:
            kept["trusted"] = False
        if input_from is not None:
            input = await self._input_from(input_from, input)
            kept["input_from"] = dict(input_from)
        if not isinstance(submission, Definition) and isinstance(submission, WorkflowWithCode):
            own = self._code.add(submission)
            input, kept["input_type"] = encode_input(own, input)
            code = own if code is None else code.injected(own)
        definition, value, problems = await self._load_aside(submission, input)
        definition = with_options(definition, kept)
        said = started_event(definition, Bound(), value, checked_labels(labels), kept, [], by)
        if limits is not None:
            said = msgspec.structs.replace(said, budget=limits)
        if asked is not None and (idempotency_key is not None or workflow_id is not None):
            said = msgspec.structs.replace(said, body_hash=body_hash(asked))
        if state_from is not None:
            carried = await self._state_from(state_from, definition, code)
            said = msgspec.structs.replace(said, state_from=state_from, edits=carried)

        async def bound() -> tuple[Bound, WorkflowStarted]:
            return await self._bound(definition, said, problems, trusted=trusted, code=code)

        if any(d.severity == "error" for d in problems):
            await bound()  # raises all there is to say
        handle = await self._begin_checked(_Checked(definition, said, bound), workflow_id, idempotency_key)
        return handle if output_type is None else handle.typed(output_type)

    async def find_repeat(
        self, asked: Any, *, workflow_id: str | None = None, idempotency_key: str | None = None
    ) -> RunHandle | None:
        """Return the run that `submit` began with this `asked` under the key or the id; None without one.

        Who makes submissions of what callers say asks this first, because what it makes of the same words may
        change. Raises IdempotencyConflict and RunExists if it was begun with something else.
        """
        digest = body_hash(asked)
        if idempotency_key is not None:
            rows = (await self.log.runs(label=(_KEY_LABEL, idempotency_key), limit=1)).items
            if not rows:
                return None
            run_id = rows[0].workflow_id
            if (await self._begin(run_id)).body_hash != digest:
                raise IdempotencyConflict(f"the key was used for {run_id} with another submission")
            return await self.attach(run_id)
        if workflow_id is None:
            return None
        try:
            first = await self._begin(self._run_id(workflow_id))
        except RunNotFound:
            return None
        if first.body_hash != digest:
            raise RunExists(f"{workflow_id} exists with another submission")
        return await self.attach(workflow_id)

    async def _bound(
        self,
        definition: Definition,
        said: WorkflowStarted,
        problems: list[Diagnostic],
        *,
        trusted: bool,
        code: Callables | None = None,
        recorded: Sequence[RecordedTool] | None = None,
    ) -> tuple[Bound, WorkflowStarted]:
        """Bind a submission that is new; return what it is bound to, and the event that begins its run."""
        bound = await self.bind(definition, trusted=trusted, code=code, recorded=recorded)
        found = sort_diagnostics([*definition.warnings, *bound.diagnostics, *problems])
        if any(d.severity == "error" for d in found):
            raise DefinitionError(found)
        limits = None if said.budget is UNSET else said.budget
        self._must_be_priced(definition, bound, limits)
        started = started_event(definition, bound, said.input, said.labels, said.options, found, said.by)
        kept = {"state_from": said.state_from, "edits": said.edits, "body_hash": said.body_hash}
        if limits is not None:
            kept["budget"] = limits
        return bound, msgspec.structs.replace(started, **kept)

    async def _begin_checked(
        self, checked: _Checked, workflow_id: str | None, idempotency_key: str | None
    ) -> RunHandle:
        definition, said, bound = checked
        run_id = self._run_id(workflow_id)
        if idempotency_key is not None:
            own_id = None if workflow_id is None else run_id
            return await self._begin_once(own_id, checked, idempotency_key)
        if workflow_id is None:
            return await self._begin_run(run_id, definition, *await bound())
        async with self._registry.exclusive(run_id):
            if await self._exists(run_id, said):
                return await self.attach(run_id)
            try:
                return await self._begin_run(run_id, definition, *await bound())
            except RunExists:  # another process began it just now
                if await self._exists(run_id, said):
                    return await self.attach(run_id)
                raise

    async def _begin_once(self, own_id: str | None, checked: _Checked, key: str) -> RunHandle:
        """Begin the run of an idempotency key, or find it. A repeat is not bound, so that it succeeds while a
        service is down or its sender may not use it."""
        async with self._registry.exclusive(f"key {key}"), self._registry.exclusive(own_id or f"id of {key}"):
            rows = (await self.log.runs(label=(_KEY_LABEL, key), limit=1)).items
            if rows:
                return await self._repeated(rows[0].workflow_id, checked.said)
            bound, started = await checked.bind()
            digest = submission_digest(started)
            started = msgspec.structs.replace(started, idempotency_key=key, body_hash=digest)
            run_id = own_id or await self._id_of_key(key)
            try:
                return await self._begin_run(run_id, checked.definition, bound, started)
            except RunExists:  # another process began it just now; of two the store takes one
                if (await self._begin(run_id)).idempotency_key != key:
                    raise
                return await self._repeated(run_id, started)

    async def _repeated(self, run_id: str, started: WorkflowStarted) -> RunHandle:
        if not is_repeat(started, await self._begin(run_id)):
            raise IdempotencyConflict(f"the key was used for {run_id} with another submission")
        return await self.attach(run_id)

    async def _id_of_key(self, key: str) -> str:
        """Return the id that every process gives to a new run with this key: the first derived from it that
        belongs to no deleted run, and to no run that was submitted with this id."""
        from agentflow.engine.ids import named

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
        started = await self._with_functions(started, bound)
        labels = dict(started.labels)
        if started.idempotency_key is not UNSET:
            labels[_KEY_LABEL] = started.idempotency_key
        if started.definition.format == "pipeline":
            labels[FORMAT_LABEL] = "pipeline"
            labels[REQUESTER_LABEL] = requester_of(started.by)
        plan = self._plan(definition.workflow, definition.ir_hash)
        if bound.code is not None:
            self._code.begin(run_id, bound.code)
        first = [started, *opening_events(started)]
        launch = await self._registry.begin(run_id, plan, bound, first, labels=labels)
        return RunHandle(self, run_id, launch, created=True)

    async def _put_definition(self, definition: Definition) -> None:
        """Store the graph before a run names it."""
        if not self._is_kept(definition.ir_hash):
            # In its own key order, which a model sees in schemas and inputs; the hash is over the canonical
            # form.
            await self.log.put_definition(definition.ir_hash, msgspec.json.encode(definition.workflow))
            self._note_kept(definition.ir_hash)

    async def _with_functions(self, started: WorkflowStarted, bound: Bound) -> WorkflowStarted:
        if not bound.declared:
            return started
        from agentflow.tools.recorded import tools_to_record

        body = tools_to_record(bound.declared)
        name = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if not self._is_kept(name):
            await self.log.put_blob(body)
            self._note_kept(name)
        return msgspec.structs.replace(started, functions={"$blob": name})

    def _is_kept(self, name: str) -> bool:
        """Return whether a definition or a blob was put in the last 60 s, in which no sweep removes it."""
        put_at = self._definitions_put.get(name)
        return put_at is not None and 0 <= time.time() - put_at < _DEFINITION_FRESH_S

    def _note_kept(self, name: str) -> None:
        self._definitions_put.pop(name, None)
        self._definitions_put[name] = time.time()
        if len(self._definitions_put) > _MAX_DEFINITIONS:
            del self._definitions_put[next(iter(self._definitions_put))]

    async def _input_from(self, source: Mapping[str, str], input: Any) -> Any:
        known = ("workflow_id", "step_id", "as")
        if "workflow_id" not in source or any(key not in known for key in source):
            raise ConfigurationError("input_from takes workflow_id, and step_id and as")
        state = await self.fold(source["workflow_id"])
        step_id = source.get("step_id")
        if step_id is None:
            if state.status != "completed":
                raise OutputNotReady(f"{source['workflow_id']} is {state.status}, not completed")
            value = state.output
        else:
            if step_id not in state.nodes:
                which = or_which(step_id, state.graph.step_ids)
                raise CommandRefused(f'there is no step "{step_id}"{which}', code="step_not_found")
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

    async def _state_from(self, id: str, definition: Definition, code: Callables | None) -> dict[str, Any]:
        """Return what a new run takes over from a checkpoint. Raises CheckpointNotFound or InvalidEdit."""
        from agentflow.records.checkpoint_storage import found_checkpoint
        from agentflow.runtime.state_from import carried_state

        source_id, offset = await found_checkpoint(self.log, id)
        return carried_state(await self.fold(source_id, at=offset), definition.workflow, code, id)

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
        submission: Submission | WorkflowWithCode,
        input: Any = None,
        *,
        raise_on_failure: bool = True,
        output_type: type[T] | None = None,
        **more: Any,
    ) -> RunResult[T]:
        """Submit and wait: `submit`, which takes `more`, and `result` of its handle."""
        handle = await self.submit(submission, input, output_type=output_type, **more)
        return await handle.result(raise_on_failure=raise_on_failure)

    async def validate(self, submission: Submission | WorkflowWithCode, input: Any = UNSET) -> Validation:
        """Return all that is wrong with a submission, without making a run; with `input` that is checked too.

        Opens the services that the submission declares, as `submit` does.
        """
        code: Callables | None = None
        if isinstance(submission, WorkflowWithCode):
            code = self._code.add(submission)
            input = UNSET if input is UNSET else encode_input(code, input)[0]
        try:
            definition, _, problems = await self._load_aside(submission, input)
        except DefinitionError as error:
            return Validation(valid=False, diagnostics=error.diagnostics, ir_hash=None)
        bound = await self.bind(definition, code=code)
        found = sort_diagnostics([*definition.warnings, *bound.diagnostics, *problems])
        valid = not any(d.severity == "error" for d in found)
        return Validation(valid=valid, diagnostics=found, ir_hash=definition.ir_hash)

    def _run_id(self, wanted: str | None) -> str:
        if wanted is None:
            return self._new_id("wf_")
        if not is_run_id(wanted):
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
        if submission_digest(first) == submission_digest(said) or is_repeat(said, first):
            return True
        same = first.definition.hash == said.definition.hash and first.input == said.input
        what = "other labels or options, or another budget" if same else "another definition or input"
        raise RunExists(f"{run_id} exists with {what}")


def _price_hint(model: str) -> str:
    return (
        "state input_price and output_price in US dollars per million tokens: in agentflow.toml below"
        f' [prices."{model}"], or in the model object of the document'
    )
