"""The program that the fault suites torment: it appends to a store and says what was promised.

    python -m tests.faults.workload URL INCARNATION [ROUNDS]

Several runs at once, batches in flight together, blobs and graphs, snapshots, runs that end and are trimmed
or deleted, sweeps, a reader beside it all; files are kept small, so that segments are closed and checkpoints
made all the time. What an event holds, and where batches begin, follows from the run and the offset alone, so
that any copy of the store can be judged.

Each line of output is a promise, written once it holds (see `Promises`). A store that exists is continued.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import stat
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from zlib import crc32

from agentflow.errors import RunNotFound
from agentflow.events import blobs
from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append, EventLog, RunMeta
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.events.segments import store as segment_store
from agentflow.events.sqlite import checkpoint, writer

__all__ = [
    "GRAPH",
    "RUNS",
    "SIZES",
    "T0",
    "all_blobs",
    "blob",
    "blob_name",
    "blobs_of",
    "boundaries",
    "event",
    "next_batch",
    "run_workload",
    "small_files",
]

T0 = 1_700_000_000_000_000
RUNS = ("wf_a", "wf_b", "wf_c")
GRAPH = "g" * 8

_LARGE_BYTES = 2_000

SIZES = {
    (segment_store, "SEGMENT_BYTES"): 12_000,
    (writer, "_CHECKPOINT_BYTES"): 20_000,
    (checkpoint, "_LONG_WAL_FRAMES"): 24,
}

Say = Callable[[str], object]


def small_files() -> None:
    """Let segments close and checkpoints come after some KB instead of MB."""
    for (module, name), size in SIZES.items():
        setattr(module, name, size)


def batch_size(run: str, offset: int) -> int:
    """How many events the batch has that begins at `offset`."""
    return 1 + crc32(f"{run} {offset}".encode()) % 4


def boundaries(run: str, length: int) -> bool:
    """Whether a log of so many events ends where a batch does."""
    offset = 0
    while offset < length:
        offset += batch_size(run, offset)
    return offset == length


def blob(run: str, offset: int) -> bytes | None:
    """The blob that the event names, if any; several events name the same."""
    if run not in RUNS or crc32(f"{offset} {run}".encode()) % 6:
        return None
    return f"blob of {run} {offset // 25 % 2} ".encode() * 40


@cache
def all_blobs() -> set[bytes]:
    """Every blob that any event may name."""
    found = {blob(run, offset) for run in RUNS for offset in range(100)}
    return {data for data in found if data is not None}


def blobs_of(batch: Append) -> list[bytes]:
    """The blobs that the events of a batch name."""
    return [data for e in batch.events if (data := blob(batch.workflow_id, e.offset)) is not None]


def blob_name(data: bytes) -> str:
    """What the store must call it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def event(run: str, offset: int, incarnation: str, type: str = "agent.processing") -> StoredEvent:
    """The event that this incarnation of the program writes there."""
    id = f"{incarnation}.{run}.{offset}"
    size = crc32(id.encode()) % 900 if offset % 9 else 5_000
    data: dict[str, object] = {"text": (id + " ") * (1 + size // len(id))}
    named = blob(run, offset)
    if named is not None:
        data["$blob"] = blob_name(named)
    value = crc32(f"{run} {offset}".encode()) % 5
    if value < 2:  # several events hold the same; below 2 kB it is shared by place, above it is a blob
        data["input"] = {"shared": f"value of {run} {offset // 15 % 2} " * (70 if value else 140)}
    ts = T0 + offset
    envelope = Event(
        id=id,
        offset=offset,
        timestamp=iso(ts),
        type=type,
        workflow_id=run,
        data=Unknown(type=type, data=data),
    )
    return _stored(offset, ts, type, encode(envelope))


def _stored(offset: int, ts: int, type: str, body: bytes) -> StoredEvent:
    """The stored form of an event, in which a value above 2 kB is a blob."""
    large, blobs.LARGE_BYTES = blobs.LARGE_BYTES, _LARGE_BYTES
    try:
        return StoredEvent(offset, ts, type, *blobs.extract_blobs(body, dict[str, Any]))
    finally:
        blobs.LARGE_BYTES = large


def next_batch(run: str, offset: int, incarnation: str, epoch: int) -> Append:
    """The batch that begins at `offset`."""
    meta = RunMeta(name="faults", definition_hash=GRAPH, created_at=T0, labels={"run": run})
    events = [event(run, offset + k, incarnation) for k in range(batch_size(run, offset))]
    return Append(run, epoch, offset, events, "running", meta if offset == 0 else None)


def whole_run(run: str, incarnation: str) -> Append:
    """A run that begins and ends with one batch."""
    size = batch_size(run, 0)
    events = [event(run, k, incarnation) for k in range(size - 1)]
    events.append(event(run, size - 1, incarnation, "workflow.completed"))
    meta = RunMeta(name="short", definition_hash=GRAPH, created_at=T0 + 1, labels={})
    return Append(run, 1, 0, events, None, meta)


class _Writer:
    """Appends batch after batch to one run."""

    def __init__(self, log: EventLog, run: str, incarnation: str, say: Say) -> None:
        self.log, self.run, self.incarnation, self.say = log, run, incarnation, say
        self.offset = self.epoch = 0

    async def begin(self) -> None:
        self.epoch = await self.log.claim(self.run, this_process())
        try:
            self.offset = await self.log.last(self.run) + 1
        except RunNotFound:
            self.offset = 0

    async def append(self, batch: Append) -> None:
        await self.log.append(batch)
        last = batch.expected + len(batch.events) - 1
        self.say(f"ack {batch.workflow_id} {batch.expected} {last} {self.incarnation}")

    def submit(self) -> asyncio.Task[None]:
        batch = next_batch(self.run, self.offset, self.incarnation, self.epoch)
        self.offset += len(batch.events)
        return asyncio.create_task(self._put_and_append(batch))

    async def _put_and_append(self, batch: Append) -> None:
        # A name is valid in what is appended after the call: the batch does not wait for its blobs.
        tasks = [asyncio.create_task(self._put(data)) for data in blobs_of(batch)]
        await asyncio.sleep(0)
        await asyncio.gather(self.append(batch), *tasks)

    async def _put(self, data: bytes) -> None:
        self.say(f"blob {await self.log.put_blob(data)}")


async def _watch(log: EventLog, say: Say, stopping: asyncio.Event) -> None:
    """Read all that becomes visible, and say so."""
    cursor = None
    while True:
        last_look = stopping.is_set()
        page = await log.query(cursor=cursor, limit=50)
        cursor = page.next_cursor
        for run, found in page.items:
            id = found.body[7 : found.body.index(b'"', 7)].decode()
            say(f"seen {run} {found.offset} {id}")
        if last_look and not page.items:
            return


async def _remove(log: EventLog, run: str, n: int, say: Say) -> None:
    """Trim the run, or delete it; the files are swept behind."""
    if n % 3 == 2 and not log.trims:
        await log.sweep(0)
    elif n % 3 == 2:
        say(f"trimming {run} 1")
        say(f"trimmed {run} {await log.trim(run, 1)}")
    else:
        say(f"deleting {run}")
        await log.delete(run, T0)
        say(f"deleted {run}")
        await log.sweep(0)  # no blob is old enough to go


async def run_workload(url: str, incarnation: str, say: Say, rounds: int = 8) -> None:
    """Open the store, append in so many rounds, close it."""
    log, watcher = open_log(url), None
    try:
        await log.put_definition(GRAPH, GRAPH.encode() * 100)
        say(f"graph {GRAPH}")
        writers = [_Writer(log, run, incarnation, say) for run in RUNS]
        for one in writers:
            await one.begin()
        stopping = asyncio.Event()
        watcher = asyncio.create_task(_watch(log, say, stopping))
        for n in range(rounds):
            tasks = [one.submit() for one in writers[: 1 + n % len(writers)]]
            tasks.append(writers[0].submit())  # two batches of one run in flight
            if n % 3 == 1:
                short = whole_run(f"wf_{incarnation}_{n}", incarnation)
                tasks.append(asyncio.create_task(writers[0].append(short)))
            elif n > 1:
                tasks.append(
                    asyncio.create_task(_remove(log, f"wf_{incarnation}_{(n - 1) // 3 * 3 + 1}", n, say))
                )
            await asyncio.gather(*tasks)
            await log.put_snapshot(RUNS[0], "fold", n, b"snapshot" * 50)
        stopping.set()
        await watcher
        await log.release(RUNS[0], this_process())
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
        await log.close()
    say("end")


def main() -> None:
    url, incarnation, *rounds = sys.argv[1:]
    small_files()
    is_socket = stat.S_ISSOCK(os.fstat(1).st_mode)
    send = socket.socket(fileno=1).sendall if is_socket else partial(os.write, 1)
    asyncio.run(run_workload(url, incarnation, lambda line: send(f"{line}\n".encode()), *map(int, rounds)))


if __name__ == "__main__":
    main()
