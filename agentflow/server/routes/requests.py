"""Requests in natural language: judging a text, beginning its run, reading its plan and results."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from agentflow.definition.stage_schemas import Activation
from agentflow.records.answers import RequestAnswer, ToolsetList, ToolsetView
from agentflow.records.pipeline import PlanView
from agentflow.server.bodies import ClassifyBody, RequestBody
from agentflow.server.operations import JSON, Call, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.routes.records import record_of
from agentflow.server.routes.submitting import own_labels

__all__ = ["OPERATIONS"]


async def request(call: Call) -> Response:
    """Judge a text and begin its run; 200 if it asks for none."""
    body: RequestBody = call.body
    key = call.header("idempotency-key")
    if key is not None and not 1 <= len(key) <= 255:
        raise Refusal("invalid_parameter", "an Idempotency-Key has 1 to 255 characters")
    accepted = await call.service.requests.submit(
        body.message,
        mode=body.mode,
        review=body.review,
        answer=body.answer,
        workspace=body.workspace,
        options=body.options,
        budget=body.budget,
        labels=own_labels(body.labels),
        workflow_id=body.workflow_id,
        idempotency_key=key,
        by=call.actor.name,
        trusted=call.actor.trusted,
    )
    run = accepted.run
    if run is None:
        return json_response(RequestAnswer(activation=accepted.activation, run=None))
    if run.created:
        call.service.metrics.runs_accepted += 1
    record = await record_of(call, run.workflow_id)
    answer = RequestAnswer(activation=accepted.activation, run=record)
    return json_response(answer, 201 if run.created else 200, {"Location": record.links["self"]})


async def classify(call: Call) -> Response:
    """What a text asks for; nothing is stored."""
    body: ClassifyBody = call.body
    return json_response(call.service.requests.classify(body.message))


async def plan(call: Call) -> Response:
    """The plan of a request as it stands."""
    return json_response(await call.service.runtime.plan(call.id))


async def final(call: Call) -> Response:
    """The final output of a request."""
    return json_response(await call.service.runtime.final(call.id))


async def compact(call: Call) -> Response:
    """What a request came to so far, without internal traces."""
    return json_response(await call.service.runtime.compact(call.id))


async def toolsets(call: Call) -> Response:
    """The toolsets that plans may name."""
    found = [
        ToolsetView(
            name=one.name,
            description=one.description,
            side_effect=one.side_effect,
            tools=tuple(tool.name for tool in one.tools),
            aliases=one.aliases,
            enabled=one.enabled,
        )
        for one in call.service.requests.toolsets
    ]
    return json_response(ToolsetList(items=found))


_READ: dict[str, Any] = {"tag": "requests", "scope": "read"}

OPERATIONS = (
    Operation(
        method="POST",
        path="/requests",
        handler=request,
        name="request",
        summary="Judge a text and begin its run",
        tag="requests",
        scope="run",
        body=RequestBody,
        media=(JSON,),
        answers={201: RequestAnswer, 200: RequestAnswer},
        problems=(
            "message_length",
            "run_exists",
            "idempotency_conflict",
            "validation_failed",
            "budget_unpriced",
            "queue_full",
            "storage_unavailable",
            "draining",
        ),
        while_draining=False,
    ),
    Operation(
        method="POST",
        path="/requests/classify",
        handler=classify,
        summary="Judge a text",
        body=ClassifyBody,
        answers={200: Activation},
        problems=("message_length",),
        **_READ,
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/plan",
        handler=plan,
        name="get_plan",
        summary="The plan of a request",
        answers={200: PlanView},
        problems=("workflow_not_found", "run_gone", "no_plan"),
        **_READ,
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/final",
        handler=final,
        summary="The final output of a request",
        answers={200: dict[str, Any]},
        problems=("workflow_not_found", "run_gone", "output_not_ready"),
        **_READ,
    ),
    Operation(
        method="GET",
        path="/workflows/{id}/compact",
        handler=compact,
        summary="What a request came to so far",
        answers={200: dict[str, Any]},
        problems=("workflow_not_found", "run_gone", "invalid_transition"),
        **_READ,
    ),
    Operation(
        method="GET",
        path="/toolsets",
        handler=toolsets,
        summary="The toolsets that plans may name",
        answers={200: ToolsetList},
        **_READ,
    ),
)
