"""Events of a run as a whole: `workflow.*` but for its steps (page 000 §6.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import Usage
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.failure import ErrorInfo
from agentflow.events.families.base import RunEvent

__all__ = [
    "DefinitionInfo",
    "ForkOrigin",
    "ParentRun",
    "ReplayOrigin",
    "StepCounts",
    "WorkflowCancelRequested",
    "WorkflowCancelled",
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowPaused",
    "WorkflowResumed",
    "WorkflowStarted",
    "WorkflowWaiting",
]


class DefinitionInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which definition a run is pinned to. `hash` is the sha256 of the canonical source."""

    id: str
    name: str | None
    version: str | None
    format: str
    hash: str
    signature: str | UnsetType = UNSET


class ParentRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The step of another run that this run is a child of."""

    workflow_id: str
    step_id: str
    offset: int


class ForkOrigin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The prefix of another log that a forked run starts from."""

    workflow_id: str
    offset: int
    from_step: str | UnsetType = UNSET


class ReplayOrigin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The recorded run that a replay is served from, and its policy (page 003 §9)."""

    workflow_id: str
    policy: str


class WorkflowStarted(RunEvent, frozen=True, kw_only=True):
    """Offset 0: everything that is needed to run. `functions` are those of the services that the document
    declares, as they were found: a replay that is served from the log opens none."""

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
    functions: Any | UnsetType = UNSET
    parent: ParentRun | UnsetType = UNSET
    forked_from: ForkOrigin | UnsetType = UNSET
    edits: dict[str, Any] | UnsetType = UNSET
    replay_of: ReplayOrigin | UnsetType = UNSET
    state_from: str | UnsetType = UNSET


class WorkflowWaiting(RunEvent, frozen=True, kw_only=True):
    """Nothing runs: the ids of the open requests, timers and signals."""

    EVENT_TYPE: ClassVar[str] = "workflow.waiting"

    requests: tuple[str, ...]
    timers: tuple[str, ...]
    signals: tuple[str, ...]


class WorkflowPaused(RunEvent, frozen=True, kw_only=True):
    """The run stands still until it is resumed. `in_flight`: `drain` lets steps that have begun come to
    their end, `suspend` (and none) lets only their functions end."""

    EVENT_TYPE: ClassVar[str] = "workflow.paused"

    reason: str
    detail: str | None
    by: str | UnsetType = UNSET
    resume_after: str | UnsetType = UNSET
    budget: dict[str, Any] | UnsetType = UNSET
    in_flight: Literal["drain", "suspend"] | UnsetType = UNSET


class WorkflowResumed(RunEvent, frozen=True, kw_only=True):
    """The run goes on after a pause."""

    EVENT_TYPE: ClassVar[str] = "workflow.resumed"

    reason: str | None
    by: str | UnsetType = UNSET
    definition_hash: str | UnsetType = UNSET
    budget: dict[str, Any] | UnsetType = UNSET


class WorkflowCancelRequested(RunEvent, frozen=True, kw_only=True):
    """A cancel of the run was requested."""

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


class StepCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
