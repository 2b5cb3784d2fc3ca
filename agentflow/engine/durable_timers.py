"""Durable timers as events: those that kinds arm for themselves, and those of the rounds of a fan-in."""

from __future__ import annotations

from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, scope_fields, step_fields
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

__all__ = [
    "cancelled",
    "is_armed",
    "name_of",
    "round_timers",
    "rounds_disarmed",
    "scheduled",
    "waits_for_timer",
]


def name_of(activation: Activation, timer_id: str) -> str:
    """Return what names a timer of an activation among those of its run."""
    return f"timer {timer_id} {activation.key}"


def scheduled(activation: Activation, timer_id: str, purpose: str, due: int) -> ev.TimerScheduled:
    """Return the event that arms a timer for `due` (µs since the epoch)."""
    return ev.TimerScheduled(**scope_fields(activation), timer_id=timer_id, purpose=purpose, due_at=iso(due))


def waits_for_timer(activation: Activation, timer: ev.TimerScheduled) -> ev.WorkflowStepWaiting:
    """Return the event that says that the step waits for this timer."""
    return ev.WorkflowStepWaiting(
        **step_fields(activation), for_="timer", ref=timer.timer_id, deadline=timer.due_at
    )


def is_armed(state: RunState, activation: Activation, timer_id: str) -> bool:
    """Return whether a timer is armed and has not fired."""
    return bool(state.scheduled) and name_of(activation, timer_id) in state.scheduled


def cancelled(state: RunState, activation: Activation, timer_id: str) -> Decisions:
    """Return the event that disarms a timer; nothing if it is not armed."""
    if not is_armed(state, activation, timer_id):
        return []
    armed = state.scheduled[name_of(activation, timer_id)]
    return [
        ev.TimerCancelled(
            **scope_fields(activation), timer_id=timer_id, purpose=armed.purpose, due_at=armed.due_at
        )
    ]


def round_timers(state: RunState) -> Decisions:
    """Return the events that arm the timers of rounds that have begun, and disarm those of closed ones."""
    moves: Decisions = []
    for name, held in state.mail.untimed.items():
        if held.armed is not None:
            moves.append(ev.TimerCancelled(timer_id=name, purpose="join", due_at=held.armed.due_at))
        due = held.due()
        if due is not None:
            moves.append(ev.TimerScheduled(timer_id=name, purpose="join", due_at=due))
    return moves


def rounds_disarmed(state: RunState) -> Decisions:
    """Return the events that disarm what is armed for rounds when the run ends."""
    if not state.has_mail:
        return []
    rounds = {id(held): held for path in state.paths.values() for held in path.rounds.values()}
    rounds |= {id(held): held for held in state.mail.untimed.values()}
    return [
        ev.TimerCancelled(timer_id=armed.timer_id, purpose="join", due_at=armed.due_at)
        for held in rounds.values()
        if (armed := held.armed) is not None
    ]
