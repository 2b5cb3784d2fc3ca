"""Claims one run of a store, appends so many batches to it, and says how that went.

    python -m tests.faults.contender URL RUN BATCHES [INCARNATION]

With INCARNATION it says `ready` and waits for a line of input before it opens the store. Says `owner EPOCH`
and `ack …` as the workload does, or `refused ERROR`. A store that takes nothing now, since others have its
lock, is asked again a few times, as that error says one may.
"""

from __future__ import annotations

import asyncio
import sys

from agentflow.errors import AgentflowError, RunNotFound, StorageUnavailable
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from tests.faults.workload import blobs_of, next_batch, small_files

TRIES = 4


async def main(url: str, run: str, batches: int, incarnation: str) -> None:
    log = open_log(url)
    try:
        epoch = await log.claim(run, this_process())
        try:
            offset = await log.last(run) + 1
        except RunNotFound:
            offset = 0
        print("owner", epoch, flush=True)
        for _ in range(batches):
            batch = next_batch(run, offset, incarnation, epoch)
            for data in blobs_of(batch):
                await log.put_blob(data)
            await log.append(batch)
            offset += len(batch.events)
            print("ack", run, batch.expected, offset - 1, incarnation, flush=True)
    finally:
        await log.close()


if __name__ == "__main__":
    url, run, batches, *rest = sys.argv[1:]
    small_files()
    if rest:
        print("ready", flush=True)
        sys.stdin.readline()
    for left in reversed(range(TRIES)):
        try:
            asyncio.run(main(url, run, int(batches), *(rest or ["c"])))
        except AgentflowError as error:
            if left and isinstance(error, StorageUnavailable):
                continue
            print("refused", type(error).__name__, flush=True)
        break
