"""`agentflow trace` and `timeline`: the nodes of a run in the order in which they were entered and left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option, run_or_file
from agentflow.cli.output import emit, emit_json, printable
from agentflow.cli.target import Where, read_only_option, target_options

if TYPE_CHECKING:
    from agentflow.records.timeline import NodeTimeline, TimelineEntry

__all__ = ["timeline", "trace"]

_EVENTS = {
    "node_started": "started",
    "node_retrying": "retries",
    "node_waiting": "waits",
    "node_completed": "completed",
    "node_failed": "failed",
    "node_skipped": "skipped",
}


@click.command("trace", cls=Command)
@click.argument("id", type=run_or_file)
@click.option(
    "--clock",
    type=click.Choice(["wall", "logical"]),
    default="wall",
    show_default=True,
    help="Times of the wall clock, or counted events: then equal orders give equal bytes.",
)
@json_option("It is printed as JSON in any case; with this, on one line.")
@target_options
@read_only_option
def trace(id: str, clock: Literal["wall", "logical"], as_json: bool, where: Where) -> Exit:
    """Print the trace of the run ID: nodes entered, left and failed.

    ID may be an exported .ndjson file. `agentflow.replay_trace` checks such a trace.
    """
    from agentflow.cli.output import emit_value
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            found = await interrupts.guard(target.reader.trace(str(id), clock))
        (emit_json if as_json else emit_value)(found)
        return Exit.DONE

    return run_async(work)


@click.command("timeline", cls=Command)
@click.argument("id", type=run_or_file)
@json_option("Print {items[], retries[]} as JSON.")
@target_options
@read_only_option
def timeline(id: str, as_json: bool, where: Where) -> Exit:
    """List what happened to the nodes of the run ID.

    Behind it stands what was tried again, and why. Seconds are counted from the first line. ID may be an
    exported .ndjson file.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            found = await interrupts.guard(target.reader.timeline(str(id)))
        if as_json:
            emit_json(found)
        else:
            emit(printable(_as_text(found)))
        return Exit.DONE

    return run_async(work)


def _as_text(found: NodeTimeline) -> str:
    from agentflow.events.ids import micros

    if not found.items:
        return "no node of the run has begun"
    begin = micros(found.items[0].at)
    names = [_name(entry) for entry in found.items]
    width = max(len(name) for name in names)
    lines = [
        f"{(micros(entry.at) - begin) / 1e6:>9.3f} s  {name:<{width}}  "
        f"{_EVENTS[entry.event]:<9}  {_details(entry.details)}".rstrip()
        for entry, name in zip(found.items, names, strict=True)
    ]
    for row in found.retries:
        reasons = ", ".join(f"{code} {count}" for code, count in row.reasons.items())
        times = "once" if row.retries == 1 else f"{row.retries} times"
        lines.append(f"{row.node_id}: {row.operation} tried again {times} ({reasons})")
    return "\n".join(lines)


def _name(entry: TimelineEntry) -> str:
    item = "" if entry.iteration is None else f"[{entry.iteration}]"
    visit = f" visit {entry.visit}" if entry.visit > 1 else ""
    return f"{entry.path[1:]} {entry.node_id}{item}{visit}".lstrip()


def _details(details: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in details.items())
