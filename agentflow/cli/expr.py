"""`agentflow expr`: one expression on given roots, or on what a run knows (page 001 §6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import run_or_file
from agentflow.cli.output import emit_bytes, say
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.definition.expressions import EvaluationError, ExpressionError

__all__ = ["expr"]

_NAME = "expr"


@click.command("expr", cls=Command)
@click.argument("expression")
@click.option(
    "--data",
    metavar="JSON|@FILE",
    help='The roots, an object: {"inputs": …, "steps": …, "item": …, "index": …}. An absent root is null.',
)
@click.option(
    "--run",
    "run",
    metavar="ID|FILE",
    type=run_or_file,
    help="The roots are those of this run, as an `if` would see them now: inputs, and steps that have ended.",
)
@click.option("--json", "as_json", is_flag=True, help="The value is printed as JSON in any case.")
@target_options
def expr(expression: str, data: str | None, run: str | None, as_json: bool, where: Where) -> Exit:
    """Evaluate EXPRESSION and print its value as JSON.

    It is written as in `if`, alone or in ${{ }}. Exit code 3 when it does not parse, 1 when it fails on
    these values.
    """
    from agentflow.definition.expressions import EvaluationError, ExpressionError, parse_whole
    from agentflow.definition.expressions.values import encode

    if data is not None and run is not None:
        raise click.UsageError("--data gives the roots, --run takes those of a run: give one")
    roots = {} if run is not None else _given(data if data is not None else "{}")
    try:
        parsed = parse_whole(expression, bare=True)
    except ExpressionError as error:
        for problem in (error, *error.also):
            _point(problem, expression)
        return Exit.DIAGNOSTICS
    if run is not None:
        roots = _roots_of(run, where)
    try:
        value = parsed.evaluate(roots)
    except EvaluationError as error:
        _point(error, expression)
        return Exit.FAILED
    emit_bytes([encode(value)])
    return Exit.DONE


def _given(data: str) -> dict[str, Any]:
    from agentflow.cli.inputs import read_json

    roots: Any = read_json(data, "--data")
    if not isinstance(roots, dict):
        raise click.BadParameter("must be a JSON object whose members are the roots", param_hint="--data")
    return cast("dict[str, Any]", roots)


def _roots_of(run: str, where: Where) -> dict[str, Any]:
    """Return the values that expressions of the run see."""
    from agentflow.cli.copies import open_copy
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.runtime.run_reader import RunReader

    found: dict[str, Any] = {}

    async def work(interrupts: Interrupts) -> Exit:
        async with open_copy(where, run) as log:
            state = await interrupts.guard(RunReader(log).fold(str(run)))
        found.update(state.scope())
        return Exit.DONE

    if run_async(work) is Exit.INTERRUPTED:
        raise click.Abort
    return found


def _point(error: ExpressionError | EvaluationError, text: str) -> None:
    """Show the problem like that of a document: place, code, message, hint, caret."""
    from agentflow.cli.excerpt import render_diagnostic
    from agentflow.definition.diagnostics import Diagnostic
    from agentflow.definition.source import Lines

    line, column = Lines(text).place(min(error.offset, len(text)))
    problem = Diagnostic(
        code=error.code,
        severity="error",
        message=error.message,
        file=_NAME,
        line=line,
        column=column,
        hint=error.hint,
    )
    say(render_diagnostic(problem, text.splitlines() or [""]))
