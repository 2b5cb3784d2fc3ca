"""A daemon's life in a process of its own: `python -m tests.faults.killed.crowd STORE INNOCENTS`.

The first life submits innocent runs and one whose function kills the process; each later one takes up what is
left. Prints `state RUN STATE` for every run once all of them rest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from agentflow import Runtime, Service, ToolContext, function
from tests.integration.support.runs import chain

POISON = "wf_poison"


@function(side_effect="read")
async def look(ctx: ToolContext) -> dict:
    """Looks, or ends the process as the kernel would."""
    await asyncio.sleep(0.02)
    if ctx.workflow_id == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def main(store: str, innocents: int) -> None:
    service = Service.of("desk", look)
    async with Runtime(f"sqlite:{store}", services=[service]) as runtime:
        left = await runtime.recover()
        if not left:
            graph = runtime.load(chain("look", "look"))
            ids = [*(f"wf_{i}" for i in range(innocents)), POISON]
            for run in ids:
                await runtime.submit(graph, {}, workflow_id=run)
            left = ids
        for run in left:
            result = await (await runtime.attach(run)).result()
            print("state", run, result.state, flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
