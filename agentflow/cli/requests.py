"""Requests in natural language: `request`, `classify`, `plan`, `execute`, `reject` and `final`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.options import json_option, run_id
from agentflow.cli.output import emit, emit_json
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.cli.target import LocalTarget, RemoteTarget
    from agentflow.config import Config
    from agentflow.pipeline.requests import Requests

__all__ = ["classify", "execute", "final", "plan", "reject", "request"]

_RESULT = "Print the result of the run as JSON, as `run --json` does."


def _text(given: str) -> str:
    """Return the text of an argument; `-` reads stdin. Raises click.UsageError for what is no UTF-8."""
    text = sys.stdin.read() if given == "-" else given
    try:
        text.encode()
    except UnicodeEncodeError:  # a byte that is no UTF-8 is a surrogate here
        raise click.UsageError("TEXT is not UTF-8") from None
    return text


def requests_of(target: LocalTarget, config: Config) -> Requests:
    """Return the requests of a Runtime of this process; the working directory may be a workspace."""
    from agentflow.pipeline.assembly import assemble

    folder = Path.cwd()
    return assemble(config, folder=folder).requests(target.runtime, folder / "workflows")


@click.command("request", cls=Command)
@click.argument("text", metavar="TEXT|-")
@click.option("--review", is_flag=True, help="Stop after the plan, until `agentflow execute`.")
@click.option("--workspace", metavar="DIR", help="The folder that the steps work in.")
@click.option("--detach", is_flag=True, help="Print the id of the run and leave it to the daemon.")
@json_option(_RESULT)
@target_options
def request(
    text: str, review: bool, workspace: str | None, detach: bool, as_json: bool, where: Where
) -> Exit:
    """Do what TEXT asks for: plan it, execute it, verify it.

    A text that asks for no workflow leaves no run: what was found is printed. Ends when the run has ended or
    only a person can move it on (exit code 9); 10 says that the result is partial or blocked. A pipe gets one
    line of JSON: the final output, or how far the request has come.
    """
    from agentflow.cli.follow import Follower
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    config = where.config()
    if detach and where.daemon() is None:
        raise click.UsageError("--detach leaves the run to a daemon, and none listens: `agentflow serve`")
    folder = None if workspace is None else str(Path(workspace).absolute())

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, where=where)
        async with open_target(where, config=config) as target:
            begun = _begin(target, config, _text(text), review=review, workspace=folder)
            activation, id = await interrupts.guard(begun)
            if id is None:
                emit_json(activation)
                return Exit.DONE
            if detach:
                await _emit_compact(target, id, id)
                return Exit.DONE
            await follower.follow(target, id, await target.reader.graph(id))
        return await follower.conclude()

    return run_async(work)


async def _begin(
    target: LocalTarget | RemoteTarget, config: Config, text: str, **more: Any
) -> tuple[Any, str | None]:
    from agentflow.cli.target import RemoteTarget

    if isinstance(target, RemoteTarget):
        answer = await target.client.request(text, **more)
        return answer.activation, None if answer.run is None else answer.run.workflow_id
    accepted = await requests_of(target, config).submit(text, by="cli", **more)
    return accepted.activation, None if accepted.run is None else target.keep(accepted.run)


async def _emit_compact(target: LocalTarget | RemoteTarget, id: str, said: str) -> None:
    """Print how far a request has come, as JSON; a line of text on a terminal."""
    if sys.stdout.isatty():
        emit(said)
    else:
        emit_json(await target.reader.compact(id))


def _leave(where: Where, id: str, command: str, said: str, *, ends: bool = False, **more: Any) -> Exit:
    """Give a command and leave the request to others; wait for its end if it `ends` the request."""
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    async def work(interrupts: Interrupts) -> Exit:
        async with open_target(where, run_id=id) as target:
            await interrupts.guard(target.tell(command, id, **more))
            if ends:
                await interrupts.guard(target.rest(id))
            await _emit_compact(target, id, said)
        return Exit.DONE

    return run_async(work)


@click.command("classify", cls=Command)
@click.argument("text", metavar="TEXT|-")
@target_options
def classify(text: str, where: Where) -> Exit:
    """Print what TEXT asks for, as JSON.

    A workflow or an answer; nothing is stored. The daemon is asked if one listens, so that its settings count
    as they do for `request`.
    """
    from agentflow.cli.session import Interrupts, run_async

    async def ask(interrupts: Interrupts) -> Exit:
        from agentflow.cli.target import RemoteTarget, open_target

        async with open_target(where) as target:
            assert isinstance(target, RemoteTarget)
            emit_json(await interrupts.guard(target.client.classify(_text(text))))
        return Exit.DONE

    if where.daemon() is not None:
        return run_async(ask)
    from agentflow.pipeline.activation import classify as judge
    from agentflow.pipeline.settings import settings_of

    settings = settings_of(where.config().pipeline)
    emit_json(judge(_text(text), review=settings.review == "always"))
    return Exit.DONE


@click.command("plan", cls=Command)
@click.argument("id", type=run_id)
@click.option("--edit", metavar="FILE", help="The plan in this JSON or YAML file takes its place.")
@target_options
def plan(id: str, edit: str | None, where: Where) -> Exit:
    """Print the plan of the request ID as JSON, or replace it.

    FILE may hold what this command printed: then nothing but the plan that was printed is replaced.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader, open_target

    async def show(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            emit_json(await interrupts.guard(target.reader.plan(id)))
        return Exit.DONE

    async def replace(interrupts: Interrupts) -> Exit:
        given = _read_plan(cast("str", edit))
        async with open_target(where, run_id=id) as target:
            await interrupts.guard(target.tell("edit_plan", id, **given))
            emit_json(await target.reader.plan(id))
        return Exit.DONE

    return run_async(show if edit is None else replace)


@click.command("execute", cls=Command)
@click.argument("id", type=run_id)
@click.option("--plan", "plan_file", metavar="FILE", help="Execute the plan in this JSON or YAML file.")
@click.option("--detach", is_flag=True, help="Leave the run to the daemon.")
@json_option(_RESULT)
@target_options
def execute(id: str, plan_file: str | None, detach: bool, as_json: bool, where: Where) -> Exit:
    """Execute the plan of the request ID and follow it."""
    from agentflow.cli.control import follow_after

    if detach and where.daemon() is None:
        raise click.UsageError("--detach leaves the run to a daemon, and none listens: `agentflow serve`")
    given = {} if plan_file is None else _read_plan(plan_file)
    if detach:
        return _leave(where, id, "execute", f"{id} is executed", **given)
    return follow_after(where, id, lambda target: target.tell("execute", id, **given), as_json=as_json)


@click.command("reject", cls=Command)
@click.argument("id", type=run_id)
@click.option("--reason", metavar="R", required=True, help="Why the plan is not executed.")
@target_options
def reject(id: str, reason: str, where: Where) -> Exit:
    """Reject the plan of the request ID.

    Its run is cancelled.
    """
    return _leave(where, id, "reject", f"the plan of {id} is rejected", ends=True, reason=reason)


@click.command("final", cls=Command)
@click.argument("id", type=run_id)
@click.option("--full", is_flag=True, help="With the report: artifacts, evidence, approvals.")
@target_options
def final(id: str, full: bool, where: Where) -> Exit:
    """Print the final output of the request ID as JSON."""
    from agentflow.cli.errors import exit_of_final
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            found = await interrupts.guard(target.reader.final(id))
            emit_json((await target.reader.record(id)).output if full else found)
        return exit_of_final(found)

    return run_async(work)


def _read_plan(path: str) -> dict[str, Any]:
    """Return `plan` of a JSON or YAML file, and `plan_digest` if it holds what `plan ID` printed. Raises
    CommandError."""
    from agentflow.cli.inputs import parse_inputs

    try:
        value = parse_inputs((f"@{path}",))
    except OSError as error:
        raise CommandError(Exit.USAGE, "unreadable", f"{path}: {error.strerror}") from None
    if not isinstance(value, dict):
        raise CommandError(Exit.USAGE, "E_PLAN_SCHEMA", f"{path} is no plan: it is no object")
    found = cast("dict[str, Any]", value)
    if "plan" not in found:
        return {"plan": found}
    if not isinstance(found["plan"], dict):
        raise CommandError(Exit.USAGE, "E_PLAN_SCHEMA", f"{path} is no plan: its plan is no object")
    return {name: found[name] for name in ("plan", "plan_digest") if name in found}
