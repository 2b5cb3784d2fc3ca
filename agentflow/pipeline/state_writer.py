"""Writes the state file of a request while its run goes on (page 004 §14)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agentflow import logs
from agentflow.pipeline.state_file import StateFile, StateFileError, state_line
from agentflow.records.pipeline import PLAN_STEPS, PipelineFold
from agentflow.runtime.runtime import Runtime
from agentflow.threads import in_thread

__all__ = ["write_states"]

_STATES: Final = frozenset(
    {
        *("plan.normalized", "plan.proposed", "plan.edited", "plan.executed", "verification.completed"),
        *("plan.finalized", "workflow.waiting", "workflow.paused", "workflow.resumed"),
        *("workflow.completed", "workflow.failed", "workflow.cancelled"),
    }
)
_STEP_ENDS: Final = frozenset({"workflow.step_completed", "workflow.step_failed", "workflow.step_skipped"})


async def write_states(runtime: Runtime, workflow_id: str, file: StateFile) -> None:
    """Write a line after each stage, finished step, pause, resume and end of a run; return when it has ended.

    A file that cannot be written is a warning, and the run goes on. For one task a run: it is the one writer.
    """
    fold, results, created = PipelineFold(), dict[str, Any](), ""
    async for event in runtime.events(workflow_id):
        fold.take(event.data)
        created = created or event.timestamp
        step = (event.step or "").removeprefix(PLAN_STEPS)
        is_step = event.type in _STEP_ENDS and step != event.step
        if is_step and event.type == "workflow.step_completed":
            results[step] = event.data.output
        if fold.activated is None or not (is_step or event.type in _STATES):
            continue
        record = await runtime.record(workflow_id)
        view, compact = record.request, await runtime.compact(workflow_id)
        if view is msgspec.UNSET:
            continue
        line = state_line(
            workflow_id,
            activated=msgspec.to_builtins(fold.activated),
            status=view.status,
            phase=view.phase,
            created_at=created,
            updated_at=event.timestamp,
            normalized_request=fold.normalized,
            plan=fold.plan,
            results=results,
            executor_output=fold.executor_output,
            verifier_output=fold.verifier_output,
            final_output=fold.final_output,
            blockers=tuple(compact.get("blockers") or ()),
            errors=tuple(compact.get("errors") or ()),
            blocked_reason=view.blocked_reason,
        )
        try:
            await in_thread(lambda line=line: file.write(line), "agentflow state file")
        except StateFileError as error:
            logs.get_logger("pipeline").warning(
                "state_file_not_written", workflow_id=workflow_id, error=str(error)
            )
            return
