"""`start`: where tokens begin."""

from __future__ import annotations

from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import RunState

__all__ = ["KIND"]


class Start(Kind):
    """Passes the run's input on."""

    name = "start"
    is_start = True
    moves_tokens_only = True

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once, with the input as output."""
        return step_completed(state, activation, now, output=activation.input)


KIND = Start()
