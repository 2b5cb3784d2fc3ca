"""Let actors come, work, crash and go for minutes; memory, objects and tasks must stay where they are.

    python -m tests.faults.soak_actors [--seconds 600]

A line a second or so on stderr, the outcome as JSON on stdout, exit code 1 when something grew or went
wrong. Ten minutes churn through more than a million actors on an ordinary machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from actors import (
    Actor,
    ActorError,
    ActorSystem,
    AskTimeout,
    Backoff,
    ChildSpec,
    OneForAll,
    OneForOne,
    Pool,
    Ref,
    Reject,
    Terminated,
    on,
)

BATCH = 200
OWNED = (*("timer", "pipe", "defer", "limit", "finish") * 2, "stash")
GROWTH = 6 * 2**20
"""Bytes that the process may grow between the first and the last quarter after the warm-up."""


class Crash(Exception):
    """Wanted."""


class Worker(Actor, mailbox=20, stash=5):
    """Does a bit of everything."""

    def __init__(self) -> None:
        self.n = 0

    def on_start(self) -> None:
        self.limiter = self.ctx.limiter(2)
        self.ctx.system.group("workers").join(self.ctx.self)

    @on(int)
    def plain(self, n: int) -> int:
        self.n += 1
        if n % 31 == 0:
            raise Crash
        if n % 37 == 0:
            raise Reject
        return n

    @on(float)
    async def awaited(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @on(str)
    def owned(self, what: str) -> None:
        if what == "timer":
            self.ctx.timers.start("t", 0.01, 1, repeat=True)
        elif what == "pipe":
            self.ctx.pipe(asyncio.sleep(0.01, 3), lambda n: n)
        elif what == "defer":
            reply = self.ctx.defer()
            self.ctx.pipe(asyncio.sleep(0.001), lambda _: reply.set(0) and None)
        elif what == "forget":
            self.ctx.defer()
        elif what == "limit":
            self.limiter.submit(partial(self.piece, random.choice((0, 0.001, 1))), timeout=0.005)
        elif what == "stash":
            if random.random() < 0.5:
                self.ctx.stash()
            else:
                self.ctx.unstash_all()
        elif what == "finish":
            self.ctx.finish()

    async def piece(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        if random.random() < 0.1:
            raise Crash
        return 0


class Boss(Actor):
    """Grows a family, watches it, and loses members now and then."""

    def __init__(self) -> None:
        if random.random() < 0.3:
            self.supervise = OneForAll(max_restarts=5, within=1)
        else:
            self.supervise = OneForOne(max_restarts=20, within=1, backoff=Backoff(0.001, 0.01, jitter=0.5))

    async def on_start(self) -> None:
        for i in range(8):
            restart = random.choice(("permanent", "transient", "temporary"))
            ref = await self.ctx.spawn(ChildSpec(f"w{i}", Worker, restart=restart, shutdown=0.5))
            self.ctx.watch(ref)

    @on(Terminated)
    def gone(self, _: Terminated) -> None:
        pass

    @on(str)
    async def members(self, _: str) -> list[Ref[Any]]:
        return list(self.ctx.children.values())


@dataclass
class Outcome:
    seconds: float
    actors: int = 0
    answers: int = 0
    failures: int = 0
    memory_first: int = 0
    memory_last: int = 0
    objects_first: int = 0
    objects_last: int = 0
    well: bool = False


def memory() -> int:
    """Bytes that the process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def family(system: ActorSystem, outcome: Outcome) -> None:
    """The life of one family, from start to end."""
    try:
        boss = await system.spawn(Boss)
        members = await boss.ask("members")
    except ActorError:
        return
    for _ in range(30):
        ref = random.choice(members)
        message = random.choice((random.randrange(1000), 0.0, 0.001, *OWNED))
        try:
            match random.randrange(6):
                case 0 | 1:
                    ref.tell(message)
                case 2:
                    await ref.send(message)
                case 3:
                    await ref.ask("forget", timeout=0.01)
                case _:
                    await ref.ask(message, timeout=0.01 if message == "stash" else 1)
                    outcome.answers += 1
        except (Crash, ActorError) as exc:
            outcome.failures += not isinstance(exc, AskTimeout)
        if random.random() < 0.02:
            random.choice((ref.stop, ref.drain, ref.kill))()
    random.choice((boss.stop, boss.drain, boss.kill))()
    await boss.terminated()


async def pooled(system: ActorSystem, outcome: Outcome) -> None:
    """The life of one pool."""
    pool = await system.spawn(lambda: Pool(Worker, 4, supervise=OneForOne(max_restarts=1000)))
    for n in range(40):
        with contextlib.suppress(Crash, ActorError):
            outcome.answers += await pool.ask(n, timeout=1) == n
    pool.stop()
    await pool.terminated()


async def batch(system: ActorSystem, outcome: Outcome) -> None:
    before = system.scheduler.uid
    lives = (pooled if i % 20 == 0 else family for i in range(BATCH))
    async with asyncio.TaskGroup() as group:
        for life in lives:
            group.create_task(life(system, outcome))
    system.group("workers").publish(1)
    outcome.actors += system.scheduler.uid - before


async def soak(seconds: float) -> Outcome:
    outcome = Outcome(seconds)
    samples: list[tuple[float, int, int]] = []
    began = time.monotonic()
    shown = 0.0
    async with ActorSystem(supervise=OneForOne(max_restarts=10**9, decide={Exception: "stop"})) as system:
        while (passed := time.monotonic() - began) < seconds:
            await batch(system, outcome)
            await asyncio.sleep(0.02)
            gc.collect()
            samples.append((passed, memory(), len(gc.get_objects())))
            if passed - shown > 1:
                shown = passed
                print(
                    f"{passed:6.0f} s {outcome.actors:9,} actors {outcome.answers:9,} answers "
                    f"{outcome.failures:9,} failures {samples[-1][1] / 2**20:7.1f} MiB "
                    f"{samples[-1][2]:8,} objects",
                    file=sys.stderr,
                )
        alive = system.children
        assert not alive, f"{len(alive)} actors are left"
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks, f"{len(tasks)} tasks are left: {tasks}"
    warm = samples[len(samples) // 5 :]
    quarter = max(1, len(warm) // 4)
    outcome.memory_first = int(statistics.median(m for _, m, _ in warm[:quarter]))
    outcome.memory_last = int(statistics.median(m for _, m, _ in warm[-quarter:]))
    outcome.objects_first = int(statistics.median(n for _, _, n in warm[:quarter]))
    outcome.objects_last = int(statistics.median(n for _, _, n in warm[-quarter:]))
    # A few samples of a moving crowd say nothing about growth: it is judged from ten seconds on.
    flat = len(warm) < 8 or (
        outcome.memory_last - outcome.memory_first < GROWTH
        and outcome.objects_last - outcome.objects_first < 2_000
    )
    outcome.well = flat and outcome.answers > 0 and outcome.failures > 0
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak_actors")
    parser.add_argument("--seconds", type=float, default=600, help="how long (600)")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    random.seed(options.seed)
    logging.disable(logging.CRITICAL)
    outcome = asyncio.run(soak(options.seconds))
    print(json.dumps(asdict(outcome)))
    return 0 if outcome.well else 1


if __name__ == "__main__":
    sys.exit(main())
