"""Commands to runs: the commanding half of a Runtime (page 000 §8, §11).

Each command returns once it is durable. One that changes nothing is no error. One that does not fit raises,
and nothing changed: RunNotFound, RunTerminal, UnknownRequest, InvalidAnswer, CommandRefused (`.code` as in
page 000 §8.2), Fenced (another live process owns the run), DefinitionError (the run's models or functions
cannot be resolved) or StoreError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.aside import compute_aside, is_small
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    RunTerminal,
)
from agentflow.events import tracing
from agentflow.events.forked import ForkGuard
from agentflow.records.requests import RequestRecord
from agentflow.runtime.command_messages import (
    Answer,
    Cancel,
    Command,
    DecideRequest,
    EditPlan,
    ExecutePlan,
    Pause,
    RejectPlan,
    Resume,
    RetryStep,
    Signal,
    Withdraw,
)
from agentflow.runtime.run_reader import RunReader
from agentflow.runtime.submission import checked_budget, json_problem

if TYPE_CHECKING:
    from agentflow.runtime.clock import Clock
    from agentflow.runtime.run_handle import RunHandle
    from agentflow.runtime.run_launch import RunLaunch
    from agentflow.runtime.run_registry import RunRegistry

__all__ = ["RunCommands"]


class RunCommands(RunReader):
    """The commands for one run."""

    clock: Clock
    _fork_guard: ForkGuard
    _registry: RunRegistry

    def _handle(self, workflow_id: str, launch: RunLaunch | None = None) -> RunHandle:
        raise NotImplementedError

    async def _check_untrusted(self, workflow_id: str) -> None:
        """Raise DefinitionError unless an untrusted client could have submitted this run."""
        raise NotImplementedError

    async def _other_definition(self, workflow_id: str) -> str | None:
        """Return the hash of the definition whose code a run goes on with, if that is another one."""
        raise NotImplementedError

    async def _send(self, workflow_id: str, command: Command) -> RunHandle:
        self._fork_guard.check()
        told = msgspec.structs.asdict(command)
        problem = json_problem(told) if is_small(told) else await compute_aside(json_problem, told)
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
        """End a run. Soft: nothing new begins, and tool calls at work have `grace` seconds to complete; hard,
        or a second time hard: at once. A run that has ended is left as it is."""
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
        """Pause until `resume`. `drain` lets steps that have begun finish, `suspend` only tool calls."""
        command = Pause(reason=reason, in_flight=in_flight, by=by, expected_offset=expected_offset)
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
        command = Resume(
            reason=reason,
            budget=raised,
            by=by,
            expected_offset=expected_offset,
            definition_hash=await self._other_definition(workflow_id),
        )
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
        response: Any = None,
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Grant or deny an approval, named by its id or by its step. The same decision again changes nothing,
        the opposite is refused, also after the end of the run. With `digest` only what was seen is granted.
        `claimed_actor`: for whom `by` acts. `response`: any JSON value for the step that asked."""
        if (request_id is None) == (step_id is None):
            raise CommandRefused("name either the request or the step", code="invalid_parameter")
        if tracing.current() is not None:
            raise CommandRefused("agents and functions of runs decide no approvals", code="self_approval")
        command = DecideRequest(
            granted="grant" if granted else "deny",
            request_id=request_id,
            step_id=step_id,
            reason=reason,
            digest=digest,
            by=by,
            claimed_actor=claimed_actor,
            via=via,
            response=response,
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
            await _judge_answers(await self.requests(workflow_id), responses)
        command = Answer(
            responses=dict(responses),
            by=by,
            claimed_actor=claimed_actor,
            via=via,
            expected_offset=expected_offset,
        )
        return await self._send(workflow_id, command)

    async def edit_plan(
        self,
        workflow_id: str,
        plan: Mapping[str, Any],
        *,
        plan_digest: str | None = None,
        by: str = "local",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Replace the plan of a request that stands for review. With `plan_digest` only the plan that was
        seen is replaced. Raises CommandRefused with every problem of the plan; nothing is stored then."""
        command = EditPlan(plan=dict(plan), plan_digest=plan_digest, by=by, expected_offset=expected_offset)
        return await self._send(workflow_id, command)

    async def execute(
        self,
        workflow_id: str,
        *,
        plan: Mapping[str, Any] | None = None,
        plan_digest: str | None = None,
        by: str = "local",
        via: str = "api",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Execute the plan of a request, or an edited one. A plan that is executed already is left alone."""
        command = ExecutePlan(
            plan=None if plan is None else dict(plan),
            plan_digest=plan_digest,
            by=by,
            via=via,
            expected_offset=expected_offset,
        )
        return await self._send(workflow_id, command)

    async def reject(
        self,
        workflow_id: str,
        *,
        reason: str | None = None,
        by: str = "local",
        via: str = "api",
        expected_offset: int | None = None,
    ) -> RunHandle:
        """Reject the plan of a request that stands for review: its run is cancelled."""
        command = RejectPlan(reason=reason, by=by, via=via, expected_offset=expected_offset)
        return await self._send(workflow_id, command)

    async def withdraw(
        self, workflow_id: str, request_id: str, reason: str, *, by: str = "local"
    ) -> RunHandle:
        """Withdraw an open request: an approval is denied, the step that asked for input fails. A request
        that was withdrawn, or closed with its step, stays so."""
        return await self._send(workflow_id, Withdraw(request_id=request_id, reason=reason, by=by))

    def _new_id(self, prefix: str) -> str:
        raise NotImplementedError


async def _judge_answers(requests: Iterable[RequestRecord], responses: Mapping[str, Any]) -> None:
    """Check the answers to open requests against their schemas, off the event loop if that takes long."""
    from agentflow.judge import judge_aside

    for request in requests:
        if request.request_id in responses and request.response_schema is not None:
            await judge_aside(request.response_schema, responses[request.request_id])
