"""`agentflow eval`: the cases of a suite, run and judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.options import json_option
from agentflow.cli.output import emit, emit_json, printable, say
from agentflow.cli.target import LocalTarget, Where, target_options

if TYPE_CHECKING:
    from agentflow.evals.report import CaseResult, EvalReport

__all__ = ["eval_suite"]


@click.command("eval", cls=Command)
@click.argument("suite", type=click.Path(dir_okay=False))
@click.option("--junit", metavar="FILE", type=click.Path(dir_okay=False), help="Write JUnit XML to FILE too.")
@json_option("Print the report {suite_id, status, summary, cases[]} as JSON.")
@target_options
def eval_suite(suite: str, junit: str | None, as_json: bool, where: Where) -> Exit:
    """Run the cases of the eval SUITE and report.

    SUITE is a YAML or JSON file that names a workflow and a dataset.

    \b
    Exit codes: 0 all cases passed; 1 a case failed or is in error; 3 the suite, its dataset or its workflow
    cannot be used.

    Each case is a run with the labels `eval` and `case`, so that `agentflow list --label eval=ID` finds them.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target
    from agentflow.evals.runner import run_eval
    from agentflow.evals.suite import EvalError

    async def work(interrupts: Interrupts) -> Exit:
        async with open_target(where) as target:
            runs: Any = target.runtime if isinstance(target, LocalTarget) else target.client
            try:
                report = await interrupts.guard(run_eval(suite, runs, progress=None if as_json else _told))
            except EvalError as error:
                raise CommandError(Exit.DIAGNOSTICS, error.code, str(error), error.hint) from None
        if junit is not None:
            _write(junit, report)
        if as_json:
            emit_json(report)
        else:
            from agentflow.evals.report import to_text

            emit(printable(to_text(report)))
        return Exit.DONE if report.status == "passed" else Exit.FAILED

    return run_async(work)


def _told(case: CaseResult) -> None:
    """Say on stderr how a case ended, while others go on."""
    say(f"{case.case_id}: {case.status}")


def _write(file: str, report: EvalReport) -> None:
    from agentflow.evals.report import to_junit

    try:
        with open(file, "wb") as stream:
            stream.write(to_junit(report))
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror or type(error).__name__}"
        raise CommandError(Exit.USAGE, "usage", message) from error
