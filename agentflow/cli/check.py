"""`agentflow check`: all that the text of a document alone can tell (page 001 §2, phase L), offline."""

from __future__ import annotations

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit, exit_of_diagnostics
from agentflow.cli.output import emit, emit_json, printable, say

__all__ = ["check"]


@click.command("check", cls=Command)
@click.argument("file", type=click.Path())
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--json", "as_json", is_flag=True, help="Print {valid, diagnostics} as JSON.")
def check(file: str, strict: bool, as_json: bool) -> Exit:
    """Check a workflow FILE without running it.

    Reports every problem at once, with its place and a hint. Nothing is started, no model is needed. Exit
    code 3 when the document has errors.
    """
    from agentflow.definition.loader import check_file

    diagnostics = check_file(file, strict=strict)
    code = exit_of_diagnostics(diagnostics)
    if as_json:
        emit_json({"valid": code is Exit.DONE, "diagnostics": diagnostics})
        return code
    if diagnostics:
        from agentflow.cli.excerpt import render_diagnostics

        say(render_diagnostics(diagnostics))
    errors = sum(d.severity == "error" for d in diagnostics)
    counts = f"{_count(errors, 'error')}, {_count(len(diagnostics) - errors, 'warning')}"
    if code is Exit.DONE:
        emit(f"{printable(file)}: valid" + (f" ({counts})" if diagnostics else ""))
    else:
        say(f"{printable(file)}: not valid ({counts})")
    return code


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
