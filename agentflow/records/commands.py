"""What came of a command to many runs."""

from __future__ import annotations

import msgspec

__all__ = ["Resumed", "UnresumedRun"]


class UnresumedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that stays paused, and why; `code` as in page 000 §8.2."""

    workflow_id: str
    code: str
    message: str


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that go on, and those that could not, oldest first."""

    resumed: list[str]
    failed: list[UnresumedRun]
