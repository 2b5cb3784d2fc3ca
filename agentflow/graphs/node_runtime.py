"""WorkflowRuntime and the functions of page 003 §1: node graphs run, traced, replayed, in a few calls.

All of it is thin over a Runtime: without one, the default Runtime of the running event loop, whose runs live
in memory. What is given back is a view of the log of a run.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from agentflow.definition.loader import load_file, load_value
from agentflow.definition.normal_form import Source
from agentflow.errors import DefinitionError, WorkflowValidationError
from agentflow.events.deltas import ModelDelta
from agentflow.events.envelope import Event, Ids
from agentflow.executors.callables import Callables
from agentflow.graphs.homes import runtime_of
from agentflow.models.llm_executor import LlmExecutor
from agentflow.records.node_output import NodeRunResult, WorkflowOutput
from agentflow.records.timeline import NodeRetries, TimelineEntry
from agentflow.records.trace import TraceClock, WorkflowTrace
from agentflow.runtime import RunHandle, Runtime
from agentflow.runtime.node_output import node_run_result, workflow_output
from agentflow.tools.tool_executor import NO_EXECUTOR, ToolExecutor
from agentflow.tools.workers import worker_tools

__all__ = [
    "ReplayCachePolicy",
    "WorkflowRuntime",
    "execute_resume_from_failure",
    "export_trace",
    "node_timeline",
    "replay",
    "retry_reason_summary",
    "run_workflow_yaml",
    "run_workflow_yaml_stream",
]


class ReplayCachePolicy:
    """The names of the policies of a replay (page 003 §9)."""

    Always: Literal["Always"] = "Always"
    Refresh: Literal["Refresh"] = "Refresh"
    Mixed: Literal["Mixed"] = "Mixed"


Policy = Literal["Always", "Refresh", "Mixed"]
_MAX_WAITING_EVENTS = 64
_RESTS = frozenset(
    {
        *("workflow.completed", "workflow.failed", "workflow.cancelled"),
        *("workflow.waiting", "workflow.paused"),
    }
)


class WorkflowRuntime:
    """Runs node graphs with model calls, functions and worker handlers of the embedding program.

    `runtime`: where runs are; None is the default Runtime of the event loop, in memory. With `llm_executor`
    every model call of a run goes to it, whatever model the document names; `tool_executor` is asked for each
    function and handler that is registered nowhere; `workers` are handlers by name, `handler(*, context,
    payload)`. Without a Runtime and an executor, a function that is registered nowhere fails its node with
    `missing_tool_executor`.

    They belong to the runs that begin here. A run that another process left goes on with those of the
    WorkflowRuntime that goes on with it. For one event loop.
    """

    def __init__(
        self,
        runtime: Runtime | None = None,
        *,
        llm_executor: LlmExecutor | None = None,
        tool_executor: ToolExecutor | None = None,
        workers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        worker_tools(workers or {})  # raises TypeError for what is no handler
        self._runtime = runtime
        asked = tool_executor if tool_executor is not None or runtime is not None else NO_EXECUTOR
        self._code = Callables(workers=dict(workers or {}), llm_executor=llm_executor, tool_executor=asked)
        self._injects = bool(workers) or llm_executor is not None or tool_executor is not None

    async def runtime(self) -> Runtime:
        """Return the Runtime that the runs are in."""
        return await runtime_of(self._runtime)

    # -- running ---------------------------------------------------------------------------------

    async def submit(
        self,
        definition: Source,
        input: Any = None,
        options: Mapping[str, Any] | None = None,
        *,
        workflow_id: str | None = None,
        **more: Any,
    ) -> RunHandle[Any]:
        """Begin a run and return its handle once that is durable; `more` as for `Runtime.submit`.

        Raises WorkflowValidationError with every diagnostic; then no run was made.
        """
        runtime = await self.runtime()
        try:
            return await runtime.submit(
                _submission(definition),
                input,
                options=options,
                workflow_id=workflow_id,
                code=self._code,
                **more,
            )
        except WorkflowValidationError:
            raise
        except DefinitionError as refused:
            raise WorkflowValidationError(refused.diagnostics) from None

    async def execute(
        self,
        definition: Source,
        input: Any = None,
        options: Mapping[str, Any] | None = None,
        *,
        workflow_id: str | None = None,
        **more: Any,
    ) -> NodeRunResult:
        """Run a definition until it rests and return its result, also of a failed or cancelled run.

        `options` are those of `Runtime.submit`. A run that waits for a person or is paused is returned as it
        stands. Raises as `submit`.
        """
        handle = await self.submit(definition, input, options, workflow_id=workflow_id, **more)
        await handle.rest()
        return await self.result(handle.workflow_id)

    async def result(self, workflow_id: str) -> NodeRunResult:
        """Return the result of a run as it stands. Raises RunNotFound, RunGone or OffsetTrimmed."""
        return await node_run_result(await self.runtime(), workflow_id)

    async def output(self, workflow_id: str) -> WorkflowOutput:
        """Return the output object of a run as it stands (page 003 §12). Raises as `result`."""
        return await workflow_output(await self.runtime(), workflow_id)

    async def execute_resume_from_failure(self, workflow_id: str) -> NodeRunResult:
        """Go on with a failed run in a new one: its failed nodes begin again with their recorded calls and
        fresh attempts, what succeeded is kept. Returns the result of the new run.

        Raises CommandRefused (`not_failed`) if no node failed, and as `Runtime.fork`.
        """
        handle = await (await self._with_code(workflow_id)).fork(workflow_id, from_failure=True)
        await handle.rest()
        return await self.result(handle.workflow_id)

    async def resume(self, workflow_id: str) -> NodeRunResult:
        """Go on with a run that is paused or was left by another process, until it rests."""
        handle = await (await self._with_code(workflow_id)).resume(workflow_id)
        await handle.rest()
        return await self.result(handle.workflow_id)

    async def answer(self, workflow_id: str, responses: Mapping[str, Any]) -> NodeRunResult:
        """Answer open requests by their ids, all or none, and go on until the run rests."""
        handle = await (await self._with_code(workflow_id)).answer_all(workflow_id, dict(responses))
        await handle.rest()
        return await self.result(handle.workflow_id)

    async def replay(
        self,
        workflow_id: str,
        policy: Policy = "Refresh",
        input: Any = None,
        definition: Source | None = None,
    ) -> NodeRunResult:
        """Run a recorded run anew (page 003 §9) and return the result of the new run."""
        runtime = await self._with_code(workflow_id)
        given = None if definition is None else _submission(definition)
        handle = await runtime.replay(workflow_id, policy, input=input, definition=given)
        await handle.rest()
        return await self.result(handle.workflow_id)

    async def _with_code(self, workflow_id: str) -> Runtime:
        """Return the Runtime, which knows the code of this object for a run that goes on or is copied."""
        runtime = await self.runtime()
        if self._injects:
            runtime.inject(workflow_id, self._code)
        return runtime

    # -- looking ---------------------------------------------------------------------------------

    async def export_trace(self, workflow_id: str, clock: TraceClock = "wall") -> WorkflowTrace:
        """Return the trace of a run (page 003 §8)."""
        return await (await self.runtime()).trace(workflow_id, clock)

    async def node_timeline(self, workflow_id: str) -> list[TimelineEntry]:
        """Return what happened to the nodes of a run, in the order of its log (page 003 §11)."""
        return list((await (await self.runtime()).timeline(workflow_id)).items)

    async def retry_reason_summary(self, workflow_id: str) -> list[NodeRetries]:
        """Return how often which operation of a node was tried again, and why (page 003 §11)."""
        return list((await (await self.runtime()).timeline(workflow_id)).retries)

    # -- streaming -------------------------------------------------------------------------------

    async def stream(
        self,
        definition: Source,
        input: Any = None,
        options: Mapping[str, Any] | None = None,
        *,
        workflow_id: str | None = None,
        **more: Any,
    ) -> AsyncGenerator[Event[Any] | ModelDelta, None]:
        """Run a definition and yield its events in the order of offsets, and between them the text of model
        calls as ModelDelta, until the run rests.

        Deltas of thinking come only with the option `split_stream_deltas`. A slow or dropped reader never
        delays the run. Raises as `submit`, before the first item.
        """
        runtime = await self.runtime()
        run_id = workflow_id or Ids().ulid("wf_")
        kinds = ("output", "thinking") if (options or {}).get("split_stream_deltas") else ("output",)
        items: deque[Event[Any] | BaseException] = deque()
        changed, room = asyncio.Event(), asyncio.Semaphore(_MAX_WAITING_EVENTS)
        # Followed before it begins, so that the text of a call that is over at once is seen too.
        with runtime.delta_hub.follow(run_id, changed.set) as reader:
            await self.submit(definition, input, options, workflow_id=run_id, **more)
            reading = asyncio.ensure_future(_read_events(runtime, run_id, items, changed, room))
            try:
                while True:
                    for delta in reader.take():
                        if isinstance(delta, ModelDelta) and delta.data.token_kind in kinds:
                            yield delta
                    while items:
                        item = items.popleft()
                        if isinstance(item, BaseException):
                            raise item
                        yield item
                        room.release()
                        if item.type in _RESTS:
                            return
                    await changed.wait()
                    changed.clear()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def _read_events(
    runtime: Runtime,
    workflow_id: str,
    items: deque[Event[Any] | BaseException],
    changed: asyncio.Event,
    room: asyncio.Semaphore,
) -> None:
    try:
        async with aclosing(runtime.events(workflow_id)) as events:
            async for event in events:
                items.append(event)
                changed.set()
                await room.acquire()
    except Exception as error:
        items.append(error)
        changed.set()


def _submission(definition: Source) -> Any:
    """Return what a Runtime takes: a path is a file, a mapping a document. Raises WorkflowValidationError."""
    try:
        if isinstance(definition, str | os.PathLike):
            return load_file(Path(definition))
        if isinstance(definition, Mapping):
            return load_value(definition)
    except DefinitionError as refused:
        raise WorkflowValidationError(refused.diagnostics) from None
    return definition


# -- functions -------------------------------------------------------------------------------------


async def export_trace(
    workflow_id: str, clock: TraceClock = "wall", *, runtime: Runtime | None = None
) -> WorkflowTrace:
    """Return the trace of a run (page 003 §8): with the logical clock equal for equal orders of events."""
    return await WorkflowRuntime(runtime).export_trace(workflow_id, clock)


async def node_timeline(workflow_id: str, *, runtime: Runtime | None = None) -> list[TimelineEntry]:
    """Return what happened to the nodes of a run, in the order of its log (page 003 §11)."""
    return await WorkflowRuntime(runtime).node_timeline(workflow_id)


async def retry_reason_summary(workflow_id: str, *, runtime: Runtime | None = None) -> list[NodeRetries]:
    """Return how often which operation of a node was tried again, and why (page 003 §11)."""
    return await WorkflowRuntime(runtime).retry_reason_summary(workflow_id)


async def replay(
    workflow_id: str,
    policy: Policy = "Refresh",
    input: Any = None,
    definition: Source | None = None,
    *,
    runtime: Runtime | None = None,
) -> NodeRunResult:
    """Run a recorded run anew, served from its results as the policy says, and return the new result.

    Raises as `Runtime.replay`.
    """
    return await _plain(runtime).replay(workflow_id, policy, input, definition)


async def execute_resume_from_failure(workflow_id: str, *, runtime: Runtime | None = None) -> NodeRunResult:
    """Go on with a failed run in a new one, from the nodes that failed. See `WorkflowRuntime`."""
    return await _plain(runtime).execute_resume_from_failure(workflow_id)


async def run_workflow_yaml(
    path: str | os.PathLike[str],
    input: Any = None,
    options: Mapping[str, Any] | None = None,
    *,
    runtime: Runtime | None = None,
    llm_executor: LlmExecutor | None = None,
    tool_executor: ToolExecutor | None = None,
    workers: Mapping[str, Callable[..., Any]] | None = None,
    **more: Any,
) -> WorkflowOutput:
    """Run a workflow file until it rests and return its output object (page 003 §12), for every state.

    `options` are those of the run; an unknown one is a diagnostic with its place. Raises
    WorkflowValidationError with every diagnostic; then no run was made.
    """
    found = WorkflowRuntime(runtime, llm_executor=llm_executor, tool_executor=tool_executor, workers=workers)
    handle = await found.submit(Path(path), input, options, **more)
    await handle.rest()
    return await found.output(handle.workflow_id)


async def run_workflow_yaml_stream(
    path: str | os.PathLike[str],
    input: Any = None,
    options: Mapping[str, Any] | None = None,
    *,
    runtime: Runtime | None = None,
    llm_executor: LlmExecutor | None = None,
    tool_executor: ToolExecutor | None = None,
    workers: Mapping[str, Callable[..., Any]] | None = None,
    **more: Any,
) -> AsyncGenerator[Event[Any] | ModelDelta, None]:
    """Run a workflow file and yield its events, and the text of its model calls as `model.delta` items."""
    found = WorkflowRuntime(runtime, llm_executor=llm_executor, tool_executor=tool_executor, workers=workers)
    async with aclosing(found.stream(Path(path), input, options, **more)) as items:
        async for item in items:
            yield item


def _plain(runtime: Runtime | None) -> WorkflowRuntime:
    """Return one that adds nothing to what its runs began with."""
    return WorkflowRuntime(runtime)
