"""Pykka: one operating-system thread for each actor."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pykka

MESSAGES, QUESTIONS, HOPS, STARTS = 10_000, 500, 1_000, 50


class Count(pykka.ThreadingActor):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def on_receive(self, message: Any) -> Any:
        self.n += 1
        return self.n


class Node(pykka.ThreadingActor):
    next: Any

    def on_receive(self, message: Any) -> None:
        kind, value, done = message
        if kind == "next":
            self.next = value
        elif value:
            self.next.tell((kind, value - 1, done))
        else:
            done.set()


@asynccontextmanager
async def tell(_: Path) -> AsyncIterator[Any]:
    ref = Count.start()
    expected = 0

    async def work() -> int:
        nonlocal expected
        for i in range(MESSAGES):
            ref.tell(i)
        expected += MESSAGES + 1
        assert ref.ask(0) == expected
        return MESSAGES

    try:
        yield work
    finally:
        pykka.ActorRegistry.stop_all()


def asking(at_once: int) -> Any:
    @asynccontextmanager
    async def case(_: Path) -> AsyncIterator[Any]:
        ref = Count.start()

        async def work() -> int:
            for _ in range(QUESTIONS // at_once):
                if at_once == 1:
                    ref.ask(0, timeout=5)
                else:
                    for answer in [ref.ask(0, block=False) for _ in range(at_once)]:
                        answer.get(timeout=5)
            return QUESTIONS // at_once * at_once

        try:
            yield work
        finally:
            pykka.ActorRegistry.stop_all()

    return case


@asynccontextmanager
async def ring(_: Path) -> AsyncIterator[Any]:
    nodes = [Node.start() for _ in range(100)]
    for i, node in enumerate(nodes):
        node.ask(("next", nodes[(i + 1) % 100], None))

    async def work() -> int:
        done = threading.Event()
        nodes[0].tell(("hop", HOPS, done))
        done.wait()
        return HOPS

    try:
        yield work
    finally:
        pykka.ActorRegistry.stop_all()


@asynccontextmanager
async def spawn(_: Path) -> AsyncIterator[Any]:
    async def work() -> int:
        refs = [Count.start() for _ in range(STARTS)]
        for ref in refs:  # threads cannot be left to pile up
            ref.stop()
        return STARTS

    yield work


@asynccontextmanager
async def fan_out(_: Path) -> AsyncIterator[Any]:
    refs = [Count.start() for _ in range(100)]
    rounds = 0

    async def work() -> int:
        nonlocal rounds
        rounds += 1
        answers = [ref.ask(0, block=False) for ref in refs]
        assert sum(answer.get(timeout=5) for answer in answers) == rounds * len(refs)
        return len(refs)

    try:
        yield work
    finally:
        pykka.ActorRegistry.stop_all()


SUBJECTS = {
    "pykka": {
        "tell": tell,
        "ask": asking(1),
        "ask64": asking(64),
        "ring100": ring,
        "spawn": spawn,
        "fan_out": fan_out,
        "stop": spawn,
    }
}
