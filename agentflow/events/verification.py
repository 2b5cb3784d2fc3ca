"""Findings of a check of a whole store, and the check that fits every store: read all that it has."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agentflow.errors import LogCorrupt, RunGone, RunNotFound
from agentflow.events.log import EventLog

__all__ = ["DamagedRun", "Verified", "verify_log"]

_PAGE = 512

Progress = Callable[[int], None]
"""Called with the number of events that were read so far."""


class DamagedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of which something cannot be read."""

    workflow_id: str
    problem: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    store: str
    runs: int
    events: int
    damaged: list[DamagedRun]
    problems: list[str]
    """Damage that belongs to no single run."""

    @property
    def sound(self) -> bool:
        """True if everything was read and is as it was written."""
        return not self.damaged and not self.problems


async def verify_log(log: EventLog, progress: Progress = lambda events: None) -> Verified:
    """Read every run of an open log, a page at a time, so that a writer is never held up."""
    damaged: dict[str, str] = {}
    problems = [notice.text for notice in log.notices if notice.kind == "damaged_run"]
    runs = events = 0
    cursor: str | None = None
    while True:
        page = await log.runs(limit=_PAGE, cursor=cursor, order="asc")
        damaged.update((workflow_id, "its record is damaged") for workflow_id in page.damaged)
        for row in page.items:
            runs += 1
            offset = row.earliest_offset
            try:
                while found := await log.read(row.workflow_id, offset, _PAGE):
                    events += len(found)
                    offset = found[-1].offset + 1
                    progress(events)
                if offset <= row.last_offset:
                    damaged[row.workflow_id] = f"its events end at offset {offset - 1}"
            except LogCorrupt as error:
                damaged[row.workflow_id] = str(error)
            except (RunGone, RunNotFound):
                continue  # deleted meanwhile
        cursor = page.next_cursor
        if cursor is None:
            break
    return Verified(
        store=log.url,
        runs=runs,
        events=events,
        damaged=[DamagedRun(workflow_id=name, problem=text) for name, text in sorted(damaged.items())],
        problems=problems,
    )
