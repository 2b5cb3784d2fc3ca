"""`agentflow checkpoints`: the positions of a run's log from which it can be forked (page 002 §9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option, run_or_file
from agentflow.cli.output import columns, emit, emit_json, printable
from agentflow.cli.target import Where, read_only_option, target_options

if TYPE_CHECKING:
    from agentflow.records.checkpoints import Checkpoint

__all__ = ["checkpoints"]


@click.command("checkpoints", cls=Command)
@click.argument("id", type=run_or_file)
@json_option("Print {items: [checkpoint]} as JSON.")
@target_options
@read_only_option
def checkpoints(id: str, as_json: bool, where: Where) -> Exit:
    """List the checkpoints of the run ID, for `agentflow fork`.

    They are the start, each superstep or completed step, each answer, and the end. `agentflow fork ID
    --offset OFFSET` goes on from one. ID may be an exported .ndjson file.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            found = await interrupts.guard(target.reader.checkpoints(str(id)))
        if as_json:
            emit_json({"items": found})
        else:
            emit(printable(_as_text(found)))
        return Exit.DONE

    return run_async(work)


def _as_text(found: list[Checkpoint]) -> str:
    return columns(
        ("OFFSET", "CAUSE", "SUPERSTEP", "AT", "ID"),
        [
            (str(one.offset), one.cause, "" if one.superstep is None else str(one.superstep), one.at, one.id)
            for one in found
        ],
    )
