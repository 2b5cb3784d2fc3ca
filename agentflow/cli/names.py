"""Short names of runs: a unique prefix of an id, `@last`, `@failed`, `@waiting`; shell completion.

A name is resolved before its command begins, by a lookup of its own: where the id is whole nothing is asked.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agentflow.cli.errors import CommandError, Exit

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from agentflow.cli.target import Where
    from agentflow.events.log import EventLog

__all__ = ["NAMES", "RunName", "complete_parts", "complete_runs", "resolve", "resolve_all"]

NAMES: dict[str, str | None] = {"@last": None, "@failed": "failed", "@waiting": "waiting"}
"""A name to the state of the newest run that it means; None: any state."""

T = TypeVar("T")

_GENERATED = re.compile(r"wf_[0-9A-HJKMNP-TV-Z]{26}")
_MAX_CANDIDATES = 10
_MAX_COMPLETIONS = 100


class RunName(str):
    """What the user gave for a run, until it is resolved to the id."""

    __slots__ = ()


def resolve_all(where: Where, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command with each RunName resolved."""
    return {key: resolve(where, v) if isinstance(v, RunName) else v for key, v in given.items()}


def resolve(where: Where, name: str) -> str:
    """Return the id that a name means; a name that fits no run is returned as an id.

    Raises CommandError if several runs begin with the prefix, or no run is in the state that `@NAME` means.
    """
    if _GENERATED.fullmatch(name):
        return str(name)
    from agentflow.cli.session import Interrupted, Interrupts, run_async

    found: list[str] = []

    async def work(interrupts: Interrupts) -> Exit:
        found.append(await interrupts.guard(_resolve(where, str(name))))
        return Exit.DONE

    if run_async(work) is Exit.INTERRUPTED:
        raise click.Abort from Interrupted()
    return found[0]


async def _resolve(where: Where, name: str) -> str:
    if name in NAMES:
        state = NAMES[name]
        newest = await _runs(where, state=state, limit=1)
        if newest:
            return newest[0][0]
        which = "there is no run" if state is None else f"no run is {state}"
        raise CommandError(Exit.NOT_FOUND, "workflow_not_found", f"{name}: {which}", "agentflow list")
    prefix = name if name.startswith("wf_") else f"wf_{name}"
    rows = await _runs(where, prefix=prefix, limit=_MAX_CANDIDATES + 1)
    ids = [row[0] for row in rows]
    if len(ids) == 1:
        return ids[0]
    if not ids or prefix in ids:
        return prefix
    if len(ids) > _MAX_CANDIDATES and await _exists(where, prefix):
        return prefix
    shown = "\n".join(f"    {run_id}  {state}  {named}" for run_id, state, named in rows[:_MAX_CANDIDATES])
    more = "\n    and more" if len(ids) > _MAX_CANDIDATES else ""
    raise CommandError(
        Exit.USAGE,
        "ambiguous_id",
        f"several runs begin with {prefix}",
        f"give more of the id:\n{shown}{more}",
    )


async def _exists(where: Where, run_id: str) -> bool:
    from agentflow.errors import RunNotFound

    async with _opened(where) as source:
        try:
            await (source.run(run_id) if hasattr(source, "run") else source.record(run_id))
        except RunNotFound:
            return False
    return True


async def _runs(where: Where, **query: Any) -> list[tuple[str, str, str]]:
    """Return id, state and name of the newest runs that fit."""
    async with _opened(where) as source:
        if source is None:
            return []
        page = await (source.runs(**query) if hasattr(source, "runs") else source.summaries(**query))
        return [(row.workflow_id, row.state, row.name or "") for row in page.items]


@asynccontextmanager
async def _opened(where: Where) -> AsyncGenerator[Any]:
    """Return a log to read or a client, as the flags say; None where there is no store."""
    url = where.daemon()
    if url is not None:
        from agentflow.client import Client

        async with Client(url) as client:
            yield client
        return
    from agentflow.cli.session import store_exists
    from agentflow.events.open import open_log

    store = where.config().store
    if not store_exists(store):
        yield None
        return
    log: EventLog = open_log(store, read_only=store.startswith("sqlite:"))
    try:
        yield log
    finally:
        await log.close()


# -- completion ------------------------------------------------------------------------------------


def complete_runs(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the ids that begin with what is typed, newest first, and the names with `@`."""
    from click.shell_completion import CompletionItem

    if incomplete.startswith("@"):
        return [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]
    prefix = (
        incomplete if incomplete.startswith("wf_") or "wf_".startswith(incomplete) else f"wf_{incomplete}"
    )
    rows = _quietly(_runs(_where(context), prefix=prefix, limit=_MAX_COMPLETIONS)) or []
    return [CompletionItem(run_id, help=f"{state} {name}".strip()) for run_id, state, name in rows]


def complete_parts(*kinds: str) -> Any:
    """Return a completion of the `steps` or open `requests` of the run that the ID argument names."""

    def complete(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # Where the value of an option is completed, click has not come to the arguments.
        run = context.params.get("id") or next((a for a in context.args if not a.startswith("-")), None)
        if not isinstance(run, str):
            return []
        found: list[str] = _quietly(_parts(_where(context), run, kinds)) or []
        return [CompletionItem(part) for part in found if part.startswith(incomplete)]

    return complete


async def _parts(where: Where, name: str, kinds: Sequence[str]) -> list[str]:
    from agentflow.cli.target import open_reader

    run_id = await _resolve(where, name)
    async with open_reader(where, run_id=run_id) as target:
        requests = await target.reader.requests(run_id) if "requests" in kinds else []
        steps = list((await target.reader.record(run_id)).steps) if "steps" in kinds else []
    waiting = [request.step_id for request in requests]
    return [*(r.request_id for r in requests), *sorted(steps, key=lambda step: step not in waiting)]


def _where(context: click.Context) -> Where:
    from agentflow.cli.target import Where

    given = context.params
    return Where(given.get("store"), given.get("url"), bool(given.get("local")))


def _quietly(work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`; None if it fails, because a completion must not print errors."""
    import asyncio

    from agentflow.errors import AgentflowError

    try:
        return asyncio.run(work)
    except (AgentflowError, CommandError, click.ClickException, OSError):
        return None
