"""Handles of runs, and waiting for their results, whichever process works on them (page 002 §16)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

from agentflow.errors import AgentflowError, OffsetTrimmed
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog
from agentflow.events.owner import Owner
from agentflow.events.rows import RunRow
from agentflow.executors.callables import NO_CALLABLES
from agentflow.executors.payloads import Payloads
from agentflow.records.graph_results import gives_outputs
from agentflow.records.requests import request_record
from agentflow.records.runs import RunResult, StepSummary, T, raise_for_failure
from agentflow.runtime.replay_command import ReplayCommand
from agentflow.runtime.run_handle import RunHandle
from agentflow.runtime.run_launch import RunLaunch
from agentflow.runtime.workflow_code import CodeTable
from agentflow.typed_output import check_output_type, typed_result

if TYPE_CHECKING:
    from agentflow.engine.state import RunState

__all__ = ["MOVING", "RunResults", "abandoned", "follow_to_rest", "live_result"]

MOVING: Final = ("pending", "running")
"""States in which a process should be working on a run."""
_RESTS: Final = (
    "workflow.completed",
    "workflow.failed",
    "workflow.cancelled",
    "workflow.paused",
    "workflow.waiting",
)
_LOOK_INTERVAL_S: Final = 1.0


async def follow_to_rest(log: EventLog, hub: Hub, workflow_id: str, me: Owner) -> None:
    """Return once the run is terminal, paused or waiting, or is owned by `me`.

    Events of the other process show the rest within the hub's poll interval; its death is seen within 1 s.
    Raises AgentflowError if no process works on the run.
    """
    row = await log.run(workflow_id)
    while row.state in MOVING and row.owner != me:
        if row.owner is None or not log.is_alive(row.owner):
            # It may have come to rest, and been released, between the look at the row and at the owner.
            again = await log.run(workflow_id)
            if again.state in MOVING and again.owner == row.owner:
                raise abandoned(again)
            row = again
            continue
        await _next_rest(hub, workflow_id, row.last_offset)
        row = await log.run(workflow_id)


def abandoned(row: RunRow) -> AgentflowError:
    """Return the error for a run that should be at work, but is not."""
    return AgentflowError(
        f"{row.workflow_id} is {row.state}, but no process works on it",
        hint="`resume` takes it up here; `recover` takes up all runs of the store",
    )


async def _next_rest(hub: Hub, workflow_id: str, after: int) -> None:
    """Wait for the next event with which a run rests, for at most 1 s."""
    try:
        async with (
            asyncio.timeout(_LOOK_INTERVAL_S),
            aclosing(hub.batches(workflow_id, after, types=_RESTS)) as batches,
        ):
            async for _ in batches:
                return
    except TimeoutError:
        return


def live_result(state: RunState, last: int) -> RunResult:
    """Return the result of a run whose last event was written at `last` (µs), without reading its log."""
    end = state.ended if state.ended is not None else last
    steps = ((step_id, state.nodes[step_id]) for step_id in state.step_ids())
    asked = () if state.terminal else state.requests.values()
    return RunResult(
        workflow_id=state.workflow_id,
        state=state.status,
        output=state.output,
        steps={step_id: StepSummary(state=node.status, attempt=node.attempt) for step_id, node in steps},
        usage=state.usage,
        duration_ms=max(0, end - state.started_at) // 1000,
        error=state.error,
        pause=state.pause,
        pending_requests=tuple(request_record(state.workflow_id, r.data, r.offset, r.ts) for r in asked),
    )


class RunResults(ReplayCommand):
    """The half of a Runtime that waits for runs."""

    owner: Owner
    _code: CodeTable

    async def attach(self, workflow_id: str, *, output_type: type[T] | None = None) -> RunHandle[T]:
        """Return the handle of a run of this store, without going on with it. Raises RunNotFound."""
        if output_type is not None:
            check_output_type(output_type)
        if workflow_id not in self._registry.launches:
            await self.log.run(workflow_id)
        launch = self._registry.launches.get(workflow_id)
        return RunHandle(self, workflow_id, launch, output_type=output_type)

    def _handle(self, workflow_id: str, launch: RunLaunch | None = None) -> RunHandle:
        return RunHandle(self, workflow_id, launch or self._registry.launches.get(workflow_id))

    async def result(
        self, workflow_id: str, *, raise_on_failure: bool = True, output_type: type[T] | None = None
    ) -> RunResult[T]:
        """Wait until a run rests, whichever process works on it, and return its result (page 002 §16).

        A run that is paused, or that only a person, a timer or a signal moves on, rests: it is returned with
        its open requests. That of a graph is returned with its outputs, events and the rest of page 002 §12,
        as values of the types that are registered here. `output_type` (a msgspec Struct, dataclass,
        TypedDict, pydantic model, or a list or dict of them) converts and checks the output of a completed
        run.

        Raises WorkflowFailed or WorkflowCancelled unless `raise_on_failure` is false, InvalidOutput if the
        output does not fit, AgentflowError if no process works on the run, StoreError if its log refused an
        append, and RunNotFound or RunGone.
        """
        if output_type is not None:
            check_output_type(output_type)
        return await self.result_of_run(
            workflow_id, None, raise_on_failure=raise_on_failure, output_type=output_type
        )

    async def result_of_run(
        self,
        workflow_id: str,
        launch: RunLaunch | None,
        *,
        raise_on_failure: bool,
        output_type: type[T] | None,
    ) -> RunResult[T]:
        """Return `result` for a handle, whose `launch` remembers how the run ended here."""
        result = await self.rest_of_run(workflow_id, launch)
        if await self._gives_outputs(workflow_id, launch):
            from agentflow.runtime.graph_results import full_result

            result = await full_result(result, self, partial(self._payloads_of, workflow_id))
        if raise_on_failure:
            raise_for_failure(result)
        return typed_result(result, output_type)

    async def _gives_outputs(self, workflow_id: str, launch: RunLaunch | None) -> bool:
        """Return whether the result of a run has outputs, events and the rest of a graph run (002 §12)."""
        if launch is not None:
            return launch.directory.code is not None or launch.plan.has_handlers
        try:
            begin = await self._begin(workflow_id)
        except OffsetTrimmed:
            return False
        return gives_outputs(await self._graph(begin.ir_hash), begin.definition)

    def _payloads_of(self, workflow_id: str, begin: WorkflowStarted) -> Payloads:
        code = self._code.of_run(workflow_id, begin)
        return (code or NO_CALLABLES).payloads

    async def rest(self, workflow_id: str) -> RunResult:
        """Wait until a run rests, as `result`, and return where it stands, however it ended.

        When this Runtime is closed, that is where the log stands.
        """
        return await self.rest_of_run(workflow_id, None)

    async def rest_of_run(self, workflow_id: str, launch: RunLaunch | None) -> RunResult:
        """Return `rest` for a handle, whose `launch` remembers how the run ended here."""
        while True:
            try:
                state = await self._registry.rest(workflow_id, launch)
            except AgentflowError:
                row = await self.log.run(workflow_id)
                if not row.ended:
                    raise
                state = None  # what kept it from its end was overcome since
            if state is not None:
                return live_result(state, self.clock.now())
            result = await self._standing(workflow_id)
            if result.state not in MOVING or self._registry.closed:
                return result
            await self._check_at_work(workflow_id)
            await follow_to_rest(self.log, self.hub, workflow_id, self.owner)

    async def _check_at_work(self, workflow_id: str) -> None:
        """Raise AgentflowError if this Runtime owns a run without working on it."""
        if (await self.log.run(workflow_id)).owner != self.owner:
            return
        async with self._registry.exclusive(workflow_id):
            row = await self.log.run(workflow_id)
            if row.owner == self.owner and row.state in MOVING and not self._registry.has(workflow_id):
                raise abandoned(row)
