"""Base Structs of event data, and the small objects that several types hold (page 000 §6.1).

A field that may be absent is UNSET then and left out of the JSON; a field that may be null is always written.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["Reference", "RunEvent", "ScopedEvent", "StepEvent"]


class Reference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of another run: where a result came from."""

    workflow_id: str
    offset: int


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Data of an event of a run. Every class of the catalogue names its type.

    It holds what JSON holds, which has no cycles: the garbage collector passes these objects by, in logs of
    100,000 events and at each step.
    """

    EVENT_TYPE: ClassVar[str] = ""

    @property
    def event_type(self) -> str:
        """The type as it stands in the envelope."""
        return self.EVENT_TYPE


class StepEvent(RunEvent, frozen=True, kw_only=True):
    """Data of an event that belongs to a step. `iteration` is the item's index in for_each and map, else
    null; `activation` is the key of page 002 §1. `replayed` names the record that served a result."""

    step_id: str
    iteration: int | None = None
    activation: str
    replayed: Reference | UnsetType = UNSET


class ScopedEvent(RunEvent, frozen=True, kw_only=True):
    """Data of an event that may belong to a step or to the run as a whole; UNSET then."""

    step_id: str | UnsetType = UNSET
    iteration: int | UnsetType | None = UNSET
    activation: str | UnsetType = UNSET
    replayed: Reference | UnsetType = UNSET

    def __post_init__(self) -> None:
        # An event of a step always writes `iteration`, also when it is null.
        if self.step_id is not UNSET and self.iteration is UNSET:
            msgspec.structs.force_setattr(self, "iteration", None)
