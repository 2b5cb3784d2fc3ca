"""The one read model of a run: its events, projected into records.

Its states, requests, usage and budgets equal those of the engine's own state at every offset, which a test
compares.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.definition.limits import used_of
from agentflow.errors import LogCorrupt
from agentflow.events.ids import iso
from agentflow.records.requests import RequestRecord
from agentflow.records.run_fold import RunFold
from agentflow.records.runs import BudgetRecord, FoldedState, RunRecord, StepSummary, Waiting

__all__ = ["RunProjection"]


class RunProjection(RunFold):
    """A run up to the last event that it was given by `take`."""

    def record(self, *, earliest_offset: int = 0) -> RunRecord:
        """Return the run record. Raises LogCorrupt before the first event."""
        begin, ended = self._begin, self._ended_at
        if begin is None:
            raise LogCorrupt(f"the log of {self.workflow_id} does not begin with workflow.started")
        return RunRecord(
            workflow_id=self.workflow_id,
            definition=begin.definition,
            ir_hash=begin.ir_hash,
            state=self._state,
            labels=begin.labels,
            created_at=iso(self._started_at),
            started_at=None if self._dispatched_at is None else iso(self._dispatched_at),
            ended_at=None if ended is None else iso(ended),
            duration_ms=None if ended is None else max(0, ended - self._started_at) // 1000,
            last_offset=self.next_offset - 1,
            earliest_offset=earliest_offset,
            input=begin.input,
            output=self._output,
            error=self._error,
            steps={
                step_id: StepSummary(state=step.state, attempt=step.attempt)
                for step_id, step in self._shown()
            },
            waiting=Waiting(requests=tuple(self._requests)),
            pause=self._pause,
            usage=self._usage,
            budget=self.budget(),
            parent=None if begin.parent is UNSET else begin.parent,
            children=tuple(self._children),
            forked_from=None if begin.forked_from is UNSET else begin.forked_from,
            updated_at=iso(self._last_ts),
            request=UNSET if self.pipeline is None else self.pipeline.view(*self._standing()),
        )

    def _standing(self) -> tuple[str, list[RequestRecord], str | None]:
        return self._state, list(self._requests.values()), self._pause

    def compact(self) -> dict[str, Any] | None:
        """Return the compact output of a request pipeline; None for any other run."""
        if self.pipeline is None:
            return None
        return self.pipeline.compact(self.workflow_id, *self._standing())

    def state(self) -> FoldedState:
        """Return the folded state."""
        begin = self._begin
        return FoldedState(
            workflow_id=self.workflow_id,
            offset=self.next_offset - 1,
            state=self._state,
            input=None if begin is None else begin.input,
            output=self._output,
            error=self._error,
            steps={step_id: step.shown() for step_id, step in self._shown()},
            calls={call_id: call.kind for call_id, call in self._calls.items()},
            waiting=Waiting(requests=tuple(self._requests)),
            timers={name: iso(due) for name, due in self._clocks.due.items()},
            pause=self._pause,
            cancel_requested=self._is_cancelling,
            usage=self._usage,
            budget=self.budget(),
            outputs=tuple(self._given.outputs()),
            shared={key: self._kept.shared[key] for key in sorted(self._kept.shared)},
            private={step_id: dict(values) for step_id, values in sorted(self._kept.private.items())},
            unfolded=tuple(sorted(self._kept.unfolded)),
        )

    def requests(self) -> list[RequestRecord]:
        """Return the open requests, oldest first."""
        return list(self._requests.values())

    def budget(self) -> BudgetRecord:
        """Return what the run may use and what is left of it; empty for a run without a budget."""
        limits = self._limits
        if not limits:
            return BudgetRecord()
        calls = [call for call in self._calls.values() if call.kind == "model"]
        reserved = {
            "max_tokens": float(sum(call.tokens for call in calls)),
            "max_cost_usd": sum(call.cost or 0.0 for call in calls),
            "max_model_calls": float(len(calls)),
        }
        return BudgetRecord(
            limits=dict(limits),
            used={name: used for name, used in used_of(self._usage, self._clock).items() if name in limits},
            reserved={name: held for name, held in reserved.items() if name in limits},
        )
