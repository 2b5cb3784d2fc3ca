"""Functions that leave a line in a file when they begin and when they have had their effect."""

import asyncio
import os
from pathlib import Path

from agentflow import ToolContext, function


def note(kind: str, key: str) -> None:
    with Path(os.environ["EFFECTS"]).open("a", encoding="utf-8") as file:
        file.write(f"{kind} {key}\n")
        file.flush()
        os.fsync(file.fileno())


@function(idempotent=True)
async def slow(n: int, ctx: ToolContext) -> dict:
    """Takes a moment, in two halves."""
    note("begin", ctx.idempotency_key)
    await asyncio.sleep(0.01)
    note("done", ctx.idempotency_key)
    return {"n": n + 1}


@function(idempotent=True)
def slow_sync(n: int, ctx: ToolContext) -> dict:
    """The same, in a thread."""
    note("begin", ctx.idempotency_key)
    note("done", ctx.idempotency_key)
    return {"n": n + 1}
