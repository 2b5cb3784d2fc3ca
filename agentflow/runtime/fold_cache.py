"""The folds of runs that came to rest a moment ago, for when they move again soon.

A run with many open questions is answered many times: each answer would fold its whole log anew. What is kept
here is only a beginning: whoever takes it folds what the log holds beyond it. Nothing depends on it.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from agentflow.engine import Bindings, Graph, RunState
from agentflow.events.tracing import RunTracer

__all__ = ["Fold", "FoldCache"]

_QUIET = 30.0
_MOST = 16
_SHORT = 64
_LONG = 200_000


class Fold(NamedTuple):
    """What folding the first `events` events of a log gave; all of them are durable."""

    state: RunState
    tracer: RunTracer
    events: int


class FoldCache:
    """The folds of the runs that rested last: at most 16, of at most 200,000 events together, for 30 seconds.
    That of a short log is made anew faster than it would be worth its memory."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Fold, asyncio.TimerHandle]] = {}

    def keep(self, fold: Fold) -> None:
        """Keep this one, and give up those that were kept longest when there are too many."""
        run_id = fold.state.workflow_id
        self.drop(run_id)
        if fold.state.next_offset != fold.events or not _SHORT <= fold.events <= _LONG:
            return  # the first: its supervisor went on, and what it wrote may not have got to the log
        timer = asyncio.get_running_loop().call_later(_QUIET, self.drop, run_id)
        self._kept[run_id] = (fold, timer)
        while len(self._kept) > _MOST or sum(f.events for f, _ in self._kept.values()) > _LONG:
            self.drop(next(iter(self._kept)))

    def take(self, workflow_id: str, plan: Graph, bindings: Bindings) -> Fold | None:
        """The fold of a run, if it is kept and was made with this very plan and the same bindings (to end a
        run, or make it stand still, none are needed); from now on it is the caller's."""
        kept = self._kept.get(workflow_id)
        self.drop(workflow_id)
        if kept is None or kept[0].state.graph is not plan or kept[0].state.bindings != bindings:
            return None
        return kept[0]

    def drop(self, workflow_id: str) -> None:
        """Forget the fold of a run, if there is one."""
        kept = self._kept.pop(workflow_id, None)
        if kept is not None:
            kept[1].cancel()

    def clear(self) -> None:
        """Forget all."""
        for run_id in list(self._kept):
            self.drop(run_id)
