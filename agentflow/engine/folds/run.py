"""How the events of a run as a whole change its state."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.engine.folds.common import WALL_CLOCK
from agentflow.engine.state import RunState, Token
from agentflow.events import catalogue as ev

__all__ = ["FOLDS"]


def _started(state: RunState, data: ev.WorkflowStarted, offset: int, ts: int) -> None:
    state.begin = data
    state.input = data.input
    state.started_at = ts
    options = data.options
    state.on_failure = options.get("on_failure") or state.on_failure
    state.on_unknown = options.get("on_unknown") or state.on_unknown
    if state.plan.options.timeout is not None:
        state.timers["run"] = ts + round(state.plan.options.timeout * 1e6)
    state.frontier.extend(n.id for n in state.plan.graph_steps if not n.deps)
    state.tokens.extend(Token(target, data.input, None) for target in state.plan.entry)


def _waiting(state: RunState, data: ev.WorkflowWaiting, offset: int, ts: int) -> None:
    state.status = "waiting"


def _paused(state: RunState, data: ev.WorkflowPaused, offset: int, ts: int) -> None:
    state.status, state.pause = "paused", data.reason
    # A pause counts against no limit; retries keep their time, and fire at the resume when it has passed.
    state.held = state.hold([key for key in state.timers if not key.startswith(WALL_CLOCK)], ts)


def _resumed(state: RunState, data: ev.WorkflowResumed, offset: int, ts: int) -> None:
    state.status, state.pause = "running", None
    state.timers.update((key, ts + left) for key, left in state.held.items())
    state.held = {}
    for unit in state.open.values():
        unit.interruptions = 0
        if unit.agent is not None:
            unit.agent.failed_calls, unit.agent.first_failure = 0, None
        if unit.status == "running" and state.nodes[unit.node.id].outer is not unit:
            state.stirred[unit.key] = unit


def _cancel_requested(state: RunState, data: ev.WorkflowCancelRequested, offset: int, ts: int) -> None:
    state.cancel_requested = data


def _completed(state: RunState, data: ev.WorkflowCompleted, offset: int, ts: int) -> None:
    state.status, state.output, state.ended = "completed", data.output, ts


def _failed(state: RunState, data: ev.WorkflowFailed, offset: int, ts: int) -> None:
    state.status, state.error, state.ended = "failed", data.error, ts
    state.output = None if data.partial_output is UNSET else data.partial_output


def _cancelled(state: RunState, data: ev.WorkflowCancelled, offset: int, ts: int) -> None:
    state.status, state.ended = "cancelled", ts


FOLDS: dict[type, Any] = {
    ev.WorkflowStarted: _started,
    ev.WorkflowWaiting: _waiting,
    ev.WorkflowPaused: _paused,
    ev.WorkflowResumed: _resumed,
    ev.WorkflowCancelRequested: _cancel_requested,
    ev.WorkflowCompleted: _completed,
    ev.WorkflowFailed: _failed,
    ev.WorkflowCancelled: _cancelled,
}
