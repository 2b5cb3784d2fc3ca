"""`evolve`: one event folded into the state of its run.

Total and deterministic: it never decides, never fails on an event that the engine wrote, and ignores
types that it does not know. It changes the given state in place (a run's state has one owner), so its
cost follows what the event changed and not the size of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentflow.engine.folds import agents, requests, run, steps, tools
from agentflow.engine.state import RunState

__all__ = ["evolve"]

_FOLDS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    **run.FOLDS,
    **steps.FOLDS,
    **agents.FOLDS,
    **tools.FOLDS,
    **requests.FOLDS,
}


def evolve(state: RunState, data: Any, offset: int, ts: int) -> None:
    """Fold the event `data` that stands at `offset` and was written at `ts` (microseconds)."""
    state.next_offset = offset + 1
    fold = _FOLDS.get(data.__class__)
    if fold is not None:
        fold(state, data, offset, ts)
    state.last_ts = ts
