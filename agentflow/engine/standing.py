"""Activations that wait for a person or a child run: they take no slot, and no time limit runs."""

from __future__ import annotations

from agentflow.engine.activation import Activation
from agentflow.engine.arrivals import mirror
from agentflow.engine.state import RunState

__all__ = ["go_on", "stand_still"]


def stand_still(state: RunState, activation: Activation, ts: int) -> None:
    """Let an activation wait for a person or a child run: its slot is free, its time limits stand still."""
    if activation.status != "running":
        return
    activation.status = "waiting"
    if activation.node.kind.takes_slot:
        state.running -= 1
        _change_slots(state, activation, -1)
    activation.paused_timers = state.timers.pause(
        [f"{kind} {activation.key}" for kind in ("attempt", "deadline")], ts
    )


def _change_slots(state: RunState, activation: Activation, change: int) -> None:
    if activation.iteration is not None:
        place = state.node_of(activation)
        place.slots += change
        state.ready.update(activation.path.key, place)


def go_on(state: RunState, activation: Activation, ts: int) -> None:
    """Put an activation to work again, and its clocks, when its last open request is closed."""
    if activation.status != "waiting" or any(r.activation is activation for r in state.requests.values()):
        return
    if any(r.activation is activation for r in state.mail.routed.values()):
        return
    activation.status = "running"
    if activation.node.kind.takes_slot:
        state.running += 1
        _change_slots(state, activation, 1)
    if activation.iteration is None:
        place = state.node_of(activation)
        place.status = "running"
        mirror(state, activation, place)
    state.timers.resume(activation.paused_timers, ts)
    activation.paused_timers = {}
