"""What code of the user may read of a run: the values of its path, as far as its node is granted. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.node import WORKER_PREFIX

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.frames import Frame, Root

__all__ = ["worker_context"]


def worker_context(activation: Activation) -> dict[str, Any] | None:
    """Return `{input, nodes, globals}` as a worker handler gets them (page 003 §12); None if the call is one
    of another function.

    The values are those of the run: the caller copies what it gives away. What `capabilities.read` leaves out
    is absent; the cost grows with what it grants.
    """
    if activation.tool is None or not activation.tool.name.startswith(WORKER_PREFIX):
        return None
    path, grant = activation.path, activation.node.spec.capabilities
    areas = None if grant is None else grant.read
    return {
        "input": path.input if areas is None or "input" in areas else None,
        "nodes": _readable(path.frame, "nodes", areas),
        "globals": _readable(path.frame, "globals", areas),
    }


def _readable(frame: Frame, root: Root, areas: tuple[str, ...] | None) -> dict[str, Any]:
    found = frame.all(root)
    if areas is None or root in areas:
        return found
    names = {area.split(".")[1] for area in areas if area.startswith(f"{root}.")}
    return {name: value for name, value in found.items() if name in names}
