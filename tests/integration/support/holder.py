"""A process that owns a run and holds its payment up: `python -m tests.integration.support.holder URL ID`."""

from __future__ import annotations

import asyncio
import sys

from agentflow import Runtime
from tests.integration.support.runs import Desk, chain


async def main(url: str, workflow_id: str) -> None:
    desk = Desk(pay=True)
    async with Runtime(url, services=[desk.service()]) as runtime:
        await runtime.submit(chain("pay", "look"), {}, workflow_id=workflow_id)
        await desk.entered.wait()
        print("paying", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
