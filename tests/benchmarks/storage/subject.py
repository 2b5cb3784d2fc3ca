"""Does a case of the suite in a process of its own: `subject.py CASE FOLDER …`.

Prints a line of JSON for each figure: subject, value, unit. A wrong result ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import sqlite3
import statistics
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentflow import Runtime, Service, function
from agentflow.definition import load_value
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.events.open import open_log
from agentflow.events.retention import RetentionPolicy
from agentflow.runtime.retention import collect, retention_plan
from tests.benchmarks.events.many_runs import T0, key_of, make_store
from tests.benchmarks.instructions.graphs import FUNCTIONS, SHAPES, Work

STEPS = 10


def say(subject: str, value: float, unit: str) -> None:
    print(json.dumps([subject, value, unit]), flush=True)


@function(side_effect="none")
async def add(x: int) -> dict[str, int]:
    return {"x": x + 1}


@function(side_effect="external")
async def add_outside(x: int) -> dict[str, int]:
    return {"x": x + 1}


def chain(length: int, tool: str = "add") -> Workflow:
    ids = [*(f"n{i}" for i in range(length)), "end"]
    nodes = [
        ToolNode(id=id, index=i, tool=f"bench.{tool}", next=following)
        for i, (id, following) in enumerate(pairwise(ids))
    ]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=length))
    )


# -- bytes


async def log(folder: Path) -> None:
    """1,000 runs of 10 steps: bytes of the log and of the disk, after the checkpoint of closing."""
    path, runs = folder / "runs.db", 1_000
    services = [Service.of("bench", add)]
    async with Runtime(f"sqlite:{path}", services=services, max_concurrent_runs=runs) as runtime:
        definition = runtime.load(chain(STEPS))
        for result in await asyncio.gather(*(runtime.run(definition, {"x": 0}) for _ in range(runs))):
            assert result.output == {"x": STEPS}, result
    disk = await asyncio.to_thread(lambda: sum(file.stat().st_size for file in folder.iterdir()))
    async with Runtime(f"sqlite:{path}", services=services) as runtime:  # what a step adds to a longer run
        result = await runtime.run(runtime.load(chain(11 * STEPS)), {"x": 0}, workflow_id="wf_long")
        assert result.output == {"x": 11 * STEPS}, result
    select = (
        "SELECT count(DISTINCT run.id), sum(length(body)), (SELECT sum(bytes) FROM run WHERE {0}) FROM batch"
        " JOIN run ON run.id = run WHERE {0}"
    )
    with closing(sqlite3.connect(path)) as db:
        count, packed, as_json = db.execute(select.format("workflow_id <> 'wf_long'")).fetchone()
        _, packed_long, as_json_long = db.execute(select.format("workflow_id = 'wf_long'")).fetchone()
    assert count == runs
    steps = runs * STEPS
    say("log of a step, packed", (packed_long - packed / runs) / (10 * STEPS), "B")
    say("log of a step, as JSON", (as_json_long - as_json / runs) / (10 * STEPS), "B")
    say("log by steps with the run's share, packed", packed / steps, "B")
    say("log by steps with the run's share, as JSON", as_json / steps, "B")
    say("disk by steps", disk / steps, "B")
    say("disk / log as JSON", disk / as_json, "x")
    say("disk / log packed", disk / packed, "x")


# -- commits


async def commits(folder: Path, effect: str) -> None:
    """A run of 100 steps in a WAL that nothing has checkpointed: its frames, those that end a commit, and the
    syncs that strace noted meanwhile."""
    path, length = folder / "runs.db", 100
    tool = "add" if effect == "none" else "add_outside"
    async with Runtime(f"sqlite:{path}", services=[Service.of("bench", add, add_outside)]) as runtime:
        definition = runtime.load(chain(length, tool))
        await runtime.run(definition, {"x": 0})
        frames, committed, synced = *read_wal(path), read_trace(folder)
        result = await runtime.run(definition, {"x": 0})
        assert result.output == {"x": length}, result
        more, ended = read_wal(path)
        assert more > frames
        frames, committed = more - frames, ended - committed
        say(f"effects {effect}: commits a step", committed / length, "1")
        say(f"effects {effect}: pages a commit", frames / committed, "1")
        if (now := read_trace(folder)) is not None and synced is not None:
            say(f"effects {effect}: syncs a step", (now - synced) / length, "1")


def read_wal(path: Path) -> tuple[int, int]:
    """Return how many frames the WAL holds, and how many end a commit by a database size."""
    data = Path(f"{path}-wal").read_bytes()
    page: int = struct.unpack_from(">I", data, 8)[0]
    salts, frames, committed = data[16:24], 0, 0
    for place in range(32, len(data) - page, 24 + page):
        if data[place + 8 : place + 16] != salts:
            break
        frames += 1
        committed += data[place + 4 : place + 8] != b"\0\0\0\0"
    return frames, committed


def read_trace(folder: Path) -> int | None:
    trace = folder / "trace"
    return trace.read_text().count("sync(") if trace.exists() else None


# -- memory


AT_ONCE = 50


def memory() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


WAITING = load_value(
    {
        "name": "w",
        "nodes": [
            {"id": "start", "type": "start", "next": "ask"},
            {"id": "ask", "type": "human_in_the_loop", "on_approve": "end", "on_reject": "end"},
            {"id": "end", "type": "end"},
        ],
    }
)


async def measure_memory(folder: Path) -> None:
    """Growth of the process by runs whose function is at work, and by runs that wait for a person."""
    warm, count, arrived, awaited = 1_000, 2_000, 0, 0
    go_on = asyncio.Event()
    there = asyncio.Condition()

    @function(side_effect="none", timeout=3_600)
    async def stay(x: int) -> dict[str, int]:
        nonlocal arrived
        async with there:
            arrived += 1
            there.notify_all()
        await go_on.wait()
        return {"x": x}

    async def all_there() -> None:
        async with there:
            await there.wait_for(lambda: arrived == awaited)

    services = [Service.of("bench", stay, max_concurrency=warm + count)]
    store = f"sqlite:{folder / 'active.db'}"
    async with Runtime(store, services=services, max_concurrent_runs=warm + count) as runtime:
        definition = runtime.load(chain(1, "stay"))

        async def begin(number: int) -> list[Any]:
            """A few at a time: what many beginnings at once need for a moment is no run's memory."""
            nonlocal awaited
            handles: list[Any] = []
            for _ in range(number // AT_ONCE):
                awaited += AT_ONCE
                handles += await asyncio.gather(
                    *(runtime.submit(definition, {"x": 1}) for _ in range(AT_ONCE))
                )
                await all_there()
            return handles

        handles = await begin(warm)
        before = memory()
        handles += await begin(count)
        say("active run", (memory() - before) / count / 1024, "KiB")
        go_on.set()
        for handle in handles:
            assert (await handle.result()).output == {"x": 1}
    handles.clear()

    async with Runtime(f"sqlite:{folder / 'waiting.db'}") as runtime:

        async def rest(number: int) -> None:
            for _ in range(number // AT_ONCE):
                handles = await asyncio.gather(*(runtime.submit(WAITING, {}) for _ in range(AT_ONCE)))
                for handle in handles:
                    assert (await handle.result()).state == "waiting"

        await rest(4_000)
        before, count = memory(), 8_000
        await rest(count)
        say("waiting run", (memory() - before) / count / 1024, "KiB")


# -- growth


async def growth(folder: Path) -> None:
    """CPU of a step of 10,000 by that of a step of 100; windows take turns, in memory."""
    small, large, rounds = 100, 10_000, 3
    async with Runtime(services=[Service.of("bench", *FUNCTIONS, max_concurrency=100)]) as runtime:

        async def cpu(work: Work, times: int) -> float:
            definition = runtime.load(work.graph)
            assert (await runtime.run(definition, work.input)).output == work.output
            gc.collect()
            began = time.process_time()
            for _ in range(times):
                assert (await runtime.run(definition, work.input)).output == work.output
            return (time.process_time() - began) / times / work.steps * 1e6

        for shape in ("for_each", "tokens", "chain", "independent"):
            found: dict[int, list[float]] = {small: [], large: []}
            for _ in range(rounds):
                for size, times in ((small, large // small // 2), (large, 1)):
                    found[size].append(await cpu(SHAPES[shape](size), times))
            least = {size: min(values) for size, values in found.items()}
            for size, value in least.items():
                say(f"{shape} {size}, CPU of a step", value, "µs")
            say(f"{shape} {large} / {small}", least[large] / least[small], "x")


# -- recovery


CROWD = 1_000


@asynccontextmanager
async def crowd_runtime(folder: Path, arrived: asyncio.Event, go_on: asyncio.Event) -> Any:
    waiting = 0

    @function(side_effect="read", timeout=3_600)
    async def stay(x: int) -> dict[str, int]:
        nonlocal waiting
        waiting += 1
        if waiting == CROWD:
            arrived.set()
        await go_on.wait()
        return {"x": x + 1}

    services = [Service.of("bench", stay, max_concurrency=CROWD)]
    store = f"sqlite:{folder / 'runs.db'}"
    async with Runtime(store, services=services, max_concurrent_runs=CROWD) as runtime:
        yield runtime


async def crowd(folder: Path) -> None:
    """Bring 1,000 runs to a call that does not end, and wait to be killed."""
    arrived = asyncio.Event()
    async with crowd_runtime(folder, arrived, asyncio.Event()) as runtime:
        definition = runtime.load(chain(1, "stay"))
        for i in range(CROWD):
            await runtime.submit(definition, {"x": 1}, workflow_id=f"wf_{i:04}")
        await arrived.wait()
        print("ready", flush=True)
        await asyncio.Event().wait()


async def recovery(folder: Path) -> None:
    """Take them up: the CPU from opening the store to the end of `recover`, and to all calls made again."""
    arrived, go_on = asyncio.Event(), asyncio.Event()
    began = time.process_time()
    async with crowd_runtime(folder, arrived, go_on) as runtime:
        found = await runtime.recover()
        say("1,000 runs taken up, CPU", time.process_time() - began, "s")
        await arrived.wait()
        say("1,000 calls made again, CPU", time.process_time() - began, "s")
        go_on.set()
        for run in found:
            assert (await (await runtime.attach(run)).result()).output == {"x": 2}
        say("1,000 runs ended, CPU", time.process_time() - began, "s")
    assert len(found) == CROWD


# -- scale


def peak() -> float:
    """Return the largest resident size so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def median_ms(call: Callable[[int], Awaitable[Any]], times: int = 200) -> float:
    found: list[float] = []
    for number in range(times):
        began = time.perf_counter()
        await call(number)
        found.append(time.perf_counter() - began)
    return statistics.median(found) * 1_000


async def scale(folder: Path, runs: int) -> None:
    """Start, look-ups, a page of the list, and retention that takes half of the runs."""
    path = folder / "runs.db"
    await asyncio.to_thread(make_store, path, runs)
    base, began = peak(), time.perf_counter()
    log = open_log(f"sqlite:{path}")
    assert len((await log.runs(limit=50)).items) == 50
    say("start and first list", time.perf_counter() - began, "s")
    step = max(1, runs // 200)

    async def by_key(n: int) -> None:
        assert (await log.run(key_of(n * step % runs))).workflow_id == key_of(n * step % runs)

    async def by_label(n: int) -> None:
        page = await log.runs(label=("customer", str(n % min(1_000, runs // 100))), limit=50)
        assert page.items

    say("look-up by key", await median_ms(by_key), "ms")
    say("look-up by label", await median_ms(by_label), "ms")
    say("list of 50", await median_ms(lambda n: log.runs(limit=50)), "ms")
    now = T0 + runs * 1_000
    policy = RetentionPolicy(mode="age", max_age=0.001 * runs / 2)
    began = time.process_time()
    plan = await retention_plan(log, policy, now)
    say("gc dry run, CPU", time.process_time() - began, "s")
    began, cpu = time.perf_counter(), time.process_time()
    done = await collect(log, policy, now)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    assert done.done_count == plan.removal_count
    assert abs(done.done_count - runs // 2) <= 2, done.done_count
    say("gc, deletions a second", done.done_count / took, "1/s")
    say("gc, deletions a second of CPU", done.done_count / used, "1/s")
    say("gc, memory above the start", peak() - base, "MB")
    await log.close()


CASES: dict[str, Callable[..., Awaitable[None]]] = {
    "log": log,
    "commits": commits,
    "memory": measure_memory,
    "growth": growth,
    "crowd": crowd,
    "recovery": recovery,
    "scale": lambda folder, runs: scale(folder, int(runs)),
}

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run(CASES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))
