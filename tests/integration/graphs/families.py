"""Crashes of runs with child runs: behind each event of the parent the run goes on anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from agentflow import Runtime, Workflow
from agentflow.events.envelope import decode
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog
from agentflow.events.rows import RunMeta, StoredEvent
from tests.integration.executors.crashes import Answers, Outcome, drive
from tests.integration.support.runs import must_be_sound

__all__ = ["Children", "family_at_every_event", "rows_of"]

Children = Literal["as they were", "whole"]
"""The logs of the children when the parent goes on: as of the time of the cut, or to their ends."""


async def rows_of(runtime: Runtime) -> list[Any]:
    """All runs of a store."""
    return list((await runtime.log.runs(limit=100)).items)


async def family_at_every_event(
    make: Callable[[], Workflow], message: Any, *, children: Children, answers: Answers | None = None
) -> Outcome:
    """Run to the end; then once more from behind each event of the parent. Every outcome is that of the whole
    run, and no child is begun twice."""
    log, outer = MemoryLog(), make()
    async with Runtime(log) as runtime:
        handle = await runtime.submit(outer, message)
        whole = await drive(runtime, handle.workflow_id, answers)
        await must_be_sound(runtime, handle.workflow_id)
        runs = await rows_of(runtime)
        events = {run.workflow_id: await log.read(run.workflow_id, 0, 10_000) for run in runs}
        graphs: dict[str, tuple[str, bytes]] = {}
        for run in runs:
            hash = decode(events[run.workflow_id][0].body).data.ir_hash
            graphs[run.workflow_id] = (hash, await log.get_definition(hash))
    rows = events[handle.workflow_id]
    for upto in range(1, len(rows)):
        cut, until = MemoryLog(), rows[upto - 1].ts
        for run in runs:
            kept = list(events[run.workflow_id])
            if run.workflow_id == handle.workflow_id:
                kept = kept[:upto]
            elif children == "as they were":
                kept = [row for row in kept if row.ts <= until]
            if kept:
                await _put(cut, run.workflow_id, kept, graphs[run.workflow_id])
        where = f"cut behind {rows[upto - 1].type} at {upto - 1}"
        async with Runtime(cut) as runtime:
            runtime.register(make())
            await runtime.recover()
            try:
                async with asyncio.timeout(10):
                    outcome = await drive(runtime, handle.workflow_id, answers)
            except TimeoutError:
                raise AssertionError(f"{where}: the run does not end") from None
            assert outcome == whole, f"{where}: {outcome}"
            await must_be_sound(runtime, handle.workflow_id)
            assert len(await rows_of(runtime)) <= len(runs), f"{where}: a child was begun twice"
    return whole


_ENDS = {
    "workflow.completed": "completed",
    "workflow.failed": "failed",
    "workflow.cancelled": "cancelled",
    "workflow.waiting": "waiting",
}


async def _put(log: MemoryLog, run_id: str, rows: list[StoredEvent], graph: tuple[str, bytes]) -> None:
    """Store the first events of a run as a process leaves them that is killed then."""
    hash, body = graph
    await log.put_definition(hash, body)
    meta = RunMeta(name="w", definition_hash=hash, created_at=rows[0].ts, labels={}, owner=None)
    state: Any = _ENDS.get(rows[-1].type, "running")
    await log.append(Append(run_id, 1, 0, rows, state, meta))
    owner = (await log.run(run_id)).owner
    if owner is not None:
        await log.release(run_id, owner)
