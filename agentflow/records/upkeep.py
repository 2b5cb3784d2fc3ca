"""What retention did to a store, or would do."""

from __future__ import annotations

import msgspec

from agentflow.events.retention import Kept, Removal, RetentionPlan, RetentionPolicy
from agentflow.events.rows import Swept

__all__ = ["Collected", "Upkeep"]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What retention did: its plan, what of it was done, and what could not be, with the reason.

    `done` and `skipped` name the first 1,000 runs of each; `done_count` is the number of all that were done.
    """

    plan: RetentionPlan
    done: list[Removal]
    done_count: int = 0
    skipped: list[Kept]
    swept: Swept


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What retention did to a store, or (`collected` None) what it would do."""

    policy: RetentionPolicy
    plan: RetentionPlan
    collected: Collected | None
