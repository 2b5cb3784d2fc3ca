"""What people and programs tell runs: the commanding half of a Runtime (page 000 §8, §11).

Each command returns once it is durable. One whose effect holds already changes nothing and is no error; one
that does not fit raises, and nothing changed: RunNotFound, RunTerminal, UnknownRequest, InvalidAnswer,
CommandRefused (`.code` as in page 000 §8.2), Fenced (another live process owns the run), DefinitionError
(the run's models or functions are not here), StoreError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET

from agentflow.engine import next_due
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    LogCorrupt,
    OffsetTrimmed,
    RunGone,
    RunNotFound,
    RunTerminal,
)
from agentflow.events.catalogue import WorkflowPaused
from agentflow.events.envelope import decode, micros
from agentflow.events.forked import ForkGuard
from agentflow.events.log import RunRow
from agentflow.events.rows import Page
from agentflow.records.commands import Resumed, UnresumedRun
from agentflow.records.damage import warn_of_damage
from agentflow.runtime.command_handlers import (
    Answer,
    Cancel,
    Command,
    DecideRequest,
    Pause,
    Resume,
    RetryStep,
    Signal,
    Withdraw,
)
from agentflow.runtime.due_scan import DueScan
from agentflow.runtime.judging import judge_answers
from agentflow.runtime.options import checked_budget, json_problem
from agentflow.runtime.run_reader import RunReader

if TYPE_CHECKING:
    from agentflow.runtime.clock import Clock
    from agentflow.runtime.run_handle import RunHandle
    from agentflow.runtime.run_launch import RunLaunch
    from agentflow.runtime.run_registry import RunRegistry

__all__ = ["RunCommands"]

T = TypeVar("T")


class RunCommands(RunReader):
    """See the module."""

    clock: Clock
    _fork_guard: ForkGuard
    _registry: RunRegistry

    def _handle(self, workflow_id: str, launch: RunLaunch | None = None) -> RunHandle:
        raise NotImplementedError

    async def _check_untrusted(self, workflow_id: str) -> None:
        """Raise DefinitionError unless an untrusted client could have submitted this run."""
        raise NotImplementedError

    async def _send(self, workflow_id: str, command: Command) -> RunHandle:
        self._fork_guard.check()
        problem = json_problem(msgspec.structs.asdict(command))
        if problem is not None:
            raise CommandRefused(f"no event can hold this: {problem}", code="invalid_parameter")
        await self._registry.command(workflow_id, command)
        return self._handle(workflow_id)

    async def cancel(
        self,
        workflow_id: str,
        reason: str | None = None,
        *,
        mode: Literal["soft", "hard"] = "soft",
        grace: float = 5.0,
        by: str = "local",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """End a run. Soft: nothing new begins, and functions at work have `grace` seconds to come to their
        end; hard, or a second time hard: at once. A run that has ended is left alone."""
        request = Cancel(mode=mode, reason=reason, grace=grace, by=by, expected_offset=expected_offset)
        try:
            return await self._send(workflow_id, request)
        except RunTerminal:
            return self._handle(workflow_id)

    async def pause(
        self,
        workflow_id: str,
        *,
        reason: str | None = None,
        in_flight: Literal["drain", "suspend"] = "drain",
        by: str = "local",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Stand still until `resume`. `drain` lets steps that have begun finish, `suspend` only functions."""
        command = Pause(detail=reason, in_flight=in_flight, by=by, expected_offset=expected_offset)
        return await self._send(workflow_id, command)

    async def resume(
        self,
        workflow_id: str,
        *,
        budget: Mapping[str, Any] | None = None,
        reason: str | None = None,
        by: str = "local",
        trusted: bool = True,
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Go on with a run that was paused, or that another process left (page 000 §11 rule 4).

        Recorded model and tool results are never repeated; steps that are held after a failure are tried
        again; `budget` raises limits. A run that has ended gives its handle. ConfigurationError: no budget.
        A caller that is not `trusted` moves a run only if it could have submitted it; else DefinitionError.
        """
        raised = checked_budget(budget) or None
        if not trusted:
            await self._check_untrusted(workflow_id)
        command = Resume(reason=reason, budget=raised, by=by, expected_offset=expected_offset)
        try:
            return await self._send(workflow_id, command)
        except RunTerminal:
            if raised:
                raise
            return self._handle(workflow_id)

    async def retry(
        self,
        workflow_id: str,
        step_id: str,
        action: Literal["retry", "skip", "done", "fail"] = "retry",
        *,
        output: Any = None,
        by: str = "local",
        trusted: bool = True,
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Decide about a step that is held after its failure (`on_failure: hold`).

        `trusted`: see `resume`.
        """
        if not trusted:
            await self._check_untrusted(workflow_id)
        command = RetryStep(
            step_id=step_id, action=action, output=output, by=by, expected_offset=expected_offset
        )
        return await self._send(workflow_id, command)

    async def signal(
        self,
        workflow_id: str,
        name: str,
        data: Any = None,
        *,
        signal_id: str | None = None,
        by: str = "local",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Send a signal; one with a known `signal_id` changes nothing."""
        signal_id = signal_id or self._new_id("sig_")
        command = Signal(signal_id=signal_id, name=name, data=data, by=by, expected_offset=expected_offset)
        return await self._send(workflow_id, command)

    # -- requests -------------------------------------------------------------------------------

    async def decide(
        self,
        workflow_id: str,
        *,
        granted: bool,
        request_id: str | None = None,
        step_id: str | None = None,
        reason: str | None = None,
        digest: str | None = None,
        by: str = "local",
        claimed_actor: str | None = None,
        via: str = "api",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Grant or deny an approval, named by its id or by its step. The same decision again changes nothing,
        the opposite is refused, also after the end of the run. With `digest` only what was seen is granted.
        `claimed_actor`: for whom `by` says that it acts."""
        if (request_id is None) == (step_id is None):
            raise CommandRefused("name either the request or the step", code="invalid_parameter")
        command = DecideRequest(
            granted=granted,
            request_id=request_id,
            step_id=step_id,
            reason=reason,
            digest=digest,
            by=by,
            claimed_actor=claimed_actor,
            via=via,
            expected_offset=expected_offset,
        )
        return await self._send(workflow_id, command)

    async def answer(
        self, workflow_id: str, request_id: str, value: Any, *, by: str = "local", via: str = "api"
    ) -> RunHandle:
        """Answer an open request; the handle tells where the run rests next."""
        return await self.answer_all(workflow_id, {request_id: value}, by=by, via=via)

    async def answer_all(
        self,
        workflow_id: str,
        responses: Mapping[str, Any],
        *,
        by: str = "local",
        claimed_actor: str | None = None,
        via: str = "api",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Answer several open requests, all or none of them. `claimed_actor`: for whom `by` says it acts."""
        with suppress(AgentflowError):  # what is wrong with the run, the command says
            await judge_answers(await self.requests(workflow_id), responses)
        command = Answer(
            responses=dict(responses),
            by=by,
            claimed_actor=claimed_actor,
            via=via,
            expected_offset=expected_offset,
        )
        return await self._send(workflow_id, command)

    async def withdraw(
        self, workflow_id: str, request_id: str, reason: str, *, by: str = "local"
    ) -> RunHandle:
        """Take a question back: an approval is denied, what an input was asked for fails. A question that was
        taken back, or closed with its step, stays so."""
        return await self._send(workflow_id, Withdraw(request_id=request_id, reason=reason, by=by))

    # -- all runs -------------------------------------------------------------------------------

    async def recover(self) -> list[str]:
        """Take up every run of the store that is not at its end and that nobody paused, as a daemon does
        when it starts. Returns their ids; those that wait their turn are taken up as there are places, those
        that only wait for a person, or for a provider's quota, when something of theirs falls due.

        After a second crash in a row, runs with open units are taken up one at a time; one whose unit was on
        trial in three lives that ended by a crash is paused with the reason `recovery_limit`.
        """
        rows = await self._rows_in("pending", "running", "waiting")
        paused = await self._rows_in("paused")
        drained = [row for row in paused if await self._readable(row.workflow_id, self._drained)]
        await self._registry.ledger.begin_life([*rows, *drained], self.fold)
        known = await DueScan(self.log, self._graph).of([row for row in rows if row.state == "waiting"])
        now = self.clock.now()
        runs: list[tuple[str, bool]] = []
        later: list[tuple[RunRow, int]] = []
        for row in rows:
            due = known.get(row.workflow_id, "unknown")
            if isinstance(due, int) and due > max(now, row.updated_at):
                later.append((row, due))
            elif due is not None and row.state != "running":
                runs.append((row.workflow_id, False))
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
        self._registry.recover(runs, suspects)
        self._registry.expect(later)
        return [*(row.workflow_id for row in (*rows, *drained)), *timed]

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
        rows = await self.log.read(run_id, await self.log.last(run_id), 1)
        data = decode(rows[0].body).data if rows else None
        if isinstance(data, WorkflowPaused):
            return None if data.resume_after is UNSET else micros(data.resume_after)
        return next_due(await self.fold(run_id))

    def _new_id(self, prefix: str) -> str:
        raise NotImplementedError
