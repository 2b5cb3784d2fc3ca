"""`agentflow check`: all that the text of a document alone can tell (page 001 §2, phase L), offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit, exit_of_diagnostics
from agentflow.cli.output import emit, emit_json, printable, styled
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.definition.diagnostics import Diagnostic

__all__ = ["check"]


@click.command("check", cls=Command)
@click.argument("file", type=click.Path())
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--against-runs",
    is_flag=True,
    help="Also tell of each run of it that is not at its end whether it could be forked to this version.",
)
@click.option(
    "--bind",
    "binds",
    is_flag=True,
    help="Also resolve models and functions as a run would: imports modules, starts and connects services.",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="When to use colour; auto: on a terminal, unless NO_COLOR is set.",
)
@click.option("--json", "as_json", is_flag=True, help="Print {valid, diagnostics} as JSON, and {runs}.")
@target_options
def check(
    file: str, strict: bool, against_runs: bool, binds: bool, color: str, as_json: bool, where: Where
) -> Exit:
    """Check a workflow FILE without running it.

    FILE may be MODULE:WORKFLOW, a workflow built in Python, whose module is imported.
    Reports every problem at once, with its place and a hint. Nothing is started, no model is needed, and no
    daemon is asked but for --against-runs. Files that services name are looked at; with --bind the services
    are opened in this process, and models resolved. Exit code 3 when the document has errors, or when a run
    does not fit.
    """
    diagnostics = _diagnose(file, strict, binds, where)
    code = exit_of_diagnostics(diagnostics)
    report: dict[str, Any] = {"valid": code is Exit.DONE, "diagnostics": diagnostics}
    if not as_json:
        _tell(file, diagnostics, code is Exit.DONE, color)
    if against_runs and code is Exit.DONE:
        from agentflow.cli.against_runs import fit_of_runs, render_fits
        from agentflow.cli.python_workflows import definition_of_subject, load_subject

        fits = fit_of_runs(where, definition_of_subject(load_subject(file)))
        report["runs"] = fits
        if not as_json:
            emit(render_fits(fits))
        if not all(fit.fits for fit in fits):
            code = Exit.DIAGNOSTICS
    if as_json:
        emit_json(report)
    return code


def _diagnose(file: str, strict: bool, binds: bool, where: Where) -> list[Diagnostic]:
    """Return all that is wrong with the file, sorted."""
    from agentflow.cli.python_workflows import definition_of_subject, load_subject
    from agentflow.definition.diagnostics import sort_diagnostics
    from agentflow.errors import DefinitionError

    try:
        subject = load_subject(file, strict=strict)
        definition = definition_of_subject(subject)
    except DefinitionError as error:
        return list(error.diagnostics)
    from msgspec.structs import replace

    from agentflow.cli.check_binding import bind_problems, nearby_problems

    found = bind_problems(subject, where.config()) if binds else nearby_problems(definition, where.config)
    if strict:
        found = [replace(diagnostic, severity="error") for diagnostic in found]
    return sort_diagnostics([*definition.warnings, *found])


def _tell(file: str, diagnostics: list[Diagnostic], valid: bool, color: str) -> None:
    wanted = {"auto": None, "always": True, "never": False}[color]
    if diagnostics:
        from agentflow.cli.excerpt import Style, render_diagnostics

        styles: dict[str, Style] = {"auto": styled, "always": _coloured, "never": _plain}
        style = styles[color]
        click.echo(render_diagnostics(diagnostics, style), err=True, color=wanted)
    errors = sum(d.severity == "error" for d in diagnostics)
    counts = f"{_count(errors, 'error')}, {_count(len(diagnostics) - errors, 'warning')}"
    if valid:
        emit(f"{printable(file)}: valid" + (f" ({counts})" if diagnostics else ""))
    else:
        click.echo(f"{printable(file)}: not valid ({counts})", err=True)


def _plain(text: str, style: str) -> str:
    return text


def _coloured(text: str, style: str) -> str:
    return click.style(text, bold=True) if style == "bold" else click.style(text, fg=style, bold=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
