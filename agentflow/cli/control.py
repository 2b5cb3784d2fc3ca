"""`agentflow answer` and `cancel`: commands to a run (page 000 §11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.options import json_option, run_id, settings_of, store_options
from agentflow.cli.output import emit

if TYPE_CHECKING:
    from agentflow.runtime import Runtime

__all__ = ["answer", "cancel"]


@click.command("answer", cls=Command)
@click.argument("id", type=run_id)
@click.argument("request")
@click.argument("value")
@json_option("Print the result of the run as JSON, as `run --json` does.")
@store_options
def answer(id: str, request: str, value: str, as_json: bool, store: str | None, local: bool) -> Exit:
    """Answer the open REQUEST of the run ID.

    Then the run is followed, as by `resume`.

    VALUE is JSON if it parses, else text; where a choice is asked for, its word is enough.
    """
    from agentflow.cli.follow import Follower
    from agentflow.cli.inputs import parse_value
    from agentflow.cli.session import Interrupts, open_runtime, run_async

    config, given = settings_of(store), parse_value(value)

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, store=store)
        async with open_runtime(config, run_id=id) as runtime:
            row = await runtime.log.run(id)
            workflow = await runtime.graph(id)
            shaped = await _shaped(runtime, id, request, given)
            handle = await runtime.answer(id, request, shaped, via="cli")
            await follower.follow(runtime, handle, workflow, since=row.last_offset)
        return await follower.conclude()

    return run_async(work)


async def _shaped(runtime: Runtime, run_id: str, request_id: str, value: Any) -> Any:
    """`retry` for `{"choice": "retry"}` where the request asks for a choice."""
    found = {request.request_id: request for request in await runtime.requests(run_id)}
    request = found.get(request_id)
    if request is None:
        raise CommandError(
            Exit.NOT_FOUND,
            "unknown_request",
            f"{run_id} has no open request {request_id}",
            f"`agentflow show {run_id}` lists them",
        )
    schema: Any = request.response_schema
    if not isinstance(value, str) or not isinstance(schema, Mapping):
        return value
    properties: Any = cast("Mapping[str, Any]", schema).get("properties")
    choice: Any = (
        cast("Mapping[str, Any]", properties).get("choice") if isinstance(properties, Mapping) else None
    )
    if isinstance(choice, Mapping) and value in cast("Mapping[str, Any]", choice).get("enum", ()):
        return {"choice": value}
    return value


@click.command("cancel", cls=Command)
@click.argument("id", type=run_id)
@click.option("--reason", help="Why; it stands in the log.")
@store_options
def cancel(id: str, reason: str | None, store: str | None, local: bool) -> Exit:
    """Cancel the run ID.

    What is open is closed and recorded, and the log ends.
    """
    from agentflow.cli.session import Interrupts, open_runtime, run_async
    from agentflow.errors import RunTerminal

    config = settings_of(store)

    async def work(interrupts: Interrupts) -> Exit:
        async with open_runtime(config, run_id=id) as runtime:
            row = await runtime.log.run(id)
            if row.ended and row.state != "cancelled":
                raise RunTerminal(f"{id} has ended ({row.state})")
            if not row.ended:
                handle = await runtime.resume(id, by="cli")
                await handle.cancel(reason)
                await interrupts.guard(_ended(runtime, id))
        emit(f"{id} is cancelled")
        return Exit.DONE

    return run_async(work)


async def _ended(runtime: Runtime, run_id: str) -> None:
    """Until the log has its last event."""
    from contextlib import aclosing

    async with aclosing(runtime.hub.batches(run_id)) as batches:
        async for _ in batches:
            pass
