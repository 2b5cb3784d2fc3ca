"""Edits of a fork: what it begins with in place of what the other run had reached (page 002 §9).

They stand in `workflow.started.edits`; `apply_edits` folds them behind the base. Outputs are edited in the
base itself, and an input in `workflow.started`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.engine.state import RunState

__all__ = ["apply_edits", "waiting_messages"]


def waiting_messages(state: RunState) -> dict[str, int]:
    """Return how many messages wait for the next superstep, by the node to which they go."""
    found: dict[str, int] = {}
    for queued in state.mail.queue:
        found[queued.node.id] = found.get(queued.node.id, 0) + 1
    return found


def apply_edits(state: RunState, edits: Mapping[str, Any]) -> None:
    """Change the state of a fork. `messages` has as many `{type, payload}` for a node as wait for it."""
    for key, value in edits.get("shared", {}).items():
        state.shared.edit(key, value)
    for node_id, values in edits.get("state", {}).items():
        state.shared.private.setdefault(node_id, {}).update(values)
    messages = {node_id: list(found) for node_id, found in edits.get("messages", {}).items()}
    for index, queued in enumerate(state.mail.queue):
        given = messages.get(queued.node.id)
        if given:
            message = given.pop(0)
            taken = None if queued.taken is None else queued.taken._replace(type=message["type"])
            state.mail.queue[index] = queued._replace(payload=message["payload"], taken=taken)
