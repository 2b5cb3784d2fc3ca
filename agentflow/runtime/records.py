"""What a run looks like from outside: results and run records, views of the fold (page 000 §8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.budgets import used_of
from agentflow.engine.state import RunState
from agentflow.errors import WorkflowCancelled, WorkflowFailed
from agentflow.events.catalogue import DefinitionInfo, ForkOrigin, ParentRun
from agentflow.events.envelope import iso, micros
from agentflow.runtime.requests import RequestRecord, open_requests

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = [
    "BudgetRecord",
    "RunRecord",
    "RunResult",
    "StepSummary",
    "Waiting",
    "budget_record",
    "raise_for_failure",
    "result_of",
    "run_record",
    "run_result",
]


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step stands."""

    state: str
    attempt: int


class RunResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """How a run ended, or where it rests. `duration_ms` spans its first to its last event.

    `output` is a value of the `output_type` that was asked for, if the run is completed; else JSON.
    """

    workflow_id: str
    state: str
    output: T
    steps: dict[str, StepSummary]
    usage: Usage
    duration_ms: int
    error: ErrorInfo | None = None
    pause: str | None = None
    """Why the run is paused."""
    pending_requests: tuple[RequestRecord, ...] = ()
    """The open requests of a run that has not ended, oldest first."""

    @property
    def failed_steps(self) -> tuple[str, ...]:
        """The ids of the steps that failed, in the order of the definition."""
        return tuple(step_id for step_id, step in self.steps.items() if step.state == "failed")


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What a run waits for: ids of requests, timers and signals."""

    requests: tuple[str, ...] = ()
    timers: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


class BudgetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use, what it has used, and what its open calls hold back, by the name of the limit."""

    limits: dict[str, Any] = {}
    used: dict[str, float | None] = {}
    reserved: dict[str, float] = {}


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as `show` and `list` give it. Times are RFC 3339, null while they have not come.

    `children` are the runs that its steps began; `links` are paths of the daemon that gave the record.
    """

    workflow_id: str
    definition: DefinitionInfo
    ir_hash: str
    state: str
    labels: dict[str, str]
    created_at: str
    started_at: str | None
    ended_at: str | None
    duration_ms: int | None
    last_offset: int
    earliest_offset: int
    input: Any
    output: Any
    error: ErrorInfo | None
    steps: dict[str, StepSummary]
    waiting: Waiting
    pause: str | None
    usage: Usage
    budget: BudgetRecord = BudgetRecord()
    parent: ParentRun | None = None
    children: tuple[str, ...] = ()
    forked_from: ForkOrigin | None = None
    archived: bool = False
    updated_at: str = ""
    links: dict[str, str] = {}


def run_result(state: RunState, last: int) -> RunResult:
    """The result of a run whose last event was written at `last` (microseconds)."""
    end = state.ended if state.ended is not None else last
    return RunResult(
        workflow_id=state.workflow_id,
        state=state.status,
        output=state.output,
        steps=_steps(state),
        usage=state.usage,
        duration_ms=max(0, end - state.started_at) // 1000,
        error=state.error,
        pause=state.pause,
        pending_requests=() if state.terminal else tuple(open_requests(state)),
    )


def raise_for_failure(result: RunResult) -> None:
    """Raise WorkflowFailed or WorkflowCancelled if the run ended so; its message is the run's error."""
    if result.state in ("failed", "cancelled"):
        kind = WorkflowFailed if result.state == "failed" else WorkflowCancelled
        ended = "failed" if result.state == "failed" else "was cancelled"
        message = result.error.message if result.error else f"{result.workflow_id} {ended}"
        raise kind(message, result=result)


def result_of(record: RunRecord, requests: tuple[RequestRecord, ...] = ()) -> RunResult:
    """Return the result that a record holds; of a run that has not ended the time until its last event.

    `requests`: the open requests of the run, of which the record names the ids alone.
    """
    duration = record.duration_ms
    if duration is None:
        duration = max(0, micros(record.updated_at) - micros(record.created_at)) // 1000
    return RunResult(
        workflow_id=record.workflow_id,
        state=record.state,
        output=record.output,
        steps=record.steps,
        usage=record.usage,
        duration_ms=duration,
        error=record.error,
        pause=record.pause,
        pending_requests=requests,
    )


def run_record(state: RunState, *, earliest_offset: int = 0, children: tuple[str, ...] = ()) -> RunRecord:
    """The record of a folded run."""
    begin = state.begin
    assert begin is not None
    return RunRecord(
        workflow_id=state.workflow_id,
        definition=begin.definition,
        ir_hash=begin.ir_hash,
        state=state.status,
        labels=begin.labels,
        created_at=iso(state.started_at),
        started_at=iso(state.dispatched_at) if state.dispatched_at is not None else None,
        ended_at=iso(state.ended) if state.ended is not None else None,
        duration_ms=None if state.ended is None else max(0, state.ended - state.started_at) // 1000,
        last_offset=state.next_offset - 1,
        earliest_offset=earliest_offset,
        input=begin.input,
        output=state.output,
        error=state.error,
        steps=_steps(state),
        waiting=Waiting(requests=tuple(state.requests)),
        pause=state.pause,
        usage=state.usage,
        budget=budget_record(state),
        parent=None if begin.parent is UNSET else begin.parent,
        children=children,
        forked_from=None if begin.forked_from is UNSET else begin.forked_from,
        updated_at=iso(state.last_ts),
    )


def budget_record(state: RunState) -> BudgetRecord:
    """What the run may use and what is left of it; empty for a run without a budget."""
    limits = dict(state.budget)
    if not limits:
        return BudgetRecord()
    used = {name: value for name, value in used_of(state.usage, state.clock).items() if name in limits}
    calls = [call for call in state.calls.values() if call.kind == "model"]
    reserved = {
        "max_tokens": float(sum(call.tokens for call in calls)),
        "max_cost_usd": sum(call.cost or 0.0 for call in calls),
        "max_model_calls": float(len(calls)),
    }
    return BudgetRecord(limits=limits, used=used, reserved={k: v for k, v in reserved.items() if k in limits})


def _steps(state: RunState) -> dict[str, StepSummary]:
    return {
        step_id: StepSummary(state=state.nodes[step_id].status, attempt=state.nodes[step_id].attempt)
        for step_id in state.graph.step_ids
    }
