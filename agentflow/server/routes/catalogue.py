"""Routes about what runs are made of: documents, registered definitions, schemas, functions, blobs."""

from __future__ import annotations

from msgspec import UNSET
from starlette.responses import Response

from agentflow.definition.diagnostics import Diagnostic, sort_diagnostics
from agentflow.definition.ir import Workflow
from agentflow.definition.layout import GraphLayout
from agentflow.errors import DefinitionError
from agentflow.records.answers import ToolList, Validation
from agentflow.runtime.submission import load_aside
from agentflow.schemas import SCHEMA_FILES, json_schema
from agentflow.server.answers import DefinitionInfoView, DefinitionList
from agentflow.server.bodies import DefinitionBody, DefinitionRef, ValidateBody
from agentflow.server.drawings import DRAWINGS, drawn
from agentflow.server.operations import JSON, YAML, Call, Either, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.queries import DefinitionGraphQuery, DefinitionQuery
from agentflow.tools.listing import listed_tools

__all__ = ["OPERATIONS"]

_SCHEMA = "application/schema+json"
_FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}


def _text_of(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Refusal("malformed_request", f"the body is not UTF-8: {error}") from None


async def validate(call: Call) -> Response:
    """Check a submission and return all that is wrong with it, without making a run."""
    body = call.body
    if not isinstance(body, ValidateBody):
        body = ValidateBody(definition=_text_of(body))
    try:
        submitted = await call.service.load(
            call.actor,
            body.definition,
            body.definition_ref,
            format=body.format,
            media=call.media if call.media == YAML else None,
            file=body.file,
            folder=body.folder,
        )
    except DefinitionError as error:
        return json_response(Validation(valid=False, diagnostics=error.diagnostics, ir_hash=None))
    definition = submitted.definition
    bound = await call.service.runtime.bind(definition, trusted=submitted.trusted)
    problems: list[Diagnostic] = []
    if body.input is not UNSET:
        try:
            submitted.message(body.input)
            _, _, problems = await load_aside(definition, body.input)
        except DefinitionError as error:
            problems = list(error.diagnostics)
    found = sort_diagnostics([*definition.warnings, *submitted.explain(bound.diagnostics), *problems])
    valid = not any(d.severity == "error" for d in found)
    return json_response(Validation(valid=valid, diagnostics=found, ir_hash=definition.ir_hash))


async def register(call: Call) -> Response:
    """Register a version of a definition."""
    body = call.body
    if not isinstance(body, DefinitionBody):
        body = DefinitionBody(definition=_text_of(body))
    submitted = await call.service.load(
        call.actor, body.definition, format=body.format, media=call.media if call.media == YAML else None
    )
    made = await call.service.definitions.add(
        submitted.definition,
        name=body.name,
        version=body.version,
        by=call.actor.name,
        trusted=call.actor.trusted,
    )
    return json_response(made, 201, {"Location": f"/definitions/{made.name}?version={made.version}"})


async def list_definitions(call: Call) -> Response:
    """List the newest version of each registered definition."""
    return json_response(DefinitionList(items=await call.service.definitions.list()))


async def show_definition(call: Call) -> Response:
    """Return a registered definition with its source."""
    query: DefinitionQuery = call.query
    return json_response(await call.service.definitions.find(call.path("name"), query.version))


async def definition_versions(call: Call) -> Response:
    """List all versions of a registered definition, the newest first."""
    return json_response(DefinitionList(items=await call.service.definitions.versions(call.path("name"))))


async def definition_graph(call: Call) -> Response:
    """Return the graph of a registered definition."""
    query: DefinitionGraphQuery = call.query
    reference = DefinitionRef(name=call.path("name"), version=query.version)
    submitted = await call.service.load(call.actor, None, reference)
    return await drawn(submitted.definition.workflow, query.format)


async def schema(call: Call) -> Response:
    """Return a published JSON Schema."""
    file = call.path("name")
    name = SCHEMA_FILES.get(file)
    if name is None:
        raise Refusal("not_found", f"there is no schema {file}", hint=f"there are {', '.join(SCHEMA_FILES)}")
    return Response(json_schema(name), media_type=_SCHEMA)


async def tools(call: Call) -> Response:
    """List the functions that documents may name without declaring a service."""
    return json_response(ToolList(items=listed_tools(call.service.runtime.registry)))


async def blob(call: Call) -> Response:
    """Return a value that an event names."""
    name = call.path("sha256")
    name = name if name.startswith("sha256:") else f"sha256:{name}"
    data = await call.service.log.get_blob(name)
    if data is None:
        raise Refusal("blob_not_found", f"there is no blob {name}")
    # The bytes are somebody's output: never to be shown as a page.
    headers = {**_FOR_EVER, "Content-Disposition": "attachment", "Content-Security-Policy": "sandbox"}
    return Response(data, headers=headers, media_type="application/octet-stream")


OPERATIONS = (
    Operation(
        method="POST",
        path="/validate",
        handler=validate,
        summary="Check a submission without running it",
        tag="definitions",
        scope="run",
        body=ValidateBody,
        media=(JSON, YAML),
        answers={200: Validation},
        problems=("definition_not_found", "draining"),
        while_draining=False,
    ),
    Operation(
        method="POST",
        path="/definitions",
        handler=register,
        summary="Register a version of a definition",
        tag="definitions",
        scope="run",
        body=DefinitionBody,
        media=(JSON, YAML),
        answers={201: DefinitionInfoView},
        problems=("version_exists", "validation_failed", "storage_unavailable", "draining"),
        while_draining=False,
    ),
    Operation(
        method="GET",
        path="/definitions",
        handler=list_definitions,
        summary="The newest version of each registered definition",
        tag="definitions",
        scope="read",
        answers={200: DefinitionList},
    ),
    Operation(
        method="GET",
        path="/definitions/{name}",
        handler=show_definition,
        summary="A registered definition with its source",
        tag="definitions",
        scope="read",
        query=DefinitionQuery,
        answers={200: DefinitionInfoView},
        problems=("definition_not_found", "not_found"),
    ),
    Operation(
        method="GET",
        path="/definitions/{name}/versions",
        handler=definition_versions,
        summary="All versions of a registered definition, the newest first",
        tag="definitions",
        scope="read",
        answers={200: DefinitionList},
        problems=("definition_not_found", "not_found"),
    ),
    Operation(
        method="GET",
        path="/definitions/{name}/graph",
        handler=definition_graph,
        summary="The graph of a registered definition, as of a run",
        tag="definitions",
        scope="read",
        query=DefinitionGraphQuery,
        answers={200: Either(Workflow, GraphLayout)},
        produces=DRAWINGS,
        problems=("definition_not_found", "not_found", "validation_failed"),
        negotiates=True,
    ),
    Operation(
        method="GET",
        path="/schemas/{name}",
        handler=schema,
        summary="A published JSON Schema",
        tag="definitions",
        scope="read",
        answers={200: _SCHEMA},
        produces=(_SCHEMA, JSON),
        problems=("not_found",),
    ),
    Operation(
        method="GET",
        path="/tools",
        handler=tools,
        summary="The registered functions",
        tag="definitions",
        scope="read",
        answers={200: ToolList},
    ),
    Operation(
        method="GET",
        path="/blobs/{sha256}",
        handler=blob,
        summary="A value that an event names",
        tag="events",
        scope="read",
        answers={200: "application/octet-stream"},
        produces=("application/octet-stream", JSON),
        problems=("blob_not_found",),
    ),
)
