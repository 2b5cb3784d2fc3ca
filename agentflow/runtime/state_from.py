"""State that a new run takes over from a checkpoint of another: private and shared (page 002 §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.errors import InvalidEdit
from agentflow.executors.annotations import name_of, rank

if TYPE_CHECKING:
    from agentflow.definition.ir import Workflow
    from agentflow.engine import RunState
    from agentflow.executors.callables import Callables

__all__ = ["carried_state", "shared_problem"]


def shared_problem(key: str, value: Any, code: Callables | None) -> str | None:
    """Return why a packed value does not fit the declared type of a shared key; None if it does."""
    if code is None or key not in code.shared:
        return None
    declared = code.shared[key]
    found = code.payloads.unpack(value)
    if rank(declared, found) is None:
        return f"the key takes {name_of(declared)}, not {type(found).__name__}"
    return None


def carried_state(source: RunState, graph: Workflow, code: Callables | None, id: str) -> dict[str, Any]:
    """Return the private state of the nodes that the graph has too, and the committed shared state.

    Raises InvalidEdit if a value does not fit the type that the graph declares for its key.
    """
    nodes = {node.id for node in graph.nodes}
    private = {node: dict(kept) for node, kept in source.shared.private.items() if node in nodes and kept}
    shared = dict(source.shared.values)
    for key, value in shared.items():
        problem = shared_problem(key, value, code)
        if problem is not None:
            hint = "begin without state_from, or declare the key with the type that it had"
            raise InvalidEdit(f"state_from {id}: shared.{key}: {problem}", hint=hint, details={"edit": key})
    return {"shared": shared, "state": private}
