"""How durable timers change the state: those that kinds arm for themselves, and those of rounds."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.engine.arrivals import dispatched
from agentflow.engine.folds.messages import round_timed
from agentflow.engine.machine import at_work
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import micros

__all__ = ["FOLDS"]


def _scheduled(state: RunState, data: ev.TimerScheduled, offset: int, ts: int) -> None:
    if data.activation is UNSET:  # of a join, which no activation armed
        round_timed(state, data)
        return
    activation = at_work(state, data)
    name = f"timer {data.timer_id} {activation.key}"
    state.timers[name] = micros(data.due_at)
    state.scheduled[name] = data
    state.changed.pop(activation.key, None)
    if activation.node.kind.waits_until(activation):
        state.timers.moments[name] = None
    activation.node.kind.fold(state, activation, data, ts)


def _over(state: RunState, data: ev.TimerFired | ev.TimerCancelled, offset: int, ts: int) -> None:
    dispatched(state, ts)
    if data.activation is UNSET:
        round_timed(state, data)
        return
    activation = at_work(state, data)
    name = f"timer {data.timer_id} {activation.key}"
    state.timers.disarm(name)
    state.timers.moments.pop(name, None)
    state.scheduled.pop(name, None)
    state.changed[activation.key] = activation
    activation.node.kind.fold(state, activation, data, ts)


FOLDS: dict[type, Any] = {
    ev.TimerScheduled: _scheduled,
    ev.TimerFired: _over,
    ev.TimerCancelled: _over,
}
