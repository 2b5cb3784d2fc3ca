"""The one rule by which a batch is accepted, for every back end (page 000 §6, §7). Pure functions."""

from __future__ import annotations

from agentflow.errors import (
    Fenced,
    OffsetConflict,
    OffsetTrimmed,
    RunGone,
    RunNotFound,
    RunNotTerminal,
    RunTerminal,
    StoreError,
)
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.rows import FIRST_EPOCH, Append, RunRow
from agentflow.events.sealing import UnsealedBatch
from agentflow.events.tombstone import Tombstone

__all__ = [
    "check_batch",
    "check_removable",
    "check_start",
    "first_kept",
    "no_run",
    "refusal",
    "state_after",
    "tombstone_of",
]


def check_batch(batch: Append) -> None:
    """Raise ValueError unless the batch is well formed by itself: a bug of the caller, not a conflict."""
    events, offset = batch.events, batch.expected
    if (batch.run is None) != (offset > 0):
        raise ValueError("`run` comes with the batch at offset 0, and with no other")
    if isinstance(events, UnsealedBatch):
        if events.first != offset:
            raise ValueError(f"event at offset {events.first} where {offset} was due")
        if events.length:
            return  # made in order, and the engine ends a run with its last event
    if not events:
        raise ValueError("a batch holds at least one event")
    for event in events:
        if event.offset != offset:
            raise ValueError(f"event at offset {event.offset} where {offset} was due")
        offset += 1
    if len(events) > 1 and any(event.type in TERMINAL_TYPES for event in events[:-1]):
        raise ValueError("no event may follow a terminal one")


def refusal(
    batch: Append, last: int, epoch: int, ended: bool, gone: Tombstone | None = None
) -> StoreError | RunTerminal | RunGone | None:
    """Return why a log that ends at `last` (-1: no such run) must not take this batch, or None.

    Creation is answered first: two that start one run both believe that it is theirs. The id of a run that is
    `gone` is never used again.
    """
    if gone is not None:
        return RunGone(gone)
    if batch.run is not None or last < 0:
        if last >= 0 or batch.expected != 0:
            return OffsetConflict(batch.workflow_id, batch.expected, last + 1)
        if batch.epoch != FIRST_EPOCH:
            return Fenced(f"{batch.workflow_id}: a new run has epoch {FIRST_EPOCH}, not {batch.epoch}")
        return None
    if batch.epoch != epoch:
        return Fenced(f"{batch.workflow_id}: epoch {batch.epoch} is over, the run is at epoch {epoch}")
    if ended:
        return RunTerminal(f"{batch.workflow_id} has ended at offset {last}")
    if batch.expected != last + 1:
        return OffsetConflict(batch.workflow_id, batch.expected, last + 1)
    return None


def state_after(batch: Append, before: str) -> str:
    """Return the run's state once the batch is in the log."""
    events = batch.events
    if isinstance(events, UnsealedBatch) and not events.ends_run:
        return batch.state or before
    last = events.last_type if isinstance(events, UnsealedBatch) else events[-1].type
    if last in TERMINAL_TYPES:
        return last.partition(".")[2]
    return batch.state or before


def no_run(workflow_id: str, gone: Tombstone | None) -> RunNotFound | RunGone:
    """Return the error for a read of a run that does not exist."""
    return RunNotFound(f"no run {workflow_id}") if gone is None else RunGone(gone)


def check_start(workflow_id: str, earliest: int, requested: int) -> None:
    """Raise OffsetTrimmed if a read would begin before what is left of the run."""
    if requested < earliest:
        raise OffsetTrimmed(workflow_id, earliest, requested)


def check_removable(workflow_id: str, state: str, ended: bool) -> None:
    """Raise RunNotTerminal unless the run has ended: a run that is written to stays complete."""
    if not ended:
        raise RunNotTerminal(f"{workflow_id} is {state}; only a run that has ended can be trimmed or deleted")


def first_kept(earliest: int, last: int, before: int) -> int:
    """Return the earliest offset after trimming what is before `before`: the last event stays."""
    return max(earliest, min(before, last))


def tombstone_of(row: RunRow, at: int) -> Tombstone:
    """Return what is left of a run that is deleted at `at` (µs)."""
    return Tombstone(
        workflow_id=row.workflow_id,
        state=row.state,
        created_at=row.created_at,
        ended_at=row.updated_at,
        deleted_at=at,
    )
