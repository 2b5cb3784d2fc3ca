"""What people and programs tell runs: cancel, pause, resume, retry, fork, signals; and their questions."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from agentflow.errors import RunTerminal
from agentflow.runtime import RunRecord
from agentflow.server.bodies import (
    ApprovalBody,
    CancelBody,
    ForkBody,
    InputsBody,
    PauseBody,
    RequestList,
    RequestQuery,
    ResumeBody,
    RetryBody,
    SignalBody,
    WithdrawBody,
)
from agentflow.server.operations import Call, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.routes.runs import own_labels, record_of

__all__ = ["OPERATIONS"]


async def _commanded(call: Call, first: int, repeated: int = 200, *, before: int) -> Response:
    """The record after a command; `repeated` when the log is no longer than before."""
    record = await record_of(call, call.id)
    return json_response(record, first if record.last_offset > before else repeated)


async def _last(call: Call) -> int:
    return (await call.service.log.run(call.id)).last_offset


async def cancel(call: Call) -> Response:
    """End a run."""
    body: CancelBody = call.body
    row = await call.service.log.run(call.id)
    if row.ended:
        raise RunTerminal(f"{call.id} has ended: it is {row.state}")
    await call.service.runtime.cancel(
        call.id,
        body.reason,
        mode=body.mode,
        grace=body.grace_s,
        by=call.actor.name,
        expected_offset=body.expected_offset,
    )
    return await _commanded(call, 202, before=row.last_offset)


async def pause(call: Call) -> Response:
    """Let a run stand still."""
    body: PauseBody = call.body
    before = await _last(call)
    await call.service.runtime.pause(
        call.id,
        reason=body.reason,
        in_flight=body.in_flight,
        by=call.actor.name,
        expected_offset=body.expected_offset,
    )
    return await _commanded(call, 202, before=before)


async def resume(call: Call) -> Response:
    """Let a run go on."""
    body: ResumeBody = call.body
    row = await call.service.log.run(call.id)
    if row.ended:
        raise RunTerminal(f"{call.id} has ended: it is {row.state}")
    await call.service.runtime.resume(
        call.id,
        budget=body.budget,
        reason=body.reason,
        by=call.actor.name,
        expected_offset=body.expected_offset,
    )
    return json_response(await record_of(call, call.id))


async def retry(call: Call) -> Response:
    """Decide about a step that is held after its failure."""
    body: RetryBody = call.body
    await call.service.runtime.retry(
        call.id,
        body.step_id,
        body.action,
        output=body.output,
        by=call.actor.name,
        expected_offset=body.expected_offset,
    )
    return json_response(await record_of(call, call.id))


async def fork(call: Call) -> Response:
    """A new run that goes on from a point of this one."""
    body: ForkBody = call.body
    for name in ("edits", "definition"):
        if getattr(body, name) is not None:
            raise Refusal("invalid_edit", f"a fork cannot take {name} yet; start a run of its own instead")
    more: dict[str, Any] = {"as_id": body.workflow_id, "labels": own_labels(body.labels)}
    handle = await call.service.runtime.fork(
        call.id,
        offset=body.offset,
        from_step=body.from_step,
        from_failure=body.from_ == "failure",
        by=call.actor.name,
        **{name: value for name, value in more.items() if value is not None},
    )
    record = await record_of(call, handle.workflow_id)
    return json_response(record, 201, {"Location": record.links["self"]})


async def signal(call: Call) -> Response:
    """Send a signal to a run."""
    body: SignalBody = call.body
    before = await _last(call)
    await call.service.runtime.signal(
        call.id,
        body.name,
        body.data,
        signal_id=body.signal_id,
        by=call.actor.name,
        expected_offset=body.expected_offset,
    )
    return await _commanded(call, 202, before=before)


# -- questions


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
        reason=_claim(body.reason, body.actor),
        digest=body.digest,
        by=call.actor.name,
        via="api",
        expected_offset=body.expected_offset,
    )
    return json_response(await record_of(call, call.id))


def _claim(reason: str | None, actor: str | None) -> str | None:
    """What the caller says of himself is kept as his word, beside the name that was authenticated."""
    if actor is None:
        return reason
    return f"{reason} (on behalf of {actor})" if reason else f"on behalf of {actor}"


async def answer(call: Call) -> Response:
    """Answer questions of a run, all of them or none."""
    body: InputsBody = call.body
    await call.service.runtime.answer_all(
        call.id,
        body.responses,
        by=call.actor.name,
        via="api",
        expected_offset=body.expected_offset,
    )
    return json_response(await record_of(call, call.id))


async def withdraw(call: Call) -> Response:
    """Take a question back."""
    body: WithdrawBody = call.body
    await call.service.runtime.withdraw(call.id, call.path("request_id"), body.reason, by=call.actor.name)
    return Response(status_code=204)


_COMMAND = (
    "workflow_not_found",
    "invalid_transition",
    "run_terminal",
    "offset_mismatch",
    "fenced",
    "run_gone",
    "validation_failed",
    "storage_unavailable",
    "draining",
)


def _command(path: str, handler: Any, summary: str, body: Any, **more: Any) -> Operation:
    problems = (*_COMMAND, *more.pop("problems", ()))
    given: dict[str, Any] = {"scope": "run", "answers": {200: RunRecord}, "tag": "commands", **more}
    return Operation(
        method="POST",
        path=f"/workflows/{{id}}/{path}",
        handler=handler,
        summary=summary,
        body=body,
        problems=problems,
        while_draining=False,
        **given,
    )


_TAKEN = {202: RunRecord, 200: RunRecord}

OPERATIONS = (
    _command("cancel", cancel, "End a run", CancelBody, body_required=False, answers=_TAKEN),
    _command("pause", pause, "Let a run stand still", PauseBody, body_required=False, answers=_TAKEN),
    _command(
        "resume", resume, "Let a run go on", ResumeBody, body_required=False, problems=("budget_too_small",)
    ),
    _command(
        "retry",
        retry,
        "Decide about a step that failed",
        RetryBody,
        problems=("step_not_found", "not_failed"),
    ),
    _command(
        "fork",
        fork,
        "A new run from a point of this one",
        ForkBody,
        answers={201: RunRecord},
        problems=("step_not_found", "not_failed", "run_exists", "invalid_edit", "queue_full"),
    ),
    _command("signals", signal, "Send a signal", SignalBody, answers=_TAKEN),
    _command(
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
    _command(
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
        problems=(*_COMMAND, "unknown_request", "already_answered", "request_closed"),
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
