"""The commanding half of a client: what people and programs tell runs, as `Runtime` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

from agentflow.client.transport import Transport
from agentflow.errors import RunTerminal
from agentflow.records.answers import RequestList
from agentflow.records.commands import COMMANDS, Resumed
from agentflow.records.pipeline import PlanView
from agentflow.records.requests import RequestRecord
from agentflow.records.runs import RunRecord

if TYPE_CHECKING:
    from agentflow.client.run import RemoteRun

__all__ = ["Commands"]

T = TypeVar("T")


class Commands:
    """Each returns once the command is durable; one whose effect holds already changes nothing.

    Raises RunNotFound, RunTerminal, UnknownRequest, InvalidAnswer, CommandRefused, Fenced, DefinitionError,
    StoreError as the Runtime does.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _ask(self, method: str, path: str, kind: type[T], **more: Any) -> T:
        return await self._transport.ask(method, path, kind, **more)

    async def _tell(self, name: str, workflow_id: str, /, **arguments: Any) -> RemoteRun:
        """Give a command of the table to a run; return the run that it leads to."""
        record = await self._send(name, workflow_id, RunRecord, **arguments)
        return self._handle(record.workflow_id)

    async def _send(self, name: str, workflow_id: str, answer: type[T], /, **arguments: Any) -> T:
        command = COMMANDS[name]
        path = "/" + command.path.format(id=quote(workflow_id, safe=""))
        return await self._ask(command.method, path, answer, body=command.on_the_wire(**arguments))

    def _handle(self, workflow_id: str) -> RemoteRun:
        raise NotImplementedError

    def _document(self, submission: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def cancel(
        self,
        workflow_id: str,
        reason: str | None = None,
        *,
        mode: Literal["soft", "hard"] = "soft",
        grace: float = 5.0,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """End a run. A run that has ended is left alone."""
        try:
            return await self._tell(
                "cancel",
                workflow_id,
                mode=mode,
                grace=grace,
                reason=reason,
                expected_offset=expected_offset,
            )
        except RunTerminal:
            return self._handle(workflow_id)

    async def pause(
        self,
        workflow_id: str,
        *,
        reason: str | None = None,
        in_flight: Literal["drain", "suspend"] = "drain",
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Stand still until `resume`. `drain` lets steps that have begun finish, `suspend` only functions."""
        return await self._tell(
            "pause", workflow_id, reason=reason, in_flight=in_flight, expected_offset=expected_offset
        )

    async def resume(
        self,
        workflow_id: str,
        *,
        budget: Mapping[str, Any] | None = None,
        reason: str | None = None,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Go on with a run. One that has ended gives its handle."""
        try:
            return await self._tell(
                "resume", workflow_id, budget=budget, reason=reason, expected_offset=expected_offset
            )
        except RunTerminal:
            if budget:
                raise
            return self._handle(workflow_id)

    async def resume_all(self, *, reason: str, budget: Mapping[str, Any] | None = None) -> Resumed:
        """Resume every run that is paused for `reason`; which go on, and which could not."""
        command = COMMANDS["resume_all"]
        body = command.on_the_wire(reason=reason, budget=budget)
        return await self._ask(command.method, f"/{command.path}", Resumed, body=body)

    async def retry(
        self,
        workflow_id: str,
        step_id: str,
        action: Literal["retry", "skip", "done", "fail"] = "retry",
        *,
        output: Any = None,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Decide about a step that is held after its failure."""
        return await self._tell(
            "retry",
            workflow_id,
            step_id=step_id,
            action=action,
            output=output,
            expected_offset=expected_offset,
        )

    async def fork(
        self,
        workflow_id: str,
        *,
        offset: int | None = None,
        from_step: str | None = None,
        from_failure: bool = False,
        as_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        edits: Mapping[str, Any] | None = None,
        definition: Any = None,
    ) -> RemoteRun:
        """Begin a new run that goes on from a point of another; recorded results are kept and not repeated.

        `edits` are JSON in place of what was there: `input`, `outputs` by step, `shared` by key, `state` by
        node and key, `messages` that wait by node. `definition`: what `submit` takes, with the same steps and
        edges as that of the old run.
        """
        return await self._tell(
            "fork",
            workflow_id,
            offset=offset,
            from_step=from_step,
            from_failure=from_failure,
            as_id=as_id,
            labels=labels,
            edits=edits,
            **({} if definition is None else self._document(definition)),
        )

    async def replay(
        self,
        workflow_id: str,
        policy: Literal["Always", "Refresh", "Mixed"] = "Refresh",
        *,
        input: Any = None,
        definition: Any = None,
        as_id: str | None = None,
    ) -> RemoteRun:
        """Begin a new run of a recorded one, served from its results as `policy` says. See `Runtime.replay`.

        `definition`: another document, as a mapping.
        """
        return await self._tell(
            "replay", workflow_id, policy=policy, input=input, definition=definition, as_id=as_id
        )

    async def signal(
        self,
        workflow_id: str,
        name: str,
        data: Any = None,
        *,
        signal_id: str | None = None,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Send a signal; one with a known `signal_id` changes nothing."""
        return await self._tell(
            "signal",
            workflow_id,
            name=name,
            data=data,
            signal_id=signal_id,
            expected_offset=expected_offset,
        )

    # -- questions

    async def requests(
        self, workflow_id: str | None = None, *, kind: str | None = None
    ) -> list[RequestRecord]:
        """Return the open questions of a run, or of all runs, oldest first. `kind`: step, tool or input."""
        path = "/inbox" if workflow_id is None else f"/workflows/{quote(workflow_id, safe='')}/requests"
        return (await self._ask("GET", path, RequestList, query={"kind": kind})).items

    async def decide(
        self,
        workflow_id: str,
        *,
        granted: bool,
        request_id: str | None = None,
        step_id: str | None = None,
        reason: str | None = None,
        digest: str | None = None,
        claimed_actor: str | None = None,
        response: Any = None,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Grant or deny an approval, named by its id or by its step. `claimed_actor`: on whose behalf.

        `response`: any JSON value for the step that asked.
        """
        return await self._tell(
            "decide",
            workflow_id,
            granted=granted,
            request_id=request_id,
            step_id=step_id,
            reason=reason,
            digest=digest,
            claimed_actor=claimed_actor,
            response=response,
            expected_offset=expected_offset,
        )

    async def answer(self, workflow_id: str, request_id: str, value: Any) -> RemoteRun:
        """Answer an open request."""
        return await self.answer_all(workflow_id, {request_id: value})

    async def answer_all(
        self,
        workflow_id: str,
        responses: Mapping[str, Any],
        *,
        claimed_actor: str | None = None,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Answer several open requests, all or none of them. `claimed_actor`: on whose behalf."""
        return await self._tell(
            "answer_all",
            workflow_id,
            responses=dict(responses),
            claimed_actor=claimed_actor,
            expected_offset=expected_offset,
        )

    async def edit_plan(
        self,
        workflow_id: str,
        plan: Mapping[str, Any],
        *,
        plan_digest: str | None = None,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Replace the plan of a request that stands for review."""
        given = {"plan": dict(plan), "plan_digest": plan_digest, "expected_offset": expected_offset}
        await self._send("edit_plan", workflow_id, PlanView, **given)
        return self._handle(workflow_id)

    async def execute(
        self,
        workflow_id: str,
        *,
        plan: Mapping[str, Any] | None = None,
        plan_digest: str | None = None,
        expected_offset: int | None = None,
    ) -> RemoteRun:
        """Execute the plan of a request, or an edited one."""
        return await self._tell(
            "execute",
            workflow_id,
            plan=None if plan is None else dict(plan),
            plan_digest=plan_digest,
            expected_offset=expected_offset,
        )

    async def reject(
        self, workflow_id: str, *, reason: str | None = None, expected_offset: int | None = None
    ) -> RemoteRun:
        """Reject the plan of a request that stands for review: its run is cancelled."""
        return await self._tell("reject", workflow_id, reason=reason, expected_offset=expected_offset)

    async def withdraw(self, workflow_id: str, request_id: str, reason: str) -> RemoteRun:
        """Take a question back."""
        command = COMMANDS["withdraw"]
        path = command.path.format(id=quote(workflow_id, safe=""), request_id=quote(request_id, safe=""))
        await self._transport.send(command.method, f"/{path}", body=command.on_the_wire(reason=reason))
        return self._handle(workflow_id)

    async def delete(self, workflow_id: str) -> None:
        """Take a run that has ended away; its id is never used again. RunNotTerminal."""
        await self._transport.send("DELETE", f"/workflows/{quote(workflow_id, safe='')}")
