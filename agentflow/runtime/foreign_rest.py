"""Waiting for a run on which another process works, through the store that both share.

Reads only: the run belongs to the other process. It may die at any time, so its lock is looked at too.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from agentflow.errors import AgentflowError
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog
from agentflow.events.owner import Owner
from agentflow.events.rows import RunRow

__all__ = ["MOVING", "abandoned", "follow_to_rest"]

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
