"""Events of people, timers and signals: `approval.*`, `input.*`, `timer.*`, `signal.*` (page 000 §6.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import UNSET, UnsetType

from agentflow.events.families.base import ScopedEvent, StepEvent
from agentflow.events.families.calls import SideEffect

__all__ = [
    "ApprovalDenied",
    "ApprovalGranted",
    "ApprovalRequested",
    "InputCancelled",
    "InputReceived",
    "InputRequested",
    "SignalReceived",
    "TimerCancelled",
    "TimerFired",
    "TimerScheduled",
    "Via",
]

Via = Literal["api", "cli", "deadline", "policy", "parent", "message"]


class ApprovalRequested(StepEvent, frozen=True, kw_only=True):
    """Work is parked until a decision; a decision names the same `digest`."""

    EVENT_TYPE: ClassVar[str] = "approval.requested"

    request_id: str
    kind: Literal["step", "tool", "human"]
    subject: Any
    side_effect: SideEffect | UnsetType = UNSET
    digest: str
    policy: Any | UnsetType = UNSET
    deadline: str | UnsetType = UNSET
    supersedes: str | UnsetType = UNSET


class ApprovalGranted(StepEvent, frozen=True, kw_only=True):
    """The work may be done."""

    EVENT_TYPE: ClassVar[str] = "approval.granted"

    request_id: str
    digest: str
    by: str
    claimed_actor: str | UnsetType = UNSET
    """For whom `by` says that it acts: its word, never authenticated (page 000 §8.3)."""
    via: Via
    reason: str | UnsetType = UNSET
    response: Any | UnsetType = UNSET


class ApprovalDenied(StepEvent, frozen=True, kw_only=True):
    """The work must not be done."""

    EVENT_TYPE: ClassVar[str] = "approval.denied"

    request_id: str
    digest: str
    by: str
    claimed_actor: str | UnsetType = UNSET
    """For whom `by` says that it acts: its word, never authenticated (page 000 §8.3)."""
    via: Via
    reason: str | UnsetType = UNSET
    response: Any | UnsetType = UNSET


class InputRequested(ScopedEvent, frozen=True, kw_only=True):
    """A question is open; the answer must satisfy `response_schema`."""

    EVENT_TYPE: ClassVar[str] = "input.requested"

    request_id: str
    request_type: str | UnsetType = UNSET
    request: Any
    response_schema: Any
    deadline: str | UnsetType = UNSET
    on_timeout: Any | UnsetType = UNSET
    child: dict[str, Any] | UnsetType = UNSET


class InputReceived(ScopedEvent, frozen=True, kw_only=True):
    """The answer."""

    EVENT_TYPE: ClassVar[str] = "input.received"

    request_id: str
    value: Any
    by: str
    claimed_actor: str | UnsetType = UNSET
    """For whom `by` says that it acts: its word, never authenticated (page 000 §8.3)."""
    via: Via


class InputCancelled(ScopedEvent, frozen=True, kw_only=True):
    """The question is withdrawn, expired, or its run was cancelled."""

    EVENT_TYPE: ClassVar[str] = "input.cancelled"

    request_id: str
    reason: str


class TimerScheduled(ScopedEvent, frozen=True, kw_only=True):
    """A durable timer is armed."""

    EVENT_TYPE: ClassVar[str] = "timer.scheduled"

    timer_id: str
    purpose: str
    due_at: str


class TimerFired(ScopedEvent, frozen=True, kw_only=True):
    """A durable timer is due; fires once."""

    EVENT_TYPE: ClassVar[str] = "timer.fired"

    timer_id: str
    purpose: str
    due_at: str


class TimerCancelled(ScopedEvent, frozen=True, kw_only=True):
    """A durable timer is not needed any more."""

    EVENT_TYPE: ClassVar[str] = "timer.cancelled"

    timer_id: str
    purpose: str
    due_at: str


class SignalReceived(ScopedEvent, frozen=True, kw_only=True):
    """A signal arrived, perhaps before a step waits for it."""

    EVENT_TYPE: ClassVar[str] = "signal.received"

    signal_id: str
    name: str
    data: Any
