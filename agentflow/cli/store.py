"""`agentflow verify` and `backup`: what operators do with a store as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option, settings_of
from agentflow.cli.output import emit, emit_json, printable

if TYPE_CHECKING:
    from agentflow.events.verification import Verified

__all__ = ["backup", "verify"]

_store_option = click.option(
    "--store",
    metavar="URL",
    help="The store: sqlite:FILE or file:DIR. Default: AGENTFLOW_STORE, `store` in agentflow.toml, else"
    " sqlite:$XDG_DATA_HOME/agentflow/agentflow.db.",
)


@click.command("verify", cls=Command)
@_store_option
@json_option("Print {store, sound, runs, events, damaged: [{workflow_id, problem}], problems} as JSON.")
def verify(store: str | None, as_json: bool) -> Exit:
    """Check the store: every event, record and page.

    \b
    Exit codes: 0 all is as it was written; 74 something is damaged, or the
    store cannot be read.

    Nothing is changed. A sqlite: store is checked beside a daemon that writes to it and is not held up; a
    file: store belongs to one process, so stop its daemon first. Takes about a second for each 100 MB.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.events.backup import verify_store

    url = settings_of(store).store

    async def work(interrupts: Interrupts) -> Exit:
        found = await interrupts.guard(verify_store(url))
        if as_json:
            emit_json(
                {
                    "store": url,
                    "sound": found.sound,
                    "runs": found.runs,
                    "events": found.events,
                    "damaged": found.damaged,
                    "problems": found.problems,
                }
            )
        else:
            emit(_as_text(found))
        return Exit.DONE if found.sound else Exit.STORAGE

    return run_async(work)


def _as_text(found: Verified) -> str:
    from agentflow.cli.progress import count

    read = f"{count(found.runs, 'run')} and {count(found.events, 'event')}"
    if found.sound:
        return f"sound: {read}"
    lines = [f"damaged: {read} could be read"]
    lines += [printable(f"{run.workflow_id}: {run.problem}") for run in found.damaged]
    lines += [printable(problem) for problem in found.problems]
    return "\n".join([*lines, "restore the store from a copy, or delete the runs that are damaged"])


@click.command("backup", cls=Command)
@click.argument("destination", type=click.Path(path_type=Path), metavar="DEST")
@_store_option
@json_option("Print {store, destination, runs, events, bytes} as JSON.")
def backup(destination: Path, store: str | None, as_json: bool) -> Exit:
    """Copy the store to DEST, while a daemon writes to it.

    \b
    DEST is a new file (sqlite:) or directory (file:). The copy is consistent,
    is checked when it is complete, and appears at DEST only then. To restore,
    stop the daemon and start it with --store on the copy:
      agentflow backup /backups/monday.db
      agentflow serve --store sqlite:/backups/monday.db

    Runs of the copy belong to no process: they go on where the copy ends, so calls that were made after it
    may be made again.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.events.backup import backup_store

    url, target = settings_of(store).store, destination.absolute()

    async def work(interrupts: Interrupts) -> Exit:
        from agentflow.cli.progress import count
        from agentflow.units import size_text

        found = await interrupts.guard(backup_store(url, target))
        size = _size(target)
        if as_json:
            emit_json(
                {
                    "store": url,
                    "destination": str(target),
                    "runs": found.runs,
                    "events": found.events,
                    "bytes": size,
                }
            )
        else:
            read = f"{count(found.runs, 'run')} and {count(found.events, 'event')}"
            emit(printable(f"copied and checked {read} ({size_text(size)}) to {destination}"))
        return Exit.DONE

    return run_async(work)


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
