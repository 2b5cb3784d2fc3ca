"""Everything that can be read of a run, and the list of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from agentflow.aside import compute_aside
from agentflow.definition.ir import Workflow
from agentflow.definition.layout import GraphLayout
from agentflow.errors import LogCorrupt
from agentflow.events.blobs import LARGE_BYTES, extract_values, insert_blobs, shape_of
from agentflow.records.answers import CheckpointList, RecordList, RunList
from agentflow.records.comparison import Comparison
from agentflow.records.executions import AgentContext, StepRecord
from agentflow.records.export import export_pieces
from agentflow.records.model_calls import ModelCallView
from agentflow.records.pipeline import REQUESTER_LABEL, requester_of
from agentflow.records.runs import DefinitionView, ExecutionRecord, FoldedState, RunRecord
from agentflow.records.timeline import NodeTimeline
from agentflow.records.trace import WorkflowTrace
from agentflow.server.drawings import DRAWINGS, drawn
from agentflow.server.operations import JSON, Call, Either, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.queries import (
    CompareQuery,
    ExpandQuery,
    GraphQuery,
    ListQuery,
    OffsetQuery,
    StepQuery,
    TraceQuery,
)
from agentflow.server.routes.records import links_of, record_of

__all__ = ["OPERATIONS"]

NDJSON = "application/x-ndjson"
_PAGE = 512
_STATES = ("pending", "running", "waiting", "paused", "completed", "failed", "cancelled")


async def list_runs(call: Call) -> Response:
    """Return a page of runs."""
    query: ListQuery = call.query
    states = None
    if query.state is not None:
        states = query.state.split(",")
        for state in states:
            if state not in _STATES:
                raise Refusal("invalid_parameter", f"state is one of {', '.join(_STATES)}")
    label = None
    if query.label is not None:
        name, equals, value = query.label.partition("=")
        if not equals:
            raise Refusal("invalid_parameter", "label is KEY=VALUE")
        label = (name, requester_of(call.actor.name) if name == REQUESTER_LABEL else value)
    page = await call.service.runtime.summaries(
        state=states,
        name=query.name,
        label=label,
        prefix=query.prefix,
        since=query.since,
        until=query.until,
        limit=query.limit,
        cursor=query.cursor,
        order=query.order,
        usage=query.usage,
    )
    items: list[Any]
    damaged = set(page.damaged)
    if query.full:
        items = []
        for item in page.items:
            try:
                items.append(await record_of(call, item.workflow_id))
            except LogCorrupt:  # the others can be shown
                damaged.add(item.workflow_id)
    else:
        items = [msgspec.structs.replace(item, links=links_of(call, item.workflow_id)) for item in page.items]
    body: dict[str, Any] = {"items": items, "next_cursor": page.next_cursor}
    return json_response(body | ({"damaged": sorted(damaged)} if damaged else {}))


async def show(call: Call) -> Response:
    """Return the run record."""
    return json_response(await record_of(call, call.id))


async def delete(call: Call) -> Response:
    """Take a run away; its id is never used again."""
    await call.service.runtime.delete(call.id)
    return Response(status_code=204)


async def history(call: Call) -> Response:
    """Return the execution record."""
    query: ExpandQuery = call.query
    record = await call.service.runtime.history(call.id)
    record = msgspec.structs.replace(
        record, workflow=msgspec.structs.replace(record.workflow, links=links_of(call, call.id))
    )
    body = msgspec.json.encode(record)
    if not query.expand:
        body = await _with_references(body, call)
    return Response(body, headers={"Cache-Control": "no-store"}, media_type=JSON)


async def _with_references(body: bytes, call: Call) -> bytes:
    """Return an execution record with references in place of the large values that are blobs of the store."""
    if len(body) <= LARGE_BYTES:
        return body
    text, blobs = await compute_aside(extract_values, body, shape_of(ExecutionRecord))
    kept = {blob.name for blob in blobs if not blob.hidden and await call.service.log.get_blob(blob.name)}
    whole = [msgspec.structs.replace(blob, hidden=blob.name not in kept or blob.hidden) for blob in blobs]
    return insert_blobs(text, whole, hidden_only=True)


async def compared(call: Call) -> Response:
    """Compare two runs: where they part."""
    query: CompareQuery = call.query
    return json_response(await call.service.runtime.compare(call.id, query.with_))


async def trace(call: Call) -> Response:
    """Return the trace of a run."""
    query: TraceQuery = call.query
    return json_response(await call.service.runtime.trace(call.id, query.clock))


async def timeline(call: Call) -> Response:
    """Return what happened to the nodes of a run."""
    return json_response(await call.service.runtime.timeline(call.id))


async def checkpoints(call: Call) -> Response:
    """List the positions from which a run can be forked."""
    return json_response(CheckpointList(items=await call.service.runtime.checkpoints(call.id)))


async def log(call: Call) -> Response:
    """Return the whole log up to now, as the file that `agentflow open` reads; with `expand` its events
    alone."""
    query: ExpandQuery = call.query
    row = await call.service.log.run(call.id)
    headers = {
        "Cache-Control": "no-store",
        "Content-Disposition": f'inline; filename="{call.id}.ndjson"',
        "Agentflow-Earliest-Offset": str(row.earliest_offset),
        "Agentflow-Next-Offset": str(row.last_offset + 1),
        "Agentflow-State": row.state,
    }
    if query.expand:
        pieces = _expanded(call, row.earliest_offset, row.last_offset)
    else:
        pieces = export_pieces(call.service.log, call.id, row.last_offset)
    # What is wrong at the beginning is a problem; behind it, the answer breaks off before its end.
    begin = await anext(pieces, b"")
    return StreamingResponse(_all(begin, pieces), headers=headers, media_type=NDJSON)


async def _all(begin: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest) as pieces:
        yield begin
        async for piece in pieces:
            yield piece


async def _expanded(call: Call, first: int, last: int) -> AsyncGenerator[bytes]:
    log, workflow_id = call.service.log, call.id
    async with aclosing(_pages(log, workflow_id, first, last)) as pages:
        async for rows in pages:
            yield b"".join([row.body + b"\n" for row in rows])


async def _pages(log: Any, workflow_id: str, first: int, last: int) -> AsyncGenerator[Any]:
    while first <= last:
        rows = await log.read(workflow_id, first, min(_PAGE, last - first + 1))
        if not rows:
            return
        yield rows
        first = rows[-1].offset + 1


async def state(call: Call) -> Response:
    """Return the folded state, now or as of an offset."""
    query: OffsetQuery = call.query
    return json_response(await call.service.runtime.state(call.id, query.offset))


async def step_state(call: Call) -> Response:
    """Return the state record of a step."""
    query: StepQuery = call.query
    record = await call.service.runtime.step(call.id, call.path("step"), query.iteration, query.attempt)
    return json_response(record)


async def context(call: Call) -> Response:
    """Return the context of a step's agent."""
    query: StepQuery = call.query
    found = await call.service.runtime.context(call.id, call.path("step"), query.iteration, query.attempt)
    return json_response(found)


