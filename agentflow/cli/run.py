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
@json_option(_RESULT)
@store_options
def run(
    file: str,
    inputs: tuple[str, ...],
    workflow_id: str | None,
    labels: tuple[str, ...],
    on_unknown: Any,
    as_json: bool,
    store: str | None,
    local: bool,
) -> Exit:
    """Run the workflow FILE and follow it.

    Ends when the run has ended or only a person can move it on (exit code 9). Ctrl-C parks the run: nothing
    is lost, `agentflow resume ID` goes on with it. A second Ctrl-C stops at once.
    """
    from agentflow.cli.inputs import parse_inputs, parse_labels
    from agentflow.definition.loader import load_file

    value, named = parse_inputs(inputs), parse_labels(labels)
    config = settings_of(store, on_unknown)
    definition = load_file(file)
    return _run(config, definition, value, workflow_id, named, as_json=as_json, store=store)


def _run(
    config: Config,
    definition: Definition,
    value: Any,
    workflow_id: str | None,
    labels: dict[str, str],
    *,
    as_json: bool,
    store: str | None,
) -> Exit:
    from agentflow.cli.follow import Follower
    from agentflow.cli.session import Interrupts, open_runtime, run_async

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, store=store, warned=definition.warnings)
        async with open_runtime(config) as runtime:
            since = -1 if workflow_id is None else await _last_offset(runtime, workflow_id)
            options = {"on_unknown": config.on_unknown} if config.on_unknown else {}
            handle = await runtime.submit(
                definition, value, workflow_id=workflow_id, labels=labels, options=options, by="cli"
            )
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
@json_option(_RESULT)
@store_options
def resume(id: str, as_json: bool, store: str | None, local: bool) -> Exit:
    """Go on with the run ID and follow it.

    It was parked, paused, or left by a crash.

    Results of model and tool calls that are recorded are not repeated.
    """
    from agentflow.cli.follow import Follower
    from agentflow.cli.session import Interrupts, open_runtime, run_async
    from agentflow.errors import RunTerminal

    config = settings_of(store)

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, store=store)
        async with open_runtime(config, run_id=id) as runtime:
            row = await runtime.log.run(id)
            if row.ended:
                raise RunTerminal(f"{id} has ended ({row.state})", hint=f"agentflow show {id}")
            workflow = await runtime.graph(id)
            handle = await runtime.resume(id, by="cli")
            await follower.follow(runtime, handle, workflow, since=row.last_offset)
        return await follower.conclude()

    return run_async(work)
