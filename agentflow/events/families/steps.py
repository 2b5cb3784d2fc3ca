"""Events of the steps of a run: `workflow.step_*` (page 000 §6.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.events.families.base import Reference, StepEvent

__all__ = [
    "Delivery",
    "ItemResult",
    "MessageRef",
    "SentMessage",
    "SharedWrite",
    "SkipReason",
    "StateWrites",
    "WorkflowStepCompleted",
    "WorkflowStepEvent",
    "WorkflowStepFailed",
    "WorkflowStepRetrying",
    "WorkflowStepSkipped",
    "WorkflowStepStarted",
    "WorkflowStepWaiting",
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
    "operator",
]


class WorkflowStepEvent(StepEvent, frozen=True, kw_only=True):
    """What all `workflow.step_*` hold. `path` is the child path (empty outside), `clock` the logical clock
    (page 003 §6), `superstep` is set under that policy only."""

    step_index: int
    attempt: int
    path: str
    visit: int
    clock: int
    superstep: int | UnsetType = UNSET


class MessageRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class ItemResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one item of a for_each ended."""

    index: int
    status: str
    error: ErrorInfo | UnsetType = UNSET


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an edge did with a message."""

    edge: str
    target: str
    status: str


class SentMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that an activation sent; `payload` inline or as a blob reference."""

    index: int
    type: str
    payload: Any
    deliveries: tuple[Delivery, ...]


class SharedWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One write to the shared state."""

    key: str
    value: Any


class StateWrites(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What an activation wrote, and nothing that it only read.

    `globals` are values by key; `appended` are elements that go behind those of the array of a key.
    """

    private: dict[str, Any] = {}
    shared: tuple[SharedWrite, ...] = ()
    globals: dict[str, Any] = {}
    appended: dict[str, list[Any]] = {}


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
    """A step waits for an approval, input, timer, signal or child; `ref` is the id of what it waits for.
    `messages` are the requests of its child that edges of this graph take (SubWorkflowRequest)."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_waiting"

    for_: str
    ref: str
    deadline: str | UnsetType = UNSET
    messages: tuple[SentMessage, ...] | UnsetType = UNSET


class WorkflowStepRetrying(WorkflowStepEvent, frozen=True, kw_only=True):
    """An attempt of a node without agent events failed and will be repeated at `due_at`."""

    EVENT_TYPE: ClassVar[str] = "workflow.step_retrying"

    kind: Literal["model", "tool", "repair", "restart"]
    error: ErrorInfo
    next_attempt: int
    delay_ms: int
    due_at: str
