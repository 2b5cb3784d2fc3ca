"""Fills a small file system under a store, makes room again, makes it read-only and writable again.

    unshare -Urm python -m tests.faults.filled KIND DIRECTORY

Mounts on DIRECTORY, in a mount namespace of its own, so nothing is left behind. Says `done`, or fails.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from agentflow.errors import LogClosed, OffsetConflict, StoreError
from agentflow.events.log import EventLog
from agentflow.events.open import open_log
from tests.faults.images import STORE
from tests.faults.promises import examine
from tests.faults.workload import next_batch, small_files

SIZE = 2 << 20
BALLAST = 512 << 10


async def append(log: EventLog, offset: int) -> int:
    """The offset after the next batch of wf_x."""
    batch = next_batch("wf_x", offset, "a", 1)
    await log.append(batch)
    return offset + len(batch.events)


async def refused(log: EventLog, offset: int) -> None:
    """Appends fail loudly, to an old run and to a new one; what is there can still be read."""
    for batch in (next_batch("wf_x", offset, "a", 1), next_batch("wf_y", 0, "a", 1)):
        for _ in range(3):
            (problem,) = await asyncio.gather(log.append(batch), return_exceptions=True)
            assert isinstance(problem, StoreError), problem
            assert not isinstance(problem, LogClosed | OffsetConflict), problem
            assert problem.hint, problem
    assert log.failure is None
    assert await log.last("wf_x") == offset - 1
    assert len(await log.read("wf_x", 0, 100_000)) == offset


async def fill(log: EventLog, offset: int, directory: Path) -> int:
    """Append until nothing is taken any more, and no byte is free."""
    while True:
        try:
            offset = await append(log, offset)
        except StoreError:
            break
    try:
        (directory / "rest").write_bytes(bytes(SIZE))
    except OSError:
        return offset
    raise AssertionError("there was space")


async def main(kind: str, directory: Path) -> None:
    url = f"{kind}:{directory}/{STORE}"
    mount(directory, f"size={SIZE}")
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(BALLAST))
    log = open_log(url)
    offset = 0
    for _ in range(3):
        offset = await append(log, offset)
    offset = await fill(log, offset, directory)
    assert offset > 40, offset
    await refused(log, offset)
    (directory / "rest").unlink()
    ballast.unlink()
    for _ in range(5):
        offset = await append(log, offset)
    remount = "remount,ro"
    if mount(directory, remount):  # a store that is open for writing may forbid it
        await refused(log, offset)
        mount(directory, f"remount,rw,size={SIZE}")
    offset = await append(log, offset)
    offset = await fill(log, offset, directory)
    await log.close()  # with no byte free
    (directory / "rest").unlink()
    mount(directory, f"remount,size={2 * SIZE}")
    found = await examine(url)
    assert not found.problems, found.problems[:5]
    assert sum(run == "wf_x" for run, _ in found.events) == offset
    assert ("wf_y", 0) not in found.events
    mount(directory, "remount,ro")
    await read_only(url, offset)


async def read_only(url: str, offset: int) -> None:
    """A store on a read-only file system is read and takes nothing."""
    log = open_log(url)
    found = [event.offset for event in await log.read("wf_x", 0, 10_000)]
    assert found == list(range(len(found)))
    assert len(found) >= offset
    attempts = (log.append(next_batch("wf_y", 0, "z", 1)), log.probe())
    for problem in await asyncio.gather(*attempts, return_exceptions=True):
        assert isinstance(problem, StoreError), "a store was written to that is read-only"
        assert problem.hint
    await log.close()


def mount(directory: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    small_files()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
    print("done")
