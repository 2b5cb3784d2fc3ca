"""`evolve`: one event folded into the state of its run. The only thing that changes the state.

Deterministic: it follows from the log alone. It changes the given state in place (a run's state has one
owner), so its cost follows what the event changed and not the size of the run. Event types that it does not
know are skipped; an event that the state does not allow is an IllegalEvent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from agentflow.definition.conversation import Usage
from agentflow.engine.edits import apply_edits
from agentflow.engine.folds import agents, messages, pipeline, requests, run, steps, timers, tools
from agentflow.engine.illegal import IllegalEvent
from agentflow.engine.state import RunState
from agentflow.events.catalogue import SystemStateSaved, WorkflowStarted

__all__ = ["evolve"]

_FOLDS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    **run.FOLDS,
    **steps.FOLDS,
    **agents.FOLDS,
    **tools.FOLDS,
    **requests.FOLDS,
    **timers.FOLDS,
    **messages.FOLDS,
    **pipeline.FOLDS,
}


def _fork(state: RunState, data: Any, offset: int, ts: int) -> None:
    """Fold the base of a fork: what the other run had reached, without its costs and its clocks."""
    if data.kind != "fork_base":
        return
    if state.base:
        _fold_base(state, offset, ts)
    assert state.begin is not None
    if state.begin.edits is not UNSET:
        apply_edits(state, state.begin.edits)


def _fold_base(state: RunState, offset: int, ts: int) -> None:
    state.last_ts = state.base[0].ts
    for event in state.base:
        if event.ts < state.last_ts:
            state.shift_times(event.ts - state.last_ts)
        state.last_ts = event.ts
        if isinstance(event.data, WorkflowStarted):  # of a fork that was forked again
            apply_edits(state, event.data.edits or {})
            continue
        fold = _FOLDS.get(event.data.__class__)
        if fold is not None:
            fold(state, event.data, offset, event.ts)
    gap = ts - state.base[-1].ts
    for key, due in list(state.timers.items()):
        if key != "run" and key not in state.timers.moments:
            state.timers[key] = due + gap
    state.usage = Usage()
    state.step_usage.clear()
    for activation in state.open.values():
        activation.started += gap
        activation.attempt_started += gap
        activation.usage = Usage()
    for call in state.calls.values():
        call.charged = False  # the other run pays for it
    state.base = []


_FOLDS[SystemStateSaved] = _fork


def evolve(state: RunState, data: Any, offset: int, ts: int) -> None:
    """Fold the event `data` that stands at `offset` and was written at `ts` (microseconds).

    A time before that of the previous event shows that the wall clock stepped back: by so much at least, the
    times of the state go with it, so that a delay of seconds does not become one of the step.
    Raises IllegalEvent if the state does not allow the event; the state is of no use then.
    """
    if ts < state.last_ts:
        state.shift_times(ts - state.last_ts)
    state.next_offset = offset + 1
    fold = _FOLDS.get(data.__class__)
    if fold is not None:
        if state.ended is not None:
            raise IllegalEvent(data, "the run has ended")
        fold(state, data, offset, ts)
    state.last_ts = ts
