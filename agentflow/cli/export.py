"""`agentflow log`, `open` and `state`: a run as a file, such a file as a run, and what a run knows.

A file is read only: nothing is made of it in a store.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.names import complete_parts
from agentflow.cli.options import ExportedRun, json_option, run_id, run_or_file
from agentflow.cli.output import emit, emit_json
from agentflow.cli.target import RemoteTarget, StoreTarget, Where, read_only_option, target_options

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["log", "open_file", "state"]


@click.command("log", cls=Command)
@click.argument("id", type=run_id)
@target_options
@read_only_option
def log(id: str, where: Where) -> Exit:
    """Print the log of the run ID as NDJSON, to be kept as a file.

    One event a line, the bytes as they are stored. What the events only name (what a fork began with, a graph
    that its source does not give) follows in lines with the key "attachment". `agentflow open` reads
    such a file anywhere:

    \b
      agentflow log wf_… > run.ndjson
      agentflow open run.ndjson
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            await interrupts.guard(_copy(target.reader.export(id)))
        return Exit.DONE

    return run_async(work)


async def _copy(pieces: AsyncGenerator[bytes]) -> None:
    from contextlib import aclosing

    sys.stdout.flush()
    async with aclosing(pieces):
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@click.command("open", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False))
@json_option("Print the run record as JSON.")
@click.option("--ui", "in_browser", is_flag=True, help="Show it in the dashboard, until Ctrl-C.")
@click.pass_context
def open_file(context: click.Context, file: str, as_json: bool, in_browser: bool) -> Exit:
    """Check the exported FILE and show its run.

    `show`, `events`, `state` and `graph` take such a FILE as ID too, if its name ends in .ndjson.
    """
    from agentflow.cli.inspect import show

    run = ExportedRun.of_file(file)
    if in_browser:
        from agentflow.cli.session import run_async
        from agentflow.cli.ui import show_run

        return run_async(lambda interrupts: show_run(run, interrupts))
    return context.invoke(show, id=run, as_json=as_json, store=None, url=None, local=True)


@click.command("state", cls=Command)
@click.argument("id", type=run_or_file)
@click.argument("step", required=False, shell_complete=complete_parts("steps"))
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="As of the event at offset N.")
@click.option("--iteration", type=click.IntRange(min=0), metavar="I", help="Of this item of a for_each.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="A", help="Of this attempt.")
@json_option("The state is printed as JSON in any case; with this, on one line.")
@target_options
@read_only_option
def state(
    id: str,
    step: str | None,
    offset: int | None,
    iteration: int | None,
    attempt: int | None,
    as_json: bool,
    where: Where,
) -> Exit:
    """Print the state of the run ID, or of its STEP, as JSON.

    Without STEP the folded state, with it the state record of the step. ID may be an exported .ndjson file.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    if step is None and (iteration is not None or attempt is not None):
        raise click.UsageError("--iteration and --attempt are of a STEP: name it")
    if step is not None and offset is not None:
        raise click.UsageError("--offset is of the state of the run, not of a STEP")

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            found = await interrupts.guard(_state(target, str(id), step, offset, iteration, attempt))
        if as_json:
            emit_json(found)
        else:
            emit(_indented(found))
        return Exit.DONE

    return run_async(work)


async def _state(
    target: StoreTarget | RemoteTarget,
    id: str,
    step: str | None,
    offset: int | None,
    iteration: int | None,
    attempt: int | None,
) -> Any:
    from agentflow.records.runs import StepNotFound

    try:
        if step is not None:
            return await target.reader.step(id, step, iteration, attempt)
        return await target.reader.state(id, offset)
    except StepNotFound as error:
        raise CommandError(
            Exit.NOT_FOUND, error.code, str(error), f"`agentflow show {id}` lists its steps"
        ) from None


def _indented(value: Any) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
