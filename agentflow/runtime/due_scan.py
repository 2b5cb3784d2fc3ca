"""When a run that only waits has to move by itself, read from the two ends of its log without folding it.

A start with thousands of waiting runs costs two small reads for each. What cannot be told from there is
folded, so no deadline is missed; one that is read too early only makes its run look at the time once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import UNSET

from agentflow.definition.ir import Workflow
from agentflow.definition.limits import limits_of
from agentflow.engine.limits import due_of
from agentflow.errors import StoreError
from agentflow.events.catalogue import WorkflowStarted, WorkflowWaiting
from agentflow.events.envelope import decode
from agentflow.events.log import EventLog, RunRow

__all__ = ["Due", "DueScan"]

_AT_ONCE = 16

Due = int | None | Literal["unknown"]
"""When something of a run falls due (µs); None: nothing will; "unknown": its log must be folded."""


class DueScan:
    """For one start. `graph` gives a graph by its hash."""

    def __init__(self, log: EventLog, graph: Callable[[str], Awaitable[Workflow]]) -> None:
        self._log = log
        self._graph = graph
        self._timed: dict[str, bool] = {}

    async def of(self, rows: Sequence[RunRow]) -> dict[str, Due]:
        """What is known of each of these runs, which the store says are waiting."""
        found: dict[str, Due] = {}
        left = iter(rows)

        async def read() -> None:
            for row in left:
                found[row.workflow_id] = await self._of(row)

        await asyncio.gather(*(read() for _ in range(_AT_ONCE)))
        return found

    async def _of(self, row: RunRow) -> Due:
        try:
            last = await self._log.read(row.workflow_id, row.last_offset, 2)
            if len(last) != 1 or last[0].type != WorkflowWaiting.EVENT_TYPE:
                return "unknown"
            due = due_of(decode(last[0].body).data)
            if due is None and await self._may_be_timed(row.workflow_id):
                return "unknown"
            return due
        except (StoreError, ValueError):  # whoever folds it meets the same, and says so
            return "unknown"

    async def _may_be_timed(self, workflow_id: str) -> bool:
        """Whether the run can have a deadline while it waits: older versions do not name it at the end."""
        begin = decode((await self._log.read(workflow_id, 0, 1))[0].body).data
        if not isinstance(begin, WorkflowStarted):
            return True
        if begin.budget is not UNSET and limits_of(begin.budget).get("max_duration_s") is not None:
            return True
        timed = self._timed.get(begin.ir_hash)
        if timed is None:
            timed = self._timed[begin.ir_hash] = _timed(await self._graph(begin.ir_hash))
        return timed


def _timed(workflow: Workflow) -> bool:
    options = workflow.options
    return (
        options.timeout is not None
        or limits_of(options.budget).get("max_duration_s") is not None
        or any(node.policy is not None and node.policy.timeout is not None for node in workflow.nodes)
        or any(limits_of(node.budget).get("max_duration_s") is not None for node in workflow.nodes)
        or any(node.approval is not None and node.approval.timeout is not None for node in workflow.nodes)
    )
