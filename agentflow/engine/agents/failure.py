"""How the work of an agent ends without success, in the words of page 000 §6.1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import UNSET

from agentflow.definition.conversation import Usage, add_usage
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, elapsed_ms, scope_fields, step_failed
from agentflow.events import catalogue as ev

__all__ = ["agent_failed", "fault", "usage_with"]


def agent_failed(
    activation: Activation,
    error: ErrorInfo,
    now: int,
    *,
    closed: Sequence[Any] = (),
    outcome: Literal["failed", "unknown"] = "failed",
) -> Decisions:
    """Return the end of a step whose agent failed for good (a tool node has no agent events).

    `closed` are the ends of its calls in the same decision: what those cost is part of its usage.
    """
    moves: Decisions = []
    name, progress = activation.node.agent_name, activation.agent
    error = activation.node.kind.failure(activation, error)
    if name is not None and progress is not None:
        moves.append(
            ev.AgentFailed(
                **scope_fields(activation),
                agent_name=name,
                context_id=progress.context_id,
                duration_ms=elapsed_ms(activation.attempt_started, now),
                error=error,
                turns=progress.turn,
                tool_calls_count=activation.tool_calls,
                usage=usage_with(activation.usage, closed),
            )
        )
    return moves + step_failed(activation, error, now, outcome=outcome)


def usage_with(usage: Usage, moves: Sequence[Any]) -> Usage:
    """Return the usage once these events are folded, of which some end model calls without an answer."""
    for move in moves:
        if isinstance(move, ev.ModelCallFailed) and move.usage is not UNSET:
            usage = add_usage(usage, move.usage)
    return usage


def fault(category: Category, code: str, message: str) -> ErrorInfo:
    """Return an error object with nothing but its three required parts."""
    return ErrorInfo(category=category, code=code, message=message)
