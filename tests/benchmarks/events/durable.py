"""What durable runs cost in CPU: `python -m tests.benchmarks.events.durable [FOLDER]`.

A step of a chain whose functions have no effect, and of one whose functions have; 100 runs of 10 steps at
once; the list of 50 finished runs; taking 1,000 runs up after a crash. FOLDER chooses the disk: one in memory
(`/dev/shm`) shows what is not the disk's. The lowest of several is given, since a busy machine only adds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentflow import Runtime, Service, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.events.sqlite.writer import SqliteStore

# pyright: reportPrivateUsage=false

RECOVERED = 1_000
_ROUNDS = 15

commits = 0
_commit = SqliteStore._commit


def _counted(self: SqliteStore, *arguments: Any) -> None:
    global commits
    commits += 1
    _commit(self, *arguments)


@function(side_effect="none")
async def add(x: int) -> dict[str, int]:
    return {"x": x + 1}


@function(side_effect="read")
async def fetch(x: int) -> dict[str, int]:
    return {"x": x + 1}


begun = 0
all_begun = asyncio.Event()


@function(side_effect="none")
async def wait(x: int) -> dict[str, int]:
    global begun
    begun += 1
    if begun == RECOVERED:
        all_begun.set()
    await asyncio.sleep(3_600)
    return {"x": x}


def chain(*names: str) -> Workflow:
    ids = [f"n{i}" for i in range(len(names))] + ["end"]
    nodes = [
        ToolNode(id=ids[i], index=i, tool=f"bench.{name}", next=ids[i + 1]) for i, name in enumerate(names)
    ]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=len(names)))
    )


def opened(folder: Path, runs: int) -> Runtime:
    service = Service.of("bench", add, fetch, wait, max_concurrency=5_000)
    return Runtime(f"sqlite:{folder / 'runs.db'}", services=[service], max_concurrent_runs=runs)


async def lowest(work: Callable[[], Awaitable[Any]]) -> float:
    """Return the CPU seconds of the cheapest of several rounds."""
    await work()
    found: list[float] = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        await work()
        found.append(time.process_time() - began)
    return min(found)


async def steps(folder: Path, name: str, length: int, runs: int) -> None:
    global commits
    async with opened(folder, max(runs, 64)) as runtime:
        definition = runtime.load(chain(*[name] * length))

        async def work() -> None:
            results = await asyncio.gather(*(runtime.run(definition, {"x": 0}) for _ in range(runs)))
            assert all(result.output == {"x": length} for result in results)

        took = await lowest(work)
        commits = 0
        await work()
        count = runs * length
        print(f"{name} {runs} x {length}: {took / count * 1e6:.0f} us CPU a step, {commits} commits")


async def listing(folder: Path) -> None:
    async with opened(folder, 64) as runtime:
        definition = runtime.load(chain(*["add"] * 10))
        for _ in range(50):
            await runtime.run(definition, {"x": 0})
        print(f"list of 50: {await lowest(lambda: runtime.list(limit=50)) * 1e6:.0f} us CPU")


async def leave(folder: Path) -> None:
    """Begin runs, and die while each is in its third step."""
    async with opened(folder, RECOVERED) as runtime:
        definition = runtime.load(chain("add", "add", "wait", "add"))
        for _ in range(RECOVERED):
            await runtime.submit(definition, {"x": 0})
        await all_begun.wait()
        await runtime.log.probe()  # behind all that was appended
        os._exit(9)


async def recover(folder: Path) -> None:
    left = await asyncio.create_subprocess_exec(sys.executable, "-m", __spec__.name, str(folder), "leave")
    await left.wait()
    async with opened(folder, RECOVERED) as runtime:
        runtime.load(chain("add", "add", "wait", "add"))
        began = time.process_time()
        assert len(await runtime.recover()) == RECOVERED
        await all_begun.wait()
        took = time.process_time() - began
        print(f"recovery of {RECOVERED:,} runs with restart of their calls: {took:.2f} s CPU")
        sys.stdout.flush()
        os._exit(0)  # their calls last an hour


async def measure(folder: Path) -> None:
    for case in (
        lambda place: steps(place, "add", 100, 1),
        lambda place: steps(place, "fetch", 100, 1),
        lambda place: steps(place, "add", 10, 100),
        listing,
        recover,
    ):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            await case(Path(place))


def main() -> None:
    """Measure, or be the process that dies."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())
    if sys.argv[2:] == ["leave"]:
        asyncio.run(leave(folder))
    SqliteStore._commit = _counted
    asyncio.run(measure(folder))


if __name__ == "__main__":
    main()
