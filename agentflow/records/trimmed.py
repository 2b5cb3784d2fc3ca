"""What is kept of a trimmed run: its record, its state records and its folded state, as they were at its end.

They are snapshots beside the log, written before its first events were taken away, because the run cannot be
folded afterwards. Reads only.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from agentflow.events.log import EventLog
from agentflow.records.executions import StepRecord
from agentflow.records.runs import RunRecord

__all__ = ["KEPT_KINDS", "RECORD", "STATE", "STEPS", "kept", "kept_record", "kept_step"]

T = TypeVar("T")

KEPT_KINDS = RECORD, STATE, STEPS = "kept:record", "kept:state", "kept:steps"
"""The kinds of the snapshots."""


async def kept(log: EventLog, workflow_id: str, kind: str, shape: type[T]) -> T | None:
    """Return what was kept under a kind; None if nothing was. Raises RunNotFound or RunGone."""
    snapshot = await log.latest_snapshot(workflow_id, kind)
    return None if snapshot is None else msgspec.json.decode(snapshot.data, type=shape)


async def kept_record(log: EventLog, workflow_id: str) -> RunRecord | None:
    """Return the run record of a trimmed run; None if it was not kept. Raises RunNotFound or RunGone."""
    record = await kept(log, workflow_id, RECORD, RunRecord)
    if record is None:
        return None
    row = await log.run(workflow_id)
    return msgspec.structs.replace(record, earliest_offset=row.earliest_offset)


async def kept_step(
    log: EventLog, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
) -> StepRecord | None:
    """Return the state record of a step of a trimmed run; None if no step fits. Raises RunNotFound or
    RunGone."""
    steps = await kept(log, workflow_id, STEPS, list[StepRecord]) or []
    fitting = [
        step
        for step in steps
        if step.step_id == step_id and step.iteration == iteration and attempt in (None, step.attempt)
    ]
    return fitting[-1] if fitting else None
