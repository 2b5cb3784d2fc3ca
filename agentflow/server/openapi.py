"""The API described by OpenAPI 3.1, made from the table of operations and their Structs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from agentflow import __version__
from agentflow.server.openapi_schemas import EXAMPLES, event_components, refine
from agentflow.server.operations import JSON, YAML, Either, Operation
from agentflow.server.problems import MEDIA, STATUS, Problem

__all__ = ["describe", "operation_id"]

_REF = "#/components/schemas/{name}"
_PATTERNS = {
    "id": "^wf_[A-Za-z0-9_-]{1,64}$",
    "step": "^[A-Za-z_][A-Za-z0-9_-]{0,127}(/[A-Za-z_][A-Za-z0-9_-]{0,127})*$",
    "request_id": "^[A-Za-z0-9_:-]{1,128}$",
    "call": "^[A-Za-z0-9_:-]{1,128}$",
    "sha256": "^(sha256:)?[0-9a-f]{64}$",
    "name": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$",
    "template": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$",
}
_EVERYWHERE = (
    "malformed_request",
    "invalid_parameter",
    "host_not_allowed",
    "internal_error",
    "too_many_connections",
)
_BODY = ("malformed_json", "payload_too_large", "unsupported_media_type", "queue_full")
_HEADERS: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("POST", "/workflows"): (
        ("Idempotency-Key", "The same key with the same submission gives the same run."),
        ("traceparent", "W3C trace context: the run becomes a part of this trace."),
        ("tracestate", "What belongs to the trace context; handed on to models and services."),
        ("baggage", "W3C baggage: current inside the functions of the run."),
    ),
    ("GET", "/workflows/{id}/events"): (
        ("Last-Event-ID", "The offset of the last event that was received; wins over the query."),
    ),
    ("POST", "/requests"): (("Idempotency-Key", "The same key with the same request gives the same run."),),
    ("POST", "/templates/{template}/runs"): (
        ("Idempotency-Key", "The same key with the same inputs gives the same run."),
    ),
    ("GET", "/events"): (("Last-Event-ID", "The id of the last event that was received."),),
}


def describe(operations: Iterable[Operation]) -> bytes:
    """Return the document, as JSON."""
    table = list(operations)
    schemas = _Schemas(table)
    paths: dict[str, Any] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    links = {
        operation_id(operation): {
            "operationId": operation_id(operation),
            "parameters": {"id": "$response.body#/workflow_id"},
        }
        for operation in table
        if "{id}" in operation.path
    }
    for status in ("200", "201"):
        paths["/workflows"]["post"]["responses"][status]["links"] = links
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "agentflow",
            "version": __version__,
            "description": "The HTTP API of the agentflow daemon: durable runs of AI-agent workflows.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"session": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "agentflow_session",
                    "description": "Of `POST /session`; the name ends in `_PORT`.",
                },
            },
        },
    }
    return msgspec.json.encode(document)


class _Schemas:
    """The JSON Schema of every type that an operation names; parameters are not among the components."""

    def __init__(self, operations: list[Operation]) -> None:
        types: list[Any] = [Problem]
        bodies: list[Any] = [operation.body for operation in operations if operation.body is not None]
        types += bodies
        for operation in operations:
            for answer in operation.answers.values():
                types += answer.types if isinstance(answer, Either) else [answer] if _is_type(answer) else []
        queries = [operation.query for operation in operations if operation.query is not None]
        made, components = msgspec.json.schema_components(types, ref_template=_REF)
        _, of_bodies = msgspec.json.schema_components(bodies, ref_template=_REF)
        components.update(event_components(_REF))
        for name, schema in components.items():
            refine(name, schema, is_body=name in of_bodies)
        self.components = dict(sorted(components.items()))
        self._made = list(zip(types, made, strict=True))
        _, self._queries = msgspec.json.schema_components(queries)

    def of(self, kind: Any) -> Any:
        """Return the schema of a type."""
        if isinstance(kind, Either):
            return {"anyOf": [self.of(choice) for choice in kind.types]}
        return next(schema for known, schema in self._made if known is kind)

    def parameters(self, query: type[msgspec.Struct]) -> list[dict[str, Any]]:
        """Return the query parameters that a Struct stands for."""
        described = self._queries[query.__name__]
        properties: dict[str, Any] = described["properties"]
        needed: list[str] = described.get("required", [])
        return [
            {"name": name, "in": "query", "required": name in needed, "schema": _without_null(schema)}
            for name, schema in properties.items()
        ]


def _operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation, schemas),
    }
    if operation.scope is None:
        found["security"] = []
    else:
        found["description"] = f"Needs the scope `{operation.scope}`."
        found["security"] = [{"bearer": [operation.scope]}, {"session": [operation.scope]}, {}]
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": _PATTERNS[name]},
        }
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.query is not None:
        parameters += schemas.parameters(operation.query)
    parameters += [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in _HEADERS.get((operation.method, operation.path), ())
    ]
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        content: dict[str, Any] = {JSON: {"schema": schemas.of(operation.body)}}
        example = EXAMPLES.get(operation_id(operation))
        if example is not None:
            content[JSON]["examples"] = {name: {"value": value} for name, value in example.items()}
        if YAML in operation.media:
            content[YAML] = {"schema": {"description": "The definition alone."}}
        found["requestBody"] = {"required": operation.body_required, "content": content}
    return found


def _responses(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, answer in operation.answers.items():
        response: dict[str, Any] = {"description": "Success" if status < 400 else "Failure"}
        if isinstance(answer, (str, tuple)):
            response["content"] = {name: _text(name, operation) for name in _media(answer)}
        elif answer is not None:
            response["content"] = {JSON: {"schema": schemas.of(answer)}}
            response["content"].update({m: {"schema": {}} for m in operation.produces if m != JSON})
        responses[str(status)] = response
    for status, codes in _problems(operation).items():
        if str(status) not in responses:
            responses[str(status)] = {
                "description": ", ".join(codes),
                "content": {MEDIA: {"schema": {"$ref": _REF.format(name="Problem")}}},
            }
    return dict(sorted(responses.items()))


def _text(media: str, operation: Operation) -> dict[str, Any]:
    """Return what is said of an answer that is no JSON. A schema is one of the whole body: by that of an
    item, a client that a generator made would read a whole stream as one item."""
    is_text = media.startswith("text/") or media in ("application/x-ndjson", "application/openmetrics-text")
    found: dict[str, Any] = {"schema": {"type": "string"} if is_text else {}}
    if operation.path.endswith("/events"):
        found["x-itemSchema"] = {"$ref": _REF.format(name="StreamItem")}
    return found


def operation_id(operation: Operation) -> str:
    """Return the operationId of an operation."""
    return operation.name or operation.handler.__name__


def _media(answer: Any) -> tuple[str, ...]:
    return (answer,) if isinstance(answer, str) else answer


def _problems(operation: Operation) -> dict[int, list[str]]:
    codes = [*_EVERYWHERE, *operation.problems]
    codes += _BODY if operation.body is not None else ()
    codes += ("unauthorized", "forbidden") if operation.scope is not None else ("forbidden",)
    codes.append("not_acceptable")
    found: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        found.setdefault(STATUS[code][0], []).append(code)
    return found


def _is_type(answer: Any) -> bool:
    return answer is not None and not isinstance(answer, (str, tuple))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove `null` from a schema: a parameter is absent rather than null."""
    kept = {key: value for key, value in schema.items() if key != "anyOf" and value is not None}
    choices: list[dict[str, Any]] = [s for s in schema.get("anyOf", ()) if s.get("type") != "null"]
    if len(choices) == 1:
        return {**kept, **choices[0]}
    if "enum" in kept:
        kept["enum"] = [value for value in kept["enum"] if value is not None]
    return {**kept, "anyOf": choices} if choices else kept
