"""Submitting runs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from agentflow.errors import AgentflowError, DefinitionError
from agentflow.events.tracing import baggage_problem, parse_traceparent, tracestate_problem
from agentflow.runtime import RunHandle, RunRecord
from agentflow.server.bodies import SubmitBody
from agentflow.server.operations import JSON, YAML, Call, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.queries import SubmitQuery
from agentflow.server.routes.records import record_of

__all__ = ["OPERATIONS", "idempotency_key_of", "own_labels"]


async def submit(call: Call) -> Response:
    """Accept a run; 200 when it is there already under this id or key."""
    body = _submission(call)
    query: SubmitQuery = call.query
    service, actor = call.service, call.actor
    key = idempotency_key_of(call)
    submitted = await service.load(
        actor,
        body.definition,
        body.definition_ref,
        format=body.format,
        media=call.media if call.media == YAML else None,
        file=body.file,
        folder=body.folder,
    )
    more: dict[str, Any] = {
        "workflow_id": body.workflow_id,
        "labels": own_labels(body.labels),
        "options": _options(call, body),
        "budget": body.budget,
        "idempotency_key": key,
        "state_from": body.state_from,
    }
    if body.input_from is not None:
        more["input_from"] = msgspec.to_builtins(body.input_from)
    try:
        handle = await service.runtime.submit(
            submitted.workflow or submitted.definition,
            submitted.message(body.input) if body.input_from is None else body.input,
            by=actor.name,
            trusted=submitted.trusted,
            **{name: value for name, value in more.items() if value is not None},
        )
    except DefinitionError as error:
        raise DefinitionError(submitted.explain(error.diagnostics)) from None
    if handle.created:
        service.metrics.runs_accepted += 1
    if query.wait is not None:
        await _rest(call, handle, query.wait)
    record = await record_of(call, handle.workflow_id)
    return json_response(record, 201 if handle.created else 200, {"Location": record.links["self"]})


def idempotency_key_of(call: Call) -> str | None:
    """Return the key of a request, None without one. Raises Refusal for one that is empty or too long."""
    key = call.header("idempotency-key")
    if key is not None and not 1 <= len(key) <= 255:
        raise Refusal("invalid_parameter", "an Idempotency-Key has 1 to 255 characters")
    return key


def own_labels(labels: dict[str, str] | None) -> dict[str, str] | None:
    """Return the labels of a client. Those of agentflow are how the store finds runs by their keys."""
    if any(name.startswith("agentflow.") for name in labels or ()):
        raise Refusal("invalid_parameter", "names of labels that begin with `agentflow.` are agentflow's own")
    return labels


def _submission(call: Call) -> SubmitBody:
    if isinstance(call.body, SubmitBody):
        return call.body
    try:
        return SubmitBody(definition=call.body.decode())
    except UnicodeDecodeError as error:
        raise Refusal("malformed_request", f"the body is not UTF-8: {error}") from None


def _options(call: Call, body: SubmitBody) -> dict[str, Any] | None:
    headers, given = call.request.headers, body.options or {}
    traceparent, tracestate = headers.get("traceparent"), ",".join(headers.getlist("tracestate"))
    # Headers that are no trace context are to be ignored, says the standard.
    if traceparent is None or "traceparent" in given or parse_traceparent(traceparent) is None:
        return body.options
    options = {**given, "traceparent": traceparent}
    if tracestate and tracestate_problem(tracestate) is None:
        options.setdefault("tracestate", tracestate)
    baggage = ",".join(headers.getlist("baggage"))
    if baggage and baggage_problem(baggage) is None:
        options.setdefault("baggage", baggage)
    return options


async def _rest(call: Call, handle: RunHandle, seconds: float) -> None:
    """Wait for the run to come to rest, as long as somebody waits for the answer; that it does not is no
    error of the submission."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(handle.rest())
    gone: asyncio.Future[Any] = asyncio.ensure_future(call.request.receive())
    try:
        await asyncio.wait({waiting, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done() and (error := waiting.exception()) and not isinstance(error, AgentflowError):
            raise error
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.wait({waiting, gone})


OPERATIONS = (
    Operation(
        method="POST",
        path="/workflows",
        handler=submit,
        summary="Submit a run",
        tag="runs",
        scope="run",
        query=SubmitQuery,
        body=SubmitBody,
        media=(JSON, YAML),
        answers={201: RunRecord, 200: RunRecord},
        problems=(
            "definition_not_found",
            "workflow_not_found",
            "step_not_found",
            "run_exists",
            "concurrency_rejected",
            "idempotency_conflict",
            "output_not_ready",
            "run_gone",
            "validation_failed",
            "budget_unpriced",
            "queue_full",
            "storage_unavailable",
            "draining",
        ),
        while_draining=False,
    ),
)
