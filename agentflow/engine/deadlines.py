"""Time-outs, cancels and lost processes: how open work is closed in the log without its result.

Every open call gets a recorded end before its step does; a call that may have happened is marked so.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.definition.failure import Category, ErrorInfo
from agentflow.engine import outcome
from agentflow.engine.approvals import expired, withdrawn
from agentflow.engine.budgets import Exceeded, budget_error, how_of, paused, time_limit
from agentflow.engine.ends import agent_failed
from agentflow.engine.moves import Moves, elapsed_ms, scope_fields, step_failed
from agentflow.engine.reservations import charge, terms_of
from agentflow.engine.respond import attempt_failed, tool_failed
from agentflow.engine.state import RESUME, OpenCall, RunState, ToolRecord, Unit
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso, micros

__all__ = [
    "cancel_finished",
    "close_calls",
    "closed_call",
    "due_of",
    "expire",
    "interrupted",
    "next_due",
    "overdue",
    "resume_is_due",
    "step_limit",
    "steps_exceeded",
    "unit_lost",
    "waiting",
]


def next_due(state: RunState, after: int = -1) -> int | None:
    """Return when `decide` must be asked again though nothing else happened (microseconds), or None.

    Deadlines up to `after`, when it was asked last, are left out: what they decide is decided. A paused run
    moves by itself only at the end of a quota pause. The limit of an attempt does not run while its model
    call waits for room in a budget.
    """
    timers = state.timers
    if state.status == "paused":
        timers = {RESUME: timers[RESUME]} if RESUME in timers else {}
    elif state.call_queue:
        timers = {key: due for key, due in timers.items() if not _waits(state, key)}
    return min((due for due in timers.values() if due > after), default=None)


def resume_is_due(state: RunState, now: int) -> bool:
    """Return whether the run is paused until a time that has come."""
    due = state.timers.get(RESUME)
    paused = state.status == "paused" and state.cancel_requested is None
    return paused and due is not None and due <= now


def _waits(state: RunState, timer: str) -> bool:
    kind, _, unit_key = timer.partition(" ")
    return kind == "attempt" and unit_key in state.call_queue


def waiting(state: RunState) -> ev.WorkflowWaiting:
    """Nothing runs. Of the timers the next one is named, with its time: whoever finds the run in a store
    knows by it when to wake it."""
    timers = state.timers
    following = () if not timers else (min(timers, key=timers.__getitem__),)
    named = tuple(f"{key} {iso(timers[key])}" for key in following)
    return ev.WorkflowWaiting(requests=tuple(state.requests), timers=named, signals=())


def due_of(data: ev.WorkflowWaiting) -> int | None:
    """When the next timer of a waiting run falls due (microseconds); None when the event names none, as those
    of older versions. ValueError: it names one without a time."""
    return min((micros(timer.rpartition(" ")[2]) for timer in data.timers), default=None)


def expire(state: RunState, now: int) -> Moves:
    """As `decide`, but only what the time alone decides: for a run that may not begin anything now."""
    if state.status == "paused" or state.terminal or state.cancel_requested is not None:
        return []
    return overdue(state, now)


def overdue(state: RunState, now: int) -> Moves:
    """What the first passed deadline means; a due retry only stirs its unit."""
    for key, due in list(state.timers.items()):
        if due > now or _waits(state, key):
            continue
        kind, _, unit_key = key.partition(" ")
        if kind == "run":
            return _run_deadline(state, now)
        if kind == "approval":
            return expired(state, unit_key)
        unit = state.open.get(unit_key)
        if unit is None or kind == "retry":
            del state.timers[key]  # derivable: the event that set it is in the log
            if unit is not None:
                state.stirred[unit_key] = unit
            continue
        if kind == "deadline":
            message = f"step {unit.node.id} did not end within {time_limit(state, unit):g} s"
            return abort(state, unit, _timeout("step_deadline", message), now)
        error = _timeout("step_timeout", _attempt_late(state, unit))
        if unit.tool is not None and unit.tool.state == "open":
            call = next(c for c in state.calls.values() if c.unit is unit)
            return tool_failed(
                state,
                call.call_id,
                error,
                executed=True,
                unknown=True,
                duration_ms=elapsed_ms(unit.attempt_started, now),
                now=now,
                draw=0.0,
            )
        closed = close_calls(state, unit, error, now)
        return closed + attempt_failed(state, unit, error, now, 0.0)
    return []


def _attempt_late(state: RunState, unit: Unit) -> str:
    """Return which attempt was late, for which models it waited, and the key of its limit."""
    models = sorted({c.model for c in state.calls.values() if c.unit is unit and c.model})
    waited = f", waiting for {' and '.join(models)}" if models else ""
    limit = unit.node.retry.timeout
    return f"an attempt of {unit.node.id} took longer than {limit:g} s{waited}; raise `retry.timeout`"


def _timeout(code: str, message: str) -> ErrorInfo:
    return ErrorInfo(category="timeout", code=code, message=message)


def _run_deadline(state: RunState, now: int) -> Moves:
    limits = [state.plan.options.timeout, state.budget.get("max_duration_s")]
    limit = min((x for x in limits if x is not None), default=0)
    return _end_run(state, _timeout("run_deadline", f"the run did not end within {limit:g} s"), now)


def step_limit(state: RunState, now: int) -> Moves:
    """A graph that goes round for ever ends here (page 003 §6)."""
    limit = state.plan.max_steps
    message = f"the run began more than {limit} steps"
    error = ErrorInfo(category="agent", code="step_limit_exceeded", message=message, details={"limit": limit})
    return _end_run(state, error, now)


def steps_exceeded(state: RunState, limit: int, now: int) -> Moves:
    """The budget of steps is used up."""
    found = Exceeded("run", "max_steps", limit, state.clock, 0, 1, how_of(state.budget))
    return _end_run(state, budget_error(found), now) if found.on_exceeded == "fail" else [paused(found)]


def _end_run(state: RunState, error: ErrorInfo, now: int) -> Moves:
    """First every open step with its iterations; once those ends are folded, the run."""
    outer = [unit for unit in state.open.values() if unit.iteration is None] + list(state.parked.values())
    if not outer:
        return outcome.run_failed(state, error, now)
    return [move for unit in outer for move in abort(state, unit, error, now)]


def _innermost_first(state: RunState) -> list[Unit]:
    return sorted(state.open.values(), key=lambda u: u.iteration is None) + list(state.parked.values())


def abort(state: RunState, unit: Unit, error: ErrorInfo, now: int) -> Moves:
    """End a step that is open, its iterations included."""
    moves: Moves = []
    node = state.nodes[unit.node.id]
    if node.outer is unit:
        for item in [u for u in state.open.values() if u.node is unit.node and u is not unit]:
            moves += abort(state, item, error, now)
        return moves + step_failed(unit, error, now)
    moves += close_calls(state, unit, error, now)
    return moves + agent_failed(unit, error, now)


def close_calls(state: RunState, unit: Unit, error: ErrorInfo, now: int) -> Moves:
    """Give every open call of a unit its recorded end, with this error."""
    moves: Moves = []
    for call in list(state.calls.values()):
        if call.unit is unit:
            moves.append(closed_call(state, call, error, now))
    for request in list(state.requests.values()):
        if request.unit is unit:
            moves += withdrawn(request, error.code)
    return moves


def closed_call(state: RunState, call: OpenCall, error: ErrorInfo, now: int) -> Any:
    """The recorded end of a call whose result will not come."""
    unit = call.unit
    if call.kind == "model":
        terms = terms_of(state.bindings.of(unit.node.id), call.model)
        return ev.ModelCallFailed(
            **scope_fields(unit),
            model_call_id=call.call_id,
            agent_name=unit.node.agent.name if unit.node.agent else None,
            duration_ms=elapsed_ms(unit.attempt_started, now),
            error=error,
            will_retry=error.category == "interrupted",
            usage=UNSET if (usage := charge(call, terms, None, wrote=False, error=error)) is None else usage,
        )
    record = _record(unit, call.call_id)
    safe = record.safe
    again = safe and error.category == "interrupted"
    return ev.ToolCallFailed(
        **scope_fields(unit),
        tool_call_id=call.call_id,
        tool_name=record.name,
        duration_ms=elapsed_ms(unit.attempt_started, now),
        error=error,
        executed=True,
        outcome="failed" if safe else "unknown",
        will_retry=again,
    )


def _record(unit: Unit, call_id: str) -> ToolRecord:
    if unit.tool is not None and unit.tool.call.id == call_id:
        return unit.tool
    assert unit.agent is not None
    return unit.agent.tools[call_id]


def interrupted(state: RunState, now: int, *, stopped: bool = False) -> Moves:
    """After a restart: every call that was open when the process ended is closed as interrupted.

    A model call and a safe tool call are then made again by `decide`; any other tool call surfaces as
    `outcome unknown` (page 000 §11 rule 4). Recorded turns and results are never repeated. `stopped`: they
    are cut off just now, so that the time since the last event counts as time at work.
    """
    code = "stopped" if stopped else "interrupted"
    error = _cause("interrupted", code, "the process ended while this call was open")
    return [closed_call(state, call, error, now) for call in list(state.calls.values())]


def unit_lost(state: RunState, unit: Unit, message: str, now: int) -> Moves:
    """The actor that worked on this unit died: the same as `interrupted`, for its calls alone."""
    error = _cause("interrupted", "worker_lost", message)
    return [closed_call(state, c, error, now) for c in list(state.calls.values()) if c.unit is unit]


def cancel_finished(state: RunState, now: int, *, forced: bool) -> Moves:
    """The work has stopped: close what is open and end the log with `workflow.cancelled`."""
    request = state.cancel_requested
    assert request is not None
    error = _cause("cancelled", "cancelled", request.reason or "the run was cancelled")
    moves: Moves = []
    steps: list[str] = []
    unknown: list[str] = []
    for unit in _innermost_first(state):
        if unit.key not in state.open and unit.key not in state.parked:
            continue
        node = state.nodes[unit.node.id]
        if node.outer is unit:
            moves += step_failed(unit, error, now)
        else:
            closed = close_calls(state, unit, error, now)
            unknown += [
                m.tool_call_id for m in closed if isinstance(m, ev.ToolCallFailed) and m.outcome == "unknown"
            ]
            moves += closed + agent_failed(unit, error, now)
        if unit.iteration is None:
            steps.append(unit.node.id)
    moves.append(
        ev.WorkflowCancelled(
            mode=request.mode,
            forced=forced,
            reason=request.reason,
            by=request.by,
            cancelled_steps=tuple(steps),
            unknown_calls=tuple(unknown),
            duration_ms=elapsed_ms(state.started_at, now),
            usage=state.usage,
        )
    )
    return moves


def _cause(category: Category, code: str, message: str) -> ErrorInfo:
    return ErrorInfo(category=category, code=code, message=message)
