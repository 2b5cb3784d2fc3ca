"""A process that works on a run until a line comes: `python -m tests.integration.support.slow_run URL ID`."""

from __future__ import annotations

import asyncio
import sys

from agentflow import Runtime
from tests.integration.support.runs import Desk, chain


async def main(url: str, workflow_id: str) -> None:
    desk = Desk(pay=True)
    async with Runtime(url, services=[desk.service()]) as runtime:
        handle = await runtime.submit(chain("pay", "look"), {}, workflow_id=workflow_id)
        await desk.entered.wait()
        print("paying", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        desk.gates["pay"].set()
        await handle.result()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
