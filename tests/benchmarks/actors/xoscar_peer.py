"""xoscar: one pool inside the process, references without serialisation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import xoscar

MESSAGES, QUESTIONS, HOPS, STARTS = 5_000, 1_000, 2_000, 200


class Count(xoscar.Actor):
    def __init__(self) -> None:
        self.n = 0

    def add(self, _: int) -> int:
        self.n += 1
        return self.n


class CountAsync(Count):
    async def add(self, _: int) -> int:
        self.n += 1
        return self.n


class Node(xoscar.Actor):
    next: Any

    def connect(self, ref: Any) -> None:
        self.next = ref

    async def hop(self, left: int, done: Any) -> None:
        if left:
            await self.next.hop.tell(left - 1, done)
        else:
            done.set_result(None)


@asynccontextmanager
async def pool() -> AsyncIterator[Any]:
    made = await xoscar.create_actor_pool("127.0.0.1", n_process=0)
    async with made:
        yield made.external_address


async def start(kind: Any, address: str) -> Any:
    ref = await xoscar.create_actor(kind, address=address)
    return await xoscar.actor_ref(address, ref.uid)


def telling(kind: Any) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        async with pool() as address:
            ref = await start(kind, address)
            expected = 0

            async def work() -> int:
                nonlocal expected
                tell = ref.add.tell
                for i in range(MESSAGES):
                    await tell(i)
                expected += MESSAGES + 1
                assert await ref.add(0) == expected
                return MESSAGES

            yield work

    return case


def asking(kind: Any, at_once: int) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        async with pool() as address:
            ref = await start(kind, address)

            async def some(n: int) -> None:
                for i in range(n):
                    await ref.add(i)

            async def work() -> int:
                await asyncio.gather(*(some(QUESTIONS // at_once) for _ in range(at_once)))
                return QUESTIONS // at_once * at_once

            yield work

    return case


@asynccontextmanager
async def ring(_: Path) -> AsyncIterator[Any]:
    async with pool() as address:
        nodes = [await start(Node, address) for _ in range(100)]
        for i, node in enumerate(nodes):
            await node.connect(nodes[(i + 1) % 100])

        async def work() -> int:
            done = asyncio.get_running_loop().create_future()
            await nodes[0].hop.tell(HOPS, done)
            await done
            return HOPS

        yield work


@asynccontextmanager
async def spawn(_: Path) -> AsyncIterator[Any]:
    async with pool() as address:
        names = itertools.count()

        async def work() -> int:
            for _ in range(STARTS):
                await xoscar.create_actor(Count, address=address, uid=str(next(names)))
            return STARTS

        yield work


SUBJECTS = {
    "xoscar": {
        "tell": telling(Count),
        "ask": asking(Count, 1),
        "ask64": asking(Count, 64),
        "ring100": ring,
        "tell_async": telling(CountAsync),
        "ask_async": asking(CountAsync, 1),
        "spawn": spawn,
    }
}
