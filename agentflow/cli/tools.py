"""`agentflow tools`: the functions that documents may name without declaring their service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option
from agentflow.cli.output import columns, emit, emit_json
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.records.answers import ToolView

__all__ = ["tools"]


@click.command("tools", cls=Command)
@click.argument("file", type=click.Path(), required=False)
@json_option("Print {items: [function]} as JSON, with the schemas of their arguments.")
@target_options
def tools(file: str | None, as_json: bool, where: Where) -> Exit:
    """List the functions that are registered, or of FILE.

    Those of the daemon, which documents may name without declaring a service. The side effect (none,
    read, write, external, irreversible) decides what is repeated after a crash and what is asked for. With
    FILE its services are opened here, and the functions of each step are listed.
    """
    if file is not None:
        return _of_file(file, where, as_json=as_json)
    url = where.daemon()
    found = _of_this_process() if url is None else _of_daemon(url)
    if as_json:
        emit_json({"items": found})
    elif not found:
        emit("no functions are registered; documents declare their own under services")
    else:
        rows = [
            [t.service, _function(t), t.side_effect, f"{t.timeout:g} s", _line(t.description)] for t in found
        ]
        emit(columns(["SERVICE", "FUNCTION", "SIDE EFFECT", "TIMEOUT", "DESCRIPTION"], rows))
    return Exit.DONE


def _of_file(file: str, where: Where, *, as_json: bool) -> Exit:
    from agentflow.cli.dry_run import bind_here
    from agentflow.cli.errors import exit_of_diagnostics
    from agentflow.cli.excerpt import render_diagnostics
    from agentflow.cli.output import say
    from agentflow.definition.loader import load_file

    bound = bind_here(where.config(), load_file(file))
    problems = [d for d in bound.diagnostics if d.code != "E_UNKNOWN_MODEL"]  # no model is asked here
    found = [(step, info) for step, b in bound.steps.items() for info in b.tools.values()]
    if problems:
        say(render_diagnostics(problems))
    if as_json:
        emit_json({"items": [{"step_id": step, "tool": info} for step, info in found]})
    elif found:
        header = ["STEP", "SERVICE", "FUNCTION", "SIDE EFFECT", "APPROVAL", "DESCRIPTION"]
        rows = [
            [step, i.service, i.function, i.side_effect, _yes(i.needs_approval), _line(i.description)]
            for step, i in found
        ]
        emit(columns(header, rows))
    elif not problems:
        emit("no step attaches a function")
    return exit_of_diagnostics(problems)


def _yes(needed: bool) -> str:
    return "each call" if needed else ""


def _of_this_process() -> list[ToolView]:
    from agentflow.runtime import Runtime
    from agentflow.tools.listing import listed_tools

    return listed_tools(Runtime("memory:").registry)  # never opened: nothing is read or made


def _of_daemon(url: str) -> list[ToolView]:
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.client import Client

    found: list[ToolView] = []

    async def work(interrupts: Interrupts) -> Exit:
        async with Client(url) as client:
            found.extend(await interrupts.guard(client.tools()))
        return Exit.DONE

    if run_async(work) is Exit.INTERRUPTED:
        raise click.Abort
    return found


def _function(tool: ToolView) -> str:
    """Return the name that documents use; models see it with its service before it."""
    return tool.name.removeprefix(f"{tool.service}__")


def _line(text: str) -> str:
    """Return the first line of a description."""
    return text.strip().partition("\n")[0]
