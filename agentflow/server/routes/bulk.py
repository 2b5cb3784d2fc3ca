"""A command to many runs, each for itself: one that refuses it changes nothing for the others."""

from __future__ import annotations

from starlette.responses import Response

from agentflow.errors import RunTerminal
from agentflow.records.answers import BulkAnswer, BulkResult
from agentflow.server.bodies import BulkBody
from agentflow.server.operations import Call, Operation, json_response
from agentflow.server.problems import Refusal, refusal_of

__all__ = ["OPERATIONS"]


async def bulk(call: Call) -> Response:
    """Give a command to many runs, one after another."""
    body: BulkBody = call.body
    if body.command == "delete":
        call.actor.require("admin")
    if len(set(body.workflow_ids)) < len(body.workflow_ids):
        raise Refusal("invalid_parameter", "workflow_ids names a run more than once")
    items: list[BulkResult] = []
    for workflow_id in body.workflow_ids:
        try:
            state = await _tell(call, body, workflow_id)
            items.append(BulkResult(workflow_id=workflow_id, state=state))
        except Exception as error:
            refusal = refusal_of(error, draining=call.service.draining)
            items.append(BulkResult(workflow_id=workflow_id, code=refusal.code, detail=refusal.detail))
    return json_response(BulkAnswer(items=items))


async def _tell(call: Call, body: BulkBody, workflow_id: str) -> str | None:
    """Return the state of the run after the command; None of one that was deleted."""
    runtime, by = call.service.runtime, call.actor.name
    row = await call.service.log.run(workflow_id)
    if body.command != "delete" and row.ended:
        raise RunTerminal(f"{workflow_id} has ended: it is {row.state}")
    match body.command:
        case "delete":
            await runtime.delete(workflow_id)
            return None
        case "cancel":
            await runtime.cancel(workflow_id, reason=body.reason, by=by)
        case "pause":
            await runtime.pause(workflow_id, reason=body.reason, by=by)
        case "resume":
            await runtime.resume(workflow_id, reason=body.reason, by=by, trusted=call.actor.trusted)
    return (await call.service.log.run(workflow_id)).state


OPERATIONS = (
    Operation(
        method="POST",
        path="/workflows/bulk",
        handler=bulk,
        name="bulk_command",
        summary="Cancel, pause, resume or delete many runs; delete needs the scope admin",
        tag="commands",
        scope="run",
        body=BulkBody,
        answers={200: BulkAnswer},
        problems=("storage_unavailable", "draining"),
        while_draining=False,
    ),
)
