"""Edits of a fork: what it begins with in place of what the other run had reached (page 002 §9).

They stand in `workflow.started.edits`; `apply_edits` folds them behind the base. Outputs are edited in the
base itself, and an input in `workflow.started`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.mail import Taken
    from agentflow.engine.state import RunState

__all__ = ["apply_edits", "waiting_messages"]


def waiting_messages(state: RunState) -> dict[str, list[str | None]]:
    """Return the types of the messages that wait, by the node to which they go: for the next superstep, or
    for their turn at the node. None for a bare token."""
    found: dict[str, list[str | None]] = {}
    for queued in state.mail.queue:
        if queued.taken is not None and queued.taken.request_id is not None:
            continue  # an answer, which the schema of its request has judged
        found.setdefault(queued.node.id, []).append(None if queued.taken is None else queued.taken.type)
    for activation in _pending(state):
        tag = None if activation.taken is None else activation.taken.type
        found.setdefault(activation.node.id, []).append(tag)
    return found


def _pending(state: RunState) -> list[Activation]:
    """Return the activations of handlers that have a message and have not begun, in the order of arrival."""
    return [
        activation
        for activation in state.activations.values()
        if activation.phase == "pending" and activation.node.kind.sends and activation.iteration is None
        if activation.taken is None or activation.taken.request_id is None
    ]


def apply_edits(state: RunState, edits: Mapping[str, Any]) -> None:
    """Change the state of a fork. `messages` has as many `{type, payload}` for a node as wait for it."""
    for key, value in edits.get("shared", {}).items():
        state.shared.edit(key, value)
    for node_id, values in edits.get("state", {}).items():
        state.shared.private.setdefault(node_id, {}).update(values)
    messages = {node_id: list(found) for node_id, found in edits.get("messages", {}).items()}
    for index, queued in enumerate(state.mail.queue):
        given = messages.get(queued.node.id)
        if given and (queued.taken is None or queued.taken.request_id is None):
            message = given.pop(0)
            taken = None if queued.taken is None else _typed(queued.taken, message["type"])
            state.mail.queue[index] = queued._replace(payload=message["payload"], taken=taken)
    for activation in _pending(state):
        given = messages.get(activation.node.id)
        if given:
            message = given.pop(0)
            activation.input = message["payload"]
            if activation.taken is not None:
                activation.taken = _typed(activation.taken, message["type"])


def _typed(taken: Taken, type: str) -> Taken:
    """Return what a message took with the type of its edit. A round is one list then."""
    return taken._replace(type=type, types=())
