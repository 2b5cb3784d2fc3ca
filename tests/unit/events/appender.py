"""A program for the tests: appends to a log and prints what was acknowledged, one line a batch.

    python appender.py URL RUN [COUNT]

Continues the run where it ends. Prints the last offset of each batch once its future is done, or the name of
the error. Without COUNT it goes on until it is killed. Several batches are in flight at any time.
"""

from __future__ import annotations

import asyncio
import sys

from agentflow.errors import AgentflowError, RunNotFound
from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from agentflow.events.owner import this_process

IN_FLIGHT = 8


def event(run: str, offset: int) -> StoredEvent:
    data = Unknown(type="agent.processing", data={"text": "x" * 200})
    body = encode(
        Event(id="e", offset=offset, timestamp=iso(offset), type=data.type, workflow_id=run, data=data)
    )
    return StoredEvent(offset, offset, data.type, body)


async def main(url: str, run: str, count: int) -> None:
    log = open_log(url)
    epoch = await log.claim(run, this_process())
    try:
        offset = await log.last(run) + 1
    except RunNotFound:
        offset = 0
    pending: list[tuple[int, asyncio.Future[None]]] = []
    while count or pending:
        while count and len(pending) < IN_FLIGHT:
            size = 1 + offset % 5
            events = [event(run, offset + i) for i in range(size)]
            meta = RunMeta(name="kill", definition_hash="d", created_at=1) if offset == 0 else None
            pending.append(
                (offset + size - 1, log.append(Append(run, epoch, offset, events, "running", meta)))
            )
            offset += size
            count -= 1
        last, future = pending.pop(0)
        try:
            await future
            print(last, flush=True)
        except AgentflowError as error:
            print(type(error).__name__, flush=True)
            if log.failure is not None:
                print("failure", type(log.failure).__name__, flush=True)
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else -1))
