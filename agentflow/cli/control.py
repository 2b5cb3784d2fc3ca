"""Commands to one run, such as `answer`, `approve`, `pause`, `retry`, `fork` and `replay`; `inbox`.

Those that move a run on follow it afterwards, as `resume` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, cast

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.names import complete_parts
from agentflow.cli.options import json_option, new_run_id, run_id
from agentflow.cli.output import emit, emit_json
from agentflow.cli.python_workflows import load_option
from agentflow.cli.target import Target, Where, target_options

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

    VALUE is JSON if it parses, else text; where a choice is asked for, its word is enough.
    """
    from agentflow.cli.inputs import parse_value

    given = parse_value(value)

    async def act(target: Target) -> str:
        return await target.tell(
            "answer_all", id, responses={request: await _shaped(target, id, request, given)}
        )

    return follow_after(where, id, act, as_json=as_json)


async def _shaped(target: Target, run_id: str, request_id: str, value: Any) -> Any:
    """`retry` for `{"choice": "retry"}` where the request asks for a choice."""
    found = {request.request_id: request for request in await target.reader.requests(run_id)}
    request = found.get(request_id)
    if request is None:
        raise CommandError(
            Exit.NOT_FOUND,
            "unknown_request",
            f"{run_id} has no open request {request_id}",
            f"`agentflow show {run_id}` lists them",
        )
    schema: Any = request.response_schema
    if not isinstance(value, str) or not isinstance(schema, Mapping):
        return value
    properties: Any = cast("Mapping[str, Any]", schema).get("properties")
    choice: Any = (
        cast("Mapping[str, Any]", properties).get("choice") if isinstance(properties, Mapping) else None
    )
    if isinstance(choice, Mapping) and value in cast("Mapping[str, Any]", choice).get("enum", ()):
        return {"choice": value}
    return value


def _decide(
    where: Where, id: str, what: str, granted: bool, reason: str | None, digest: str | None, as_json: bool
) -> Exit:
    named = "request_id" if what.startswith("req_") else "step_id"

    async def act(target: Target) -> str:
        return await target.tell("decide", id, granted=granted, reason=reason, digest=digest, **{named: what})

    return follow_after(where, id, act, as_json=as_json)


@click.command("approve", cls=Command)
@click.argument("id", type=run_id)
@click.argument("what", metavar="STEP|REQUEST", shell_complete=complete_parts("requests", "steps"))
@click.option("--reason", help="Why; it stands in the log.")
@click.option(
    "--digest", help="Approve only if the open request has this digest: exactly what was looked at."
)
@json_option(_JSON)
@target_options
@load_option
def approve(id: str, what: str, reason: str | None, digest: str | None, as_json: bool, where: Where) -> Exit:
    """Approve what the run ID asks for, and follow it.

    Named by the step that waits, or by the id of the request, as `agentflow inbox` lists them.
    """
    return _decide(where, id, what, True, reason, digest, as_json)


@click.command("deny", cls=Command)
@click.argument("id", type=run_id)
@click.argument("what", metavar="STEP|REQUEST", shell_complete=complete_parts("requests", "steps"))
@click.option("--reason", help="Why; it stands in the log, and the model is told.")
@json_option(_JSON)
@target_options
@load_option
def deny(id: str, what: str, reason: str | None, as_json: bool, where: Where) -> Exit:
    """Deny what the run ID asks for, and follow it."""
    return _decide(where, id, what, False, reason, None, as_json)


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
@click.option("--from", "step", metavar="STEP", help="Do this step and all that come after it again.")
@click.option("--offset", type=click.IntRange(min=0), help="Go on from this offset of the log.")
@click.option("--from-failure", is_flag=True, help="Do the steps that failed again, and all after them.")
@click.option(
    "--edit",
    "given",
    multiple=True,
    metavar="PLACE=JSON",
    help="Begin with this in place of what was there: outputs.STEP=JSON, shared.KEY=JSON, or input=JSON"
    " before a step has begun. May be repeated.",
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

    async def act(target: Target) -> str:
        return await target.tell(
            "fork",
            id,
            offset=offset,
            from_step=step,
            from_failure=from_failure,
            as_id=as_id,
            edits=edits,
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
def signal(id: str, name: str, data: str | None, signal_id: str | None, where: Where) -> Exit:
    """Send the signal NAME to the run ID.

    DATA is JSON if it parses, else text.
    """
    from agentflow.cli.inputs import parse_value

    value = None if data is None else parse_value(data)
    return tell(where, id, "signal", f"{id} got {name}", name=name, data=value, signal_id=signal_id)


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
            emit("nothing waits for anybody")
        for request in () if as_json else found:
            emit(f"{request.workflow_id}  {request.kind} since {request.asked_at}")
            emit(question_text(request, where))
        return Exit.DONE

    return run_async(work)
