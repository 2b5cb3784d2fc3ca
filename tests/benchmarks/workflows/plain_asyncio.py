"""No engine at all: tasks that wait on queues. What the event loop (and SQLite) alone would allow.

Durable means one INSERT and one commit for each hop, in a WAL with synchronous=FULL. An engine that
commits the hops of many runs together may be faster than this floor where there are many.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

LENGTH = 100
WIDTH = 100
RUNS, SHORT = 100, 10

Hop = Callable[[int, int], None]


def forget(node: int, value: int) -> None:
    pass


@contextmanager
def recording(folder: Path) -> Any:
    with closing(sqlite3.connect(folder / "hops.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE hop (id INTEGER PRIMARY KEY, node INT, body TEXT)")

        def record(node: int, value: int) -> None:
            db.execute("INSERT INTO hop (node, body) VALUES (?, ?)", (node, json.dumps({"x": value})))

        yield record


@asynccontextmanager
async def running(*loops: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def chain(hop: Hop, length: int = LENGTH, runs: int = 1) -> AsyncIterator[Any]:
    boxes: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(length)]

    async def node(i: int) -> None:
        while True:
            value, done = await boxes[i].get()
            hop(i, value + 1)
            if i + 1 == length:
                done.set_result(value + 1)
            else:
                boxes[i + 1].put_nowait((value + 1, done))

    async def work() -> int:
        ends = [asyncio.get_running_loop().create_future() for _ in range(runs)]
        for done in ends:
            boxes[0].put_nowait((0, done))
        for done in ends:
            assert await done == length
        return length * runs

    async with running(*(node(i) for i in range(length))):
        yield work


@asynccontextmanager
async def fan_out(hop: Hop) -> AsyncIterator[Any]:
    joined: asyncio.Queue[int] = asyncio.Queue()
    boxes: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(WIDTH)]

    async def worker(i: int) -> None:
        while True:
            value = await boxes[i].get()
            hop(i, value)
            joined.put_nowait(value)

    async def work() -> int:
        hop(-1, WIDTH)
        for i, box in enumerate(boxes):
            box.put_nowait(i)
        total = sum([await joined.get() for _ in range(WIDTH)])
        hop(-2, total)
        assert total == sum(range(WIDTH))
        return WIDTH + 2

    async with running(*(worker(i) for i in range(WIDTH))):
        yield work


def in_memory(shape: Any) -> Any:
    return lambda folder: shape(forget)


def durable(shape: Any, **more: int) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        with recording(folder) as hop:
            async with shape(hop, **more) as work:
                yield work

    return opened


SUBJECTS = {
    "plain asyncio": {
        "chain100_memory": in_memory(chain),
        "fanout100_memory": in_memory(fan_out),
        "chain100_sqlite": durable(chain),
        "fanout100_sqlite": durable(fan_out),
        "concurrent100x10_sqlite": durable(chain, length=SHORT, runs=RUNS),
    }
}
