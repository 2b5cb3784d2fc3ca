"""`agentflow graph`: the graph of a document or of a run, as Mermaid (page 003 §11)."""

from __future__ import annotations

import re
from pathlib import Path

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import settings_of, store_options
from agentflow.cli.output import emit

__all__ = ["graph"]

_RUN_ID = re.compile(r"wf_[A-Za-z0-9_-]{1,64}")


@click.command("graph", cls=Command)
@click.argument("subject", metavar="FILE|ID")
@click.option(
    "--format", "drawing", type=click.Choice(["mermaid"]), default="mermaid", help="How to draw it."
)
@store_options
def graph(subject: str, drawing: str, store: str | None, local: bool) -> Exit:
    """Draw the graph of a FILE or of the run ID.

    That of a run is the one it is pinned to, whatever became of its file.
    """
    from agentflow.definition.loader import load_file
    from agentflow.definition.mermaid import to_mermaid

    if not _RUN_ID.fullmatch(subject) or Path(subject).exists():
        emit(to_mermaid(load_file(subject).workflow).rstrip("\n"))
        return Exit.DONE

    from agentflow.cli.session import Interrupts, open_runtime, run_async

    config = settings_of(store)

    async def work(interrupts: Interrupts) -> Exit:
        async with open_runtime(config, run_id=subject) as runtime:
            emit(to_mermaid(await runtime.graph(subject)).rstrip("\n"))
        return Exit.DONE

    return run_async(work)
