"""RunHandle: one run of a Runtime, with the Runtime's methods for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, overload

from agentflow.records.bound_run import bound
from agentflow.records.runs import RunResult, T
from agentflow.runtime.fork import ForkCommand
from agentflow.runtime.replay_command import ReplayCommand
from agentflow.runtime.run_launch import RunLaunch

if TYPE_CHECKING:
    from typing import TypeVar

    from agentflow.runtime.run_results import RunResults

    M = TypeVar("M")

__all__ = ["RunHandle"]


class RunHandle(Generic[T]):
    """One run of this Runtime. Dropping the handle changes nothing for the run.

    Its other methods are those of the Runtime without their first argument, the id of the run. Commands
    return once they are durable; `result` tells what comes of them.
    """

    def __init__(
        self,
        runtime: RunResults,
        workflow_id: str,
        launch: RunLaunch | None,
        *,
        created: bool = False,
        output_type: type[T] | None = None,
    ) -> None:
        self._home = runtime
        self.workflow_id = workflow_id
        self.created = created
        """True if the call that returned this handle appended the first event of the run."""
        self._launch = launch
        self.output_type = output_type

    def typed(self, output_type: type[M]) -> RunHandle[M]:
        """Return the same handle for results whose output is an `output_type`. See `Runtime.result`."""
        return RunHandle(
            self._home, self.workflow_id, self._launch, created=self.created, output_type=output_type
        )

    def __repr__(self) -> str:
        return f"<RunHandle {self.workflow_id}>"

    @overload
    async def result(self, *, raise_on_failure: bool = True) -> RunResult[T]: ...

    @overload
    async def result(self, *, raise_on_failure: bool = True, output_type: type[M]) -> RunResult[M]: ...

    async def result(self, *, raise_on_failure: bool = True, output_type: Any = None) -> RunResult[Any]:
        """Wait until the run rests, as `Runtime.result`; `output_type` defaults to that of the submission."""
        return await self._home.result_of_run(
            self.workflow_id,
            self._launch,
            raise_on_failure=raise_on_failure,
            output_type=output_type or self.output_type,
        )

    async def rest(self) -> RunResult[Any]:
        """Wait until the run rests, as `Runtime.rest`, however it ended."""
        return await self._home.rest_of_run(self.workflow_id, self._launch)

    answer = bound(ForkCommand.answer)
    answer_all = bound(ForkCommand.answer_all)
    cancel = bound(ForkCommand.cancel)
    checkpoints = bound(ForkCommand.checkpoints)
    compact = bound(ForkCommand.compact)
    compare = bound(ForkCommand.compare)
    context = bound(ForkCommand.context)
    decide = bound(ForkCommand.decide)
    definition = bound(ForkCommand.definition)
    delete = bound(ForkCommand.delete)
    deltas = bound(ForkCommand.deltas)
    drawing = bound(ForkCommand.drawing)
    edit_plan = bound(ForkCommand.edit_plan)
    events = bound(ForkCommand.events)
    execute = bound(ForkCommand.execute)
    export = bound(ForkCommand.export)
    final = bound(ForkCommand.final)
    fork = bound(ForkCommand.fork)
    graph = bound(ForkCommand.graph)
    history = bound(ForkCommand.history)
    pause = bound(ForkCommand.pause)
    plan = bound(ForkCommand.plan)
    record = bound(ForkCommand.record)
    reject = bound(ForkCommand.reject)
    replay = bound(ReplayCommand.replay)
    requests = bound(ForkCommand.requests)
    resume = bound(ForkCommand.resume)
    retry = bound(ForkCommand.retry)
    signal = bound(ForkCommand.signal)
    state = bound(ForkCommand.state)
    step = bound(ForkCommand.step)
    closed_requests = bound(ForkCommand.closed_requests)
    model_call = bound(ForkCommand.model_call)
    timeline = bound(ForkCommand.timeline)
    trace = bound(ForkCommand.trace)
    withdraw = bound(ForkCommand.withdraw)
