"""`agentflow import`: makes paused runs of a state file (page 004 §14)."""

from __future__ import annotations

from pathlib import Path

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.options import json_option
from agentflow.cli.output import emit, emit_json, say
from agentflow.cli.target import Where, target_options

__all__ = ["import_states"]


@click.command("import", cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--workspace", metavar="DIR", help="The folder that the steps work in.")
@json_option("Print what became of each line as JSON.")
@target_options
def import_states(file: Path, workspace: str | None, as_json: bool, where: Where) -> Exit:
    """Make paused runs of the lines of a state file.

    FILE is what requests write as .agentflow-workflow-state.jsonl: of each run the last line counts. Results
    of stages and of steps that are done are kept; approvals and verdicts are not. `agentflow resume ID` goes
    on. A run that had ended, or is there already, is left out. Works on the store, also beside a daemon.
    """
    from agentflow.cli.requests import requests_of
    from agentflow.cli.session import open_runtime, run_async
    from agentflow.cli.target import LocalTarget
    from agentflow.errors import AgentflowError
    from agentflow.pipeline.state_file import StateFileError, import_line, read_state_file

    if where.url is not None:
        raise click.UsageError("import works on a store: name it with --store, without --url")
    config = where.config()
    folder = None if workspace is None else str(Path(workspace).absolute())
    found, problems = read_state_file(file)
    for problem in problems:
        say(f"{file}:{problem.line}: {problem.message}")

    async def work(interrupts: object) -> Exit:
        made: list[dict[str, object]] = []
        async with open_runtime(config) as runtime:
            requests = requests_of(LocalTarget(runtime), config)
            for name, members in found.items():
                outcome: dict[str, object] = {"workflow_id": name, "run": None, "problem": None}
                made.append(outcome)
                try:
                    line = import_line(members)
                    outcome["dropped"] = list(line.dropped)
                    if line.is_over:
                        outcome["problem"] = "it has ended"
                        continue
                    run = await requests.import_run(line, by="cli", workspace=folder)
                    outcome["run"] = run.workflow_id
                except (StateFileError, AgentflowError) as error:
                    is_there = error.code in ("offset_mismatch", "run_exists")
                    outcome["problem"] = "the store has a run of this id" if is_there else str(error)
        for one in [] if as_json else made:
            if one["run"] is None:
                say(f"{one['workflow_id']}: not imported: {one['problem']}")
            else:
                emit(f"{one['run']} is paused: agentflow resume {one['run']}")
        if as_json:
            emit_json(made)
        return Exit.DONE

    if not found:
        raise CommandError(Exit.NOT_FOUND, "no_states", f"{file} has no states of runs")
    return run_async(work)
