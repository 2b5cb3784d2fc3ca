"""Slots: the right to be at work. A run has `max_parallel` of them, the items of a node have a limit.

The only module that takes slots, gives them back and queues for them. Work that waits for a person or a child
run has no slot, and no time limit of it runs. When it may go on it needs a slot again: without a free one it
stays `waiting` in `RunState.returning`, first come first served, and gets the next slot before any step that
has not begun. No event says so, because it follows from the event that set the slot free.
"""

from __future__ import annotations

from agentflow.engine.activation import Activation
from agentflow.engine.arrivals import mirror
from agentflow.engine.folds.common import wake
from agentflow.engine.state import RunState

__all__ = ["give_back", "go_on", "insist", "stand_still", "take"]


def take(state: RunState, activation: Activation) -> None:
    """Take the slots of an activation that begins; `decide` has seen that they are free."""
    if activation.node.kind.takes_slot:
        state.ready.last_slot = activation.node.index
    _take(state, activation)


def give_back(state: RunState, activation: Activation, ts: int) -> None:
    """Give the slots of an activation back that has ended or waits; those that return get them."""
    if not activation.has_slot:
        state.returning.pop(activation.key, None)
        return
    activation.has_slot = False
    if activation.node.kind.takes_slot:
        state.running -= 1
    _count_item(state, activation, -1)
    if state.returning:
        _serve(state, ts)


def stand_still(state: RunState, activation: Activation, ts: int) -> None:
    """Let an activation wait for a person or a child run: its slot is free, its time limits stand still."""
    if activation.status == "running":
        activation.status = "waiting"
        names = [f"{kind} {activation.key}" for kind in ("attempt", "deadline")]
        activation.paused_timers = state.timers.hold(names, ts)
    if activation.node.kind.takes_slot:
        give_back(state, activation, ts)


def go_on(state: RunState, activation: Activation, ts: int) -> None:
    """Put an activation to work again when its last open request is closed, once it has a slot."""
    if activation.status != "waiting" or any(r.activation is activation for r in state.requests.values()):
        return
    if any(r.activation is activation for r in state.mail.routed.values()):
        return
    if not activation.node.kind.takes_slot or _is_free(state, activation):
        _go_on(state, activation, ts)
    else:
        state.returning[activation.key] = activation
        state.changed.pop(activation.key, None)


def insist(state: RunState, activation: Activation, ts: int) -> None:
    """Let queued work go on without a free slot, because the log says that it did.

    Versions that did not queue have written such logs.
    """
    if state.returning.pop(activation.key, None) is not None:
        _go_on(state, activation, ts)


def _serve(state: RunState, ts: int) -> None:
    """Give free slots to those that return. One whose node has none left holds up no other."""
    for activation in list(state.returning.values()):
        if state.running >= state.max_parallel:
            return
        if _is_free(state, activation):
            del state.returning[activation.key]
            _go_on(state, activation, ts)
            wake(state, activation)


def _is_free(state: RunState, activation: Activation) -> bool:
    if state.running >= state.max_parallel:
        return False
    limit = activation.node.max_parallel
    return activation.iteration is None or limit is None or state.node_of(activation).slots < limit


def _go_on(state: RunState, activation: Activation, ts: int) -> None:
    if activation.node.kind.takes_slot:
        _take(state, activation)
    activation.status = "running"
    if activation.iteration is None:
        place = state.node_of(activation)
        place.status = "running"
        mirror(state, activation, place)
    if state.status == "paused":
        state.timers.paused |= activation.paused_timers
    else:
        state.timers.release(activation.paused_timers, ts)
    activation.paused_timers = {}


def _take(state: RunState, activation: Activation) -> None:
    activation.has_slot = True
    if activation.node.kind.takes_slot:
        state.running += 1
    _count_item(state, activation, 1)


def _count_item(state: RunState, activation: Activation, change: int) -> None:
    if activation.iteration is not None:
        place = state.node_of(activation)
        place.slots += change
        state.ready.update(activation.path.key, place)
