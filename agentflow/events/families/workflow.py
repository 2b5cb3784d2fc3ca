"""Events of a run and of its steps: `workflow.*` (page 000 §6.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import Usage
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.failure import ErrorInfo
from agentflow.events.families.base import Reference, RunEvent, StepEvent

__all__ = [
    "DefinitionInfo",
    "Delivery",
    "ForkOrigin",
    "ItemResult",
    "MessageRef",
    "ParentRun",
    "ReplayOrigin",
    "SentMessage",
    "SharedWrite",
    "SkipReason",
    "StateWrites",
    "StepCounts",
    "WorkflowCancelRequested",
    "WorkflowCancelled",
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowPaused",
    "WorkflowResumed",
    "WorkflowStarted",
    "WorkflowStepCompleted",
    "WorkflowStepEvent",
    "WorkflowStepFailed",
    "WorkflowStepRetrying",
    "WorkflowStepSkipped",
    "WorkflowStepStarted",
    "WorkflowStepWaiting",
    "WorkflowWaiting",
]

SkipReason = Literal[
    "condition_false",
    "dependency_failed",
    "dependency_skipped",
    "dependency_cancelled",
    "branch_not_taken",
    "toolset_unavailable",
    "approval_denied",
    "approval_required",
]


class DefinitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which definition a run is pinned to. `hash` is the sha256 of the canonical source."""

    id: str
    name: str | None
    version: str | None
    format: str
    hash: str
    signature: str | UnsetType = UNSET


class ParentRun(msgspec.Struct, frozen=True, kw_only=True):
    """The step of another run that this run is a child of."""

    workflow_id: str
    step_id: str
    offset: int


class ForkOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix of another log that a forked run starts from."""

    workflow_id: str
    offset: int
    from_step: str | UnsetType = UNSET


class ReplayOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded run that a replay is served from, and its policy (page 003 §9)."""

    workflow_id: str
    policy: str


class WorkflowStarted(RunEvent, frozen=True, kw_only=True):
    """Offset 0: everything that is needed to run."""

    EVENT_TYPE: ClassVar[str] = "workflow.started"

    definition: DefinitionInfo
    ir_hash: str
    source: Any
    input: Any
    options: dict[str, Any]
    labels: dict[str, str]
    schema_version: int
    runtime_version: str
    by: str
    idempotency_key: str | UnsetType = UNSET
    body_hash: str | UnsetType = UNSET
    budget: dict[str, Any] | UnsetType = UNSET
    deadline: str | UnsetType = UNSET
    diagnostics: tuple[Diagnostic, ...] | UnsetType = UNSET
    grants: Any | UnsetType = UNSET
    parent: ParentRun | UnsetType = UNSET
    forked_from: ForkOrigin | UnsetType = UNSET
    edits: dict[str, Any] | UnsetType = UNSET
    replay_of: ReplayOrigin | UnsetType = UNSET
    state_from: str | UnsetType = UNSET


class WorkflowStepEvent(StepEvent, frozen=True, kw_only=True):
    """What all `workflow.step_*` hold. `path` is the child path (empty outside), `clock` the logical clock
    (page 003 §6), `superstep` is set under that policy only."""

    step_index: int
    attempt: int
    path: str
    visit: int
    clock: int
    superstep: int | UnsetType = UNSET


class MessageRef(msgspec.Struct, frozen=True, kw_only=True):
    """A message that an activation took: its sender, the edge, and its index among the sender's messages."""

    activation: str
    edge: str
    index: int


class WorkflowStepStarted(WorkflowStepEvent, frozen=True, kw_only=True):
    """A step begins to work on its resolved input. `kind` is the node's kind; `missing` the dead sources."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_started"

    kind: str
    input: Any
    agent_name: str | UnsetType = UNSET
    depends_on: tuple[str, ...] | UnsetType = UNSET
    tags: dict[str, Any] | UnsetType = UNSET
    sources: tuple[MessageRef, ...] | UnsetType = UNSET
    missing: tuple[str, ...] | UnsetType = UNSET
    child: dict[str, Any] | UnsetType = UNSET


class ItemResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one item of a for_each ended."""

    index: int
    status: str
    error: ErrorInfo | UnsetType = UNSET


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What an edge did with a message."""

    edge: str
    target: str
    status: str


class SentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that an activation sent; `payload` inline or as a blob reference."""

    index: int
    type: str
    payload: Any
    deliveries: tuple[Delivery, ...]


class SharedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One write to the shared state."""

    key: str
    value: Any


class StateWrites(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an activation wrote, and nothing that it only read."""

    private: dict[str, Any] = {}
    shared: tuple[SharedWrite, ...] = ()
    globals: dict[str, Any] = {}


