"""`agentflow run` and `resume`: start a run, or go on with one, and follow it until it comes to rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.names import resolve
from agentflow.cli.options import json_option, new_run_id, run_id
from agentflow.cli.output import emit, emit_json, say
from agentflow.cli.python_workflows import load_option
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.cli.target import Target
    from agentflow.client import RegisteredDefinition
    from agentflow.config import Config
    from agentflow.definition.loader import Definition
    from agentflow.graphs import Workflow

    Submitted = Definition | Workflow | RegisteredDefinition

__all__ = ["resume", "run"]

_NAME = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?<!\.yaml)(?<!\.yml)(?<!\.json)(@[A-Za-z0-9_][A-Za-z0-9_.+-]*)?"
)
"""A registered definition, NAME or NAME@VERSION."""
_RESULT = (
    "Print one JSON object {workflow_id, state, output, steps, usage, duration_ms} instead of the output."
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
    "--id",
    "workflow_id",
    type=new_run_id,
    metavar="ID",
    help="The id of the run; a repetition goes on with it.",
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
    "--concurrency-key",
    metavar="KEY",
    help="Of the runs of one key the oldest is at work, until it has ended; the others queue.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["queue", "reject", "cancel_previous"]),
    help="When another run holds the key: queue (default), reject this run, or cancel the others.",
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
@click.option("--model", metavar="M", help="The model of steps that name none, in place of AGENTFLOW_MODEL.")
@click.option("--quiet", "-q", is_flag=True, help="No progress: only the result, or why there is none.")
@click.option("--dry-run", is_flag=True, help="Check document, services, model and input; run nothing.")
@click.option("--detach", is_flag=True, help="Print the id of the run and leave it to the daemon.")
@json_option(_RESULT)
@target_options
@load_option
def run(
    file: str,
    inputs: tuple[str, ...],
    workflow_id: str | None,
    labels: tuple[str, ...],
    on_unknown: Any,
    on_failure: str | None,
    concurrency_key: str | None,
    on_conflict: str | None,
    input_from: str | None,
    as_name: str | None,
    budget: tuple[str, ...],
    as_json: bool,
    detach: bool,
    model: str | None,
    quiet: bool,
    dry_run: bool,
    where: Where,
) -> Exit:
    """Run the workflow FILE and follow it.

    FILE may be MODULE:WORKFLOW, a workflow built in Python: a Workflow, a WorkflowBuilder, or a function that
    returns one. With a daemon it must be one that `agentflow serve --load` has loaded, or the NAME or
    NAME@VERSION of a registered definition.

    Ends when the run has ended or only a person can move it on (exit code 9). Ctrl-C parks the run: nothing
    is lost, `agentflow resume ID` goes on with it. A second Ctrl-C stops at once.
    """
    from dataclasses import replace

    from agentflow.cli.dry_run import check_run
    from agentflow.cli.inputs import parse_budget, parse_inputs, parse_labels
    from agentflow.cli.python_workflows import is_python_workflow

    if as_name is not None and input_from is None:
        raise click.BadParameter("goes with --input-from", param_hint="--as")
    if model is not None:
        _set_model(where, model)
    config = where.config(on_unknown)
    options = {
        "on_unknown": config.on_unknown,
        "on_failure": on_failure,
        "concurrency_key": concurrency_key,
        "on_conflict": on_conflict,
    }
    more: dict[str, Any] = {
        "workflow_id": workflow_id,
        "labels": parse_labels(labels),
        "options": {key: value for key, value in options.items() if value is not None},
        "budget": parse_budget(budget),
        "input_from": _source(where, input_from, as_name),
    }
    definition, value = _subject(file, where), parse_inputs(inputs)
    if is_python_workflow(file) and where.daemon() is None:
        where = replace(where, load=(*where.load, file))  # hints name it
    if dry_run:
        return check_run(where, config, definition, value, as_json=as_json)
    if detach:
        return _detached(where, definition, value, more, as_json)
    return _run(config, definition, value, more, as_json=as_json, quiet=quiet, where=where)


def _subject(file: str, where: Where) -> Submitted:
    """Return what FILE means: a document, a workflow built in Python, or with a daemon a registered name."""
    from pathlib import Path

    from agentflow.cli.python_workflows import load_subject

    if _NAME.fullmatch(file) and not Path(file).exists() and where.daemon() is not None:
        from agentflow.client import RegisteredDefinition

        name, _, version = file.partition("@")
        return RegisteredDefinition(name, version or None)
    return load_subject(file)


def _set_model(where: Where, model: str) -> None:
    """Take the model for this process, which is over when the run is."""
    import os

    if where.daemon() is not None:
        raise click.UsageError("--model is of this process, the daemon has its own: add --local")
    os.environ["AGENTFLOW_MODEL"] = model


def _detached(where: Where, definition: Submitted, value: Any, more: dict[str, Any], as_json: bool) -> Exit:
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    if where.daemon() is None:
        raise click.UsageError("--detach leaves the run to a daemon, and none listens: `agentflow serve`")

    async def work(interrupts: Interrupts) -> Exit:
        async with open_target(where) as target:
            id = await interrupts.guard(target.submit(definition, value, **more))
            if as_json:
                emit_json(await target.reader.record(id))
            else:
                emit(id)
        return Exit.DONE

    return run_async(work)


def _source(where: Where, given: str | None, name: str | None) -> dict[str, str] | None:
    if given is None:
        return None
    id, _, step = given.partition(":")
    id = resolve(where, id)
    source = {"workflow_id": id, "step_id": step, "as": name}
    return {key: value for key, value in source.items() if value}


def _run(
    config: Config,
    definition: Submitted,
    value: Any,
    more: dict[str, Any],
    *,
    as_json: bool,
    quiet: bool,
    where: Where,
) -> Exit:
    from agentflow.cli.follow import Follower
    from agentflow.cli.python_workflows import definition_of_subject
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    known = None if isinstance(definition, tuple) else definition_of_subject(definition)
    warned = () if known is None else known.warnings

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, where=where, warned=warned, quiet=quiet)
        async with open_target(where, config=config) as target:
            id = more["workflow_id"]
            since = -1 if id is None else await _last_offset(target, id)
            id = await target.submit(definition, value, **more)
            if (key := more["options"].get("concurrency_key")) is not None:
                await _tell_holder(target, id, key)
            graph = await target.reader.graph(id) if known is None else known.workflow
            await follower.follow(target, id, graph, since=since)
        return await follower.conclude()

    return run_async(work)


async def _tell_holder(target: Target, run_id: str, key: str) -> None:
    """Say which run holds the concurrency key, if another does."""
    from agentflow.cli.output import say
    from agentflow.records.runs import CONCURRENCY_KEY_LABEL

    open_states = ("pending", "running", "waiting", "paused")
    page = await target.reader.summaries(
        label=(CONCURRENCY_KEY_LABEL, key), state=open_states, order="asc", limit=1
    )
    if page.items and (holder := page.items[0]).workflow_id != run_id:
        say(f'{run_id} waits for {holder.workflow_id} ({holder.state}), which holds the key "{key}"')


async def _last_offset(target: Target, run_id: str) -> int:
    """Return the last offset, -1 if there is no such run yet."""
    from agentflow.errors import RunNotFound

    try:
        return await target.last_offset(run_id)
    except RunNotFound:
        return -1


@click.command("resume", cls=Command)
@click.argument("id", type=run_id, required=False)
@click.option("--all", "all_runs", is_flag=True, help="All runs that are paused for --reason.")
@click.option(
    "--reason", metavar="R", help="With --all: recovery_limit, quota, budget, operator, storage or another."
)
@click.option(
    "--budget", multiple=True, metavar="K=V", help="A larger limit, for a run that is out of budget."
)
@json_option(_RESULT)
@target_options
@load_option
def resume(
    id: str | None,
    all_runs: bool,
    reason: str | None,
    budget: tuple[str, ...],
    as_json: bool,
    where: Where,
) -> Exit:
    """Go on with the run ID and follow it, or with all.

    Without ID and --all: with the latest request that has not ended.

    A run that was parked, paused, or left by a crash; with --all every one that is paused for --reason.

    Results of model and tool calls that are recorded are not repeated.
    """
    from agentflow.cli.follow import Follower
    from agentflow.cli.inputs import parse_budget
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target
    from agentflow.definition.pipeline_nodes import PIPELINE
    from agentflow.errors import RunTerminal

    if id is not None and all_runs:
        raise click.UsageError("give the ID of a run, or --all with --reason R")
    if all_runs != (reason is not None):
        raise click.UsageError("--all and --reason R belong together")
    raised = parse_budget(budget)
    if all_runs:
        return _resume_all(reason or "", raised, as_json=as_json, where=where)

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, where=where)
        async with open_target(where, run_id=id) as target:
            found = id if id is not None else await _latest_request(target)
            record = await target.reader.record(found)
            workflow = await target.reader.graph(found)
            is_final = PIPELINE in workflow.metadata and record.state != "cancelled"
            if record.ended_at is not None and not is_final:
                raise RunTerminal(f"{found} has ended ({record.state})", hint=f"agentflow show {found}")
            await target.tell("resume", found, budget=raised)
            await follower.follow(target, found, workflow, since=record.last_offset)
        return await follower.conclude()

    return run_async(work)


async def _latest_request(target: Target) -> str:
    """Return the caller's latest request that has not ended. Raises CommandRefused (`no_resumable_run`)."""
    from agentflow.errors import CommandRefused
    from agentflow.records.pipeline import REQUESTER_LABEL, requester_of

    page = await target.reader.summaries(
        label=(REQUESTER_LABEL, requester_of("cli")),
        state=("pending", "running", "waiting", "paused"),
        limit=1,
    )
    if not page.items:
        raise CommandRefused(
            "no request waits to go on", code="no_resumable_run", hint="give the ID of a run"
        )
    return page.items[0].workflow_id


def _resume_all(reason: str, budget: dict[str, Any] | None, *, as_json: bool, where: Where) -> Exit:
    """Resume the runs; without a daemon this process works on them until each of them rests."""
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    async def work(interrupts: Interrupts) -> Exit:
        async with open_target(where) as target:
            found = await interrupts.guard(target.resume_all(reason, budget))
            if not as_json:
                for run in found.failed:
                    say(f"{run.workflow_id} stays paused: {run.message}")
                emit(f"{len(found.resumed)} resumed, {len(found.failed)} not")
            if target.parks:
                for run_id in found.resumed:
                    await interrupts.guard(target.rest(run_id))
        if as_json:
            emit_json(found)
        return Exit.FAILED if found.failed else Exit.DONE

    return run_async(work)
