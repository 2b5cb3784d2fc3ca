"""Handles of runs, and waiting for their results, whichever process works on them (page 002 §16)."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from agentflow.errors import AgentflowError
from agentflow.events.owner import Owner
from agentflow.records.runs import RunResult, raise_for_failure
from agentflow.runtime.foreign_rest import MOVING, abandoned, follow_to_rest
from agentflow.runtime.fork_command import ForkCommand
from agentflow.runtime.live_result import live_result
from agentflow.runtime.run_handle import RunHandle
from agentflow.runtime.run_launch import RunLaunch
from agentflow.typed_output import check_output_type, typed_result

__all__ = ["RunResults"]

M = TypeVar("M")


class RunResults(ForkCommand):
    """The half of a Runtime that waits for runs."""

    owner: Owner

    @overload
    async def attach(self, workflow_id: str) -> RunHandle: ...

    @overload
    async def attach(self, workflow_id: str, *, output_type: type[M]) -> RunHandle[M]: ...

    async def attach(self, workflow_id: str, *, output_type: Any = None) -> RunHandle[Any]:
        """Return the handle of a run of this store, without going on with it. Raises RunNotFound."""
        if output_type is not None:
            check_output_type(output_type)
        if workflow_id not in self._registry.launches:
            await self.log.run(workflow_id)
        launch = self._registry.launches.get(workflow_id)
        return RunHandle(self, workflow_id, launch, output_type=output_type)

    def _handle(self, workflow_id: str, launch: RunLaunch | None = None) -> RunHandle:
        return RunHandle(self, workflow_id, launch or self._registry.launches.get(workflow_id))

    @overload
    async def result(self, workflow_id: str, *, raise_on_failure: bool = True) -> RunResult: ...

    @overload
    async def result(
        self, workflow_id: str, *, raise_on_failure: bool = True, output_type: type[M]
    ) -> RunResult[M]: ...

    async def result(
        self, workflow_id: str, *, raise_on_failure: bool = True, output_type: Any = None
    ) -> RunResult[Any]:
        """Wait until a run rests, whichever process works on it, and return its result (page 002 §16).

        A run that is paused or waits for a person is returned with its open requests. `output_type` (a
        msgspec Struct, dataclass, TypedDict, pydantic model, or a list or dict of them) converts and checks
        the output of a completed run.

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
        output_type: type[M] | None,
    ) -> RunResult[M]:
        """Return `result` for a handle, whose `launch` remembers how the run ended here."""
        result = await self.rest_of_run(workflow_id, launch)
        if raise_on_failure:
            raise_for_failure(result)
        return typed_result(result, output_type)

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
