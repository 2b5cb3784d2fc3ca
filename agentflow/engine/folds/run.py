"""How the events of a run as a whole change its state."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.definition.pipeline_nodes import PIPELINE
from agentflow.engine.arrivals import begin_path, begun
from agentflow.engine.budgets import limits_of, merged
from agentflow.engine.edits import apply_edits
from agentflow.engine.folds.common import WALL_CLOCK, extend_attempt, wake
from agentflow.engine.pipeline import PipelineState
from agentflow.engine.state import RESUME, RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import micros

__all__ = ["FOLDS"]


def _started(state: RunState, data: ev.WorkflowStarted, offset: int, ts: int) -> None:
    state.begin = data
    state.input = data.input
    state.definition_hash = data.definition.hash
    if data.definition.format == "pipeline":
        state.pipeline = PipelineState(state.graph.workflow.metadata.get(PIPELINE) or {}, data.input)
    state.started_at = ts
    options = data.options
    state.on_failure = options.get("on_failure") or state.on_failure
    state.max_parallel = options.get("max_parallel") or state.max_parallel
    state.on_unknown = options.get("on_unknown") or state.on_unknown
    given = limits_of(data.budget) if data.budget is not UNSET else {}
    state.budget = merged(limits_of(state.graph.options.budget), given)
    state.step_budgets = {
        i: limits for i, node in state.graph.all_nodes.items() if (limits := limits_of(node.spec.budget))
    }
    limits = [state.graph.options.timeout, state.budget.get("max_duration_s")]
    shortest = min((limit for limit in limits if limit is not None), default=None)
    if shortest is not None:
        state.timers["run"] = ts + round(shortest * 1e6)
    if data.deadline is not UNSET:  # of the parent run
        due = micros(data.deadline)
        state.timers["run"] = min(due, state.timers.get("run", due))
    state.root.input = data.input
    state.root.frame.globals.update(state.graph.workflow.globals)
    if data.state_from is not UNSET:
        apply_edits(state, data.edits or {})
    begin_path(state, state.root, data.input)
    begun(state, state.root)


def _waiting(state: RunState, data: ev.WorkflowWaiting, offset: int, ts: int) -> None:
    state.status = "waiting"


def _paused(state: RunState, data: ev.WorkflowPaused, offset: int, ts: int) -> None:
    state.status, state.pause = "paused", data.reason
    state.draining = data.in_flight == "drain"
    state.paused_for = None if data.budget is UNSET else data.budget
    for activation in state.open.values():
        extend_attempt(state, activation, ts)
    # A pause counts against no limit; retries keep their time, and fire at the resume when it has passed.
    state.timers.pause([k for k in state.timers if not k.startswith(WALL_CLOCK)], ts)
    if data.resume_after is not UNSET:
        state.timers[RESUME] = micros(data.resume_after)


def _resumed(state: RunState, data: ev.WorkflowResumed, offset: int, ts: int) -> None:
    state.status, state.pause, state.draining = "running", None, False
    if data.definition_hash is not UNSET:
        state.definition_hash = data.definition_hash
    if data.budget is not UNSET:
        state.budget = {**state.budget, **limits_of(data.budget)}
        steps: dict[str, Any] = data.budget.get("steps") or {}
        for step_id, limits in steps.items():
            state.step_budgets[step_id] = {**state.step_budgets.get(step_id, {}), **limits_of(limits)}
    state.timers.resume(ts)
    state.timers.disarm(RESUME)
    state.changed.clear()  # they go on in the order in which they began
    for activation in state.open.values():
        activation.interruptions = 0
        if activation.agent is not None:
            activation.agent.failed_calls, activation.agent.first_failure = 0, None
            if activation.agent.asked_at is not None:
                activation.agent.asked_at = ts
        # The timer or the signal of one that waits by itself may have come meanwhile.
        goes_on = activation.status == "running" or activation.node.kind.is_passive
        if goes_on and not activation.is_for_each:
            wake(state, activation)


def _cancel_requested(state: RunState, data: ev.WorkflowCancelRequested, offset: int, ts: int) -> None:
    state.cancel_requested = data


def _signal(state: RunState, data: ev.SignalReceived, offset: int, ts: int) -> None:
    state.signals[data.signal_id] = data
    state.mail.since_outside.clear()
    for key in state.awaited:
        activation = state.open[key]
        if activation.node.kind.signalled(state, activation, data):
            state.changed[key] = activation
            break


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
    ev.SignalReceived: _signal,
}
