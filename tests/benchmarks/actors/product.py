"""The product: `actors`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors import Actor, ActorSystem, OneForOne, on

logging.disable(logging.CRITICAL)
MESSAGES, QUESTIONS, HOPS, STARTS = 20_000, 2_000, 10_000, 2_000


class Count(Actor, mailbox=0):
    def __init__(self) -> None:
        self.n = 0

    @on(int)
    def add(self, _: int) -> int:
        self.n += 1
        return self.n


class CountAsync(Actor, mailbox=0):
    def __init__(self) -> None:
        self.n = 0

    @on(int)
    async def add(self, _: int) -> int:
        self.n += 1
        return self.n


class Crashes(Count, mailbox=0):
    @on(str)
    def crash(self, _: str) -> None:
        raise ValueError


class Fan(Actor):
    @on(list)
    async def ask_all(self, refs: list[Any]) -> int:
        return sum(await self.ctx.gather(ref.ask_soon(1) for ref in refs))


class Node(Actor):
    next: Any

    @on(tuple)
    def hop(self, token: Any) -> None:
        left, done = token
        if left:
            self.next.tell((left - 1, done))
        else:
            done.set_result(None)


def telling(kind: type[Actor]) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        async with ActorSystem() as system:
            ref = await system.spawn(kind)
            expected = 0

            async def work() -> int:
                nonlocal expected
                tell = ref.tell
                for i in range(MESSAGES):
                    tell(i)
                expected += MESSAGES + 1
                assert await ref.ask(0, timeout=60) == expected
                return MESSAGES

            yield work

    return case


def asking(kind: type[Actor], at_once: int) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        async with ActorSystem() as system:
            ref = await system.spawn(kind)

            async def some(n: int) -> int:
                answer = 0
                for i in range(n):
                    answer = await ref.ask(i)
                return answer

            async def work() -> int:
                before = await ref.ask(0)
                n = QUESTIONS // at_once
                assert max(await asyncio.gather(*(some(n) for _ in range(at_once)))) == before + n * at_once
                return n * at_once

            yield work

    return case


@asynccontextmanager
async def ring(_: Path) -> AsyncIterator[Any]:
    async with ActorSystem() as system:
        nodes = [Node() for _ in range(100)]
        refs = [await system.spawn(lambda node=node: node) for node in nodes]
        for i, node in enumerate(nodes):
            node.next = refs[(i + 1) % 100]

        async def work() -> int:
            done = asyncio.get_running_loop().create_future()
            refs[0].tell((HOPS, done))
            await done
            return HOPS

        yield work


@asynccontextmanager
async def spawn(_: Path) -> AsyncIterator[Any]:
    async with ActorSystem() as system:

        async def work() -> int:
            for _ in range(STARTS):
                await system.spawn(Count)
            return STARTS

        yield work
        assert len(system.children) >= STARTS


@asynccontextmanager
async def fan_out(_: Path) -> AsyncIterator[Any]:
    async with ActorSystem() as system:
        refs = [await system.spawn(Count) for _ in range(1000)]
        fan = await system.spawn(Fan)
        rounds = 0

        async def work() -> int:
            nonlocal rounds
            rounds += 1
            assert await fan.ask(refs) == rounds * len(refs)
            return len(refs)

        yield work


@asynccontextmanager
async def stop(_: Path) -> AsyncIterator[Any]:
    async with ActorSystem() as system:

        async def work() -> int:
            for _ in range(STARTS):
                ref = await system.spawn(Count)
                ref.stop()
                await ref.terminated()
            assert not system.children
            return STARTS

        yield work


@asynccontextmanager
async def crash(_: Path) -> AsyncIterator[Any]:
    async with ActorSystem(supervise=OneForOne(max_restarts=10**9)) as system:
        ref = await system.spawn(Crashes)

        async def work() -> int:
            for _ in range(STARTS):
                ref.tell("crash")
                assert await ref.ask(0) == 1
            return STARTS

        yield work


SUBJECTS = {
    "agentflow": {
        "tell": telling(Count),
        "ask": asking(Count, 1),
        "ask64": asking(Count, 64),
        "ring100": ring,
        "tell_async": telling(CountAsync),
        "ask_async": asking(CountAsync, 1),
        "spawn": spawn,
        "fan_out": fan_out,
        "stop": stop,
        "crash": crash,
    }
}
