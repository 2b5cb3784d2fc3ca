"""RecordedAnswers: serves a replayed run from the record of another one (page 003 §9).

It stands between the decisions of a run and its effects: what the record answers is not executed. Used by the
RunSupervisor of that run alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentflow import engine
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.decisions import Decisions
from agentflow.engine.effect_replay import Replayer, call_of
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.runtime.run_stepper import RunStepper

__all__ = ["RecordedAnswers"]


class RecordedAnswers:
    """An answer that does not fit ends the run once it is at rest."""

    __slots__ = ("_error", "_run", "_serving", "replayer")

    def __init__(self, run: RunStepper, replayer: Replayer) -> None:
        self._run = run
        self._error: ErrorInfo | None = None
        self._serving = False
        self.replayer = replayer

    def following(self, see: Callable[[Any], object]) -> Callable[[Any], object]:
        """Return `see` for a fold of the log that the Replayer follows too."""
        state, replayer = self._run.state, self.replayer

        def following(data: Any) -> None:
            see(data)
            replayer.take(data, state.next_offset - 1, state.last_ts)
            replayer.credit(state, data)
            replayer.align(state, state.last_ts)

        return following

    def serves_work(self, key: str) -> bool:
        """Return whether a child run or a handler is not started, because a record says what comes of it."""
        return key in self._run.state.open and self._is_served(self.replayer.serves_work(key))

    def serves_call(self, call_id: str) -> bool:
        """Return whether a call is answered from the record."""
        return self._is_served(self.replayer.serves_call(call_id))

    def serves_access(self, access: engine.StoreAccess) -> bool:
        """Return whether an access to the store is answered from the record."""
        return self._is_served(self.replayer.serves_access(access))

    def _is_served(self, answer: bool | ErrorInfo) -> bool:
        if isinstance(answer, ErrorInfo):
            self._error = self._error or answer
            return True
        return answer

    def without_served(self, closed: Decisions) -> Decisions:
        """Return the ends of interrupted calls without those that the record answers: such a call was never
        made, so that it stays open and its outcome is not unknown."""
        return [data for data in closed if not self.serves_call(call_of(data))]

    def serve_next(self) -> bool:
        """Tell the run what its record says next; return whether that changed anything.

        Called when all that was decided is durable, so that results come in the recorded order.
        """
        run = self._run
        if self._serving or run.suspending is not None or run.launch.queued or run.state.terminal:
            return False
        self._serving = True
        try:
            while not run.outbox:
                if self._error is not None:
                    return self._end(self._error)
                step = self.replayer.next(run.state, run.now())
                if step is None:
                    return False
                if isinstance(step, ErrorInfo):
                    return self._end(step)
                run.outside.found.update(step.found)
                run.advance(step.decisions)
            return True
        finally:
            self._serving = False

    def _end(self, error: ErrorInfo) -> bool:
        """End the run with all that is open: the record does not fit. Nothing was sent."""
        run, now = self._run, self._run.now()
        first = run.state.next_offset
        events: list[ev.RunEvent] = []
        while not run.state.terminal:
            run.record(engine.end_run(run.state, error, now), events, now)
        run.commit(first, events, now)
        return True
