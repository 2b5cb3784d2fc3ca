"""What runs ask of people: approvals, inputs, the inbox."""

from __future__ import annotations

from starlette.responses import Response

from agentflow.server.answers import RequestList
from agentflow.server.bodies import ApprovalBody, InputsBody, WithdrawBody
from agentflow.server.operations import Call, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.queries import RequestQuery
from agentflow.server.routes.records import record_of
from agentflow.server.routes.telling import COMMAND_PROBLEMS, command

__all__ = ["OPERATIONS"]


async def requests(call: Call) -> Response:
    """The questions of a run."""
    return await _requests(call, call.id)


async def inbox(call: Call) -> Response:
    """The open questions of all runs."""
    return await _requests(call, None)


async def _requests(call: Call, workflow_id: str | None) -> Response:
    query: RequestQuery = call.query
    if workflow_id is not None:
        await call.service.log.run(workflow_id)
    if not query.open:
        raise Refusal("invalid_parameter", "closed requests are not listed; the events of the run show them")
    found = await call.service.runtime.requests(workflow_id, kind=query.kind)
    return json_response({"items": found})


async def approve(call: Call) -> Response:
    """Grant or deny an approval."""
    body: ApprovalBody = call.body
    if (body.request_id is None) == (body.step_id is None):
        raise Refusal("invalid_parameter", "name either request_id or step_id")
    await call.service.runtime.decide(
        call.id,
        request_id=body.request_id,
        step_id=body.step_id,
        granted=body.decision == "grant",
        reason=body.reason,
        digest=body.digest,
        by=call.actor.name,
        claimed_actor=body.actor,
        via="api",
        expected_offset=body.expected_offset,
    )
    return json_response(await record_of(call, call.id))


async def answer(call: Call) -> Response:
    """Answer questions of a run, all of them or none."""
    body: InputsBody = call.body
    await call.service.runtime.answer_all(
        call.id,
        body.responses,
        by=call.actor.name,
        claimed_actor=body.actor,
        via="api",
        expected_offset=body.expected_offset,
    )
    return json_response(await record_of(call, call.id))


async def withdraw(call: Call) -> Response:
    """Take a question back."""
    body: WithdrawBody = call.body
    await call.service.runtime.withdraw(call.id, call.path("request_id"), body.reason, by=call.actor.name)
    return Response(status_code=204)


OPERATIONS = (
    command(
        "approvals",
        approve,
        "Grant or deny an approval",
        ApprovalBody,
        scope="approve",
        tag="requests",
        problems=(
            "step_not_found",
            "unknown_request",
            "decision_conflict",
            "digest_mismatch",
            "request_closed",
        ),
    ),
    command(
        "inputs",
        answer,
        "Answer questions, all or none",
        InputsBody,
        scope="approve",
        tag="requests",
        problems=("unknown_request", "already_answered", "request_closed", "invalid_response"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/requests",
        handler=requests,
        summary="The open questions of a run",
        tag="requests",
        scope="read",
        query=RequestQuery,
        answers={200: RequestList},
        problems=("workflow_not_found", "run_gone"),
    ),
    Operation(
        method="DELETE",
        path="/workflows/{id}/requests/{request_id}",
        handler=withdraw,
        summary="Take a question back",
        tag="requests",
        scope="approve",
        body=WithdrawBody,
        body_required=False,
        answers={204: None},
        problems=(*COMMAND_PROBLEMS, "unknown_request", "already_answered", "request_closed"),
        while_draining=False,
    ),
    Operation(
        method="GET",
        path="/inbox",
        handler=inbox,
        summary="The open questions of all runs",
        tag="requests",
        scope="read",
        query=RequestQuery,
        answers={200: RequestList},
    ),
)
