"""Requests in natural language: judging a text, beginning its run, reading its plan and results."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from agentflow.aside import compute_aside
from agentflow.definition.stage_schemas import Activation
from agentflow.pipeline.template_store import StoredTemplate
from agentflow.records.answers import (
    RequestAnswer,
    TemplateList,
    TemplateView,
    ToolsetList,
    ToolsetView,
)
from agentflow.records.pipeline import PlanView
from agentflow.records.runs import RunRecord
from agentflow.server.bodies import (
    ClassifyBody,
    RequestBody,
    TemplateBody,
    TemplateRunBody,
    TemplateTextsBody,
)
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
    return json_response(await call.service.requests.classify_aside(body.message))


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
    requests = call.service.requests
    if requests.registry is not None:
        return json_response(ToolsetList(items=[_toolset(one) for one in requests.registry.views()]))
    found = [
        ToolsetView(
            name=one.name,
            description=one.description,
            side_effect=one.side_effect,
            tools=tuple(tool.name for tool in one.tools),
            aliases=one.aliases,
            enabled=one.enabled,
            state="enabled" if one.enabled else "disabled",
        )
        for one in requests.toolsets
    ]
    return json_response(ToolsetList(items=found))


def _toolset(one: Any) -> ToolsetView:
    return ToolsetView(**{name: getattr(one, name) for name in ToolsetView.__struct_fields__})


# -- templates ----------------------------------------------------------------------------------


async def templates(call: Call) -> Response:
    """The templates of this daemon."""
    found, problems = await asyncio.to_thread(call.service.requests.templates.list)
    return json_response(TemplateList(items=[view_of(one) for one in found], diagnostics=problems))


async def template(call: Call) -> Response:
    """One template, with its steps."""
    found = await asyncio.to_thread(call.service.requests.templates.get, call.path("template"))
    return json_response(view_of(found, whole=True))


async def install_template(call: Call) -> Response:
    """Check a template and keep it."""
    body: TemplateBody = call.body
    store = call.service.requests.templates
    if (body.source is None) == (body.url is None):
        raise Refusal("invalid_parameter", "give either source or url")
    if body.url is not None:
        hosts = call.service.requests.settings.allowed_hosts
        found = await store.install_url(
            body.url, sha256=body.sha256, overwrite=body.overwrite, allowed_hosts=hosts
        )
    else:
        source = body.source or ""
        media = "json" if source.lstrip().startswith("{") else "yaml"
        found = await compute_aside(store.put, source, media, sha256=body.sha256, overwrite=body.overwrite)
    return json_response(view_of(found, whole=True), 201)


async def set_template(call: Call) -> Response:
    """Change description or summary of a template."""
    body: TemplateTextsBody = call.body
    given = {"description": body.description, "summary": body.summary}
    changes = {key: value for key, value in given.items() if value is not None}
    found = await asyncio.to_thread(call.service.requests.templates.set, call.path("template"), changes)
    return json_response(view_of(found, whole=True))


async def remove_template(call: Call) -> Response:
    """Remove a template of the user."""
    await asyncio.to_thread(call.service.requests.templates.remove, call.path("template"))
    return Response(status_code=204)


async def run_template(call: Call) -> Response:
    """Bind a template and begin its run."""
    body: TemplateRunBody = call.body
    run = await call.service.requests.run_template(
        call.path("template"),
        body.inputs,
        review=body.review,
        workspace=body.workspace,
        options=body.options,
        budget=body.budget,
        labels=own_labels(body.labels),
        by=call.actor.name,
        trusted=call.actor.trusted,
    )
    call.service.metrics.runs_accepted += 1
    record = await record_of(call, run.workflow_id)
    return json_response(record, 201, {"Location": record.links["self"]})


def view_of(stored: StoredTemplate, *, whole: bool = False) -> TemplateView:
    """Return a template as the API shows it."""
    one = stored.template
    return TemplateView(
        name=one.name,
        description=one.description,
        version=one.version,
        origin=stored.origin,
        hash=one.hash,
        inputs=msgspec.to_builtins(one.inputs),
        body=one.body if whole else None,
        diagnostics=[*one.warnings, *stored.warnings],
    )


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
    Operation(
        method="GET",
        path="/templates",
        handler=templates,
        summary="The templates of plans",
        answers={200: TemplateList},
        **_READ,
    ),
    Operation(
        method="POST",
        path="/templates",
        handler=install_template,
        summary="Install a template",
        tag="requests",
        scope="admin",
        body=TemplateBody,
        answers={201: TemplateView},
        problems=("template_exists", "validation_failed"),
        while_draining=False,
    ),
    Operation(
        method="GET",
        path="/templates/{template}",
        handler=template,
        summary="One template",
        answers={200: TemplateView},
        problems=("template_not_found", "validation_failed"),
        **_READ,
    ),
    Operation(
        method="PATCH",
        path="/templates/{template}",
        handler=set_template,
        summary="Change the texts of a template",
        tag="requests",
        scope="admin",
        body=TemplateTextsBody,
        answers={200: TemplateView},
        problems=("template_not_found", "validation_failed"),
        while_draining=False,
    ),
    Operation(
        method="DELETE",
        path="/templates/{template}",
        handler=remove_template,
        summary="Remove a template",
        tag="requests",
        scope="admin",
        answers={204: None},
        problems=("template_not_found", "validation_failed"),
        while_draining=False,
    ),
    Operation(
        method="POST",
        path="/templates/{template}/runs",
        handler=run_template,
        summary="Begin a run of a template",
        tag="requests",
        scope="run",
        body=TemplateRunBody,
        body_required=False,
        answers={201: RunRecord},
        problems=("template_not_found", "validation_failed", "queue_full", "storage_unavailable", "draining"),
        while_draining=False,
    ),
)
