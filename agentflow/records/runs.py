"""What is shown of a run: its record, result, state at an offset, and the definition that it is pinned to.

Structs alone, and what follows from one of them (page 000 §8). `projection` makes them from events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Workflow
from agentflow.errors import AgentflowError, WorkflowCancelled, failure_of_run
from agentflow.events.catalogue import DefinitionInfo, ForkOrigin, ParentRun
from agentflow.events.ids import micros
from agentflow.records.executions import (
    AgentExecution,
    ModelExecution,
    StepExecution,
    ToolExecution,
)
from agentflow.records.outputs import OutputRecord
from agentflow.records.pipeline import RequestRecordView
from agentflow.records.requests import RequestRecord

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = [
    "CONCURRENCY_KEY_LABEL",
    "BudgetRecord",
    "DefinitionView",
    "ExecutionRecord",
    "FoldedState",
    "FoldedStep",
    "RunRecord",
    "RunResult",
    "RunSummary",
    "StepNotFound",
    "StepSummary",
    "Waiting",
    "raise_for_failure",
    "result_of",
]

CONCURRENCY_KEY_LABEL = "agentflow.concurrency_key"
"""Label of the store's index by which the runs of a concurrency key are found."""


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
    outputs: tuple[Any, ...] = ()
    """All outputs of a graph run, in the order of page 002 §16; `output` is the last of them."""
    intermediate_outputs: tuple[Any, ...] = ()
    """What nodes gave out that are not in `output_from`."""
    events: Sequence[Any] = ()
    """The whole log of a graph run, as events. They are decoded when they are first looked at, so that
    msgspec has to be told how to encode them: `msgspec.json.encode(result, enc_hook=list)`."""
    undelivered: tuple[Any, ...] = ()
    """The messages of a graph run that no edge delivered: `message.undelivered`."""
    checkpoint: str | None = None
    """Id of the last checkpoint of a graph run."""
    forked_from: ForkOrigin | None = None
    """Where the run was forked from."""

    def __post_init__(self) -> None:
        if isinstance(self.events, list):  # decoded from JSON
            msgspec.structs.force_setattr(self, "events", tuple(self.events))

    def get_outputs(self) -> list[Any]:
        """Return the outputs of a graph run; of an activation those of its last attempt."""
        return list(self.outputs)

    def get_intermediate_outputs(self) -> list[Any]:
        """Return what nodes gave out that are not in `output_from`."""
        return list(self.intermediate_outputs)

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
    request: RequestRecordView | UnsetType = UNSET
    """Of a run of format `pipeline`: its phase, and what it was asked for."""
    links: dict[str, str] = {}


def raise_for_failure(result: RunResult) -> None:
    """Raise WorkflowFailed or WorkflowCancelled if the run ended so; its message is the run's error."""
    if result.state in ("failed", "cancelled"):
        kind = WorkflowCancelled
        if result.state == "failed":
            kind = failure_of_run(result.error.code if result.error else None)
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


class StepNotFound(AgentflowError):
    """The run has no such step, or it has not begun."""

    code = "step_not_found"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a run record that the store answers without reading the run's log."""

    workflow_id: str
    name: str | None
    definition_hash: str
    state: str
    labels: dict[str, str]
    created_at: str
    updated_at: str
    ended_at: str | None
    duration_ms: int | None
    last_offset: int
    earliest_offset: int
    parent: str | None
    bytes: int
    archived: bool = False
    usage: Usage | None = None  # of an ended run, if it was asked for
    links: dict[str, str] = {}


class FoldedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in a folded state. `output` and `error` {category, code, message} once it has ended; `items`
    counts iterations by state."""

    state: str
    attempt: int
    visits: int
    output: Any = None
    error: Any = None
    items: dict[str, int] | None = None


class FoldedState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a run's events up to `offset`: all that the runtime knows of it then.

    `calls` are the open calls of models and tools, `timers` give when they fall due.
    """

    workflow_id: str
    offset: int
    state: str
    input: Any
    output: Any
    error: ErrorInfo | None
    steps: dict[str, FoldedStep]
    calls: dict[str, str]
    waiting: Waiting
    timers: dict[str, str]
    pause: str | None
    cancel_requested: bool
    usage: Usage
    budget: BudgetRecord
    outputs: tuple[OutputRecord, ...] = ()
    """What a graph run has given out, in the order of its results."""
    shared: dict[str, Any] = {}
    """The shared state of executors by key, as committed."""
    private: dict[str, dict[str, Any]] = {}
    """The private state of executors by step and key; `$state` is the snapshot of an executor."""
    unfolded: tuple[str, ...] = ()
    """Shared keys whose values are not known in this process: their reducers are not registered in it."""


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: its record, and each execution of a step, an agent, a model and a tool."""

    workflow: RunRecord
    steps: list[StepExecution]
    agents: list[AgentExecution]
    models: list[ModelExecution]
    tools: list[ToolExecution]


class DefinitionView(msgspec.Struct, frozen=True, kw_only=True):
    """The definition that a run is pinned to: its source as it was submitted, and its graph."""

    workflow_id: str
    definition: DefinitionInfo
    source: Any
    ir_hash: str
    ir: Workflow
