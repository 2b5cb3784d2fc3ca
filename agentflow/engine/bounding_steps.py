"""Which steps with a budget are around a piece of work: what it uses counts against each of them."""

from __future__ import annotations

from agentflow.engine.activation import Activation
from agentflow.engine.state import RunState

__all__ = ["bounding_steps"]


def bounding_steps(state: RunState, activation: Activation) -> tuple[str, ...]:
    """Return the steps whose budgets bound an activation: its own, and those that opened the paths around it,
    innermost first."""
    if not state.step_budgets:
        return ()
    found: list[str] = []
    work: Activation | None = activation
    while work is not None:
        step = work.node.id
        if step in state.step_budgets and step not in found:
            found.append(step)
        work = work.path.opener
    return tuple(found)
