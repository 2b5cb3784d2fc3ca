"""Recovery: the commands that take up all runs which a process left, or which are paused for one reason.

A start with thousands of waiting runs costs two small reads for each: DueScan finds at the two ends of a log
when the run has to move by itself. What cannot be told from there is replayed, so no deadline is missed; one
that is read too early only makes its run look at the time once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import UNSET

from agentflow.definition.ir import Workflow
from agentflow.definition.limits import limits_of
from agentflow.errors import (
    AgentflowError,
    LogCorrupt,
    OffsetTrimmed,
    RunGone,
    RunNotFound,
    RunTerminal,
    StoreError,
)
from agentflow.events.catalogue import WorkflowPaused, WorkflowStarted, WorkflowWaiting
from agentflow.events.envelope import decode, micros
from agentflow.events.log import EventLog, RunRow
from agentflow.events.rows import Page
from agentflow.records.commands import Resumed, UnresumedRun
from agentflow.records.damage import warn_of_damage
from agentflow.runtime.command_messages import Resume
from agentflow.runtime.run_commands import RunCommands
from agentflow.runtime.submission import checked_budget

__all__ = ["Due", "DueScan", "RecoveryCommands"]

T = TypeVar("T")

_PARALLEL_READS = 16

Due = int | None | Literal["unknown"]
"""When something of a run falls due (µs); None: nothing will; "unknown": its log must be folded."""


class DueScan:
    """The deadlines of waiting runs, for one start of the process. `graph` returns a graph by its hash."""

    def __init__(self, log: EventLog, graph: Callable[[str], Awaitable[Workflow]]) -> None:
        self._log = log
        self._graph = graph
        self._timed: dict[str, bool] = {}

    async def of(self, rows: Sequence[RunRow]) -> dict[str, Due]:
        """Return when each of these waiting runs falls due, 16 runs at a time."""
        found: dict[str, Due] = {}
        left = iter(rows)

        async def read() -> None:
            for row in left:
                found[row.workflow_id] = await self._of(row)

        await asyncio.gather(*(read() for _ in range(_PARALLEL_READS)))
        return found

    async def _of(self, row: RunRow) -> Due:
        from agentflow.engine.limits import due_of

        try:
            last = await self._log.read(row.workflow_id, row.last_offset, 2)
            if len(last) != 1 or last[0].type != WorkflowWaiting.EVENT_TYPE:
                return "unknown"
            waiting = decode(last[0].body).data
            if any(name.startswith("child ") for name in waiting.signals):
                return "unknown"  # the child may have ended without a word to its parent
            due = due_of(waiting)
            if due is None and await self._may_be_timed(row.workflow_id):
                return "unknown"
            return due
        except (StoreError, ValueError):  # replaying the log raises the same, with the run's id
            return "unknown"

    async def _may_be_timed(self, workflow_id: str) -> bool:
        """Return whether the run can have a deadline while it waits; older versions do not log it."""
        begin = decode((await self._log.read(workflow_id, 0, 1))[0].body).data
        if not isinstance(begin, WorkflowStarted):
            return True
        if begin.replay_of is not UNSET:
            return True  # its record answers what it waits for
        if begin.budget is not UNSET and limits_of(begin.budget).get("max_duration_s") is not None:
            return True
        timed = self._timed.get(begin.ir_hash)
        if timed is None:
            timed = self._timed[begin.ir_hash] = _timed(await self._graph(begin.ir_hash))
        return timed


def _timed(workflow: Workflow) -> bool:
    options = workflow.options
    return (
        options.timeout is not None
        or limits_of(options.budget).get("max_duration_s") is not None
        or any(node.policy is not None and node.policy.timeout is not None for node in workflow.nodes)
        or any(limits_of(node.budget).get("max_duration_s") is not None for node in workflow.nodes)
        or any(node.approval is not None and node.approval.timeout is not None for node in workflow.nodes)
    )


class RecoveryCommands(RunCommands):
    """The commands for all runs of a store."""

    async def recover(self) -> list[str]:
        """Start every run of the store that has not ended and was not paused by an operator, as a daemon does
        at its start. Returns their ids. Runs beyond the limit queue; runs that wait for a request or a quota
        start when one of their deadlines falls due.

        After a second crash in a row, runs with open units are started one at a time; one whose unit was on
        trial in three lives that ended by a crash is paused with the reason `recovery_limit`.
        """
        rows = await self._rows_in("pending", "running")
        paused = await self._rows_in("paused")
        drained = [row for row in paused if await self._readable(row.workflow_id, self._drained)]
        await self._registry.ledger.begin_life([*rows, *drained], self.fold)
        waiting, runs = await self._look_at_waiting()
        now = self.clock.now()
        runs += [(row.workflow_id, False) for row in rows if row.state == "pending"]
        later: list[tuple[RunRow, int]] = []
        timed: list[str] = []
        for row in paused:
            until = None if row in drained else await self._readable(row.workflow_id, self._paused_until)
            if until is None:
                continue
            timed.append(row.workflow_id)
            if until > max(now, row.updated_at):
                later.append((row, until))
            else:
                runs.append((row.workflow_id, False))
        suspects = [(row.workflow_id, False) for row in rows if row.state == "running"]
        suspects += [(row.workflow_id, True) for row in drained]
        await self._cancel_orphans([*rows, *paused])
        self._registry.recover(runs, suspects)
        self._registry.expect(later)
        return [*(row.workflow_id for row in (*rows, *drained)), *waiting, *timed]

    async def _look_at_waiting(self) -> tuple[list[str], list[tuple[str, bool]]]:
        """Set the alarms of all waiting runs, page by page, because there may be very many. Returns their
        ids, and the runs that must be started to tell what they wait for."""
        scan, waiting, runs = DueScan(self.log, self._graph), list[str](), list[tuple[str, bool]]()
        async for rows in self._pages_in("waiting"):
            known, now = await scan.of(rows), self.clock.now()
            later: list[tuple[RunRow, int]] = []
            for row in rows:
                waiting.append(row.workflow_id)
                due = known[row.workflow_id]
                if isinstance(due, int) and due > max(now, row.updated_at):
                    later.append((row, due))
                elif due is not None:
                    runs.append((row.workflow_id, False))
            await self._cancel_orphans(rows)
            self._registry.expect(later)
        return waiting, runs

    async def _find_deadlines(self) -> None:
        """Set the alarms of the runs that wait in the store. The index keeps the earliest, and asks again
        when these have passed."""
        from agentflow.engine import next_due

        async def folded(run_id: str) -> int | None:
            return next_due(await self.fold(run_id))

        scan = DueScan(self.log, self._graph)
        async for page in self._pages_in("waiting", "paused"):
            rows = [row for row in page if not self._registry.has(row.workflow_id)]
            known = await scan.of([row for row in rows if row.state == "waiting"])
            later: list[tuple[RunRow, int]] = []
            for row in rows:
                due = known.get(row.workflow_id)
                if row.state == "paused" or due == "unknown":
                    ask = self._paused_until if row.state == "paused" else folded
                    due = await self._readable(row.workflow_id, ask)
                if isinstance(due, int):
                    later.append((row, due))
            self._registry.expect(later)

    async def resume_all(
        self,
        *,
        reason: str,
        budget: Mapping[str, Any] | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> Resumed:
        """Resume every run that is paused for `reason`, as `recovery_limit`, `quota` or `operator`.

        Returns which go on and which could not, each with its own reason; one failure stops no other. Raises
        ConfigurationError if `budget` is none, and StoreError if the store cannot list its runs. `trusted` as
        in `resume`.
        """
        raised = checked_budget(budget) or None
        resumed: list[str] = []
        failed: list[UnresumedRun] = []
        for run_id in await self._ids_in("paused"):
            try:
                if (await self._pause_of(run_id))[0] != reason:
                    continue
                if not trusted:
                    await self._check_untrusted(run_id)
                await self._send(run_id, Resume(budget=raised, by=by))
                resumed.append(run_id)
            except (RunTerminal, RunGone, RunNotFound):
                continue  # it ended meanwhile
            except AgentflowError as error:
                failed.append(UnresumedRun(workflow_id=run_id, code=error.code, message=str(error)))
        return Resumed(resumed=resumed, failed=failed)

    async def _cancel_orphans(self, rows: Sequence[RunRow]) -> None:
        """Cancel the child runs whose parents do not wait for them any more."""
        raise NotImplementedError

    async def _readable(self, run_id: str, question: Callable[[str], Awaitable[T]]) -> T | None:
        """Return what the log of a paused run says. None, with a warning, if it is damaged: the run stays
        paused, and the others are taken up all the same."""
        try:
            return await question(run_id)
        except (LogCorrupt, OffsetTrimmed, RunGone, RunNotFound):
            warn_of_damage(Page([], None, (run_id,)), "recovery")
            return None

    async def _drained(self, run_id: str) -> bool:
        """Return whether a paused run is not meant to be: a process ended, or before it could end the run."""
        reason, cancelling = await self._pause_of(run_id)
        return reason in ("drain", "storage") or cancelling

    async def _pause_of(self, run_id: str) -> tuple[str | None, bool]:
        """Return why a run is paused, and whether it is being cancelled. The last event mostly says so."""
        rows = await self.log.read(run_id, await self.log.last(run_id), 1)
        data = decode(rows[0].body).data if rows else None
        if isinstance(data, WorkflowPaused):
            return data.reason, False
        state = await self.fold(run_id)
        return state.pause, state.cancel_requested is not None

    async def _paused_until(self, run_id: str) -> int | None:
        """Return when a paused run goes on by itself (µs); None if it waits for an operator."""
        from agentflow.engine import next_due

        rows = await self.log.read(run_id, await self.log.last(run_id), 1)
        data = decode(rows[0].body).data if rows else None
        if isinstance(data, WorkflowPaused):
            return None if data.resume_after is UNSET else micros(data.resume_after)
        return next_due(await self.fold(run_id))
