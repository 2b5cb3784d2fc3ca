"""What most would write by hand: a task and a queue for each actor, `wait_for` around a question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

MESSAGES, QUESTIONS, HOPS, STARTS = 20_000, 1_000, 10_000, 1_000


class Count:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.n = 0
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        while True:
            message, answer = await self.queue.get()
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
        await self.queue.put((message, answer))
        return await asyncio.wait_for(answer, 5)


class Node(Count):
    next: Any

    async def receive(self, message: Any) -> None:
        left, done = message
        if left:
            self.next.queue.put_nowait(((left - 1, done), None))
        else:
            done.set_result(None)


@asynccontextmanager
async def living(actors: list[Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for actor in actors:
            actor.task.cancel()
        await asyncio.gather(*(actor.task for actor in actors), return_exceptions=True)


@asynccontextmanager
async def tell(_: Path) -> AsyncIterator[Any]:
    actor = Count()
    async with living([actor]):
        expected = 0

        async def work() -> int:
            nonlocal expected
            put = actor.queue.put
            for i in range(MESSAGES):
                await put((i, None))
            expected += MESSAGES + 1
            assert await actor.ask(0) == expected
            return MESSAGES

        yield work


def asking(at_once: int) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        actor = Count()

        async def some(n: int) -> None:
            for i in range(n):
                await actor.ask(i)

        async def work() -> int:
            n = QUESTIONS // at_once
            before = actor.n
            await asyncio.gather(*(some(n) for _ in range(at_once)))
            assert actor.n == before + n * at_once
            return n * at_once

        async with living([actor]):
            yield work

    return case


@asynccontextmanager
async def ring(_: Path) -> AsyncIterator[Any]:
    nodes = [Node() for _ in range(100)]
    for i, node in enumerate(nodes):
        node.next = nodes[(i + 1) % 100]

    async def work() -> int:
        done = asyncio.get_running_loop().create_future()
        nodes[0].queue.put_nowait(((HOPS, done), None))
        await done
        return HOPS

    async with living(nodes):
        yield work


@asynccontextmanager
async def spawn(_: Path) -> AsyncIterator[Any]:
    actors: list[Count] = []

    async def work() -> int:
        actors.extend(Count() for _ in range(STARTS))
        await asyncio.sleep(0)
        return STARTS

    async with living(actors):
        yield work


@asynccontextmanager
async def fan_out(_: Path) -> AsyncIterator[Any]:
    actors = [Count() for _ in range(1000)]
    rounds = 0

    async def work() -> int:
        nonlocal rounds
        rounds += 1
        assert sum(await asyncio.gather(*(actor.ask(1) for actor in actors))) == rounds * len(actors)
        return len(actors)

    async with living(actors):
        yield work


@asynccontextmanager
async def stop(_: Path) -> AsyncIterator[Any]:
    async def work() -> int:
        for _ in range(STARTS):
            actor = Count()
            await asyncio.sleep(0)
            actor.task.cancel()
            await asyncio.wait([actor.task])
        return STARTS

    yield work


SUBJECTS = {
    "asyncio task + Queue": {
        "tell": tell,
        "ask": asking(1),
        "ask64": asking(64),
        "ring100": ring,
        "tell_async": tell,
        "ask_async": asking(1),
        "spawn": spawn,
        "fan_out": fan_out,
        "stop": stop,
    }
}
