"""Carrying retention out on a store (page 000 §7): records are kept before events are trimmed, runs are
deleted or trimmed, then space is given back. What goes is decided in `agentflow.events.retention`.

A trimmed run can no longer be folded. So its run record, its state records and its folded state are written
down before (see `kept`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from agentflow.errors import (
    AgentflowError,
    ConfigurationError,
    LogCorrupt,
    RunGone,
    RunNotFound,
    RunNotTerminal,
    Unsupported,
)
from agentflow.events.archive import Archive
from agentflow.events.archived import ArchivedRuns
from agentflow.events.envelope import decode
from agentflow.events.log import EventLog
from agentflow.events.retention import (
    LISTED,
    Kept,
    Removal,
    RetentionPlan,
    RetentionPolicy,
    RetentionScan,
)
from agentflow.events.rows import ENDED, OPEN, RunRow
from agentflow.records.damage import warn_of_damage
from agentflow.records.export import attachments_of
from agentflow.records.history import Executions
from agentflow.records.read_model import ReadModel
from agentflow.records.trimmed import RECORD, STATE, STEPS
from agentflow.records.upkeep import Collected, Upkeep

__all__ = ["SWEEP_GRACE_US", "collect", "keep_records", "removable_pages", "retention_plan", "upkeep"]

_PAGE_ROWS = 2_000
_ARCHIVED_AT_ONCE = 8
SWEEP_GRACE_US = 3_600_000_000
"""µs; a blob or definition that was put less than an hour ago may be named by an event on its way."""


async def upkeep(log: EventLog, policy: RetentionPolicy | None, now: int, *, dry_run: bool = False) -> Upkeep:
    """Take what `policy` takes at `now` (µs), None being infinite; with `dry_run` only say what that is.

    Raises Unsupported, before anything is removed, if the policy trims runs and the store cannot.
    """
    policy = policy or RetentionPolicy()
    if dry_run:
        return Upkeep(policy=policy, plan=await retention_plan(log, policy, now), collected=None)
    collected = await collect(log, policy, now)
    return Upkeep(policy=policy, plan=collected.plan, collected=collected)


def _check_supported(log: EventLog, policy: RetentionPolicy) -> None:
    """Raise Unsupported if the policy trims runs and the store cannot."""
    if policy.trim_to_events is not None and not log.trims:
        raise Unsupported(
            f"retention.trim_to_events = {policy.trim_to_events}: {log.url} removes whole runs only",
            hint="leave trim_to_events out, or keep runs in a `sqlite:` store",
        )


async def retention_plan(log: EventLog, policy: RetentionPolicy, now: int) -> RetentionPlan:
    """Return what `collect` would do at `now` (µs). Reads rows only. Raises Unsupported as `upkeep`."""
    scan = await _scan(log, policy, now)
    async for _ in _removals(log, scan):
        pass
    return scan.plan()


async def collect(log: EventLog, policy: RetentionPolicy, now: int) -> Collected:
    """Apply `policy` at `now` (µs), and free the space of all that is removed.

    Rows are read and runs are removed a page at a time, so the memory it takes does not grow with them. A run
    that is damaged, or was removed or resumed meanwhile, is skipped. Raises StoreError; what was done until
    then stays done, and the next call continues. Raises ConfigurationError if runs are to be archived first
    and there is no archive.
    """
    archive = _archive_of(log, policy)
    scan = await _scan(log, policy, now)
    done: list[Removal] = []
    skipped: list[Kept] = []
    count = 0
    async for removals in _removals(log, scan):
        # Deletions together, so that the store commits them together; one trim at a time, since it folds.
        size = _PAGE_ROWS if policy.trim_to_events is None else 1
        if archive is not None:
            size = min(size, _ARCHIVED_AT_ONCE)
        for first in range(0, len(removals), size):
            for removal, why in await _remove_all(log, removals[first : first + size], now, archive):
                count += why is None
                if why is None and len(done) < LISTED:
                    done.append(removal)
                elif why is not None and len(skipped) < LISTED:
                    skipped.append(Kept(workflow_id=removal.workflow_id, reason=why))
    swept = await log.sweep(now - SWEEP_GRACE_US)
    done.sort(key=lambda removal: (removal.ended_at, removal.workflow_id))
    return Collected(plan=scan.plan(), done=done, done_count=count, skipped=skipped, swept=swept)


def _archive_of(log: EventLog, policy: RetentionPolicy) -> Archive | None:
    if not policy.archive_first:
        return None
    if not isinstance(log, ArchivedRuns):
        raise ConfigurationError(
            "archive_first: no archive is configured",
            hint='set archive = "s3://BUCKET/PREFIX" in agentflow.toml',
        )
    return log.archive


async def _remove_all(
    log: EventLog, removals: list[Removal], now: int, archive: Archive | None
) -> list[tuple[Removal, str | None]]:
    """Carry removals out; of each why it was skipped, or None."""
    found: list[tuple[Removal, str | None]] = []
    if archive is None and all(removal.before is None for removal in removals):
        answers = await log.delete_all([removal.workflow_id for removal in removals], now)
        for removal in removals:
            answer = answers[removal.workflow_id]
            found.append((removal, str(answer) if isinstance(answer, AgentflowError) else None))
        return found
    removed = await asyncio.gather(
        *(_remove(log, each, now, archive) for each in removals), return_exceptions=True
    )
    for removal, error in zip(removals, removed, strict=True):
        if error is None or isinstance(error, LogCorrupt | RunGone | RunNotFound | RunNotTerminal):
            found.append((removal, None if error is None else str(error)))
        else:
            raise error
    return found


async def _remove(log: EventLog, removal: Removal, now: int, archive: Archive | None) -> None:
    if archive is not None:
        attached = await attachments_of(log, removal.workflow_id)
        await archive.put(log, await log.run(removal.workflow_id), attached)
    if removal.before is None:
        await log.delete(removal.workflow_id, now)
    else:
        await keep_records(log, removal.workflow_id)
        await log.trim(removal.workflow_id, removal.before)


async def removable_pages(log: EventLog, policy: RetentionPolicy, now: int) -> AsyncGenerator[list[Removal]]:
    """Yield what `policy` takes at `now` (µs), as many runs at a time as are read together."""
    async for removals in _removals(log, await _scan(log, policy, now)):
        yield removals


async def _removals(log: EventLog, scan: RetentionScan) -> AsyncGenerator[list[Removal]]:
    async for rows in _pages(log, *ENDED):
        yield [removal for row in rows if (removal := scan.take(row)) is not None]


async def _scan(log: EventLog, policy: RetentionPolicy, now: int) -> RetentionScan:
    """Return a scan that has seen every run. Raises Unsupported as `upkeep`."""
    _check_supported(log, policy)
    scan = RetentionScan(policy, now)
    async for rows in _pages(log, *OPEN):
        for row in rows:
            scan.note(row)
    async for rows in _pages(log, *(ENDED if scan.weighs else ())):
        for row in rows:
            scan.weigh(row)
    scan.begin()
    return scan


async def _pages(log: EventLog, *states: str) -> AsyncGenerator[list[RunRow]]:
    """Yield the rows of the runs in these states. A state at a time: the index has each in its order."""
    for state in sorted(states):
        cursor: str | None = None
        while True:
            page = await log.runs(state=state, limit=_PAGE_ROWS, cursor=cursor, order="asc")
            warn_of_damage(page, "retention")
            yield page.items
            cursor = page.next_cursor
            if cursor is None:
                break


# -- what stays of a trimmed run


async def keep_records(log: EventLog, workflow_id: str) -> None:
    """Write down what only the whole log tells, so that its first events can go. Once is enough."""
    row = await log.run(workflow_id)
    if row.earliest_offset:
        return
    views = ReadModel(log)
    record, state = await views.record(workflow_id), await views.state(workflow_id)
    done = Executions()
    offset = 0
    while page := await log.read(workflow_id, offset, _PAGE_ROWS):
        for event in page:
            done.take(decode(event.body))
        offset = page[-1].offset + 1
    wanted = dict.fromkeys((s.step_id, s.iteration, s.attempt) for s in done.steps)
    steps = [done.record(workflow_id, *each) for each in wanted]
    for kind, value in ((RECORD, record), (STATE, state), (STEPS, steps)):
        await log.put_snapshot(workflow_id, kind, row.last_offset, msgspec.json.encode(value))