class WorkflowStepCompleted(WorkflowStepEvent, frozen=True, kw_only=True):
    """A step succeeded. `output_size` is in bytes of canonical JSON; `next` is the port that was taken."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_completed"

    duration_ms: int
    output: Any
    output_size: int
    state_ref: str | UnsetType = UNSET
    items: tuple[ItemResult, ...] | UnsetType = UNSET
    next: str | UnsetType | None = UNSET
    messages: tuple[SentMessage, ...] | UnsetType = UNSET
    state: StateWrites | UnsetType = UNSET
    cached: Reference | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET


class WorkflowStepFailed(WorkflowStepEvent, frozen=True, kw_only=True):
    """A step failed for good; category `cancelled` means it was cancelled."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_failed"

    duration_ms: int
    error: ErrorInfo
    attempts: int
    outcome: Literal["failed", "unknown"]
    items: tuple[ItemResult, ...] | UnsetType = UNSET


class WorkflowStepSkipped(WorkflowStepEvent, frozen=True, kw_only=True):
    """A step will not run; `caused_by` names the steps that decided it."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_skipped"

    reason: SkipReason
    detail: str | None
    caused_by: tuple[str, ...]


class WorkflowStepWaiting(WorkflowStepEvent, frozen=True, kw_only=True, rename={"for_": "for"}):
    """A step waits for an approval, input, timer, signal or child; `ref` is the id of what it waits for."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_waiting"

    for_: str
    ref: str
    deadline: str | UnsetType = UNSET


class WorkflowStepRetrying(WorkflowStepEvent, frozen=True, kw_only=True):
    """An attempt of a node without agent events failed and will be repeated at `due_at`."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_retrying"

    kind: Literal["model", "tool", "repair", "restart"]
    error: ErrorInfo
    next_attempt: int
    delay_ms: int
    due_at: str


class WorkflowWaiting(RunEvent, frozen=True, kw_only=True):
    """Nothing runs: the ids of the open requests, timers and signals."""

    EVENT_TYPE: ClassVar[str] = "workflow.waiting"

    requests: tuple[str, ...]
    timers: tuple[str, ...]
    signals: tuple[str, ...]


class WorkflowPaused(RunEvent, frozen=True, kw_only=True):
    """The run stands still until it is resumed."""

    EVENT_TYPE: ClassVar[str] = "workflow.paused"

    reason: str
    detail: str | None
    by: str | UnsetType = UNSET
    resume_after: str | UnsetType = UNSET
    budget: dict[str, Any] | UnsetType = UNSET


class WorkflowResumed(RunEvent, frozen=True, kw_only=True):
    """The run goes on after a pause."""

    EVENT_TYPE: ClassVar[str] = "workflow.resumed"

    reason: str | None
    by: str | UnsetType = UNSET
    definition_hash: str | UnsetType = UNSET
    budget: dict[str, Any] | UnsetType = UNSET


class WorkflowCancelRequested(RunEvent, frozen=True, kw_only=True):
    """Somebody wants the run to end."""

    EVENT_TYPE: ClassVar[str] = "workflow.cancel_requested"

    mode: Literal["soft", "hard"]
    grace_ms: int
    reason: str | None
    by: str


class WorkflowCancelled(RunEvent, frozen=True, kw_only=True):
    """Terminal: the cancel was carried out."""

    EVENT_TYPE: ClassVar[str] = "workflow.cancelled"

    mode: Literal["soft", "hard"]
    forced: bool
    reason: str | None
    by: str
    cancelled_steps: tuple[str, ...]
    unknown_calls: tuple[str, ...]
    duration_ms: int
    usage: Usage


class StepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many steps ended how."""

    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0


class WorkflowCompleted(RunEvent, frozen=True, kw_only=True):
    """Terminal: the end was reached and nothing is left to do."""

    EVENT_TYPE: ClassVar[str] = "workflow.completed"

    output: Any
    output_size: int
    outputs: Any | UnsetType = UNSET
    duration_ms: int
    steps: StepCounts
    skipped: tuple[str, ...]
    not_run: tuple[str, ...] | UnsetType = UNSET
    usage: Usage


class WorkflowFailed(RunEvent, frozen=True, kw_only=True):
    """Terminal: the run failed."""

    EVENT_TYPE: ClassVar[str] = "workflow.failed"

    error: ErrorInfo
    failed_steps: tuple[str, ...]
    duration_ms: int
    steps: StepCounts
    partial_output: Any | UnsetType = UNSET
    usage: Usage
