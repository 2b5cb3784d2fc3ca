"""`on_failure: hold`: a run that is paused at a failed step until a person decides (page 000 §2).

The failure is in the log, but its consequences are not drawn: dependents wait. Pure.
"""

from __future__ import annotations

from typing import Any, Literal

from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, due, step_completed, step_failed, step_fields
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["HeldAction", "held_moves", "retry_all", "settle_held"]

HeldAction = Literal["retry", "skip", "done", "fail"]


def held_moves(state: RunState) -> Decisions:
    """Pause the run, and name the steps that failed."""
    names = ", ".join(state.held_steps)
    return [ev.WorkflowPaused(reason="failure", detail=f"failed: {names}")]


def settle_held(
    state: RunState, step_id: str, action: HeldAction, now: int, *, by: str, output: Any = None
) -> Decisions:
    """Carry out a decision about a held step, of several visits the oldest; the run goes on with the last.

    Raises KeyError if the step is not held."""
    moves = _settled(state, state.held_steps[step_id][0], 0, action, now, by=by, output=output)
    if state.status == "paused" and sum(map(len, state.held_steps.values())) == 1:
        moves.append(ev.WorkflowResumed(reason=action, by=by))
    return moves


def _settled(
    state: RunState,
    held: Activation,
    index: int,
    action: HeldAction,
    now: int,
    *,
    by: str,
    output: Any = None,
) -> Decisions:
    """Return what a person decided about one held visit; `index`: of the decisions about its step at once."""
    activation = Activation(held.node, held.path, state.node_of(held).arrived + index, None, None)
    activation.clock, activation.attempt, activation.input = held.clock, held.attempt, held.input
    activation.started = now
    assert held.error is not None
    moves: Decisions
    if action == "retry":
        delay_ms, due_at = due(now, 0.0)
        moves = [
            ev.WorkflowStepRetrying(
                **step_fields(activation),
                kind="restart",
                error=held.error,
                next_attempt=held.attempt + 1,
                delay_ms=delay_ms,
                due_at=due_at,
            )
        ]
    elif action == "skip":
        detail = f"{by} skipped it after: {held.error.message}"
        moves = [
            ev.WorkflowStepSkipped(**step_fields(activation), reason="operator", detail=detail, caused_by=())
        ]
    elif action == "done":
        # A command evaluates no code on edges: where there is some, the step fails with routing_failed.
        message = activation.node.kind.message(activation, output)
        moves = step_completed(state, activation, now, output=output, judged=message)
    else:
        moves = step_failed(activation, held.error, now)
    return moves


def retry_all(state: RunState, now: int, *, by: str) -> Decisions:
    """Try every held step again, as a resume without arguments does."""
    return [
        move
        for visits in state.held_steps.values()
        for index, held in enumerate(visits)
        for move in _settled(state, held, index, "retry", now, by=by)
    ]
