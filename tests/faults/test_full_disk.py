"""A disk that takes nothing: full, read-only, or a limit of the file's size. Every append fails loudly,
nothing of it is there, no offset is used; when there is space again the log goes on."""

from __future__ import annotations

import asyncio
import errno
import functools
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow.errors import AgentflowError, LogClosed, OffsetConflict, StoreError
from agentflow.events.log import EventLog
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from tests.faults import shim
from tests.faults.calls import Call
from tests.faults.images import STORE, scratch
from tests.faults.promises import Promises, broken, examine
from tests.faults.workload import RUNS, blobs_of, next_batch

ROOT = Path(__file__).parents[2]


async def persist(url: str, batches: int, incarnation: str, refused: list[AgentflowError]) -> list[str]:
    """Append so many batches to each run, again and again until each is taken; what was promised."""
    said: list[str] = []
    log = await until_taken(lambda: _open(url), refused)
    try:
        for run in RUNS:
            epoch = await until_taken(lambda run=run: log.claim(run, this_process()), refused)
            offset = 0
            for _ in range(batches):
                batch = next_batch(run, offset, incarnation, epoch)
                for data in blobs_of(batch):
                    await until_taken(lambda data=data: log.put_blob(data), refused)
                await until_taken(lambda batch=batch: log.append(batch), refused)
                offset += len(batch.events)
                said.append(f"ack {run} {batch.expected} {offset - 1} {incarnation}")
    finally:
        await log.close()
    return said


async def _open(url: str) -> EventLog:
    return open_log(url)


async def until_taken(ask, refused):
    """The answer, once the store takes it. LogClosed: it never will."""
    while True:
        try:
            return await ask()
        except (LogClosed, OffsetConflict):
            raise
        except AgentflowError as error:
            refused.append(error)
            assert len(refused) < 100


class Full:
    """Lets the call of this number, of those that need space, find none, and the one after it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.made = 0

    def __call__(self, call: Call) -> int:
        if call.kind not in ("write", "create", "mkdir", "rename"):
            return 0
        self.made += 1
        return errno.ENOSPC if self.number <= self.made < self.number + 2 else 0


@pytest.mark.skipif(not shim.shim_works(), reason="SQLite hides its functions here")
@pytest.mark.usefixtures("files_are_small")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("batches", "step"), [(3, 11), pytest.param(7, 2, marks=pytest.mark.slow)])
def test_any_call_may_find_no_space(kind, tally, batches, step):
    """The n-th call that needs space and the one after it find none; whoever is refused tries again."""
    number = 1
    while True:
        full, refused = Full(number), list[AgentflowError]()
        with scratch() as root:
            url = f"{kind}:{root}/{STORE}"
            with shim.below(root, full):
                said = asyncio.run(persist(url, batches, "a", refused))
            problems = broken(Promises().take(said), asyncio.run(examine(url)))
        tally.images += 1
        tally.blame(problems)
        assert not problems, f"no space for call {number}: {problems[:5]}, refused {refused}"
        if full.made < number:
            break
        number += step
    assert number > 10


@functools.cache
def may_mount() -> bool:
    """Whether this user can have a file system of its own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="no file system can be mounted here")
def test_a_small_file_system_is_filled_and_emptied(kind, tally, tmp_path):
    command = ["unshare", "-Urm", sys.executable, "-m", "tests.faults.filled", kind, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "done"
    tally.images += 1


async def test_a_limit_of_the_file_size_is_no_end(kind, tmp_path):
    """As a quota does it: the write fails, and so does nothing else."""
    url = f"{kind}:{tmp_path}/{STORE}"
    log = open_log(url)
    await log.append(next_batch("wf_x", 0, "a", 1))
    last = await log.last("wf_x")
    files = [p for p in tmp_path.rglob("*") if p.is_file() and p.parent.name != "blobs"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(p.stat().st_size for p in files), limits[1]))
    try:
        for _ in range(3):
            with pytest.raises(StoreError) as caught:
                await log.append(next_batch("wf_x", last + 1, "a", 1))
            assert not isinstance(caught.value, LogClosed | OffsetConflict)
            assert caught.value.hint
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.failure is None
    assert await log.last("wf_x") == last
    await log.append(next_batch("wf_x", last + 1, "a", 1))
    await log.close()
    found = await examine(url)
    assert not found.problems
    assert ("wf_x", last + 1) in found.events


async def test_a_closed_store_takes_and_answers_nothing(kind, tmp_path):
    log = open_log(f"{kind}:{tmp_path}/{STORE}")
    await log.append(next_batch("wf_x", 0, "a", 1))
    end = await log.last("wf_x") + 1
    accepted = log.append(next_batch("wf_x", end, "a", 1))
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    with pytest.raises(LogClosed):
        await log.append(next_batch("wf_y", 0, "a", 1))
    await closing
    await accepted  # what was accepted before is written
    for call in (log.read("wf_x"), log.last("wf_x"), log.runs(), log.query(), log.put_blob(b"x")):
        with pytest.raises(LogClosed):
            await call
    found = await examine(f"{kind}:{tmp_path}/{STORE}")
    assert not found.problems
    assert ("wf_x", end) in found.events
