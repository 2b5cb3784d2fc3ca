"""The result of a run that has come to rest in this process, from the state that its supervisor holds.

The same as the read model gives, without reading the log again: a test compares the two.
"""

from __future__ import annotations

from agentflow.engine.state import RunState
from agentflow.records.requests import request_record
from agentflow.records.runs import RunResult, StepSummary

__all__ = ["live_result"]


def live_result(state: RunState, last: int) -> RunResult:
    """Return the result of a run whose last event was written at `last` (µs)."""
    end = state.ended if state.ended is not None else last
    steps = ((step_id, state.nodes[step_id]) for step_id in state.graph.step_ids)
    asked = () if state.terminal else state.requests.values()
    return RunResult(
        workflow_id=state.workflow_id,
        state=state.status,
        output=state.output,
        steps={step_id: StepSummary(state=node.status, attempt=node.attempt) for step_id, node in steps},
        usage=state.usage,
        duration_ms=max(0, end - state.started_at) // 1000,
        error=state.error,
        pause=state.pause,
        pending_requests=tuple(request_record(state.workflow_id, r.data, r.offset, r.ts) for r in asked),
    )
