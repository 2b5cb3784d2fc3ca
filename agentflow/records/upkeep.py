"""What retention did to a store, or would do."""

from __future__ import annotations

import msgspec

from agentflow.events.retention import Kept, Removal, RetentionPlan, RetentionPolicy
from agentflow.events.rows import Swept

__all__ = ["Collected", "Upkeep"]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What retention did: its plan, what of it was done, and what could not be, with the reason."""

    plan: RetentionPlan
    done: list[Removal]
    skipped: list[Kept]
    swept: Swept


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What retention did to a store, or (`collected` None) what it would do."""

    policy: RetentionPolicy
    plan: RetentionPlan
    collected: Collected | None
