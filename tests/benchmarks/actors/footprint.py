"""The product's own figures: an idle actor's memory, the delay of the loop, the time after a crash.

Prints a JSON line for each. Runs in a process of its own, so that memory is that of the actors alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import statistics
import time

from actors import Actor, ActorSystem, OneForOne, on

logging.disable(logging.CRITICAL)
ACTORS, MESSAGES, CRASHES, PACE = 100_000, 1_000_000, 2_000, 20_000


class Idle(Actor):
    @on(int)
    def number(self, n: int) -> int:
        return n

    @on(str)
    def crash(self, _: str) -> None:
        raise ValueError


class Drain(Actor, mailbox=0):
    @on(int)
    def number(self, n: int) -> int:
        return n


def memory() -> int:
    """Bytes that the process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(case: str, value: float, unit: str, subject: str = "agentflow") -> None:
    row = {"suite": "actors", "case": case, "subject": subject, "value": value, "unit": unit}
    print(json.dumps(row), flush=True)


async def idle_actors() -> None:
    async with ActorSystem() as system:
        await system.spawn(Idle)
        gc.collect()
        before = memory()
        for _ in range(ACTORS):
            await system.spawn(Idle)
        gc.collect()
        say("memory_idle_actor", (memory() - before) / ACTORS, "B")


async def loop_delay() -> None:
    """The longest time between two turns of the loop while one actor drains its mailbox."""
    async with ActorSystem() as system:
        ref = await system.spawn(Drain)
        for i in range(MESSAGES):
            ref.tell(i)
        gc.collect()
        gc.freeze()
        longest, turns = 0.0, 0
        last = time.perf_counter()
        while ref.cell.box:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last, turns = max(longest, now - last), now, turns + 1
        gc.unfreeze()
        assert turns > 10
        say("loop_delay_max", longest * 1000, "ms")


async def crashes() -> None:
    """From the message that crashes an actor to the answer of the next one, by the restarted actor."""
    async with ActorSystem(supervise=OneForOne(max_restarts=10 * CRASHES)) as system:
        ref = await system.spawn(Idle)
        times = []
        for i in range(CRASHES):
            began = time.perf_counter()
            ref.tell("crash")
            assert await ref.ask(i) == i
            times.append(time.perf_counter() - began)
        say("crash_to_answer", statistics.median(times) * 1e6, "us")


async def pace() -> None:
    """Two turns of the bare loop: a future that a callback settles. The floor of an ask."""
    loop = asyncio.get_running_loop()

    def settle(future: asyncio.Future[None]) -> None:
        future.set_result(None)

    times = []
    for _ in range(PACE):
        future: asyncio.Future[None] = loop.create_future()
        began = time.perf_counter()
        loop.call_soon(settle, future)
        await future
        times.append(time.perf_counter() - began)
    say("two_loop_turns", statistics.median(times) * 1e6, "us", "asyncio")


async def main() -> None:
    await pace()
    await crashes()
    await loop_delay()
    await idle_actors()


asyncio.run(main())
