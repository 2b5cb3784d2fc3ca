"""Power fails at every moment of a real workload; whatever the disk then holds, the store keeps its promises.

The calls of the workload are noted as the kernel (strace) or the shim saw them. After each of them, images of
the files are made: all that was written, only what was synced, and random mixtures of sectors, lengths and
names. Each is opened with the real store. Also: a process is killed, another one opens the store and shows
what it finds, and then power fails; and power fails while a store is recovered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator

import pytest

from agentflow.events.open import open_log
from tests.faults import shim, strace
from tests.faults.calls import Call
from tests.faults.disk import Disk, write_image
from tests.faults.images import STORE, Judge, is_log, scratch
from tests.faults.promises import Promises
from tests.faults.workload import run_workload

pytestmark = [
    pytest.mark.skipif(not shim.shim_works(), reason="SQLite hides its functions here"),
    pytest.mark.usefixtures("files_are_small"),
]


def record(kind: str, rounds: int) -> list[Call]:
    """The calls of a workload on a new store, continued once."""
    with scratch() as root, shim.below(root) as watched:
        for incarnation in ("a", "b"):
            asyncio.run(run_workload(f"{kind}:{root}/{STORE}", incarnation, watched.say, rounds))
    return watched.calls


def states(calls: list[Call], disk: Disk, promises: Promises) -> Generator[str, None, None]:
    """Let the calls reach the disk one by one; stops before each, and at the end."""
    for number, call in enumerate(calls):
        if call.kind == "said":
            promises.take([call.data.decode()])
        else:
            yield f"before call {number} ({call.kind} {call.path})"
            disk.do(call)
    yield "at the end"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rounds", "mixtures", "step"), [(3, 1, 9), pytest.param(8, 2, 1, marks=pytest.mark.slow)]
)
def test_power_fails_at_any_moment(kind, tally, rounds, mixtures, step):
    seed = random.Random(2025)
    disk, promises, judge = Disk(), Promises(), Judge(kind, tally)
    for number, where in enumerate(states(record(kind, rounds), disk, promises)):
        if number % step and "(sync" not in where:
            continue
        judge.judge(disk.seen(), promises, f"{where}, all written")
        judge.judge(disk.synced(), promises, f"{where}, synced only")
        for n in range(mixtures):
            judge.judge(disk.found(seed), promises, f"{where}, mixture {n}")
    assert promises.ended
    assert not judge.problems, judge.verdict()


@pytest.mark.slow
@pytest.mark.skipif(not strace.strace_works(), reason="no process may be traced here")
@pytest.mark.timeout(900)
def test_power_fails_at_any_moment_of_what_the_kernel_saw(kind, tally, tmp_path):
    """A process of its own: other groups, and syncs and writes of two threads that overlap."""
    with scratch() as root:
        calls = strace.record(root, tmp_path / "trace", f"{kind}:{root}/{STORE}", "a", "10")
    seed = random.Random(2026)
    disk, promises, judge = Disk(), Promises(), Judge(kind, tally)
    for where in states(calls, disk, promises):
        judge.judge(disk.synced(), promises, f"{where}, synced only")
        judge.judge(disk.found(seed), promises, f"{where}, a mixture")
    assert promises.ended
    assert not judge.problems, judge.verdict()


def moments(calls: list[Call], count: int, seed: random.Random) -> list[int]:
    """So many places in the record, spread over all of it; half of them right before a batch is synced."""
    syncs = [n for n, call in enumerate(calls) if call.kind == "sync" and is_log(call.path)]
    others = [n for n, call in enumerate(calls, 1) if call.kind not in ("said", "sync", "sync_directory")]
    chosen = seed.sample(syncs, min(count // 2, len(syncs))) + seed.sample(
        others, min(count // 2, len(others))
    )
    return sorted(set(chosen))


def up_to(calls: list[Call], chosen: list[int]) -> Generator[tuple[int, Disk, Promises], None, None]:
    """The disk and what was promised, at each of the chosen places."""
    disk, promises, at = Disk(), Promises(), 0
    for moment in chosen:
        for _ in states(calls[at:moment], disk, promises):
            pass
        at = moment
        yield moment, disk, promises


async def open_and_read(url: str, watched: shim.Shim) -> None:
    """What a command that only looks does: open the store, show all of it. It says so, then closes."""
    log = open_log(url)
    try:
        cursor = None
        while (page := await log.query(cursor=cursor, limit=500)).items:
            cursor = page.next_cursor
            for run, found in page.items:
                id = found.body[7 : found.body.index(b'"', 7)].decode()
                watched.say(f"seen {run} {found.offset} {id}")
    finally:
        await log.close()


def look(kind: str, disk: Disk) -> list[Call]:
    """The calls of opening and reading what the disk shows now."""
    with scratch() as root:
        write_image(disk.seen(), root)
        with shim.below(root) as watched:
            asyncio.run(open_and_read(f"{kind}:{root}/{STORE}", watched))
        return watched.calls


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rounds", "count", "mixtures"), [(4, 4, 1), pytest.param(8, 32, 2, marks=pytest.mark.slow)]
)
def test_what_a_killed_program_left_is_made_durable_before_it_is_shown(kind, tally, rounds, count, mixtures):
    """The dead program's last writes are in the page cache, not on the disk, and look as good as any."""
    seed = random.Random(7)
    calls, judge = record(kind, rounds), Judge(kind, tally)
    for moment, disk, promises in up_to(calls, moments(calls, count, seed)):
        after, known = disk.copy(), promises.copy()
        for where in states(look(kind, disk), after, known):
            where = f"killed before call {moment}, then power fails {where}"
            judge.judge(after.synced(), known, f"{where}, synced only")
            for n in range(mixtures):
                judge.judge(after.found(seed), known, f"{where}, mixture {n}")
    assert not judge.problems, judge.verdict()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rounds", "count", "mixtures"), [(4, 3, 1), pytest.param(8, 26, 2, marks=pytest.mark.slow)]
)
def test_power_fails_again_while_the_store_is_recovered(kind, tally, rounds, count, mixtures):
    seed = random.Random(11)
    calls, judge = record(kind, rounds), Judge(kind, tally)
    for moment, disk, promises in up_to(calls, moments(calls, count, seed)):
        again, known = Disk.holding(disk.found(seed)), promises.copy()
        for where in states(look(kind, again), again, known):
            where = f"power failed before call {moment}, and again {where} of the recovery"
            judge.judge(again.seen(), known, f"{where}, all written")
            judge.judge(again.synced(), known, f"{where}, synced only")
            for n in range(mixtures):
                judge.judge(again.found(seed), known, f"{where}, mixture {n}")
    assert not judge.problems, judge.verdict()
