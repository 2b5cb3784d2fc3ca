"""Tombstone of a run that was deleted (page 000 §7)."""

from __future__ import annotations

import msgspec

from agentflow.events.ids import iso

__all__ = ["Tombstone"]


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """The id, which is never used again, how the run had ended, and when. Times in µs since the epoch."""

    workflow_id: str
    state: str
    created_at: int
    ended_at: int
    deleted_at: int

    def describe(self) -> str:
        """Return one sentence about it."""
        return f"{self.workflow_id} was deleted at {iso(self.deleted_at)}; it was {self.state}"
