"""`agentflow list`, `show` and `events`: the runs of a store."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import ExportedRun, json_option, run_or_file
from agentflow.cli.output import emit, emit_bytes, emit_json, is_terminal, printable, say
from agentflow.cli.target import RemoteTarget, StoreTarget, Where, read_only_option, target_options

if TYPE_CHECKING:
    from agentflow.records.runs import RunRecord

__all__ = ["events", "list_runs", "show"]

_STATES = ["pending", "running", "waiting", "paused", "completed", "failed", "cancelled"]
_SHOWN = 2_000  # characters of an input or output in `show`


@click.command("list", cls=Command)
@click.option("--state", type=click.Choice(_STATES), help="Runs in this state only.")
@click.option("--name", help="Runs of this workflow only.")
@click.option("--label", metavar="K=V", help="Runs with this label only.")
@click.option("--since", metavar="TIME", help="Runs begun since then: 30m, 2h, 7d, or a date or time.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="At most so many.")
@json_option("Print {items: [run record]} as JSON.")
@target_options
@read_only_option
def list_runs(
    state: str | None,
    name: str | None,
    label: str | None,
    since: str | None,
    limit: int,
    as_json: bool,
    where: Where,
) -> Exit:
    """List the runs of the store, newest first."""
    from agentflow.cli.listing import list_table, parse_label, parse_since
    from agentflow.cli.session import Interrupts, require_named_store, run_async, store_exists
    from agentflow.cli.target import open_reader

    query: dict[str, Any] = {
        "state": state,
        "name": name,
        "label": parse_label(label),
        "since": parse_since(since),
    }

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where) as target:
            if as_json:
                items = await interrupts.guard(target.records(limit=limit, **query))
                damaged = {"damaged": sorted(target.damaged)} if target.damaged else {}
                emit_json({"items": items} | damaged)
            else:
                emit(await interrupts.guard(_table(target, limit, query)))
            _warn_damaged(target.damaged)
        return Exit.DONE

    if where.daemon() is None and not store_exists(where.config().store):
        # A store that was never written to has no runs, and reading must not make it.
        require_named_store(where)
        if as_json:
            emit_json({"items": []})
        else:
            emit(list_table([]))
        return Exit.DONE
    return run_async(work)


async def _table(target: StoreTarget | RemoteTarget, limit: int, query: dict[str, Any]) -> str:
    from agentflow.cli.listing import list_table

    runs, left = await target.listed(limit=limit, **query), set[str]()
    if isinstance(target, StoreTarget):
        at_work = [run.workflow_id for run in runs if run.state in ("pending", "running")]
        left = {workflow_id for workflow_id in at_work if await target.is_left(workflow_id)}
    return list_table(runs, left)


def _warn_damaged(damaged: set[str]) -> None:
    from agentflow.events.rows import VERIFY_HINT

    for workflow_id in sorted(damaged):
        say(printable(f"warning: {workflow_id} is damaged and cannot be shown; {VERIFY_HINT}"))


@click.command("show", cls=Command)
@click.argument("id", type=run_or_file)
@json_option("Print the run record as JSON.")
@target_options
@read_only_option
def show(id: str, as_json: bool, where: Where) -> Exit:
    """Show the run ID: state, steps, usage, output.

    Also what it waits for, with the command that answers it. ID may be an exported .ndjson file.
    """
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:
            if as_json:
                emit_json(await interrupts.guard(target.reader.record(str(id))))
            else:
                await interrupts.guard(_show(target, id, where))
        return Exit.DONE

    return run_async(work)


async def _show(target: StoreTarget | RemoteTarget, id: str, where: Where) -> None:
    from agentflow.cli.run_reports import report_of

    record = await target.reader.record(str(id))
    report = await report_of(
        target,
        record,
        where,
        name=id,
        is_left=isinstance(target, StoreTarget) and await target.is_left(str(id)),
        is_export=isinstance(id, ExportedRun),
    )
    emit("\n".join(f"{name:<11}{printable(text)}" for name, text in _facts(record)))
    emit(f"\n{report.table()}")
    reasons = report.reasons()
    if reasons:
        emit(f"\n{reasons}")


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    from agentflow.cli.progress import count, duration, token_text

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
            f"{token_text(usage)}, "
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
@click.argument("id", type=run_or_file)
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
@click.option(
    "--deltas",
    is_flag=True,
    help="Between the events, the text of model calls while the daemon makes them.",
)
@json_option("NDJSON on a terminal too; in a pipe it is NDJSON in any case.")
@target_options
@read_only_option
def events(
    id: str,
    offset: int,
    types: tuple[str, ...],
    follow: bool,
    deltas: bool,
    as_json: bool,
    where: Where,
) -> Exit:
    """Print the events of the run ID, until it has ended.

    On a terminal: time, step and what happened in words. In a pipe, or with --json: NDJSON, one event a line,
    the bytes as they are stored. ID may be an exported .ndjson file.
    """
    import sys

    from agentflow.cli.happenings import Happenings
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_reader

    wanted = _types(types)
    happenings = None if as_json or deltas or not is_terminal(sys.stdout) else Happenings()

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where, run_id=id) as target:

            async def copy() -> None:
                to_the_end = follow and not isinstance(id, ExportedRun)  # a file does not grow
                stream = target.lines(id, offset or None, follow=to_the_end, types=wanted, deltas=deltas)
                async with aclosing(stream) as lines:
                    async for line in lines:
                        if happenings is None:
                            emit_bytes([line])
                        else:
                            emit("\n".join(happenings.lines(line)))

            await interrupts.guard(copy())
        return Exit.DONE

    return run_async(work)


def _types(given: tuple[str, ...]) -> list[str] | None:
    from agentflow.cli.happenings import check_types
    from agentflow.events.filters import TypeFilter

    types = [part.strip() for text in given for part in text.split(",")]
    try:
        TypeFilter(types)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--type") from None
    check_types(types)
    return types or None
