"""TraceValidation: checks the trace of a run whose options ask for it, before the run ends (page 003 §8).

A trace that breaks a rule is said by `system.error`, in the batch of the terminal event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event, iso
from agentflow.records import trace_check
from agentflow.records.trace import TraceFold

if TYPE_CHECKING:
    from agentflow.engine import RunState

__all__ = ["TraceValidation"]

_ENDS = (ev.WorkflowCompleted, ev.WorkflowFailed, ev.WorkflowCancelled)


class TraceValidation:
    """Follows the events of one run. Used by its RunStepper alone."""

    __slots__ = ("_fold", "_state")

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._fold = TraceFold()

    def judge(self, data: ev.RunEvent, offset: int, now: int) -> ev.SystemError | None:
        """Take the next event, before it is folded; return what is wrong if it ends the run."""
        self.take(data, offset, now)
        if not isinstance(data, _ENDS):
            return None
        violations = tuple(trace_check.check_trace(self._fold.trace(), self._state.graph.workflow))
        if not violations:
            return None
        first = violations[0]
        return ev.SystemError(
            error=ErrorInfo(
                category="system",
                code="trace_invalid",
                message=f"the trace of the run is not valid: {first.code}: {first.message}",
                details={"violations": msgspec.to_builtins(violations)},
            ),
            severity="error",
            component="trace",
            fatal=False,
        )

    def take(self, data: Any, offset: int, ts: int) -> None:
        """Take the next event."""
        event = Event(
            id="",
            offset=offset,
            timestamp=iso(ts),
            type=data.event_type,
            workflow_id=self._state.workflow_id,
            data=data,
        )
        self._fold.take(event)
