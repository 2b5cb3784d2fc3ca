"""A sync fails, once: the log stops for good, everything acknowledged is there at the next start.

After a failed sync the kernel counts the pages as written although they are not: the next sync of the same
bytes succeeds and lies. So nothing may be acknowledged any more by the process that saw the failure, and the
next one must not build on what it reads from the page cache before that is written again.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from agentflow.errors import AgentflowError, LogClosed, StoreError
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from tests.faults import shim
from tests.faults.calls import Call
from tests.faults.disk import Disk
from tests.faults.images import STORE, Judge, is_log, scratch
from tests.faults.promises import Promises, broken, examine
from tests.faults.workload import next_batch, run_workload

pytestmark = [
    pytest.mark.skipif(not shim.shim_works(), reason="SQLite hides its functions here"),
    pytest.mark.usefixtures("files_are_small"),
]


def failing(number: int, only_log: bool) -> tuple[Callable[[Call], int], list[Call]]:
    """A hook that lets the sync of this number fail, and the call that failed; `only_log`: of those of files
    to which batches are appended."""
    syncs, failed = 0, list[Call]()

    def hook(call: Call) -> int:
        nonlocal syncs
        if call.kind not in ("sync", "sync_directory") or (only_log and not is_log(call.path)):
            return 0
        syncs += 1
        if syncs != number:
            return 0
        failed.append(call)
        return errno.EIO

    return hook, failed


def life(
    url: str, root: Path, number: int, rounds: int, only_log: bool = False
) -> tuple[list[Call], list[str], Call | None]:
    """The calls of a workload that meets a failed sync, what it said before that ended it, and the call."""
    hook, failed = failing(number, only_log)
    said: list[str] = []
    with shim.below(root, hook) as watched:

        def say(line: str) -> None:
            said.append(line)
            watched.say(line)

        try:
            asyncio.run(run_workload(url, "a", say, rounds))
        except StoreError:
            assert failed, "the workload failed by itself"
        except AgentflowError:
            assert failed
    return watched.calls, said, failed[0] if failed else None


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("rounds", "step"), [(3, 5), pytest.param(7, 1, marks=pytest.mark.slow)])
def test_whatever_sync_fails_nothing_acknowledged_is_lost(kind, tally, rounds, step):
    number, tried = 1, 0
    while True:
        with scratch() as root:
            url = f"{kind}:{root}/{STORE}"
            _, said, failed = life(url, root, number, rounds)
            if failed is None:
                break
            tried += 1
            tally.images += 1
            problems = broken(Promises().take(said), asyncio.run(examine(url)))
            tally.blame(problems)
            assert not problems, f"sync {number} ({failed.kind} {failed.path}) failed: {problems[:5]}"
        number += step
    assert tried >= 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("rounds", "step", "mixtures"), [(2, 8, 1), pytest.param(7, 1, 2, marks=pytest.mark.slow)]
)
def test_the_next_process_does_not_build_on_pages_that_were_never_written(
    kind, tally, rounds, step, mixtures
):
    seed, judge, number = random.Random(5), Judge(kind, tally), 1
    while True:
        with scratch() as root:
            url = f"{kind}:{root}/{STORE}"
            first, _, failed = life(url, root, number, rounds, only_log=True)
            if failed is None:
                break
            with shim.below(root) as watched:
                asyncio.run(run_workload(url, "b", watched.say, 2))
        disk, promises = Disk(), Promises()
        for n, call in enumerate(first + watched.calls):
            disk.do(call)
            if call.kind == "said":
                promises.take([call.data.decode()])
            elif n > len(first) and call.kind in ("sync", "sync_directory", "unlink"):
                where = f"sync {number} failed, power failed after call {n - len(first)} of the next process"
                judge.judge(disk.synced(), promises, f"{where}, synced only")
                for k in range(mixtures):
                    judge.judge(disk.found(seed), promises, f"{where}, mixture {k}")
        number += step
    assert number > step
    assert not judge.problems, judge.verdict()


async def test_the_log_stops_for_good(kind, tmp_path):
    """The very next sync would succeed; nobody is to believe it."""
    armed = False

    def hook(call: Call) -> int:
        nonlocal armed
        if armed and call.kind == "sync":
            armed = False
            return errno.EIO
        return 0

    with shim.below(tmp_path, hook):
        log = open_log(f"{kind}:{tmp_path}/{STORE}")
        await log.append(next_batch("wf_x", 0, "a", 1))
        last = await log.last("wf_x")
        armed = True
        with pytest.raises(LogClosed):
            await log.append(next_batch("wf_x", last + 1, "a", 1))
        assert not armed
        assert isinstance(log.failure, LogClosed)
        for run in ("wf_x", "wf_y"):
            with pytest.raises(LogClosed) as caught:
                await log.append(next_batch(run, 0 if run != "wf_x" else last + 1, "a", 1))
            assert caught.value.hint
        for call in (
            log.put_blob(b"x"),
            log.put_definition("h", b"x"),
            log.claim("wf_x", this_process()),
        ):
            with pytest.raises(LogClosed):
                await call
        assert await log.last("wf_x") == last  # what is durable can still be read
        await log.close()
    assert isinstance(log.failure, LogClosed)
    found = await examine(f"{kind}:{tmp_path}/{STORE}")
    assert not found.problems
    assert ("wf_x", last) in found.events
