"""Events of the graph engine and of the system: outputs, supersteps, own events, saved state, errors."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import UNSET, UnsetType

from agentflow.definition.failure import ErrorInfo
from agentflow.events.families.base import RunEvent, ScopedEvent, StepEvent

__all__ = [
    "Custom",
    "MessageUndelivered",
    "Output",
    "SuperstepCompleted",
    "SuperstepStarted",
    "SystemError",
    "SystemStateSaved",
]


class Output(StepEvent, frozen=True, kw_only=True):
    """A value that a step gave out while it ran."""

    EVENT_TYPE: ClassVar[str] = "output"

    kind: Literal["output", "intermediate"]
    index: int
    type: str
    value: Any


class SuperstepStarted(RunEvent, frozen=True, kw_only=True):
    """A superstep begins; `activations` are the keys of those it runs."""

    EVENT_TYPE: ClassVar[str] = "superstep.started"

    superstep: int
    activations: tuple[str, ...]


class SuperstepCompleted(RunEvent, frozen=True, kw_only=True):
    """The barrier: shared writes are committed; `queued` messages wait for the next superstep."""

    EVENT_TYPE: ClassVar[str] = "superstep.completed"

    superstep: int
    state_version: int
    queued: int


class MessageUndelivered(StepEvent, frozen=True, kw_only=True):
    """No edge delivered this message of the activation."""

    EVENT_TYPE: ClassVar[str] = "message.undelivered"

    index: int
    type: str
    reason: str


class Custom(RunEvent, frozen=True, kw_only=True):
    """An event of the caller's own: type `custom.<name>`, data as the caller gave it.

    `name` and `data` are not members of the JSON: the name stands in the type, the object is the data. The
    step and the attempt of the handler that wrote it stand in the envelope.
    """

    EVENT_TYPE: ClassVar[str] = "custom"

    name: str
    data: dict[str, Any]
    step_id: str | None = None
    attempt: int | None = None

    @property
    def event_type(self) -> str:
        """`custom.<name>`."""
        return f"custom.{self.name}"


class SystemStateSaved(ScopedEvent, frozen=True, kw_only=True):
    """A state record, a snapshot of the fold, or the base of a fork was stored. `covers` is the last offset
    that a snapshot holds, `size` in bytes."""

    EVENT_TYPE: ClassVar[str] = "system.state_saved"

    kind: Literal["step", "snapshot", "fork_base"]
    step_index: int | UnsetType = UNSET
    covers: int | UnsetType = UNSET
    ref: str
    schema_version: int
    size: int
    sha256: str


class SystemError(ScopedEvent, frozen=True, kw_only=True):
    """Something went wrong outside the steps' own work. Not the builtin exception of this name."""

    EVENT_TYPE: ClassVar[str] = "system.error"

    error: ErrorInfo
    severity: Literal["warning", "error", "critical"]
    component: str
    fatal: bool
