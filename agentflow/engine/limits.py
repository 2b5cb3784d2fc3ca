"""Time-outs, cancels and lost processes: how open work is closed in the log without its result.

Every open call gets a recorded end before its step does; a call that may have happened is marked so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from agentflow.definition.failure import Category, ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.agents.failure import agent_failed, usage_with
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.approvals import expired, withdrawn
from agentflow.engine.budgets import Exceeded, budget_error, how_of, paused, time_limit
from agentflow.engine.call_queue import is_queued
from agentflow.engine.call_results import attempt_failed, tool_failed
from agentflow.engine.decisions import Decisions, elapsed_ms, scope_fields, step_failed
from agentflow.engine.durable_timers import rounds_disarmed
from agentflow.engine.handler_results import input_expired
from agentflow.engine.path import Path
from agentflow.engine.reservations import charge, terms_of
from agentflow.engine.run_end import run_failed
from agentflow.engine.state import RESUME, OpenCall, RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso, micros

__all__ = [
    "abort",
    "activation_lost",
    "cancel_finished",
    "close_calls",
    "close_requests",
    "closed_call",
    "due_of",
    "due_retries",
    "end_run",
    "expire",
    "has_wake_up",
    "interrupted",
    "next_due",
    "overdue",
    "resume_is_due",
    "stop",
    "too_many_steps",
    "waiting",
]


def next_due(state: RunState, after: int = -1) -> int | None:
    """Return when `decide` must be asked again though nothing else happened (microseconds), or None.

    Deadlines up to `after`, when it was asked last, are left out: what they decide is decided. A paused run
    moves by itself only at the end of a quota pause. The limit of an attempt does not run while its model
    call waits for room in a budget.
    """
    if state.status == "paused":
        due = state.timers.get(RESUME)
        return due if due is not None and due > after else None
    if not state.call_queue and (first := state.timers.earliest()) is not None and first > after:
        return first
    due_times = (due for key, due in state.timers.items() if due > after and not _waits(state, key, after))
    return min(due_times, default=None)


def resume_is_due(state: RunState, now: int) -> bool:
    """Return whether the run is paused until a time that has come."""
    due = state.timers.get(RESUME)
    paused = state.status == "paused" and state.cancel_requested is None
    return paused and due is not None and due <= now


def _waits(state: RunState, timer: str, now: int) -> bool:
    kind, _, activation_key = timer.partition(" ")
    return kind == "attempt" and is_queued(state, activation_key, now)


def has_wake_up(state: RunState) -> bool:
    """Return whether a timer that a step armed for itself, a signal or a child run will move the run on."""
    return bool(state.scheduled or state.awaited)


def waiting(state: RunState) -> ev.WorkflowWaiting:
    """Return the event of a run at rest. It names the next timer with its time, so that a Runtime which finds
    the run in a store knows when to wake it."""
    timers = state.timers
    following = () if not timers else (min(timers, key=timers.__getitem__),)
    named = tuple(f"{key} {iso(timers[key])}" for key in following)
    return ev.WorkflowWaiting(
        requests=tuple(state.requests), timers=named, signals=tuple(state.awaited.values())
    )


def due_of(data: ev.WorkflowWaiting) -> int | None:
    """When the next timer of a waiting run falls due (microseconds); None when the event names none, as those
    of older versions. ValueError: it names one without a time."""
    return min((micros(timer.rpartition(" ")[2]) for timer in data.timers), default=None)


def expire(state: RunState, now: int) -> Decisions:
    """Return what the time alone decides: for a run that may not begin anything now."""
    if state.status == "paused" or state.terminal or state.cancel_requested is not None:
        return []
    return overdue(state, now)


def overdue(state: RunState, now: int) -> Decisions:
    """Return what the first passed deadline means. The end of a backoff means nothing by itself: the
    activation, which is asked anyway, then goes on."""
    earliest = state.timers.earliest()
    if earliest is None or earliest > now:
        return []
    for name, due in state.timers.items():
        if due > now or _waits(state, name, now):
            continue
        kind, _, subject = name.partition(" ")
        if kind == "run":
            return _run_deadline(state, now)
        if kind == "approval":
            return expired(state, subject)
        if kind == "timer":
            return [_fired(state, name)]
        if kind == "join":
            return [ev.TimerFired(timer_id=name, purpose="join", due_at=iso(due))]
        if kind == "input":
            return input_expired(state, subject)
        activation = state.open.get(subject)
        if activation is None or kind == "retry":
            continue
        if kind == "deadline":
            message = f"step {activation.node.id} did not end within {time_limit(state, activation):g} s"
            return abort(state, activation, _timeout("step_deadline", message), now)
        return _attempt_over(state, activation, now)
    return []


def due_retries(state: RunState, now: int) -> Iterator[Activation]:
    """Yield the activations whose backoff is over."""
    earliest = state.timers.earliest()
    if earliest is None or earliest > now:
        return
    for name, due in state.timers.items():
        key = name[6:]
        if due <= now and name.startswith("retry ") and key in state.open and key not in state.returning:
            yield state.open[key]


def _fired(state: RunState, name: str) -> ev.TimerFired:
    armed = state.scheduled[name]
    return ev.TimerFired(
        step_id=armed.step_id,
        iteration=armed.iteration,
        activation=armed.activation,
        timer_id=armed.timer_id,
        purpose=armed.purpose,
        due_at=armed.due_at,
    )


def _attempt_over(state: RunState, activation: Activation, now: int) -> Decisions:
    error = _timeout("step_timeout", _attempt_late(state, activation))
    if activation.tool is not None and activation.tool.state == "open":
        call = next(c for c in state.calls.values() if c.activation is activation)
        return tool_failed(
            state,
            call.call_id,
            error,
            executed=True,
            unknown=True,
            duration_ms=elapsed_ms(activation.attempt_started, now),
            now=now,
            draw=0.0,
        )
    closed = close_calls(state, activation, error, now)
    return closed + attempt_failed(activation, error, now, 0.0, closed)


def _attempt_late(state: RunState, activation: Activation) -> str:
    """Return which attempt was late, for which models it waited, and the key of its limit."""
    models = sorted({c.model for c in state.calls.values() if c.activation is activation and c.model})
    waited = f", waiting for {' and '.join(models)}" if models else ""
    limit = activation.node.retry.timeout
    return f"an attempt of {activation.node.id} took longer than {limit:g} s{waited}; raise `retry.timeout`"


def _timeout(code: str, message: str) -> ErrorInfo:
    return ErrorInfo(category="timeout", code=code, message=message)


def _run_deadline(state: RunState, now: int) -> Decisions:
    limits = [state.graph.options.timeout, state.budget.get("max_duration_s")]
    limit = min((x for x in limits if x is not None), default=None)
    within = "before the deadline of its parent" if limit is None else f"within {limit:g} s"
    return end_run(state, _timeout("run_deadline", f"the run did not end {within}"), now)


def too_many_steps(state: RunState, now: int, *, more: int = 1) -> Decisions:
    """Return what happens if `more` activations would be too many; empty if they may begin.

    A graph that goes round for ever ends here (page 003 §6), or at the budget of its run.
    """
    limit = state.graph.max_steps
    if state.clock + more > limit:
        message = f"the run began more than {limit} steps"
        details = {"limit": limit}
        error = ErrorInfo(category="agent", code="step_limit_exceeded", message=message, details=details)
        return end_run(state, error, now)
    limit = state.budget.get("max_steps")
    if limit is None or state.clock + more <= limit:
        return []
    found = Exceeded("run", "max_steps", limit, state.clock, 0, more, how_of(state.budget))
    return end_run(state, budget_error(found), now) if found.on_exceeded == "fail" else [paused(found)]


def stop(state: RunState, now: int) -> Decisions:
    """Return the ends of what is still open when the run has reached its end; empty if nothing is."""
    error = _cause("cancelled", "cancelled", "the run has reached its end")
    moves = [move for activation in _outermost(state) for move in abort(state, activation, error, now)]
    return moves + close_requests(state, error.code, state.root)


def end_run(state: RunState, error: ErrorInfo, now: int) -> Decisions:
    """End every open step with all that is below it; once those ends are folded, the run."""
    moves = [move for activation in _outermost(state) for move in abort(state, activation, error, now)]
    moves += close_requests(state, error.code, state.root)
    return moves or run_failed(state, error, now)


def close_requests(state: RunState, reason: str, path: Path | None = None) -> Decisions:
    """Close the questions of activations that have ended: their answers would have been messages.

    With `path`: of those on this path alone.
    """
    return [
        m
        for r in state.requests.values()
        if r.data.event_type == "input.requested" and r.activation.key not in state.activations
        if path is None or r.activation.path is path
        for m in withdrawn(r, reason)
    ]


def _outermost(state: RunState) -> list[Activation]:
    found = [*state.open.values(), *state.awaiting_approval.values()]
    return [a for a in found if a.iteration is None and a.path.opener is None]


def _innermost_first(state: RunState) -> list[Activation]:
    """Return what is open or asks for consent, inner activations before the one that opened them."""
    found = [*state.open.values(), *state.awaiting_approval.values()]
    return sorted(found, key=_depth, reverse=True)


def _depth(activation: Activation) -> int:
    above = activation.outer or activation.path.opener
    return 0 if above is None else 1 + _depth(above)


def _below(state: RunState, activation: Activation) -> list[Activation]:
    """Return what is open, or asks for consent, directly below an activation."""
    children = [c for c in activation.children.values() if c.key in state.activations]
    for path in (activation.paths or {}).values():
        children += path.work.values()
    return [c for c in children if c.key in state.open or c.key in state.awaiting_approval]


def abort(state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
    """Return the end of an open step, after the ends of all that is open below it."""
    moves: Decisions = []
    if activation.is_for_each or activation.paths:
        for below in _below(state, activation):
            moves += abort(state, below, error, now)
        for path in (activation.paths or {}).values():
            moves += close_requests(state, error.code, path)
    closed = close_calls(state, activation, error, now)
    moves += closed
    if activation.is_for_each:
        return moves + step_failed(activation, error, now)
    moves += activation.node.kind.abort(state, activation, error, now)
    return moves + agent_failed(activation, error, now, closed=closed)


def close_calls(state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
    """Give every open call of a activation its recorded end, with this error."""
    moves: Decisions = []
    for call in list(state.calls.values()):
        if call.activation is activation:
            moves.append(closed_call(state, call, error, now))
    for request in list(state.requests.values()):
        if request.activation is activation:
            moves += withdrawn(request, error.code)
    return moves


def closed_call(state: RunState, call: OpenCall, error: ErrorInfo, now: int) -> Any:
    """Return the end of a call whose result will not come."""
    activation = call.activation
    if call.kind == "model":
        terms = terms_of(state.bindings.of_node(activation.node), call.model)
        return ev.ModelCallFailed(
            **scope_fields(activation),
            model_call_id=call.call_id,
            agent_name=activation.node.agent_name,
            duration_ms=elapsed_ms(activation.attempt_started, now),
            error=error,
            will_retry=error.category == "interrupted",
            usage=UNSET if (usage := charge(call, terms, None, wrote=False, error=error)) is None else usage,
        )
    record = _record(activation, call.call_id)
    safe = record.safe
    again = safe and error.category == "interrupted"
    return ev.ToolCallFailed(
        **scope_fields(activation),
        tool_call_id=call.call_id,
        tool_name=record.name,
        duration_ms=elapsed_ms(activation.attempt_started, now),
        error=error,
        executed=True,
        outcome="failed" if safe else "unknown",
        will_retry=again,
    )


def _record(activation: Activation, call_id: str) -> ToolRecord:
    record = activation.node.kind.call(activation, call_id)
    assert record is not None
    return record


def interrupted(state: RunState, now: int, *, stopped: bool = False) -> Decisions:
    """Close every call that was open when the process ended, as interrupted.

    A model call and a safe tool call are then made again by `decide`; any other tool call surfaces as
    `outcome unknown` (page 000 §11 rule 4). Recorded turns and results are never repeated. `stopped`: they
    are cut off just now, so that the time since the last event counts as time at work.
    """
    code = "stopped" if stopped else "interrupted"
    error = _cause("interrupted", code, "the process ended while this call was open")
    return [closed_call(state, call, error, now) for call in list(state.calls.values())]


def activation_lost(state: RunState, activation: Activation, message: str, now: int) -> Decisions:
    """Do what `interrupted` does for the calls of one activation, whose actor died."""
    error = _cause("interrupted", "worker_lost", message)
    return [
        closed_call(state, c, error, now) for c in list(state.calls.values()) if c.activation is activation
    ]


def cancel_finished(state: RunState, now: int, *, forced: bool) -> Decisions:
    """Close what is open and end the log with `workflow.cancelled`, once the work has stopped."""
    request = state.cancel_requested
    assert request is not None
    error = _cause("cancelled", "cancelled", request.reason or "the run was cancelled")
    moves: Decisions = []
    steps: list[str] = []
    unknown: list[str] = []
    for activation in _innermost_first(state):
        if activation.key not in state.open and activation.key not in state.awaiting_approval:
            continue
        closed = close_calls(state, activation, error, now)
        if activation.is_for_each:
            moves += closed + step_failed(activation, error, now)
        else:
            closed += activation.node.kind.abort(state, activation, error, now)
            unknown += [
                m.tool_call_id for m in closed if isinstance(m, ev.ToolCallFailed) and m.outcome == "unknown"
            ]
            moves += closed + agent_failed(activation, error, now, closed=closed)
        if activation.iteration is None:
            steps.append(activation.node.id)
    moves += close_requests(state, error.code)
    moves += rounds_disarmed(state)
    moves.append(
        ev.WorkflowCancelled(
            mode=request.mode,
            forced=forced,
            reason=request.reason,
            by=request.by,
            cancelled_steps=tuple(steps),
            unknown_calls=tuple(unknown),
            duration_ms=elapsed_ms(state.started_at, now),
            usage=usage_with(state.usage, moves),
        )
    )
    return moves


def _cause(category: Category, code: str, message: str) -> ErrorInfo:
    return ErrorInfo(category=category, code=code, message=message)
