"""Commands to one run, such as `answer`, `approve`, `pause`, `retry`, `fork` and `replay`; `inbox`.

Those that move a run on follow it afterwards, as `resume` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.names import complete_parts
from agentflow.cli.options import json_option, new_run_id, run_id
from agentflow.cli.output import emit, emit_json
from agentflow.cli.python_workflows import load_option
from agentflow.cli.target import Target, Where, target_options

if TYPE_CHECKING:
    from agentflow.records.requests import RequestRecord

__all__ = [
    "answer",
    "approve",
    "cancel",
    "deny",
    "follow_after",
    "fork",
    "inbox",
    "pause",
    "replay",
    "retry",
    "signal",
    "tell",
]

_JSON = "Print the result of the run as JSON, as `run --json` does."


def follow_after(where: Where, id: str, act: Callable[[Target], Awaitable[str]], *, as_json: bool) -> Exit:
    """Do something to the run, then follow the run that comes of it to where it rests."""
    from agentflow.cli.follow import Follower
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, where=where)
        async with open_target(where, run_id=id) as target:
            last = await target.last_offset(id)
            workflow = await target.reader.graph(id)
            led_to = await act(target)
            await follower.follow(target, led_to, workflow, since=last if led_to == id else -1)
        return await follower.conclude()

    return run_async(work)


def tell(where: Where, id: str, command: str, said: str, **more: Any) -> Exit:
    """Give a command that leaves the run to others."""
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    async def work(interrupts: Interrupts) -> Exit:
        async with open_target(where, run_id=id) as target:
            await interrupts.guard(target.tell(command, id, **more))
        emit(said)
        return Exit.DONE

    return run_async(work)


@click.command("answer", cls=Command)
@click.argument("id", type=run_id)
@click.argument("request", shell_complete=complete_parts("requests"))
@click.argument("value")
@json_option(_JSON)
@target_options
@load_option
def answer(id: str, request: str, value: str, as_json: bool, where: Where) -> Exit:
    """Answer the open REQUEST of the run ID.

    Then the run is followed, as by `resume`.

    REQUEST is its id, or the step that waits if it asks one question. VALUE is JSON if it parses, or @FILE,
    else text; a question for text takes it as it is, and where a choice is asked for, its word is enough.
    """

    async def act(target: Target) -> str:
        return await target.tell("answer_all", id, responses=await _shaped(target, id, request, value))

    return follow_after(where, id, act, as_json=as_json)


async def _shaped(target: Target, run_id: str, named: str, text: str) -> dict[str, Any]:
    """Return the answer as the request wants it: text for text, `{"choice": "retry"}` for the word."""
    from agentflow.cli.inputs import parse_value, read_json

    request = _named(await target.reader.requests(run_id), run_id, named)
    schema: Any = request.response_schema
    fields = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else dict[str, Any]()
    if fields.get("type") == "string":
        return {request.request_id: text}
    value = read_json(text, "VALUE") if text.startswith("@") else parse_value(text)
    if fields.get("enum") is not None and value not in fields["enum"] and text in fields["enum"]:
        value = text
    properties: Any = fields.get("properties")
    choice: Any = (
        cast("Mapping[str, Any]", properties).get("choice") if isinstance(properties, Mapping) else None
    )
    is_word = isinstance(value, str) and isinstance(choice, Mapping)
    if is_word and value in cast("Mapping[str, Any]", choice).get("enum", ()):
        value = {"choice": value}
    return {request.request_id: value}


def _named(requests: Sequence[RequestRecord], run_id: str, named: str) -> RequestRecord:
    """Return the request of an id, or the one of a step, which may be one of a plan. Raises CommandError."""
    from agentflow.records.pipeline import PLAN_STEPS

    found = [one for one in requests if one.request_id == named]
    for step in (named, PLAN_STEPS + named):
        found = found or [one for one in requests if one.step_id == step and one.kind == "input"]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(one.request_id for one in found)
        hint = f"name one of {ids}"
        raise CommandError(Exit.USAGE, "usage", f"{named} asks {len(found)} questions", hint)
    message, hint = f"{run_id} has no open request {named}", f"`agentflow show {run_id}` lists them"
    raise CommandError(Exit.NOT_FOUND, "unknown_request", message, hint)


_RESPONSE = click.option(
    "--response",
    metavar="JSON",
    help="What the person says beside the decision, for the node that asks: a JSON value or @FILE.",
)


def _decide(
    where: Where,
    id: str,
    what: str,
    granted: bool,
    reason: str | None,
    digest: str | None,
    response: str | None,
    as_json: bool,
) -> Exit:
    named = "request_id" if what.startswith("req_") else "step_id"
    more: dict[str, Any] = {named: what}
    if response is not None:
        from agentflow.cli.inputs import read_json

        more["response"] = read_json(response, "--response")

    async def act(target: Target) -> str:
        return await target.tell("decide", id, granted=granted, reason=reason, digest=digest, **more)

    return follow_after(where, id, act, as_json=as_json)


@click.command("approve", cls=Command)
@click.argument("id", type=run_id)
@click.argument("what", metavar="STEP|REQUEST", shell_complete=complete_parts("requests", "steps"))
@click.option("--reason", help="Why; it stands in the log.")
@click.option(
    "--digest", help="Approve only if the open request has this digest: exactly what was looked at."
)
@_RESPONSE
@json_option(_JSON)
@target_options
@load_option
def approve(
    id: str,
    what: str,
    reason: str | None,
    digest: str | None,
    response: str | None,
    as_json: bool,
    where: Where,
) -> Exit:
    """Approve what the run ID asks for, and follow it.

    Named by the step that waits, or by the id of the request, as `agentflow inbox` lists them.
    """
    return _decide(where, id, what, True, reason, digest, response, as_json)


@click.command("deny", cls=Command)
@click.argument("id", type=run_id)
@click.argument("what", metavar="STEP|REQUEST", shell_complete=complete_parts("requests", "steps"))
@click.option("--reason", help="Why; it stands in the log, and the model is told.")
@_RESPONSE
@json_option(_JSON)
@target_options
@load_option
def deny(id: str, what: str, reason: str | None, response: str | None, as_json: bool, where: Where) -> Exit:
    """Deny what the run ID asks for, and follow it."""
    return _decide(where, id, what, False, reason, None, response, as_json)


@click.command("retry", cls=Command)
@click.argument("id", type=run_id)
@click.argument("step", shell_complete=complete_parts("steps"))
@click.option(
    "--action",
    type=click.Choice(["retry", "skip", "done", "fail"]),
    default="retry",
    show_default=True,
    help="Try the step again; skip it; count it as done with --output; or let its failure stand.",
)
@click.option("--output", metavar="VALUE", help="The output of the step, JSON or text; for --action done.")
@json_option(_JSON)
@target_options
@load_option
def retry(
    id: str,
    step: str,
    action: Literal["retry", "skip", "done", "fail"],
    output: str | None,
    as_json: bool,
    where: Where,
) -> Exit:
    """Decide about the STEP that the run ID is held at, and follow it.

    A run is held after a failure when its document or its submission says `on_failure: hold`.
    """
    from agentflow.cli.inputs import parse_value

    if output is not None and action != "done":
        raise click.BadParameter("only --action done takes an output", param_hint="--output")
    value = None if output is None else parse_value(output)

    async def act(target: Target) -> str:
        return await target.tell("retry", id, step_id=step, action=action, output=value)

    return follow_after(where, id, act, as_json=as_json)


@click.command("fork", cls=Command)
@click.argument("id", type=run_id)
@click.option(
    "--from",
    "step",
    metavar="STEP",
    shell_complete=complete_parts("steps"),
    help="Do this step and all that come after it again.",
)
@click.option("--offset", type=click.IntRange(min=0), help="Go on from this offset of the log.")
@click.option("--from-failure", is_flag=True, help="Do the steps that failed again, and all after them.")
@click.option(
    "--edit",
    "given",
    multiple=True,
    metavar="PLACE=JSON",
    help="Begin with this in place of what was there: outputs.STEP=JSON, shared.KEY=JSON,"
    " state.NODE.KEY=JSON, messages.NODE=[JSON, …], or input=JSON before a step has begun. May be repeated.",
)
@click.option(
    "--definition",
    metavar="FILE",
    help="Go on with this document, or module:workflow: with the same steps and edges, and other prompts,"
    " models, limits or code.",
)
@click.option("--id", "as_id", type=new_run_id, metavar="NEW", help="The id of the new run.")
@json_option(_JSON)
@target_options
@load_option
def fork(
    id: str,
    step: str | None,
    offset: int | None,
    from_failure: bool,
    given: tuple[str, ...],
    definition: str | None,
    as_id: str | None,
    as_json: bool,
    where: Where,
) -> Exit:
    """Go on from a point of the run ID as a new run, and follow it.

    Recorded results are kept and not repeated; the old run stays as it is.
    """
    if (step is not None) + (offset is not None) + from_failure != 1:
        raise click.UsageError("name one point: --from STEP, --offset N, or --from-failure")
    from agentflow.cli.inputs import parse_edits

    edits = parse_edits(given)
    other: dict[str, Any] = {}
    if definition is not None:
        from dataclasses import replace

        from agentflow.cli.python_workflows import is_python_workflow, load_subject

        other["definition"] = load_subject(definition)
        if is_python_workflow(definition) and where.daemon() is None:
            where = replace(where, load=(*where.load, definition))  # hints name it

    async def act(target: Target) -> str:
        return await target.tell(
            "fork",
            id,
            offset=offset,
            from_step=step,
            from_failure=from_failure,
            as_id=as_id,
            edits=edits,
            **other,
        )

    return follow_after(where, id, act, as_json=as_json)


@click.command("replay", cls=Command)
@click.argument("id", type=run_id)
@click.option(
    "--policy",
    type=click.Choice(["Always", "Refresh", "Mixed"]),
    default="Refresh",
    show_default=True,
    help="Serve all from the record and send nothing; execute all anew; serve what is asked alike.",
)
@click.option("--input", metavar="VALUE", help="Another input, JSON or text.")
@click.option("--id", "as_id", type=new_run_id, metavar="NEW", help="The id of the new run.")
@json_option(_JSON)
@target_options
def replay(
    id: str,
    policy: Literal["Always", "Refresh", "Mixed"],
    input: str | None,
    as_id: str | None,
    as_json: bool,
    where: Where,
) -> Exit:
    """Run the recorded run ID again as a new run, and follow it.

    With `--policy Always` each model call, function, answer and timer is answered from the record.
    """
    from agentflow.cli.inputs import parse_value

    value = None if input is None else parse_value(input)

    async def act(target: Target) -> str:
        return await target.tell("replay", id, policy=policy, input=value, as_id=as_id)

    return follow_after(where, id, act, as_json=as_json)


@click.command("signal", cls=Command)
@click.argument("id", type=run_id)
@click.argument("name")
@click.argument("data", required=False)
@click.option("--signal-id", help="A repeated one changes nothing.")
@target_options
@load_option
def signal(id: str, name: str, data: str | None, signal_id: str | None, where: Where) -> Exit:
    """Send the signal NAME to the run ID.

    DATA is JSON if it parses, else text. Where no daemon works on a run that waits for NAME, it is followed,
    as by `resume`.
    """
    from agentflow.cli.follow import Follower
    from agentflow.cli.inputs import parse_value
    from agentflow.cli.run_reports import waits_for_signal
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    value = None if data is None else parse_value(data)

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=False, where=where)
        async with open_target(where, run_id=id) as target:
            follows = target.parks and await waits_for_signal(target, id, name)
            last = await target.last_offset(id)
            workflow = await target.reader.graph(id) if follows else None
            given = {"name": name, "data": value, "signal_id": signal_id}
            await interrupts.guard(target.tell("signal", id, **given))
            if workflow is None:
                emit(f"{id} got {name}")
                return Exit.DONE
            await follower.follow(target, id, workflow, since=last)
        return await follower.conclude()

    return run_async(work)


@click.command("pause", cls=Command)
@click.argument("id", type=run_id)
@click.option("--reason", help="Why; it stands in the log.")
@click.option(
    "--in-flight",
    type=click.Choice(["drain", "suspend"]),
    default="drain",
    show_default=True,
    help="Let steps that have begun finish, or only the functions that are at work.",
)
@target_options
def pause(id: str, reason: str | None, in_flight: Literal["drain", "suspend"], where: Where) -> Exit:
    """Pause the run ID until `agentflow resume`."""
    return tell(where, id, "pause", f"{id} is paused", reason=reason, in_flight=in_flight)


@click.command("cancel", cls=Command)
@click.argument("id", type=run_id)
@click.option("--reason", help="Why; it stands in the log.")
@click.option("--hard", is_flag=True, help="Do not wait for functions that are at work.")
@target_options
def cancel(id: str, reason: str | None, hard: bool, where: Where) -> Exit:
    """Cancel the run ID.

    What is open is closed and recorded, and the log ends.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target
    from agentflow.errors import RunTerminal

    async def work(interrupts: Interrupts) -> Exit:
        async with open_target(where, run_id=id) as target:
            mode = "hard" if hard else "soft"
            await target.tell("cancel", id, reason=reason, mode=mode)
            result = await interrupts.guard(target.rest(id))
        if result.state != "cancelled":
            raise RunTerminal(f"{id} has ended ({result.state})")
        emit(f"{id} is cancelled")
        return Exit.DONE

    return run_async(work)


@click.command("inbox", cls=Command)
@click.option("--kind", type=click.Choice(["step", "tool", "input"]), help="Only these.")
@json_option("Print {items: [request]} as JSON.")
@target_options
def inbox(kind: str | None, as_json: bool, where: Where) -> Exit:
    """List what waits for a person.

    Approvals and questions of all runs, oldest first.
    """
    from agentflow.cli.questions import question_text
    from agentflow.cli.session import Interrupts, require_named_store, run_async, store_exists
    from agentflow.cli.target import open_reader

    if where.daemon() is None:
        require_named_store(where)

    async def work(interrupts: Interrupts) -> Exit:
        found: list[Any] = []
        if where.daemon() is not None or store_exists(where.config().store):
            async with open_reader(where) as target:
                found = await interrupts.guard(target.reader.requests(kind=kind))
        if as_json:
            emit_json({"items": found})
        elif not found:
            emit("no run waits for an answer")
        for request in () if as_json else found:
            emit(f"{request.workflow_id}  {request.kind} since {request.asked_at}")
            emit(question_text(request, where))
        return Exit.DONE

    return run_async(work)
