"""The command `fork`: a new run that goes on from a point of another one (page 000 §8).

It begins with the part of the old run's log that it keeps, which is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.aside import compute_aside, free_in_slices, is_small
from agentflow.definition.diagnostics import Diagnostic, or_which, sort_diagnostics
from agentflow.definition.loader import Definition, Submission
from agentflow.errors import CommandRefused, DefinitionError, RunExists, RunNotFound
from agentflow.events.catalogue import ForkOrigin, SystemStateSaved, WorkflowStarted
from agentflow.events.envelope import decode, encode
from agentflow.events.fork_base import encode_base
from agentflow.events.log import EventLog
from agentflow.records.pipeline import REQUESTER_LABEL, requester_of
from agentflow.runtime.other_definition import check_results, check_same_graph
from agentflow.runtime.recovery import RecoveryCommands
from agentflow.runtime.submission import FORMAT_LABEL, checked_labels, started_event
from agentflow.runtime.workflow_code import CodeTable, WorkflowWithCode

if TYPE_CHECKING:
    from agentflow.engine import BaseEvent, Graph
    from agentflow.executors.callables import Callables
    from agentflow.runtime.bound import Bound
    from agentflow.runtime.fork_source import ForkSource
    from agentflow.runtime.run_handle import RunHandle
    from agentflow.runtime.workflow_code import CodeTable

__all__ = ["ForkBase", "ForkCommand", "fork_base"]


class ForkBase(NamedTuple):
    """The events that a fork begins with, and the event that names them."""

    events: list[BaseEvent]
    saved: SystemStateSaved


async def fork_base(
    log: EventLog,
    source: ForkSource,
    plan: Graph,
    *,
    run_id: str,
    from_step: str | None = None,
    from_failure: bool = False,
    outputs: Mapping[str, Any] | None = None,
) -> ForkBase:
    """Store the base of the fork `run_id` of `source`, all of it or what is before a step (or the failed
    steps, if `source` is folded) and all that follows. `outputs` stand in place of those of steps that have
    ended. The events of `source` are gone then.

    Raises CommandRefused if there is no such step or failure.
    """
    from agentflow.engine import base_of

    if from_failure and source.state is not None and source.state.pipeline is not None:
        from agentflow.engine.request_forks import base_of_request

        indexes = base_of_request(source.state, source.events)
        if indexes is None:
            raise CommandRefused(f"no step of {source.workflow_id} has failed", code="not_failed")
    else:
        cut = _cut(source, plan, from_step, from_failure)
        indexes = await source.compute(base_of, source.events, cut)
    kept, blob, values = await source.compute(_assemble, source, indexes, run_id, outputs or {})
    for value in values:
        await log.put_blob(value)
    ref = await log.put_blob(blob)
    saved = SystemStateSaved(
        kind="fork_base",
        covers=source.offset,
        ref=ref,
        schema_version=1,
        size=len(blob),
        sha256=ref.removeprefix("sha256:"),
    )
    return ForkBase(kept, saved)


def _assemble(
    source: ForkSource, indexes: Sequence[int], run_id: str, edited: Mapping[str, Any]
) -> tuple[list[BaseEvent], bytes, list[bytes]]:
    """Return the events that a fork keeps, their blob, and the blobs that it names. Frees the source."""
    from agentflow.engine.replay import asked_by_message, rewritten

    events, bodies = source.events, source.bodies
    asked = asked_by_message(events)
    kept: list[BaseEvent] = []
    lines: list[tuple[str, bytes]] = []
    for index in indexes:
        event, body = events[index], bodies[index]
        if asked or edited:
            data = rewritten(event.data, run_id, asked, edited)
            if data is not event.data:
                event = event._replace(data=data)
                body = encode(msgspec.structs.replace(decode(body), data=data))
        kept.append(event)
        lines.append((event.data.event_type, body))
    blob, values = encode_base(lines)
    source.free()
    return kept, blob, values


def _cut(source: ForkSource, plan: Graph, from_step: str | None, from_failure: bool) -> frozenset[str]:
    """Return the steps that a fork begins anew. Raises CommandRefused."""
    from agentflow.engine import cut_of

    steps: list[str] = []
    if from_step is not None:
        steps.append(from_step)
    elif from_failure:
        steps += () if source.state is None else source.state.failed_steps
        if not steps:
            raise CommandRefused(f"no step of {source.workflow_id} has failed", code="not_failed")
    if not steps:
        return frozenset()
    try:
        return cut_of(plan, steps)
    except KeyError:
        which = or_which(from_step or "", plan.step_ids)
        raise CommandRefused(f'there is no step "{from_step}"{which}', code="step_not_found") from None


def _forked(
    begin: WorkflowStarted,
    origin: ForkOrigin,
    by: str,
    labels: Mapping[str, str],
    edits: dict[str, Any] | UnsetType,
) -> WorkflowStarted:
    """Return the first event of a fork of the run that began with `begin`. It queues for the concurrency key
    of that run, because forking leaves other runs as they are."""
    return msgspec.structs.replace(
        begin,
        input=begin.input if edits is UNSET else edits.get("input", begin.input),
        options={name: value for name, value in begin.options.items() if name != "on_conflict"},
        forked_from=origin,
        by=by,
        labels=dict(labels),
        edits=edits,
        state_from=UNSET,
        idempotency_key=UNSET,
        body_hash=UNSET,
    )


class ForkCommand(RecoveryCommands):
    """All commands of a Runtime."""

    _code: CodeTable

    async def _prepare(
        self, workflow_id: str, bound: bool, *, trusted: bool = True, served: bool = False
    ) -> tuple[Graph, Bound]:
        """Return a stored run's graph, and what it was bound to when it began."""
        raise NotImplementedError

    def _run_id(self, wanted: str | None) -> str:
        """Return the id of a new run. Raises ConfigurationError if `wanted` is no id."""
        raise NotImplementedError

    async def _with_functions(self, started: WorkflowStarted, bound: Bound) -> WorkflowStarted:
        """Return the first event of a run with what the declared services of its document offer."""
        raise NotImplementedError

    async def _load_aside(
        self, submission: Submission | WorkflowWithCode, input: Any
    ) -> tuple[Definition, Any, list[Diagnostic]]:
        """Load a submission with the registered agents that it names."""
        raise NotImplementedError

    async def fork(
        self,
        workflow_id: str,
        *,
        offset: int | None = None,
        from_step: str | None = None,
        from_failure: bool = False,
        as_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        edits: Mapping[str, Any] | None = None,
        definition: Any = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle:
        """Begin a new run that goes on from a point of another: from an offset of its log (by default its
        end), or before a step, or before the steps that failed, and all that comes after them.

        `edits` are JSON in place of what was there: `input` (before a step has begun), `outputs` of steps
        that are kept, by id, `shared` values by key, `state` of executors by node and key, and `messages`
        that wait, by node. `definition`: what `submit` takes, in place of the definition of the old run: it
        must have the same steps and edges; prompts, models, limits and code may be others.

        Recorded results are kept and not repeated; the old log stays as it is. The fork is trusted if both
        the caller and the old run are. Raises RunNotFound,
        RunExists, CommandRefused (invalid_parameter, step_not_found, not_failed), InvalidEdit,
        GraphSignatureMismatch and DefinitionError.
        """
        if sum((offset is not None, from_step is not None, from_failure)) > 1:
            raise CommandRefused("give one of offset, from_step and from_failure", code="invalid_parameter")
        upto = await self._fork_offset(workflow_id, offset)
        folded = from_failure or edits is not None or definition is not None
        source = await self.fork_source(workflow_id, upto, folded=folded)
        begin, state = source.begin, source.state
        if definition is None:
            plan, bound = await self._prepare(workflow_id, True, trusted=trusted)
        else:
            trusted = trusted and bool(begin.options.get("trusted", True))
            plan, bound, begin = await self._bind_definition(
                workflow_id, begin, definition, check_input=not (edits and "input" in edits), trusted=trusted
            )
            assert state is not None
            cut = _cut(source, plan, from_step, from_failure)
            check_results(workflow_id, state, cut, plan.workflow)
        changed: dict[str, Any] = {}
        if edits is not None:
            from agentflow.runtime.fork_edits import checked_edits

            assert state is not None
            cut = _cut(source, plan, from_step, from_failure)
            check = partial(checked_edits, edits, state, begin, cut, bound.code)
            changed = check() if is_small(edits) else await compute_aside(check)
        run_id = self._run_id(as_id)
        base = await fork_base(
            self.log,
            source,
            plan,
            run_id=run_id,
            from_step=from_step,
            from_failure=from_failure,
            outputs=changed.get("outputs"),
        )
        origin = ForkOrigin(workflow_id=workflow_id, offset=upto, from_step=from_step or UNSET)
        kept = begin.labels if labels is None else checked_labels(labels)
        started = _forked(begin, origin, by, kept, changed or UNSET)
        if state is not None and state.pipeline is not None:
            # The files of its steps are where the old run left them.
            workspace = state.pipeline.workspace(workflow_id)
            started = msgspec.structs.replace(started, input={**started.input, "workspace": workspace})
        if not trusted:
            started = msgspec.structs.replace(started, options={**started.options, "trusted": False})
        return await self._begin_fork(run_id, plan, bound, started, base, chosen=as_id is not None)

    async def fork_source(self, workflow_id: str, offset: int, *, folded: bool = False) -> ForkSource:
        """Read a run up to offset `offset`, for a fork that goes on from there; with its state if `folded` or
        if it is a request.

        Raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt.
        """
        from agentflow.runtime.fork_source import ForkSource

        source = await ForkSource.read(self.log, workflow_id, offset)
        begin = source.begin
        if folded or begin.definition.format == "pipeline":
            await source.fold(self._plan(await self._graph(begin.ir_hash), begin.ir_hash))
        return source

    async def _fork_offset(self, workflow_id: str, offset: int | None) -> int:
        """Return where a fork begins: without an offset at the end. Raises RunNotFound or CommandRefused."""
        last = (await self.log.run(workflow_id)).last_offset
        if offset is not None and not 0 <= offset <= last:
            message = f"{workflow_id} has offsets 0 to {last}"
            raise CommandRefused(message, code="invalid_parameter", details={"last_offset": last})
        return last if offset is None else offset

    async def _bind_definition(
        self, workflow_id: str, begin: WorkflowStarted, submission: Any, *, check_input: bool, trusted: bool
    ) -> tuple[Graph, Bound, WorkflowStarted]:
        """Return what a fork with another definition is bound to, and the first event that names it.

        Raises GraphSignatureMismatch and DefinitionError.
        """
        from agentflow.definition.loader import check_inputs

        code = self._code.add(submission) if isinstance(submission, WorkflowWithCode) else None
        definition, _, _ = await self._load_aside(submission, UNSET)
        check_same_graph(workflow_id, await self._graph(begin.ir_hash), definition.workflow)
        if code is None:
            code = self._code.find(definition.name, definition.ir_hash, definition.hash)
        bound = await self.bind(definition, trusted=trusted, code=code)
        found = [*definition.warnings, *bound.diagnostics]
        if check_input and "input_type" not in begin.options:
            found += check_inputs(definition, begin.input)[1]
        if any(one.severity == "error" for one in found):
            raise DefinitionError(sort_diagnostics(found))
        await self._put_definition(definition)
        kept = {name: value for name, value in begin.options.items() if name not in ("models", "folder")}
        said = started_event(definition, bound, begin.input, begin.labels, kept, found, begin.by)
        begin = msgspec.structs.replace(
            begin,
            definition=said.definition,
            ir_hash=said.ir_hash,
            source=said.source,
            options=said.options,
            grants=said.grants,
            diagnostics=said.diagnostics,
        )
        return self._plan(definition.workflow, definition.ir_hash), bound, begin

    async def fork_graph(
        self,
        source: ForkSource,
        definition: Definition,
        *,
        as_id: str | None = None,
        edits: Mapping[str, Any] | None = None,
        input_type: str | None = None,
        by: str = "local",
    ) -> RunHandle:
        """Begin a run of a graph with an equal signature that goes on from `source`.

        `edits` are checked and encoded: `input` (of the type `input_type`), `shared`, `state`, `messages` and
        `outputs` (page 002 §9). Raises as `fork`.
        """
        given = dict(edits or {})
        begin, origin = source.begin, ForkOrigin(workflow_id=source.workflow_id, offset=source.offset)
        bound = await self.bind(definition)
        errors = [d for d in bound.diagnostics if d.severity == "error"]
        if errors:
            raise DefinitionError(errors)
        plan = self._plan(definition.workflow, definition.ir_hash)
        await self._put_definition(definition)
        run_id = self._run_id(as_id)
        base = await fork_base(self.log, source, plan, run_id=run_id, outputs=given.get("outputs"))
        started = _forked(begin, origin, by, begin.labels, given or UNSET)
        if "input" in given:
            options = {**begin.options, "input_type": input_type}
            started = msgspec.structs.replace(started, options=options)
        if definition.ir_hash != begin.ir_hash:
            said = started_event(definition, bound, started.input, started.labels, {}, [], by)
            started = msgspec.structs.replace(
                started, definition=said.definition, ir_hash=definition.ir_hash, source=definition.source
            )
        return await self._begin_fork(run_id, plan, bound, started, base, chosen=as_id is not None)

    async def _begin_fork(
        self,
        run_id: str,
        plan: Graph,
        bound: Bound,
        started: WorkflowStarted,
        base: ForkBase,
        *,
        chosen: bool,
    ) -> RunHandle:
        from agentflow.runtime.log_replay import LONG_BASE

        started = await self._with_functions(started, bound)
        labels = dict(started.labels)
        if started.definition.format == "pipeline":
            labels[FORMAT_LABEL] = "pipeline"
            labels[REQUESTER_LABEL] = requester_of(started.by)
        async with self._registry.exclusive(run_id):
            if chosen and await self._taken(run_id):
                raise RunExists(f"{run_id} exists already")
            if bound.code is not None:
                self._code.begin(run_id, bound.code)
            launch = await self._registry.begin(
                run_id, plan, bound, [started, base.saved], base=base.events, labels=labels
            )
        if len(base.events) > LONG_BASE:
            await compute_aside(free_in_slices, base.events)
        return self._handle(run_id, launch)

    async def bind(
        self, definition: Definition, *, trusted: bool = True, code: Callables | None = None
    ) -> Bound:
        """Resolve models and functions."""
        raise NotImplementedError

    async def _put_definition(self, definition: Definition) -> None:
        """Store a graph before a run names it."""
        raise NotImplementedError

    async def _taken(self, run_id: str) -> bool:
        try:
            await self.log.run(run_id)
        except RunNotFound:
            return False
        return True
