"""Routes of open questions: those of one run, and the inbox."""

from __future__ import annotations

from starlette.responses import Response

from agentflow.records.answers import RequestList
from agentflow.server.operations import Call, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.queries import RequestQuery

__all__ = ["OPERATIONS"]


async def requests(call: Call) -> Response:
    """List the questions of a run."""
    return await _requests(call, call.id)


async def inbox(call: Call) -> Response:
    """List the open questions of all runs."""
    return await _requests(call, None)


async def _requests(call: Call, workflow_id: str | None) -> Response:
    query: RequestQuery = call.query
    if workflow_id is not None:
        await call.service.log.run(workflow_id)
    if not query.open:
        raise Refusal("invalid_parameter", "closed requests are not listed; the events of the run show them")
    found = await call.service.runtime.requests(workflow_id, kind=query.kind)
    return json_response({"items": found})


OPERATIONS = (
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
