"""What people and programs tell runs: cancel, pause, resume, retry, fork, signals."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from agentflow.errors import RunTerminal
from agentflow.records.commands import Resumed
from agentflow.runtime import RunRecord
from agentflow.server.bodies import (
    CancelBody,
    ForkBody,
    PauseBody,
    ResumeAllBody,
    ResumeBody,
    RetryBody,
    SignalBody,
)
from agentflow.server.operations import Call, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.routes.records import record_of
from agentflow.server.routes.submitting import own_labels
from agentflow.server.routes.telling import command

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
        trusted=call.actor.trusted,
        expected_offset=body.expected_offset,
    )
    return json_response(await record_of(call, call.id))


async def resume_all(call: Call) -> Response:
    """Let all runs go on that are paused for one reason."""
    body: ResumeAllBody = call.body
    found = await call.service.runtime.resume_all(
        reason=body.reason, budget=body.budget, by=call.actor.name, trusted=call.actor.trusted
    )
    return json_response(found)


async def retry(call: Call) -> Response:
    """Decide about a step that is held after its failure."""
    body: RetryBody = call.body
    await call.service.runtime.retry(
        call.id,
        body.step_id,
        body.action,
        output=body.output,
        by=call.actor.name,
        trusted=call.actor.trusted,
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
        trusted=call.actor.trusted,
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


_TAKEN = {202: RunRecord, 200: RunRecord}

OPERATIONS = (
    Operation(
        method="POST",
        path="/workflows/resume",
        handler=resume_all,
        summary="Let all runs go on that are paused for one reason",
        tag="commands",
        scope="run",
        body=ResumeAllBody,
        answers={200: Resumed},
        problems=("storage_unavailable", "draining"),
        while_draining=False,
    ),
    command("cancel", cancel, "End a run", CancelBody, body_required=False, answers=_TAKEN),
    command("pause", pause, "Let a run stand still", PauseBody, body_required=False, answers=_TAKEN),
    command(
        "resume", resume, "Let a run go on", ResumeBody, body_required=False, problems=("budget_too_small",)
    ),
    command(
        "retry",
        retry,
        "Decide about a step that failed",
        RetryBody,
        problems=("step_not_found", "not_failed"),
    ),
    command(
        "fork",
        fork,
        "A new run from a point of this one",
        ForkBody,
        answers={201: RunRecord},
        problems=("step_not_found", "not_failed", "run_exists", "invalid_edit", "queue_full"),
    ),
    command("signals", signal, "Send a signal", SignalBody, answers=_TAKEN),
)
