"""Figures of a whole run in the last event of one that has ended."""

from __future__ import annotations

from typing import Any

from agentflow.definition.conversation import Usage
from agentflow.errors import AgentflowError
from agentflow.events.envelope import decode
from agentflow.events.log import EventLog
from agentflow.events.rows import RunRow

__all__ = ["final_usage"]


async def final_usage(log: EventLog, row: RunRow) -> Usage | None:
    """Return what an ended run has used, from its last event; None before its end or if that is damaged."""
    if not row.ended:
        return None
    try:
        rows = await log.read(row.workflow_id, row.last_offset, 1)
    except AgentflowError:
        return None
    usage: Any = getattr(decode(rows[0].body).data, "usage", None) if rows else None
    return usage if isinstance(usage, Usage) else None
