"""How the work of an agent ends without success, in the words of page 000 §6.1."""

from __future__ import annotations

from typing import Literal

from agentflow.definition.failure import Category, ErrorInfo
from agentflow.engine.moves import Moves, elapsed_ms, scope_fields, step_failed
from agentflow.engine.state import Unit
from agentflow.events import catalogue as ev

__all__ = ["agent_failed", "fault"]


def agent_failed(
    unit: Unit, error: ErrorInfo, now: int, *, outcome: Literal["failed", "unknown"] = "failed"
) -> Moves:
    """The end of a step whose agent failed for good (a tool node has no agent events)."""
    moves: Moves = []
    spec, progress = unit.node.agent, unit.agent
    if spec is not None and progress is not None:
        moves.append(
            ev.AgentFailed(
                **scope_fields(unit),
                agent_name=spec.name,
                context_id=progress.context_id,
                duration_ms=elapsed_ms(unit.attempt_started, now),
                error=error,
                turns=progress.turn,
                tool_calls_count=unit.tool_calls,
                usage=unit.usage,
            )
        )
    return moves + step_failed(unit, error, now, outcome=outcome)


def fault(category: Category, code: str, message: str) -> ErrorInfo:
    """An error object with nothing but its three required parts."""
    return ErrorInfo(category=category, code=code, message=message)
