"""`agentflow list`, `show` and `events`: what the store knows of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option, run_id, settings_of, store_options
from agentflow.cli.output import columns, emit, emit_bytes, emit_json, printable

if TYPE_CHECKING:
    from agentflow.events.log import RunRow
    from agentflow.runtime import RunRecord, Runtime

__all__ = ["events", "list_runs", "show"]

_STATES = ["pending", "running", "waiting", "paused", "completed", "failed", "cancelled"]
_SHOWN = 2_000  # characters of an input or output in `show`


@click.command("list", cls=Command)
@click.option("--state", type=click.Choice(_STATES), help="Runs in this state only.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="At most so many.")
@json_option("Print {items: [run record]} as JSON.")
@store_options
def list_runs(state: str | None, limit: int, as_json: bool, store: str | None, local: bool) -> Exit:
    """List the runs of the store, newest first."""
    from agentflow.cli.session import Interrupts, open_runtime, run_async, store_exists

    config = settings_of(store)

    async def work(interrupts: Interrupts) -> Exit:
        async with open_runtime(config) as runtime:
            if as_json:
                emit_json({"items": await runtime.list(limit=limit, state=state)})
            else:
                emit(_table(await runtime.rows(limit=limit, state=state)))
        return Exit.DONE

    if not store_exists(config.store):
        # A store that nobody has written to has no runs, and reading must not make it.
        if as_json:
            emit_json({"items": []})
        else:
            emit(_table([]))
        return Exit.DONE
    return run_async(work)


def _table(rows: list[RunRow]) -> str:
    from agentflow.events.envelope import iso

    if not rows:
        return "no runs"
    return columns(
        ("ID", "STATE", "CREATED", "EVENTS", "WORKFLOW"),
        [
            (r.workflow_id, _state(r), iso(r.created_at)[:19] + "Z", str(r.last_offset + 1), r.name or "")
            for r in rows
        ],
    )


def _state(row: RunRow) -> str:
    """The state, and whether nobody works on a run that should be at work."""
    return f"{row.state}, left" if _left(row) else row.state


def _left(row: RunRow) -> bool:
    return row.state in ("pending", "running") and (row.owner is None or not row.owner.alive())


@click.command("show", cls=Command)
@click.argument("id", type=run_id)
@json_option("Print the run record as JSON.")
@store_options
def show(id: str, as_json: bool, store: str | None, local: bool) -> Exit:
    """Show the run ID: state, steps, usage, output.

    Also what it waits for, with the command that answers it.
    """
    from agentflow.cli.session import Interrupts, open_runtime, run_async

    config = settings_of(store)

    async def work(interrupts: Interrupts) -> Exit:
        async with open_runtime(config, run_id=id) as runtime:
            if as_json:
                emit_json(await runtime.record(id))
            else:
                await _show(runtime, id, store)
        return Exit.DONE

    return run_async(work)


async def _show(runtime: Runtime, id: str, store: str | None) -> None:
    from agentflow.cli.follow import question_text, resume_command
    from agentflow.cli.target import Where

    record, row = await runtime.record(id), await runtime.log.run(id)
    emit("\n".join(f"{name:<11}{printable(text)}" for name, text in _facts(record)))
    emit("")
    steps = [(i, s.state, str(s.attempt) if s.attempt else "") for i, s in record.steps.items()]
    emit(columns(("STEP", "STATE", "ATTEMPT"), steps))
    if record.state == "waiting":
        emit("")
        for question in await runtime.requests(id):
            emit(question_text(question, Where(store, None, False)))
    elif record.state == "paused" or _left(row):
        emit(f"\ngo on with: {resume_command(id, Where(store, None, False))}")


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    from agentflow.cli.progress import count, duration

    definition, usage = record.definition, record.usage
    named = definition.name or definition.id
    facts = [
        ("run", record.workflow_id),
        ("state", record.state + (f" ({record.pause})" if record.pause else "")),
        ("workflow", f"{named} {definition.version or ''}".rstrip() + f" ({definition.format})"),
        ("created", record.created_at),
    ]
    if record.duration_ms is not None:
        facts.append(("duration", duration(record.duration_ms)))
    facts.append(("events", str(record.last_offset + 1)))
    if record.labels:
        facts.append(("labels", ", ".join(f"{k}={v}" for k, v in sorted(record.labels.items()))))
    cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
    facts.append(
        (
            "usage",
            f"{count(usage.input_tokens + usage.output_tokens, 'token')}, "
            f"{count(usage.model_calls, 'model call')}, {count(usage.tool_calls, 'tool call')}{cost}",
        )
    )
    facts.append(("input", _short(record.input)))
    if record.error is not None:
        facts.append(("error", f"{record.error.code}: {record.error.message}"))
    if record.state == "completed":
        facts.append(("output", _short(record.output)))
    return facts


def _short(value: Any) -> str:
    import msgspec

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… (cut; --json has all)"


@click.command("events", cls=Command)
@click.argument("id", type=run_id)
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Begin after offset N; 0, the default, is from the beginning.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="T",
    help="These types or families (`tool.*`) only; a comma separates several. May be repeated.",
)
@click.option(
    "--follow/--no-follow",
    default=True,
    help="Go on to the terminal event (default), or end at the present end.",
)
@json_option("Events are printed as NDJSON in any case.")
@store_options
def events(
    id: str,
    offset: int,
    types: tuple[str, ...],
    follow: bool,
    as_json: bool,
    store: str | None,
    local: bool,
) -> Exit:
    """Print the events of the run ID as NDJSON.

    One event a line, the bytes as they are stored, until the run has ended.
    """
    from contextlib import aclosing

    from agentflow.cli.session import Interrupts, open_runtime, run_async

    config, wanted = settings_of(store), _types(types)

    async def work(interrupts: Interrupts) -> Exit:
        async with open_runtime(config, run_id=id) as runtime:

            async def copy() -> None:
                stream = runtime.hub.batches(id, offset or -1, follow=follow, types=wanted)
                async with aclosing(stream) as batches:
                    async for batch in batches:
                        emit_bytes([event.body for event in batch])

            await interrupts.guard(copy())
        return Exit.DONE

    return run_async(work)


def _types(given: tuple[str, ...]) -> list[str] | None:
    from agentflow.events.filters import TypeFilter

    types = [part.strip() for text in given for part in text.split(",")]
    try:
        TypeFilter(types)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--type") from None
    return types or None
