"""`evolve`: one event folded into the state of its run.

Total and deterministic: it never decides, never fails on an event that the engine wrote, and ignores
types that it does not know. It changes the given state in place (a run's state has one owner), so its
cost follows what the event changed and not the size of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentflow.definition.conversation import Usage
from agentflow.engine.folds import agents, requests, run, steps, tools
from agentflow.engine.state import RunState
from agentflow.events.catalogue import SystemStateSaved

__all__ = ["evolve"]

_FOLDS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    **run.FOLDS,
    **steps.FOLDS,
    **agents.FOLDS,
    **tools.FOLDS,
    **requests.FOLDS,
}


def _fork(state: RunState, data: Any, offset: int, ts: int) -> None:
    """The base of a fork: what the other run had reached, without what it cost and without its clocks."""
    if data.kind != "fork_base" or not state.base:
        return
    state.last_ts = state.base[0].ts
    for event in state.base:
        if event.ts < state.last_ts:
            state.shift_times(event.ts - state.last_ts)
        state.last_ts = event.ts
        fold = _FOLDS.get(event.data.__class__)
        if fold is not None:
            fold(state, event.data, offset, event.ts)
    gap = ts - state.base[-1].ts
    state.timers = {key: due if key == "run" else due + gap for key, due in state.timers.items()}
    state.usage = Usage()
    for unit in state.open.values():
        unit.started += gap
        unit.attempt_started += gap
        unit.usage = Usage()
    for node in state.nodes.values():
        node.usage = Usage()
    for call in state.calls.values():
        call.charged = False  # the other run pays for it
    state.base = []
    state.fresh.clear()
    state.closed.clear()


_FOLDS[SystemStateSaved] = _fork


def evolve(state: RunState, data: Any, offset: int, ts: int) -> None:
    """Fold the event `data` that stands at `offset` and was written at `ts` (microseconds).

    A time before that of the previous event shows that the wall clock stepped back: by so much at least, the
    times of the state go with it, so that a delay of seconds does not become one of the step.
    """
    if ts < state.last_ts:
        state.shift_times(ts - state.last_ts)
    state.next_offset = offset + 1
    fold = _FOLDS.get(data.__class__)
    if fold is not None:
        fold(state, data, offset, ts)
    state.last_ts = ts