async def definition(call: Call) -> Response:
    """Return the definition that the run is pinned to."""
    return json_response(await call.service.runtime.definition(call.id))


async def model_call(call: Call) -> Response:
    """Return a model call with all messages that were sent."""
    found = await call.service.runtime.model_call(call.id, call.path("call"))
    return json_response(found)


async def graph(call: Call) -> Response:
    """Return the graph, as data or as a drawing."""
    query: GraphQuery = call.query
    workflow = await call.service.runtime.graph(call.id)
    states: dict[str, str] = {}
    if query.states:
        steps = (await call.service.runtime.record(call.id)).steps
        states = {step: found.state for step, found in steps.items()}
    return await drawn(workflow, query.format, states)


OPERATIONS = (
    Operation(
        method="GET",
        path="/workflows",
        handler=list_runs,
        summary="List runs, newest first",
        tag="runs",
        scope="read",
        query=ListQuery,
        answers={200: Either(RunList, RecordList)},
    ),
    Operation(
        method="GET",
        path="/workflows/{id}",
        handler=show,
        summary="The record of a run",
        tag="runs",
        scope="read",
        answers={200: RunRecord},
        problems=("workflow_not_found", "run_gone", "log_corrupt"),
    ),
    Operation(
        method="DELETE",
        path="/workflows/{id}",
        handler=delete,
        summary="Delete a run that has ended",
        tag="runs",
        scope="admin",
        answers={204: None},
        problems=("workflow_not_found", "run_not_terminal", "run_gone", "storage_unavailable"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/history",
        handler=history,
        summary="What a run did: steps, agents, model calls, tool calls",
        tag="runs",
        scope="read",
        query=ExpandQuery,
        answers={200: ExecutionRecord},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/compare",
        handler=compared,
        summary="Where a run and another one part",
        tag="runs",
        scope="read",
        query=CompareQuery,
        answers={200: Comparison},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/trace",
        handler=trace,
        summary="The nodes of a run entered, left and failed, in order",
        tag="runs",
        scope="read",
        query=TraceQuery,
        answers={200: WorkflowTrace},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/timeline",
        handler=timeline,
        summary="What happened to the nodes of a run, and what was tried again",
        tag="runs",
        scope="read",
        answers={200: NodeTimeline},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/checkpoints",
        handler=checkpoints,
        summary="The checkpoints of a run, from which it can be forked",
        tag="runs",
        scope="read",
        answers={200: CheckpointList},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/log",
        handler=log,
        summary="The log of a run up to now, with what its events name, as a file for `agentflow open`",
        tag="runs",
        scope="read",
        query=ExpandQuery,
        answers={200: NDJSON},
        produces=(NDJSON,),
        problems=("workflow_not_found", "run_gone", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/state",
        handler=state,
        summary="The folded state of a run",
        tag="runs",
        scope="read",
        query=OffsetQuery,
        answers={200: FoldedState},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/state/{step}",
        handler=step_state,
        summary="The state record of a step",
        tag="runs",
        scope="read",
        query=StepQuery,
        answers={200: StepRecord},
        problems=("workflow_not_found", "step_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/context/{step}",
        handler=context,
        summary="The context of a step's agent",
        tag="runs",
        scope="read",
        query=StepQuery,
        answers={200: AgentContext},
        problems=("workflow_not_found", "step_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/definition",
        handler=definition,
        summary="The definition that a run is pinned to",
        tag="runs",
        scope="read",
        answers={200: DefinitionView},
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/calls/{call}",
        handler=model_call,
        name="show_model_call",
        summary="A model call: the messages that were sent, its answer, tokens and cost",
        tag="runs",
        scope="read",
        answers={200: ModelCallView},
        problems=("workflow_not_found", "call_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/graph",
        handler=graph,
        summary="The graph of a run, as data, as a drawing, or with the positions of a drawing",
        tag="runs",
        scope="read",
        query=GraphQuery,
        answers={200: Either(Workflow, GraphLayout)},
        produces=DRAWINGS,
        problems=("workflow_not_found", "run_gone", "offset_trimmed", "log_corrupt"),
        negotiates=True,
    ),
)
