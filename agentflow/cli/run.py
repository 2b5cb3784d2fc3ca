"""`agentflow run` and `resume`: start a run, or go on with one, and follow it until it comes to rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option, run_id, settings_of, store_options

if TYPE_CHECKING:
    from agentflow.config import Config
    from agentflow.definition.loader import Definition
    from agentflow.runtime import Runtime

__all__ = ["resume", "run"]

_RESULT = (
    "Print one JSON object {workflow_id, state, output, steps, usage, duration_ms}; progress goes to stderr."
)


@click.command("run", cls=Command)
@click.argument("file", type=click.Path())
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="K=V|JSON|@FILE",
    help="The input: k=v (v is JSON if it parses, else text), a JSON value, or a JSON or YAML file;"
    " @- reads JSON from stdin. May be repeated.",
)
@click.option(
    "--id", "workflow_id", type=run_id, metavar="ID", help="The id of the run; a repetition goes on with it."
)
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label of the run. May be repeated.")
@click.option(
    "--on-unknown",
    type=click.Choice(["ask", "fail"]),
    help="When a crash leaves open whether a tool call took effect: ask a person (default), or fail.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["halt", "continue", "hold"]),
    help="After a failed step: stop, finish the other branches, or hold the run for `agentflow retry`.",
)
@click.option(
    "--input-from",
    metavar="ID[:STEP]",
    help="Take the output of another run, or of one of its steps, as the input.",
)
@click.option(
    "--as", "as_name", metavar="NAME", help="The input that --input-from gives; the others by --input."
)
@click.option("--budget", multiple=True, metavar="K=V", help="A limit, as max_tokens=50000. May be repeated.")
@json_option(_RESULT)
@store_options
def run(
    file: str,
    inputs: tuple[str, ...],
    workflow_id: str | None,
    labels: tuple[str, ...],
    on_unknown: Any,
    on_failure: str | None,
    input_from: str | None,
    as_name: str | None,
    budget: tuple[str, ...],
    as_json: bool,
    store: str | None,
    local: bool,
) -> Exit:
    """Run the workflow FILE and follow it.

    Ends when the run has ended or only a person can move it on (exit code 9). Ctrl-C parks the run: nothing
    is lost, `agentflow resume ID` goes on with it. A second Ctrl-C stops at once.
    """
    from agentflow.cli.inputs import parse_budget, parse_inputs, parse_labels
    from agentflow.definition.loader import load_file

    if as_name is not None and input_from is None:
        raise click.BadParameter("goes with --input-from", param_hint="--as")
    config = settings_of(store, on_unknown)
    options = {"on_unknown": config.on_unknown, "on_failure": on_failure}
    more: dict[str, Any] = {
        "workflow_id": workflow_id,
        "labels": parse_labels(labels),
        "options": {key: value for key, value in options.items() if value is not None},
        "budget": parse_budget(budget),
        "input_from": _source(input_from, as_name),
    }
    return _run(config, load_file(file), parse_inputs(inputs), more, as_json=as_json, store=store)


def _source(given: str | None, name: str | None) -> dict[str, str] | None:
    if given is None:
        return None
    id, _, step = given.partition(":")
    source = {"workflow_id": id, "step_id": step, "as": name}
    return {key: value for key, value in source.items() if value}


def _run(
    config: Config,
    definition: Definition,
    value: Any,
    more: dict[str, Any],
    *,
    as_json: bool,
    store: str | None,
) -> Exit:
    from agentflow.cli.follow import Follower
    from agentflow.cli.session import Interrupts, open_runtime, run_async

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, store=store, warned=definition.warnings)
        async with open_runtime(config) as runtime:
            id = more["workflow_id"]
            since = -1 if id is None else await _last_offset(runtime, id)
            handle = await runtime.submit(definition, value, by="cli", **more)
            if since >= 0:
                # The same document and input under the same id: go on with that run.
                handle = await runtime.resume(handle.workflow_id, by="cli")
            await follower.follow(runtime, handle, definition.workflow, since=since)
        return await follower.conclude()

    return run_async(work)


async def _last_offset(runtime: Runtime, run_id: str) -> int:
    """-1 when there is no such run yet."""
    from agentflow.errors import RunNotFound

    try:
        return await runtime.log.last(run_id)
    except RunNotFound:
        return -1


@click.command("resume", cls=Command)
@click.argument("id", type=run_id)
@click.option(
    "--budget", multiple=True, metavar="K=V", help="A larger limit, for a run that is out of budget."
)
@json_option(_RESULT)
@store_options
def resume(id: str, budget: tuple[str, ...], as_json: bool, store: str | None, local: bool) -> Exit:
    """Go on with the run ID and follow it.

    It was parked, paused, or left by a crash.

    Results of model and tool calls that are recorded are not repeated.
    """
    from agentflow.cli.follow import Follower
    from agentflow.cli.inputs import parse_budget
    from agentflow.cli.session import Interrupts, open_runtime, run_async
    from agentflow.errors import RunTerminal

    config, raised = settings_of(store), parse_budget(budget)

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, store=store)
        async with open_runtime(config, run_id=id) as runtime:
            row = await runtime.log.run(id)
            if row.ended:
                raise RunTerminal(f"{id} has ended ({row.state})", hint=f"agentflow show {id}")
            workflow = await runtime.graph(id)
            handle = await runtime.resume(id, budget=raised, by="cli")
            await follower.follow(runtime, handle, workflow, since=row.last_offset)
        return await follower.conclude()

    return run_async(work)
