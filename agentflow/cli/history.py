"""`agentflow context`, `history` and `rm`: what an agent saw, what was executed; remove a run."""

from __future__ import annotations

from typing import Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.names import complete_parts
from agentflow.cli.options import json_option, run_id
from agentflow.cli.output import emit, emit_json, emit_value
from agentflow.cli.target import Where, read_only_option, target_options

__all__ = ["context", "history", "rm"]


@click.command("context", cls=Command)
@click.argument("id", type=run_id)
@click.argument("step", shell_complete=complete_parts("steps"))
@click.option("--iteration", type=click.IntRange(min=0), metavar="I", help="Of this item of a for_each.")
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="A", help="Of this attempt; default: the last."
)
@json_option("Print {system_prompt, messages, tools} as JSON.")
@target_options
@read_only_option
def context(
    id: str, step: str, iteration: int | None, attempt: int | None, as_json: bool, where: Where
) -> Exit:
    """Print the conversation of the agent of STEP in the run ID.

    What the agent was told and what it said, also when it failed.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader
    from agentflow.records.runs import StepNotFound

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            try:
                found = await interrupts.guard(target.reader.context(id, step, iteration, attempt))
            except StepNotFound as error:
                hint = f"`agentflow show {id}` lists its steps"
                raise CommandError(Exit.NOT_FOUND, error.code, str(error), hint) from None
        if as_json:
            emit_json(found)
            return Exit.DONE
        for message in found.messages:
            said: Any = message.content
            emit(f"-- {message.role}" + (f" {message.name}" if message.name else ""))
            if said:
                emit_value(said)
            for wanted in message.tool_calls:
                emit(f"{wanted.name}({wanted.arguments})")
        return Exit.DONE

    return run_async(work)


@click.command("history", cls=Command)
@click.argument("id", type=run_id)
@json_option("It is printed as JSON in any case; with this, on one line.")
@target_options
@read_only_option
def history(id: str, as_json: bool, where: Where) -> Exit:
    """Print what the run ID executed, as JSON.

    {workflow, steps[], agents[], models[], tools[]}, each in the order in which it began.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            found = await interrupts.guard(target.reader.history(id))
        (emit_json if as_json else emit_value)(found)
        return Exit.DONE

    return run_async(work)


@click.command("rm", cls=Command)
@click.argument("id", type=run_id)
@target_options
def rm(id: str, where: Where) -> Exit:
    """Delete the run ID, which has ended.

    What stays is that it was there: its id is never used again.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            await interrupts.guard(target.delete(id))
        emit(f"{id} is deleted")
        return Exit.DONE

    return run_async(work)
