"""The textbook design with anyio: a task group, a stream for each actor, `fail_after` around a question."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

MESSAGES, QUESTIONS, HOPS, STARTS = 5_000, 500, 2_000, 500


class Count:
    def __init__(self, group: Any) -> None:
        self.outer, self.inner = anyio.create_memory_object_stream[Any](math.inf)
        self.n = 0
        group.start_soon(self.run)

    async def run(self) -> None:
        async with self.outer, self.inner:
            async for message, answer in self.inner:
                try:
                    result = await self.receive(message)
                    if answer is not None and not answer.done():
                        answer.set_result(result)
                except Exception as exc:
                    if answer is not None and not answer.done():
                        answer.set_exception(exc)

    async def receive(self, message: Any) -> Any:
        self.n += 1
        return self.n

    async def ask(self, message: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        with anyio.fail_after(5):
            await self.outer.send((message, answer))
            return await answer


class Node(Count):
    next: Any

    async def receive(self, message: Any) -> None:
        left, done = message
        if left:
            self.next.outer.send_nowait(((left - 1, done), None))
        else:
            done.set_result(None)


@asynccontextmanager
async def tasks() -> AsyncIterator[Any]:
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


@asynccontextmanager
async def tell(_: Path) -> AsyncIterator[Any]:
    async with tasks() as group:
        actor = Count(group)

        async def work() -> int:
            before = actor.n
            send = actor.outer.send
            for i in range(MESSAGES):
                await send((i, None))
            assert await actor.ask(0) == before + MESSAGES + 1
            return MESSAGES

        yield work


def asking(at_once: int) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        async with tasks() as group:
            actor = Count(group)

            async def some(n: int) -> None:
                for i in range(n):
                    await actor.ask(i)

            async def work() -> int:
                n = QUESTIONS // at_once
                before = actor.n
                async with anyio.create_task_group() as asking:
                    for _ in range(at_once):
                        asking.start_soon(some, n)
                assert actor.n == before + n * at_once
                return n * at_once

            yield work

    return case


@asynccontextmanager
async def ring(_: Path) -> AsyncIterator[Any]:
    async with tasks() as group:
        nodes = [Node(group) for _ in range(100)]
        for i, node in enumerate(nodes):
            node.next = nodes[(i + 1) % 100]
        for _ in range(10):
            await asyncio.sleep(0)  # let every receiver reach its wait

        async def work() -> int:
            done = asyncio.get_running_loop().create_future()
            nodes[0].outer.send_nowait(((HOPS, done), None))
            await done
            return HOPS

        yield work


@asynccontextmanager
async def spawn(_: Path) -> AsyncIterator[Any]:
    async with tasks() as group:

        async def work() -> int:
            for _ in range(STARTS):
                Count(group)
            await asyncio.sleep(0)
            return STARTS

        yield work


SUBJECTS = {
    "anyio stream": {
        "tell": tell,
        "ask": asking(1),
        "ask64": asking(64),
        "ring100": ring,
        "tell_async": tell,
        "ask_async": asking(1),
        "spawn": spawn,
    }
}
