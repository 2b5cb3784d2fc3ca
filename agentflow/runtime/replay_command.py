"""The command `replay`: a new run of a recorded one, served from its results (page 003 §9)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET

from agentflow.aside import compute_aside, is_small
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.loader import Definition, Submission, check_inputs, definition_of
from agentflow.definition.pipeline_nodes import workspace_of
from agentflow.errors import (
    CommandRefused,
    DefinitionError,
    OffsetTrimmed,
    RunExists,
    RunGone,
    RunNotFound,
)
from agentflow.events.catalogue import ReplayOrigin, SystemStateSaved, WorkflowStarted
from agentflow.events.decoding import decode_page
from agentflow.events.envelope import micros
from agentflow.records.read_model import base_of_fork
from agentflow.runtime.fork import ForkCommand
from agentflow.runtime.submission import json_problem, started_event, with_options

if TYPE_CHECKING:
    from agentflow.engine import BaseEvent, Graph
    from agentflow.engine.effect_replay import Policy, Recording
    from agentflow.executors.callables import Callables
    from agentflow.runtime.bound import Bound, ReplaySource
    from agentflow.runtime.run_handle import RunHandle
    from agentflow.tools.recorded import RecordedTool

__all__ = ["ReplayCommand"]

_POLICIES = ("Always", "Refresh", "Mixed")

_PAGE_EVENTS = 512
_OWN_OPTIONS = ("traceparent", "tracestate", "baggage", "input_from", "on_conflict")
"""Options of the recorded submission that its replay does not take over."""


class ReplayCommand(ForkCommand):
    """All commands of a Runtime."""

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
        """Bind a submission; return what it is bound to, and the event that begins its run."""
        raise NotImplementedError

    async def _recorded_functions(self, begin: WorkflowStarted) -> list[RecordedTool] | None:
        """Return the functions of declared services as a run found them; None if they are not known."""
        raise NotImplementedError

    async def _put_definition(self, definition: Definition) -> None:
        """Store a graph before a run names it."""
        raise NotImplementedError

    async def replay(
        self,
        workflow_id: str,
        policy: Literal["Always", "Refresh", "Mixed"] = "Refresh",
        *,
        input: Any = None,
        definition: Any = None,
        as_id: str | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle:
        """Begin a new run of a recorded one, with its input and its definition unless others are given.

        `Always` serves every model call, function, answer, timer, child run and handler of an executor from
        the record and sends nothing: what is asked differently fails the run with `replay_divergence`, what
        has no complete record with `replay_miss`. `Mixed` serves what is asked equally and executes the rest,
        failures and the handlers of executors among it; `Refresh` executes all.
        Raises RunNotFound, RunGone, OffsetTrimmed, RunExists, CommandRefused (invalid_parameter),
        DefinitionError or StoreError.
        """
        if policy not in _POLICIES:
            message = f"policy {policy!r} is none of {', '.join(_POLICIES)}"
            raise CommandRefused(message, code="invalid_parameter")
        problem = json_problem(input) if is_small(input) else await compute_aside(json_problem, input)
        if problem is not None:
            raise CommandRefused(f"input: {problem}", code="invalid_parameter")
        begin = await self._begin(workflow_id)
        recording = await self._recording(workflow_id)
        origin = ReplayOrigin(workflow_id=workflow_id, policy=policy)
        options = {name: value for name, value in begin.options.items() if name not in _OWN_OPTIONS}
        if policy != "Refresh" and begin.definition.format == "pipeline":
            # The files of its steps are where the recorded run left them.
            workspace = workspace_of(begin.input, workflow_id)
            begin = msgspec.structs.replace(begin, input={**begin.input, "workspace": workspace})
        begin = msgspec.structs.replace(
            begin,
            by=by,
            replay_of=origin,
            options=options if trusted else {**options, "trusted": False},
            idempotency_key=UNSET,
            body_hash=UNSET,
            parent=UNSET,
        )
        more: list[Any] = []
        base: tuple[BaseEvent, ...] = ()
        if definition is None:
            plan, bound = await self._prepare(workflow_id, True, trusted=trusted, served=policy == "Always")
            if input is not None:
                begin = msgspec.structs.replace(begin, input=_checked(plan, input), forked_from=UNSET)
            elif begin.forked_from is not UNSET and recording.saved is not None:
                more, base = [recording.saved], recording.base
        else:
            recorded = await self._recorded_functions(begin) if policy == "Always" else None
            plan, bound, begin = await self._prepare_other(definition, begin, input, trusted, recorded)
        if policy != "Refresh":
            from agentflow.runtime.bound import ReplaySource

            bound.replay = ReplaySource(recording._replace(base=base), policy)
        run_id = self._run_id(as_id)
        async with self._registry.exclusive(run_id):
            if as_id is not None and await self._taken(run_id):
                raise RunExists(f"{run_id} exists already")
            if bound.code is not None:
                self._code.begin(run_id, bound.code)
            if policy != "Always":  # which has those of the record
                begin = await self._with_functions(begin, bound)
            launch = await self._registry.begin(
                run_id, plan, bound, [begin, *more], base=base, labels=dict(begin.labels)
            )
        return self._handle(run_id, launch)

    async def _prepare_other(
        self,
        submission: Submission,
        begin: WorkflowStarted,
        input: Any,
        trusted: bool,
        recorded: Sequence[RecordedTool] | None,
    ) -> tuple[Graph, Bound, WorkflowStarted]:
        """Check and bind the definition that is to run instead of the recorded one."""
        from agentflow.runtime.bound import Bound

        origin = begin.replay_of
        assert origin is not UNSET
        given = begin.input if input is None else input
        definition, value, problems = await self._load_aside(submission, given)
        definition = with_options(definition, begin.options)
        kept = {name: option for name, option in begin.options.items() if name not in ("models", "folder")}
        said = started_event(definition, Bound(), value, begin.labels, kept, [], begin.by)
        said = msgspec.structs.replace(said, budget=begin.budget, replay_of=begin.replay_of)
        code = self._code.of_run(origin.workflow_id, begin)
        bound, started = await self._bound(
            definition, said, problems, trusted=trusted, code=code, recorded=recorded
        )
        await self._put_definition(definition)
        started = msgspec.structs.replace(started, replay_of=begin.replay_of, functions=begin.functions)
        return self._plan(definition.workflow, definition.ir_hash), bound, started

    async def _replay_source(self, begin: WorkflowStarted) -> ReplaySource | None:
        """Return what serves a stored run that goes on; an empty recording if the recorded run is gone."""
        from agentflow.engine.effect_records import EffectFold
        from agentflow.engine.effect_replay import Recording
        from agentflow.runtime.bound import ReplaySource

        origin = begin.replay_of
        if origin is UNSET or origin.policy not in ("Always", "Mixed"):
            return None
        policy: Policy = "Always" if origin.policy == "Always" else "Mixed"
        with suppress(RunNotFound, RunGone, OffsetTrimmed):
            recording = await self._recording(origin.workflow_id)
            base = recording.base if begin.forked_from is not UNSET else ()
            return ReplaySource(recording._replace(base=base), policy)
        plan = self._plan(await self._graph(begin.ir_hash), begin.ir_hash)
        return ReplaySource(Recording(origin.workflow_id, EffectFold(plan, origin.workflow_id)), policy)

    async def _recording(self, workflow_id: str) -> Recording:
        """Return the effects of a run, read from its log."""
        begin = await self._begin(workflow_id)
        plan = self._plan(await self._graph(begin.ir_hash), begin.ir_hash)
        from agentflow.engine.effect_records import EffectFold
        from agentflow.engine.effect_replay import Recording
        from agentflow.runtime.log_replay import decode_base

        effects, base, saved = EffectFold(plan, workflow_id), (), None
        offset = 0
        while rows := await self.log.read(workflow_id, offset, _PAGE_EVENTS):
            for event in await decode_page(rows):
                data = event.data
                if isinstance(data, SystemStateSaved) and data.kind == "fork_base":
                    base = tuple(decode_base(await base_of_fork(self.log, data.ref)))
                    effects.base, saved = base, data
                effects.take(data, event.offset, micros(event.timestamp))
            offset = rows[-1].offset + 1
        return Recording(workflow_id, effects, base, saved)


def _checked(plan: Graph, value: Any) -> Any:
    """Return another input for a recorded graph. Raises DefinitionError if it does not fit."""
    if not plan.workflow.inputs:
        return value
    found, problems = check_inputs(definition_of(plan.workflow), value)
    if any(problem.severity == "error" for problem in problems):
        raise DefinitionError(problems)
    return found
