"""Runs payments on a store whose files may not grow for a while:
`python -m tests.faults.stalled.child STORE`.

Prints one line per finding; the parent judges them.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from agentflow import Runtime
from agentflow.errors import StorageUnavailable
from agentflow.runtime.event_bus import CommitFailed
from agentflow.runtime.run_outbox import RunOutbox
from tests.integration.support.runs import Desk, chain, must_be_sound


def files_may_grow(to: int | None) -> None:
    """Let no file of this process grow beyond `to` bytes; None: any size."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if to is None else to, hard))


def count_refusals(of: int) -> asyncio.Event:
    """Return an event that is set when the store has refused the batches of so many runs."""
    refused: set[int] = set()
    all_were = asyncio.Event()
    original = RunOutbox.refused

    def noting(self: RunOutbox, message: CommitFailed) -> float | None:
        wait = original(self, message)
        refused.add(id(self))
        if len(refused) == of:
            all_were.set()
        return wait

    RunOutbox.refused = noting
    return all_were


async def main(path: str) -> None:
    desk = Desk(pay=True)
    all_were_refused = count_refusals(20)
    async with Runtime(f"sqlite:{path}", services=[desk.service(max_concurrency=50)]) as runtime:
        graph = runtime.load(chain("look", "pay", "look"))
        handles = [await runtime.submit(graph, {}) for _ in range(20)]
        await desk.until(lambda: len(desk.at_work) == len(handles))
        files_may_grow(max(f.stat().st_size for f in Path(path).parent.iterdir()))
        refused = 0
        for _ in range(3):
            try:
                await runtime.submit(graph, {"text": "x" * 200_000})
            except StorageUnavailable:
                refused += 1
        print("refused", refused, flush=True)
        desk.gates["pay"].set()
        await desk.until(lambda: not desk.at_work)
        await asyncio.wait_for(all_were_refused.wait(), 30)
        stuck = sum([(await runtime.log.run(h.workflow_id)).state == "running" for h in handles])
        print("stuck", stuck, flush=True)
        files_may_grow(None)
        for handle in handles:
            result = await handle.result()
            events = await must_be_sound(runtime, handle.workflow_id)
            asked = any(e.type == "input.requested" for e in events)
            paused = [e.data.reason for e in events if e.type == "workflow.paused"]
            print("run", result.state, asked, *paused, flush=True)
    print("twice", sum(n > 1 for n in desk.executions.values()), len(desk.executions), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
