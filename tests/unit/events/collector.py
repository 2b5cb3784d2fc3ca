"""A program for the tests: makes runs that end, trims, deletes and sweeps them, and says what is durable.

    python collector.py URL SEED

Goes on until it is killed. Prints `made RUN LAST`, `trimmed RUN EARLIEST`, `deleted RUN` once each is
acknowledged. Every run names a blob of its own and one that all runs share.
"""

from __future__ import annotations

import asyncio
import random
import sys

from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from agentflow.events.segments import store

LATER = 4_000_000_000_000_000
SHARED = b"shared by all"


def event(run: str, offset: int, type: str, **data: object) -> StoredEvent:
    value = Unknown(type=type, data={"text": "x" * 300, **data})
    body = encode(Event(id="e", offset=offset, timestamp=iso(offset), type=type, workflow_id=run, data=value))
    return StoredEvent(offset, offset, type, body)


async def main(url: str, seed: int) -> None:
    store.SEGMENT_BYTES = 20_000  # so that there is always something to rewrite
    luck = random.Random(seed)
    log = open_log(url)
    alive = [row.workflow_id for row in (await log.runs(state="completed", limit=500)).items]
    number = seed * 10_000
    while True:
        number += 1
        run = f"wf_{number}"
        names = [await log.put_blob(SHARED), await log.put_blob(b"of " + run.encode())]
        count = luck.randint(2, 30)
        values = [{"$blob": name, "size": 1, "type": "json"} for name in names]
        events = [event(run, 0, "workflow.started", values=values)]
        events += [event(run, n, "agent.processing") for n in range(1, count)]
        events.append(event(run, count, "workflow.completed"))
        meta = RunMeta(name=None, definition_hash="d", created_at=number)
        await log.append(Append(run, 1, 0, events, "running", meta))
        print("made", run, count, flush=True)
        alive.append(run)
        if luck.random() < 0.5:
            victim = alive.pop(luck.randrange(len(alive)))
            print("deleting", victim, flush=True)
            await log.delete(victim, 1)
            print("deleted", victim, flush=True)
        if alive and luck.random() < 0.3 and log.trims:
            victim, before = luck.choice(alive), luck.randint(0, 20)
            print("trimming", victim, before, flush=True)
            print("trimmed", victim, await log.trim(victim, before), flush=True)
        if luck.random() < 0.3:
            await log.sweep(LATER)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
