"""Writes the state files of requests while their runs are at work (page 004 §14).

One task a run is its one writer. It ends when the run rests, with all of its log written, and begins again
with the run.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agentflow import logs
from agentflow.definition.pipeline_nodes import PIPELINE, workspace_of
from agentflow.pipeline.state_file import StateFile, StateFileError, state_line
from agentflow.records.pipeline import PLAN_STEPS
from agentflow.threads import in_thread

if TYPE_CHECKING:
    from agentflow.records.projection import RunProjection
    from agentflow.runtime.run_launch import RunLaunch
    from agentflow.runtime.runtime import Runtime

__all__ = ["StateWriters"]

_STATES: Final = frozenset(
    {
        *("plan.normalized", "plan.proposed", "plan.edited", "plan.executed", "verification.completed"),
        *("plan.finalized", "workflow.waiting", "workflow.paused", "workflow.resumed"),
        *("workflow.completed", "workflow.failed", "workflow.cancelled"),
    }
)
_STEP_ENDS: Final = frozenset({"workflow.step_completed", "workflow.step_failed", "workflow.step_skipped"})


class StateWriters:
    """The writers of one Runtime, by run."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._launches: dict[str, RunLaunch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, int] = {}
        """By run that has not ended: the offset up to which its states are written."""

    def follow(self, launch: RunLaunch) -> None:
        """Write the states of a run that is about to start."""
        run_id = launch.workflow_id
        self._launches[run_id] = launch
        if run_id not in self._tasks:
            self._tasks[run_id] = asyncio.get_running_loop().create_task(self._follow(run_id))

    async def aclose(self) -> None:
        """Return once every state of the log is written. The supervisors must have ended."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _follow(self, run_id: str) -> None:
        launch = None
        try:
            while launch is not self._launches[run_id]:
                launch = self._launches[run_id]
                await self._write(run_id, launch)
        except StateFileError as error:
            logs.get_logger("pipeline").warning(
                "state_file_not_written", workflow_id=run_id, error=str(error)
            )
        except Exception as error:  # a file for other programs is no reason to fail a run
            logs.get_logger("pipeline").warning("state_writer_failed", workflow_id=run_id, error=str(error))
        finally:
            del self._tasks[run_id], self._launches[run_id]

    async def _write(self, run_id: str, launch: RunLaunch) -> None:
        runtime = self._runtime
        if launch.first_events:
            with suppress(Exception):  # a run that did not begin has no states
                await launch.accepted.wait()
            if launch.accepted.exception() is not None:
                return
        # Of a run that another process worked on, its present state is written once.
        last = -1 if launch.first_events else (await runtime.log.run(run_id)).last_offset
        begin = self._written.get(run_id, last - 1)
        projection = await runtime.new_projection(run_id)
        writer: _Writer | None = None
        ended = launch.ended.settled()
        async with aclosing(runtime.events(run_id)) as stream:
            offset = -1
            while True:
                coming = asyncio.ensure_future(anext(stream, None))
                await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done() and offset >= (await runtime.log.run(run_id)).last_offset:
                    coming.cancel()
                    with suppress(asyncio.CancelledError):
                        await coming
                    break
                event = await coming
                if event is None:
                    self._written.pop(run_id, None)
                    return
                await runtime.project(projection, event)
                writer = writer or _Writer(run_id, projection, launch)
                offset = event.offset
                if offset > begin and (offset == last or _is_state(event)):
                    await writer.write(event.timestamp)
        self._written[run_id] = offset


def _is_state(event: Any) -> bool:
    if event.type in _STATES:
        return True
    return event.type in _STEP_ENDS and (event.step or "").startswith(PLAN_STEPS)


class _Writer:
    """Writes the lines of one run."""

    def __init__(self, run_id: str, projection: RunProjection, launch: RunLaunch) -> None:
        record = projection.record()
        workspace = workspace_of(record.input, run_id)
        name = launch.plan.workflow.metadata[PIPELINE]["state_file"]
        self._run_id, self._projection, self._created = run_id, projection, record.created_at
        self._file = None if workspace is None else StateFile(workspace, name)

    async def write(self, updated_at: str) -> None:
        """Write the present state. Raises StateFileError."""
        found, fold = self._projection, self._projection.pipeline
        record, compact = found.record(), found.compact()
        view = record.request
        if self._file is None or fold is None or fold.activated is None or compact is None:
            return
        assert view is not msgspec.UNSET
        steps = found.state().steps
        names = [step["id"] for step in (fold.plan or {}).get("steps") or ()]
        ended = (name for name in names if PLAN_STEPS + name in steps)
        outputs: dict[str, Any] = {name: steps[PLAN_STEPS + name].output for name in ended}
        line = state_line(
            self._run_id,
            activated=msgspec.to_builtins(fold.activated) | {"execution_mode": view.execution_mode},
            status=view.status,
            phase=view.phase,
            created_at=self._created,
            updated_at=updated_at,
            normalized_request=fold.normalized,
            plan=fold.plan,
            results={name: output for name, output in outputs.items() if output is not None},
            executor_output=fold.executor_output,
            verifier_output=fold.verifier_output,
            final_output=fold.final_output,
            blockers=tuple(compact.get("blockers") or ()),
            errors=tuple(compact.get("errors") or ()),
            blocked_reason=view.blocked_reason,
        )
        file = self._file
        await in_thread(lambda: file.write(line), "agentflow state file")
