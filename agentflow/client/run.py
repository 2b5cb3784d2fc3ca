"""RemoteRun: one run of the daemon, with the client's methods for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from agentflow.client.reading import Reading
from agentflow.records.bound_run import bound
from agentflow.records.runs import RunResult, T

if TYPE_CHECKING:
    from agentflow.client.client import Client

__all__ = ["RemoteRun"]

M = TypeVar("M")


class RemoteRun(Generic[T]):
    """One run. Dropping it, or the client, changes nothing for the run.

    Its other methods are those of the client without their first argument, the id of the run. Commands
    return once they are durable; `result` tells what comes of them.
    """

    def __init__(self, client: Client, workflow_id: str, *, output_type: type[T] | None = None) -> None:
        self._home = client
        self.workflow_id = workflow_id
        self.output_type = output_type

    def typed(self, output_type: type[M]) -> RemoteRun[M]:
        """Return the same handle for results whose output is an `output_type`. See `Client.result`."""
        return RemoteRun(self._home, self.workflow_id, output_type=output_type)

    def __repr__(self) -> str:
        return f"<RemoteRun {self.workflow_id}>"

    @overload
    async def result(self, *, raise_on_failure: bool = True) -> RunResult[T]: ...

    @overload
    async def result(self, *, raise_on_failure: bool = True, output_type: type[M]) -> RunResult[M]: ...

    async def result(self, *, raise_on_failure: bool = True, output_type: Any = None) -> RunResult[Any]:
        """Wait until the run rests, as `Client.result`; `output_type` defaults to that of the submission."""
        wanted: Any = output_type or self.output_type
        return await self._home.result(
            self.workflow_id, raise_on_failure=raise_on_failure, output_type=wanted
        )

    answer = bound(Reading.answer)
    answer_all = bound(Reading.answer_all)
    cancel = bound(Reading.cancel)
    checkpoints = bound(Reading.checkpoints)
    compact = bound(Reading.compact)
    compare = bound(Reading.compare)
    context = bound(Reading.context)
    decide = bound(Reading.decide)
    definition = bound(Reading.definition)
    delete = bound(Reading.delete)
    deltas = bound(Reading.deltas)
    drawing = bound(Reading.drawing)
    event_lines = bound(Reading.event_lines)
    edit_plan = bound(Reading.edit_plan)
    events = bound(Reading.events)
    execute = bound(Reading.execute)
    export = bound(Reading.export)
    final = bound(Reading.final)
    fork = bound(Reading.fork)
    graph = bound(Reading.graph)
    history = bound(Reading.history)
    pause = bound(Reading.pause)
    plan = bound(Reading.plan)
    record = bound(Reading.record)
    reject = bound(Reading.reject)
    replay = bound(Reading.replay)
    requests = bound(Reading.requests)
    rest = bound(Reading.rest)
    resume = bound(Reading.resume)
    retry = bound(Reading.retry)
    signal = bound(Reading.signal)
    state = bound(Reading.state)
    step = bound(Reading.step)
    closed_requests = bound(Reading.closed_requests)
    model_call = bound(Reading.model_call)
    timeline = bound(Reading.timeline)
    trace = bound(Reading.trace)
    withdraw = bound(Reading.withdraw)
