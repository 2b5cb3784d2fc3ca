"""Reading what a report of a run is made of: its record, its events, its questions, its child runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from agentflow.cli.progress import Progress
from agentflow.cli.report import RunReport
from agentflow.cli.waits import is_near, waits_of
from agentflow.errors import AgentflowError
from agentflow.events.envelope import decode

if TYPE_CHECKING:
    from agentflow.cli.target import StoreTarget, Target, Where
    from agentflow.records.runs import RunRecord

__all__ = ["child_reports", "goes_on_soon", "report_of", "waits_for_signal"]

_MAX_CHILDREN = 5
_MAX_DEPTH = 5


async def report_of(
    target: StoreTarget | Target,
    record: RunRecord,
    where: Where,
    *,
    name: str | None = None,
    is_left: bool = False,
    is_export: bool = False,
    depth: int = 0,
) -> RunReport:
    """Return the report of a run as it stands; `name` is what the run is read by, else its id."""
    from agentflow.records.runs import result_of

    run_id = name or record.workflow_id
    progress = await _progress_of(target, record, run_id)
    rests = record.state in ("waiting", "paused")
    children = () if is_export or not rests else await child_reports(target, progress, where, depth=depth)
    return RunReport(
        result_of(record),
        progress,
        where,
        is_local=target.parks,
        questions=await target.reader.requests(run_id) if rests else (),
        is_left=is_left,
        is_export=is_export,
        children=children,
    )


async def _progress_of(target: StoreTarget | Target, record: RunRecord, run_id: str) -> Progress:
    progress = Progress.of_steps(record.definition.name or record.definition.id, list(record.steps))
    async with aclosing(target.lines(run_id, follow=False, types=Progress.event_types())) as lines:
        async for line in lines:
            progress.take(decode(line))
    return progress


async def waits_for_signal(target: Target, run_id: str, name: str) -> bool:
    """Return whether a run waits for the signal of this name."""
    record = await target.reader.record(run_id)
    if record.state != "waiting":
        return False
    return name in waits_of((await _progress_of(target, record, run_id)).waiting).signals


async def child_reports(
    target: StoreTarget | Target, progress: Progress, where: Where, *, depth: int = 0
) -> list[RunReport]:
    """Return the reports of the child runs that a run waits for, without those whose questions it asks."""
    found: list[RunReport] = []
    for child in waits_of(progress.waiting).children[:_MAX_CHILDREN] if depth < _MAX_DEPTH else ():
        try:
            record = await target.reader.record(child)
            report = await report_of(target, record, where, depth=depth + 1)
        except AgentflowError:
            continue  # removed, or damaged: the parent's own lines stand
        if not report.questions:
            found.append(report)
    return found


def goes_on_soon(progress: Progress, children: Sequence[RunReport]) -> bool:
    """Return whether a waiting run goes on within a minute though no person acts.

    A timer of it or of a child run is near, or a child run is at work, or has ended and will be reported.
    """
    waits = waits_of(progress.waiting)
    if progress.waiting is None or progress.waiting.requests or waits.signals:
        return False
    if waits.due is not None and is_near(waits.due):
        return True
    for child in children:
        state = child.result.state
        if state == "waiting" and goes_on_soon(child.progress, child.children):
            return True
        if state not in ("waiting", "paused"):
            return True
    return False
