"""The events of steps, built in one place: every builder fills the fields that page 000 §6.1 asks for."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import canonical_json
from agentflow.engine.state import RunState, Unit
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

__all__ = [
    "Moves",
    "due",
    "elapsed_ms",
    "idempotency_key",
    "retrying",
    "skipped",
    "step_completed",
    "step_failed",
]

Moves = list[Any]
"""Event data, in order. Whoever appends them folds them first, so that the next decision sees them."""


def elapsed_ms(since: int, now: int) -> int:
    """Whole milliseconds between two times in microseconds; never negative, though a clock may step."""
    return max(0, now - since) // 1000


def due(now: int, delay: float) -> tuple[int, str]:
    """A delay in seconds as (milliseconds, RFC 3339 time when it is over)."""
    ms = round(delay * 1000)
    return ms, iso(now + ms * 1000)


def scope_fields(unit: Unit) -> dict[str, Any]:
    """The fields that every event of a step has."""
    return {"step_id": unit.node.id, "iteration": unit.iteration, "activation": unit.activation}


def step_fields(unit: Unit) -> dict[str, Any]:
    """The fields that every `workflow.step_*` has."""
    return {
        "step_id": unit.node.id,
        "iteration": unit.iteration,
        "activation": unit.activation,
        "step_index": unit.node.index,
        "attempt": unit.attempt,
        "path": "",
        "visit": unit.visit,
        "clock": unit.clock,
    }


def idempotency_key(state: RunState, unit: Unit, call_id: str) -> str:
    """Equal for all attempts of a call (page 000 §4)."""
    iteration = "" if unit.iteration is None else unit.iteration
    return f"{state.workflow_id}/{unit.node.id}/{iteration}/{call_id}"


def size_of(value: Any) -> int:
    """Bytes of canonical JSON."""
    return len(canonical_json(value))


def step_completed(
    state: RunState, unit: Unit, now: int, *, next_port: str | None = None, items: Any = msgspec.UNSET
) -> Moves:
    """The end of a step that succeeded; for an agent its state record goes before (page 000 §5)."""
    moves: Moves = []
    fields = step_fields(unit)
    ref: Any = msgspec.UNSET
    duration = elapsed_ms(unit.started, now)
    if unit.agent is not None:
        record = state_record(state, unit, now)
        body = canonical_json(record)
        ref = f"state:{unit.key}"
        moves.append(
            ev.SystemStateSaved(
                kind="step",
                step_id=unit.node.id,
                step_index=unit.node.index,
                iteration=unit.iteration,
                activation=unit.activation,
                ref=ref,
                schema_version=1,
                size=len(body),
                sha256=hashlib.sha256(body).hexdigest(),
            )
        )
    moves.append(
        ev.WorkflowStepCompleted(
            **fields,
            duration_ms=duration,
            output=unit.output,
            output_size=size_of(unit.output),
            state_ref=ref,
            items=items,
            next=msgspec.UNSET if next_port is None else next_port,
            usage=unit.usage if unit.agent is not None else msgspec.UNSET,
        )
    )
    return moves


def state_record(state: RunState, unit: Unit, now: int) -> dict[str, Any]:
    """The record of a finished agent step (page 000 §5): a view of the log, rebuilt whenever wanted."""
    agent = unit.node.agent
    return {
        "schema_version": 1,
        "workflow_id": state.workflow_id,
        "step_id": unit.node.id,
        "step_index": unit.node.index,
        "iteration": unit.iteration,
        "attempt": unit.attempt,
        "state": "succeeded" if unit.error is None else "failed",
        "input": unit.input,
        "data": unit.output,
        "metadata": {
            "agent_name": agent.name if agent else None,
            "timestamp": iso(now),
            "duration_ms": elapsed_ms(unit.started, now),
        },
        "event_offsets": {"first": unit.first_offset, "last": state.next_offset - 1},
        "error": msgspec.to_builtins(unit.error) if unit.error is not None else None,
    }


def step_failed(
    unit: Unit,
    error: ErrorInfo,
    now: int,
    *,
    outcome: Literal["failed", "unknown"] = "failed",
    items: Any = msgspec.UNSET,
) -> Moves:
    """The end of a step that failed, or was cancelled (category `cancelled`)."""
    return [
        ev.WorkflowStepFailed(
            **step_fields(unit),
            duration_ms=elapsed_ms(unit.started, now) if unit.started else 0,
            error=error,
            attempts=unit.attempt,
            outcome=outcome,
            items=items,
        )
    ]


def skipped(unit: Unit, reason: Any, detail: str | None, caused_by: tuple[str, ...]) -> Moves:
    """A step, or one item of it, that will not run."""
    return [ev.WorkflowStepSkipped(**step_fields(unit), reason=reason, detail=detail, caused_by=caused_by)]


def retrying(unit: Unit, kind: Any, error: ErrorInfo, delay: float, now: int, **more: Any) -> Moves:
    """`agent.retrying` of an agent, else `workflow.step_retrying`. The delay is drawn once and stored."""
    delay_ms, due_at = due(now, delay)
    agent = unit.agent
    if agent is None or unit.node.agent is None:
        return [
            ev.WorkflowStepRetrying(
                **step_fields(unit),
                kind=kind,
                error=error,
                next_attempt=unit.attempt + 1,
                delay_ms=delay_ms,
                due_at=due_at,
            )
        ]
    if kind == "restart":
        next_attempt = unit.attempt + 1
    elif kind == "repair":
        next_attempt = agent.repairs + 2
    elif kind == "model":
        next_attempt = agent.failed_calls + 2  # the failure of this one is not folded yet
    else:
        next_attempt = 1
    return [
        ev.AgentRetrying(
            **scope_fields(unit),
            agent_name=unit.node.agent.name,
            context_id=agent.context_id,
            kind=kind,
            next_attempt=next_attempt,
            delay_ms=delay_ms,
            due_at=due_at,
            category=error.category,
            error=error,
            **more,
        )
    ]
