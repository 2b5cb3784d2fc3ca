"""Events of the request pipeline: `plan.*` and `verification.*` (pages 000 §6.1 and 004)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.events.families.base import ScopedEvent, StepEvent

__all__ = [
    "ArtifactCheck",
    "PlanAccepted",
    "PlanActivated",
    "PlanCompiled",
    "PlanEdited",
    "PlanExecuted",
    "PlanFinalized",
    "PlanNormalized",
    "PlanProposed",
    "PlanRejected",
    "VerificationArtifactChecked",
    "VerificationCompleted",
    "VerificationStarted",
    "VerificationStepVerdict",
]


class PlanActivated(ScopedEvent, frozen=True, kw_only=True):
    """A request entered the pipeline, and what its words asked for."""

    EVENT_TYPE: ClassVar[str] = "plan.activated"

    mode: str
    trigger: Any
    matched: Any
    execution_requested: bool
    message: str
    user_input: Any
    execution_mode: str
    stage3_available: bool
    partial_reason: str | UnsetType = UNSET


class PlanNormalized(ScopedEvent, frozen=True, kw_only=True):
    """Stage 1 ended."""

    EVENT_TYPE: ClassVar[str] = "plan.normalized"

    normalized_request: dict[str, Any]


class PlanProposed(ScopedEvent, frozen=True, kw_only=True):
    """Stage 2 ended; the digest is that of the adjusted plan."""

    EVENT_TYPE: ClassVar[str] = "plan.proposed"

    plan: dict[str, Any]
    plan_digest: str
    source: Literal["planner", "template"]
    adjustments: tuple[Any, ...]
    diagnostics: tuple[Any, ...]


class PlanEdited(ScopedEvent, frozen=True, kw_only=True):
    """The plan was changed before it was accepted."""

    EVENT_TYPE: ClassVar[str] = "plan.edited"

    plan: dict[str, Any]
    plan_digest: str
    previous_digest: str
    changed_steps: tuple[str, ...]
    by: str


class PlanAccepted(ScopedEvent, frozen=True, kw_only=True):
    """The plan will be executed."""

    EVENT_TYPE: ClassVar[str] = "plan.accepted"

    plan_digest: str
    automatic: bool
    by: str | UnsetType = UNSET


class PlanRejected(ScopedEvent, frozen=True, kw_only=True):
    """The plan will not be executed."""

    EVENT_TYPE: ClassVar[str] = "plan.rejected"

    plan_digest: str
    reason: str | None
    by: str


class PlanCompiled(ScopedEvent, frozen=True, kw_only=True):
    """The graph that the accepted plan became."""

    EVENT_TYPE: ClassVar[str] = "plan.compiled"

    plan_digest: str
    ir_hash: str
    ir: dict[str, Any]
    diagnostics: tuple[Any, ...]


class PlanExecuted(ScopedEvent, frozen=True, kw_only=True):
    """Stage 3 ended."""

    EVENT_TYPE: ClassVar[str] = "plan.executed"

    executor_output: dict[str, Any]


class PlanFinalized(ScopedEvent, frozen=True, kw_only=True):
    """Stage 5 ended."""

    EVENT_TYPE: ClassVar[str] = "plan.finalized"

    final_output: dict[str, Any]


class VerificationStarted(ScopedEvent, frozen=True, kw_only=True):
    """Stage 4 begins with these steps."""

    EVENT_TYPE: ClassVar[str] = "verification.started"

    steps: tuple[str, ...]


class ArtifactCheck(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rule that an artifact was held against."""

    name: str
    result: Literal["pass", "fail", "unchecked"]
    code: str | UnsetType = UNSET
    detail: Any | UnsetType = UNSET


class VerificationArtifactChecked(StepEvent, frozen=True, kw_only=True):
    """An artifact of the verified step was checked; `step_id` is that step."""

    EVENT_TYPE: ClassVar[str] = "verification.artifact_checked"

    artifact: Any
    expected: Any
    checks: tuple[ArtifactCheck, ...]
    evidence: Any


class VerificationStepVerdict(StepEvent, frozen=True, kw_only=True):
    """The verdict on the step `step_id`."""

    EVENT_TYPE: ClassVar[str] = "verification.step_verdict"

    verdict: Literal["pass", "fail", "skipped"]
    reason: str
    codes: tuple[str, ...]


class VerificationCompleted(ScopedEvent, frozen=True, kw_only=True):
    """Stage 4 ended."""

    EVENT_TYPE: ClassVar[str] = "verification.completed"

    verifier_output: dict[str, Any]
