"""Routes of the table of commands."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from agentflow.errors import RunTerminal
from agentflow.events.tracing import parse_traceparent, trace_id_of
from agentflow.records.commands import COMMANDS, Command, ForkBody, Resumed
from agentflow.records.pipeline import PlanView
from agentflow.records.runs import RunRecord
from agentflow.runtime.submission import FORMAT_LABEL
from agentflow.server.bodies import DefinitionRef
from agentflow.server.operations import Call, Operation, json_response
from agentflow.server.problems import Refusal
from agentflow.server.routes.records import record_of
from agentflow.server.routes.submitting import own_labels
from agentflow.server.service import Submitted
from agentflow.tools.toolsets.confined import is_started_here

__all__ = ["OPERATIONS"]

_PROBLEMS = (
    "workflow_not_found",
    "invalid_transition",
    "run_terminal",
    "offset_mismatch",
    "fenced",
    "run_gone",
    "validation_failed",
    "storage_unavailable",
    "draining",
)


def _arguments(call: Call, command: Command) -> dict[str, Any]:
    """Return the arguments of the Runtime's method: those of the body, and who gives the command."""
    found = {**call.body.arguments(), "by": call.actor.name}
    if command.has_via:
        found["via"] = "api"
    return found


async def _tell(call: Call, command: Command) -> Response:
    """Give a command; the answer is the record of the run. 202 if the log is longer than before."""
    row = await call.service.log.run(call.id)
    if command.name == "resume" and row.ended and row.labels.get(FORMAT_LABEL) == "pipeline":
        return json_response(await record_of(call, call.id))  # whose result is what the caller wants
    if command.is_open_only and row.ended:
        raise RunTerminal(f"{call.id} has ended: it is {row.state}")
    await _carry_out(call, command)
    record = await record_of(call, call.id)
    is_repeated = record.last_offset <= row.last_offset
    return json_response(record, command.statuses[-1 if is_repeated else 0])


async def _carry_out(call: Call, command: Command) -> None:
    runtime, arguments = call.service.runtime, _arguments(call, command)
    match command.name:
        case "resume":
            await runtime.resume(call.id, trusted=call.actor.trusted, **arguments)
        case "retry":
            await runtime.retry(call.id, trusted=call.actor.trusted, **arguments)
        case name:
            assert not command.checks_trust, f"{name} loads services: say how far the caller is trusted"
            await getattr(runtime, name)(call.id, **arguments)


async def _decide(call: Call, command: Command) -> Response:
    if (call.body.request_id is None) == (call.body.step_id is None):
        raise Refusal("invalid_parameter", "name either request_id or step_id")
    if _is_tool(call):
        raise Refusal("self_approval", "agents and functions of runs decide no approvals")
    return await _tell(call, command)


def _is_tool(call: Call) -> bool:
    """Return whether a caller is at work for a run: a process that a command of one has started, or a request
    that is made in the trace of this run by nobody but its own calls."""
    if call.actor.pid is not None and is_started_here(call.actor.pid):
        return True
    parent = parse_traceparent(call.header("traceparent"))
    return parent is not None and parent.trace_id == trace_id_of(call.id)


async def _resume_all(call: Call, command: Command) -> Response:
    runtime, arguments = call.service.runtime, _arguments(call, command)
    return json_response(await runtime.resume_all(trusted=call.actor.trusted, **arguments))


async def _fork(call: Call, command: Command) -> Response:
    """Begin the new run, whose record is the answer."""
    body: ForkBody = call.body
    arguments: dict[str, Any] = {**_arguments(call, command), "labels": own_labels(body.labels)}
    trusted = call.actor.trusted
    if body.definition is not None or body.definition_ref is not None:
        submitted = await _definition(call, body)
        arguments["definition"] = submitted.workflow or submitted.definition
        trusted = submitted.trusted
    handle = await call.service.runtime.fork(call.id, trusted=trusted, **arguments)
    record = await record_of(call, handle.workflow_id)
    return json_response(record, 201, {"Location": record.links["self"]})


async def _definition(call: Call, body: ForkBody) -> Submitted:
    """Return the definition that a fork takes in place of the old one."""
    given: Any = body.definition
    if given is not None and type(given) not in (dict, str):
        raise Refusal("invalid_parameter", "definition is a JSON object, or the source of a document as text")
    reference: Any = body.definition_ref
    if reference is not None and not isinstance(reference, str):
        try:
            reference = msgspec.convert(reference, DefinitionRef)
        except msgspec.ValidationError as error:
            raise Refusal("invalid_parameter", f"definition_ref: {error}") from None
    return await call.service.load(
        call.actor, given, reference, format=body.format, file=body.file, folder=body.folder
    )


async def _replay(call: Call, command: Command) -> Response:
    """Begin the new run, whose record is the answer."""
    arguments = _arguments(call, command)
    if arguments["definition"] is not None and not isinstance(arguments["definition"], dict):
        raise Refusal("invalid_parameter", "definition is the document as a JSON object")
    handle = await call.service.runtime.replay(call.id, trusted=call.actor.trusted, **arguments)
    record = await record_of(call, handle.workflow_id)
    return json_response(record, 201, {"Location": record.links["self"]})


async def _withdraw(call: Call, command: Command) -> Response:
    arguments = _arguments(call, command)
    await call.service.runtime.withdraw(call.id, call.path("request_id"), **arguments)
    return Response(status_code=204)


async def _edit_plan(call: Call, command: Command) -> Response:
    """Replace the plan; the answer is the plan as it stands."""
    await _carry_out(call, command)
    return json_response(await call.service.runtime.plan(call.id))


_HANDLERS = {
    "edit_plan": _edit_plan,
    "resume_all": _resume_all,
    "fork": _fork,
    "replay": _replay,
    "withdraw": _withdraw,
    "decide": _decide,
}


def _operation(command: Command) -> Operation:
    about_one = command.name != "resume_all"
    answer = RunRecord if about_one else Resumed
    if command.name == "edit_plan":
        answer = PlanView
    return Operation(
        method=command.method,
        path=f"/{command.path}",
        handler=partial(_HANDLERS.get(command.name, _tell), command=command),
        name=command.operation,
        summary=command.summary,
        tag=command.tag,
        scope=command.scope,
        body=command.body,
        body_required=command.needs_body,
        answers={status: None if status == 204 else answer for status in command.statuses},
        problems=(*(_PROBLEMS if about_one else _PROBLEMS[-2:]), *command.problems),
        while_draining=False,
    )


OPERATIONS = tuple(_operation(command) for command in COMMANDS.values())
