"""Carrying retention out on a store (page 000 §7): records are kept before events are trimmed, runs are
deleted or trimmed, then space is given back. What goes is decided in `agentflow.events.retention`.

A trimmed run can no longer be folded. So its run record, its state records and its folded state are written
down before (see `kept`).
"""

from __future__ import annotations

import asyncio

import msgspec

from agentflow.errors import LogCorrupt, RunGone, RunNotFound, RunNotTerminal, Unsupported
from agentflow.events.envelope import decode
from agentflow.events.log import EventLog
from agentflow.events.retention import Kept, Removal, RetentionPlan, RetentionPolicy, plan_retention
from agentflow.events.rows import RunRow
from agentflow.records.damage import warn_of_damage
from agentflow.records.history import Executions
from agentflow.records.read_model import ReadModel
from agentflow.records.trimmed import RECORD, STATE, STEPS
from agentflow.records.upkeep import Collected, Upkeep

__all__ = ["collect", "keep_records", "retention_plan", "upkeep"]

_PAGE_ROWS = 512
_SWEEP_GRACE_US = 3_600_000_000
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
    _check_supported(log, policy)
    return plan_retention(policy, await _all_rows(log), now)


async def collect(log: EventLog, policy: RetentionPolicy, now: int) -> Collected:
    """Apply `policy` at `now` (µs), and free the space of all that is removed.

    A run that is damaged, or was removed or resumed meanwhile, is skipped. Raises StoreError; what was done
    until then stays done, and the next call continues.
    """
    plan = await retention_plan(log, policy, now)
    done: list[Removal] = []
    skipped: list[Kept] = []
    # Deletions together, so that the store commits them together; one trim at a time, since it folds its run.
    size = _PAGE_ROWS if policy.trim_to_events is None else 1
    for first in range(0, len(plan.removals), size):
        removals = plan.removals[first : first + size]
        removed = await asyncio.gather(
            *(_remove(log, removal, now) for removal in removals), return_exceptions=True
        )
        for removal, error in zip(removals, removed, strict=True):
            if error is None:
                done.append(removal)
            elif isinstance(error, LogCorrupt | RunGone | RunNotFound | RunNotTerminal):
                skipped.append(Kept(workflow_id=removal.workflow_id, reason=str(error)))
            else:
                raise error
    return Collected(plan=plan, done=done, skipped=skipped, swept=await log.sweep(now - _SWEEP_GRACE_US))


async def _remove(log: EventLog, removal: Removal, now: int) -> None:
    if removal.before is None:
        await log.delete(removal.workflow_id, now)
    else:
        await keep_records(log, removal.workflow_id)
        await log.trim(removal.workflow_id, removal.before)


async def _all_rows(log: EventLog) -> list[RunRow]:
    rows: list[RunRow] = []
    cursor: str | None = None
    while True:
        page = await log.runs(limit=_PAGE_ROWS, cursor=cursor, order="asc")
        warn_of_damage(page, "retention")
        rows += page.items
        cursor = page.next_cursor
        if cursor is None:
            return rows


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
