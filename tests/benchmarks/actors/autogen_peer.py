"""AutoGen core, single-threaded runtime: telling is publishing to one subscriber."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    message_handler,
)

MESSAGES, QUESTIONS, HOPS, STARTS = 500, 300, 300, 100


@dataclass
class Question:
    i: int


@dataclass
class Note:
    i: int


@dataclass
class Token:
    left: int


class Count(RoutedAgent):
    def __init__(self) -> None:
        super().__init__("counts")
        self.n = 0

    @message_handler
    async def ask(self, message: Question, ctx: MessageContext) -> Question:
        self.n += 1
        return message

    @message_handler
    async def tell(self, message: Note, ctx: MessageContext) -> None:
        self.n += 1


class Node(RoutedAgent):
    done: Any = None

    def __init__(self) -> None:
        super().__init__("passes on")

    @message_handler
    async def hop(self, message: Token, ctx: MessageContext) -> None:
        if message.left:
            after = (int(self.id.type[4:]) + 1) % 100
            await self.publish_message(Token(message.left - 1), TopicId(f"ring{after}", "x"))
        else:
            Node.done.set_result(None)


@asynccontextmanager
async def running() -> AsyncIterator[Any]:
    runtime = SingleThreadedAgentRuntime()
    await Count.register(runtime, "count", Count)
    await runtime.add_subscription(TypeSubscription("topic", "count"))
    runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


@asynccontextmanager
async def tell(_: Path) -> AsyncIterator[Any]:
    async with running() as runtime:

        async def work() -> int:
            topic = TopicId("topic", "one")
            for i in range(MESSAGES):
                await runtime.publish_message(Note(i), topic)
            actor = await runtime.try_get_underlying_agent_instance(AgentId("count", "one"), Count)
            while actor.n % MESSAGES or not actor.n:  # noqa: ASYNC110 - the agent tells nobody
                await asyncio.sleep(0)
            actor.n = 0
            return MESSAGES

        yield work


def asking(at_once: int) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        async with running() as runtime:
            target = AgentId("count", "one")

            async def some(n: int) -> None:
                for i in range(n):
                    assert (await runtime.send_message(Question(i), target)).i == i

            async def work() -> int:
                await asyncio.gather(*(some(QUESTIONS // at_once) for _ in range(at_once)))
                return QUESTIONS // at_once * at_once

            yield work

    return case


@asynccontextmanager
async def ring(_: Path) -> AsyncIterator[Any]:
    async with running() as runtime:
        for i in range(100):
            await Node.register(runtime, f"node{i}", Node)
            await runtime.add_subscription(TypeSubscription(f"ring{i}", f"node{i}"))

        async def work() -> int:
            Node.done = asyncio.get_running_loop().create_future()
            await runtime.publish_message(Token(HOPS), TopicId("ring0", "x"))
            await Node.done
            return HOPS

        yield work


@asynccontextmanager
async def spawn(_: Path) -> AsyncIterator[Any]:
    async with running() as runtime:
        names = itertools.count()

        async def work() -> int:
            for _ in range(STARTS):  # an agent is made by the first message for its key
                await runtime.send_message(Question(0), AgentId("count", str(next(names))))
            return STARTS

        yield work


SUBJECTS = {
    "autogen-core": {
        "tell": tell,
        "ask": asking(1),
        "ask64": asking(64),
        "ring100": ring,
        "tell_async": tell,
        "ask_async": asking(1),
        "spawn": spawn,
    }
}
