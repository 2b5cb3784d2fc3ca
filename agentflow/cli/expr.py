"""`agentflow expr`: one expression on given roots (page 001 §6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.output import emit_bytes, say

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
@click.option("--json", "as_json", is_flag=True, help="The value is printed as JSON in any case.")
def expr(expression: str, data: str | None, as_json: bool) -> Exit:
    """Evaluate EXPRESSION and print its value as JSON.

    It is written as in `if`, alone or in ${{ }}. Exit code 3 when it does not parse, 1 when it fails on
    these values.
    """
    from agentflow.cli.inputs import read_json
    from agentflow.definition.expressions import EvaluationError, ExpressionError, parse_whole
    from agentflow.definition.expressions.values import encode

    roots: Any = read_json(data if data is not None else "{}", "--data")
    if not isinstance(roots, dict):
        raise click.BadParameter("must be a JSON object whose members are the roots", param_hint="--data")
    try:
        parsed = parse_whole(expression, bare=True)
    except ExpressionError as error:
        for problem in (error, *error.also):
            _point(problem, expression)
        return Exit.DIAGNOSTICS
    try:
        value = parsed.evaluate(cast("dict[str, Any]", roots))
    except EvaluationError as error:
        _point(error, expression)
        return Exit.FAILED
    emit_bytes([encode(value)])
    return Exit.DONE


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
