"""Thespian, its system inside the process: actors are called one after the other when the outside asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from thespian.actors import Actor, ActorExitRequest, ActorSystem

MESSAGES, QUESTIONS, HOPS, STARTS = 5_000, 1_000, 5_000, 500


class Count(Actor):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if message == "tell":
            self.n += 1
        elif message == "ask":
            self.n += 1
            self.send(sender, self.n)


class Node(Actor):
    next: Any = None

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if not isinstance(message, tuple):
            return
        kind, value, back = message
        if kind == "next":
            self.next = value
            self.send(sender, "connected")
        elif value:
            self.send(self.next, ("hop", value - 1, back or sender))
        else:
            self.send(back, "done")


@asynccontextmanager
async def tell(_: Path) -> AsyncIterator[Any]:
    system = ActorSystem("simpleSystemBase")
    actor = system.createActor(Count)
    expected = 0

    async def work() -> int:
        nonlocal expected
        for _ in range(MESSAGES):
            system.tell(actor, "tell")
        expected += MESSAGES + 1
        assert system.ask(actor, "ask", 60) == expected
        return MESSAGES

    try:
        yield work
    finally:
        system.shutdown()


@asynccontextmanager
async def ask(_: Path) -> AsyncIterator[Any]:
    system = ActorSystem("simpleSystemBase")
    actor = system.createActor(Count)

    async def work() -> int:
        for _ in range(QUESTIONS):
            assert system.ask(actor, "ask", 5)
        return QUESTIONS

    try:
        yield work
    finally:
        system.shutdown()


@asynccontextmanager
async def ring(_: Path) -> AsyncIterator[Any]:
    system = ActorSystem("simpleSystemBase")
    nodes = [system.createActor(Node) for _ in range(100)]
    for i, node in enumerate(nodes):
        assert system.ask(node, ("next", nodes[(i + 1) % 100], None), 10) == "connected"

    async def work() -> int:
        assert system.ask(nodes[0], ("hop", HOPS, None), 60) == "done"
        return HOPS

    try:
        yield work
    finally:
        system.shutdown()


def starting(stopped: bool) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        system = ActorSystem("simpleSystemBase")

        async def work() -> int:
            for _ in range(STARTS):
                actor = system.createActor(Count)
                assert system.ask(actor, "ask", 10) == 1
                if stopped:
                    system.tell(actor, ActorExitRequest())
            return STARTS

        try:
            yield work
        finally:
            system.shutdown()

    return case


SUBJECTS = {
    "thespian": {
        "tell": tell,
        "ask": ask,
        "ring100": ring,
        "spawn": starting(False),
        "stop": starting(True),
    }
}
