"""Routes of open questions: those of one run, and the inbox."""

from __future__ import annotations

from contextlib import suppress

from starlette.responses import Response

from agentflow.errors import LogCorrupt, OffsetTrimmed, RunGone
from agentflow.events.ids import micros
from agentflow.records.answers import ClosedRequestList, RequestList
from agentflow.records.closed_requests import ClosedRequest
from agentflow.server.operations import Call, Either, Operation, json_response
from agentflow.server.positions import parse_time
from agentflow.server.problems import Refusal
from agentflow.server.queries import RequestQuery

__all__ = ["OPERATIONS"]

_CLOSING = ("approval.granted", "approval.denied", "input.received", "input.cancelled")
_DAY_US = 86_400_000_000
_MAX_CLOSED = 200
_MAX_PAGES = 64


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
        closed = await _closed(call, workflow_id, parse_time(query.since, "since"))
        items = [one for one in closed if query.kind in (None, one.request.kind)]
        return json_response(ClosedRequestList(items=items))
    if query.since is not None:
        raise Refusal("invalid_parameter", "since is of closed requests", hint="add open=false")
    found = await call.service.runtime.requests(workflow_id, kind=query.kind)
    return json_response({"items": found})


async def _closed(call: Call, workflow_id: str | None, since: int | None) -> list[ClosedRequest]:
    """Return the closed questions of one run, or the last ones of all runs."""
    runtime = call.service.runtime
    if workflow_id is not None:
        found = await runtime.closed_requests(workflow_id)
        return [one for one in found if since is None or micros(one.closed_at) >= since]
    begin = runtime.clock.now() - _DAY_US if since is None else since
    ids: dict[str, None] = {}
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await call.service.log.query(_CLOSING, since=begin, cursor=cursor, limit=512)
        ids.update((item.workflow_id, None) for item in page.items)
        cursor = page.next_cursor
        if not page.items:
            break
    found = list[ClosedRequest]()
    for run in reversed(ids):
        if len(found) >= _MAX_CLOSED:
            break
        with suppress(RunGone, OffsetTrimmed, LogCorrupt):
            found += [one for one in await runtime.closed_requests(run) if micros(one.closed_at) >= begin]
    return sorted(found, key=lambda one: one.closed_at, reverse=True)[:_MAX_CLOSED]


OPERATIONS = (
    Operation(
        method="GET",
        path="/workflows/{id}/requests",
        handler=requests,
        summary="The open questions of a run, or the closed ones",
        tag="requests",
        scope="read",
        query=RequestQuery,
        answers={200: Either(RequestList, ClosedRequestList)},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/inbox",
        handler=inbox,
        summary="The open questions of all runs, or the closed ones",
        tag="requests",
        scope="read",
        query=RequestQuery,
        answers={200: Either(RequestList, ClosedRequestList)},
    ),
)
