"""Moves runs that have ended from a store into an archive (page 000 §7).

A run is deleted from the store only after its manifest was read back from the archive and compared.
"""

from __future__ import annotations

import msgspec

from agentflow.errors import LogCorrupt, RunGone, RunNotFound, RunNotTerminal
from agentflow.events.archive import Archive
from agentflow.events.log import EventLog
from agentflow.events.retention import Kept, RetentionPolicy
from agentflow.events.rows import RunRow
from agentflow.records.export import attachments_of
from agentflow.runtime.retention import SWEEP_GRACE_US, removable_pages

__all__ = ["Archived", "archive_ended_runs", "archive_run"]

_ALL = RetentionPolicy(mode="age", max_age=0, keep_failed=False)


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What went into the archive: how many runs with how many bytes of events, and what stayed and why."""

    runs: int
    bytes: int
    skipped: list[Kept]


async def archive_ended_runs(log: EventLog, archive: Archive, now: int) -> Archived:
    """Move every run that has ended before `now` (µs) into the archive, and free its space.

    One that is labelled `hold`, or whose parent or child has not ended, stays. Raises StorageUnavailable if
    the archive does not take a run; what was moved until then stays moved, and the next call continues.
    """
    runs = size = 0
    skipped: list[Kept] = []
    async for removals in removable_pages(log, _ALL, now):
        for removal in removals:
            try:
                size += await archive_run(log, archive, removal.workflow_id, now)
                runs += 1
            except (LogCorrupt, RunGone, RunNotFound, RunNotTerminal) as error:
                skipped.append(Kept(workflow_id=removal.workflow_id, reason=str(error)))
    await log.sweep(now - SWEEP_GRACE_US)
    return Archived(runs=runs, bytes=size, skipped=skipped)


async def archive_run(log: EventLog, archive: Archive, workflow_id: str, now: int) -> int:
    """Move one run that has ended into the archive; return the bytes of its events.

    Raises RunNotTerminal, RunNotFound, RunGone, LogCorrupt and StorageUnavailable; the run then stays.
    """
    row: RunRow = await log.run(workflow_id)
    if not row.ended:
        raise RunNotTerminal(f"{workflow_id} is {row.state}; only a run that has ended can be archived")
    manifest = await archive.put(log, row, await attachments_of(log, workflow_id))
    await log.delete(workflow_id, now)
    return manifest.bytes
