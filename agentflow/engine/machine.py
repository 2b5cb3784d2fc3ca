"""Which event may follow in which phase of an activation: the declared machine of transitions.

An activation is `pending` until it starts, is asked about or must not start; `asked` while a person decides
about its start; `denied` once the answer was no; `open` from its start to its end, at work or waiting; `held`
when it has failed and a person decides what follows. Its end is its last event. What happens while it is open
depends on its kind (`Kind.events`).
"""

from __future__ import annotations

from typing import Any

from agentflow.engine.activation import Activation, Phase
from agentflow.engine.illegal import IllegalEvent
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["LIFECYCLE", "activation_of", "at_work"]

LIFECYCLE: dict[type, frozenset[Phase]] = {
    ev.WorkflowStepStarted: frozenset({"pending"}),
    ev.WorkflowStepSkipped: frozenset({"pending", "denied", "held"}),
    ev.WorkflowStepFailed: frozenset({"pending", "denied", "open", "held"}),
    ev.WorkflowStepCompleted: frozenset({"open", "held"}),
    ev.WorkflowStepRetrying: frozenset({"open", "held"}),
    ev.WorkflowStepWaiting: frozenset({"asked", "open"}),
    ev.ApprovalRequested: frozenset({"pending"}),  # of a step; that of a call is work
}
"""The phases in which the events of every kind are legal."""


def activation_of(state: RunState, data: Any) -> Activation:
    """Return the activation that an event of its lifecycle is about. Raises IllegalEvent."""
    key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
    activation = state.activations.get(key)
    if activation is None:
        raise IllegalEvent(data, f"{key} does not exist, or has ended")
    if activation.phase not in LIFECYCLE[data.__class__]:
        raise IllegalEvent(data, f"{key} is {activation.phase}")
    activation.touched = state.next_offset - 1
    return activation


def at_work(state: RunState, data: Any) -> Activation:
    """Return the open activation whose work an event is about. Raises IllegalEvent."""
    key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
    activation = state.open.get(key)
    if activation is None:
        raise IllegalEvent(data, f"{key} is not at work")
    if data.__class__ not in activation.node.kind.events:
        raise IllegalEvent(data, f"{key} is of kind {activation.node.kind.name}")
    activation.touched = state.next_offset - 1
    return activation
