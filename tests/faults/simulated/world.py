"""A store that outlives processes, and processes that die: one life of a Runtime on a virtual clock.

A life has its own event loop. At its death the loop is abandoned in the middle of whatever it did: no handler
ends, nothing is closed, and the store takes nothing more from it. Time goes on from one life to the next.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any
from unittest.mock import patch

import actors
from actors.interceptor import Interceptor
from actors.system import ActorSystem
from actors.testing import VirtualLoop
from agentflow.errors import LogClosed, StorageUnavailable
from agentflow.events.ids import Ids
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import Owner
from agentflow.runtime import Runtime
from agentflow.runtime.runs_supervisor import Overdue
from agentflow.runtime.supervisor_messages import Wake

__all__ = ["BusyLoop", "LifeLog", "SimClock", "World", "intercepting"]

EPOCH = 1_700_000_000_000_000
MAX_STILL = 20_000
"""Passes of the loop without the clock moving on, beyond which something goes round for ever."""


class BusyLoop(AssertionError):
    """The loop turned and turned, and no time passed."""


class World:
    """What is left when a process dies: the store, the time, and the effects outside."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = MemoryLog()
        self.elapsed = 0.0  # seconds before the present life
        self.step = 0  # µs that the wall clock is off
        self.lives = 0
        self.wakes: Counter[str] = Counter()
        self.passes = 0

    def live(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one life to its death or its end."""
        loop = VirtualLoop(self.rng.randrange(1 << 30))
        self._watch(loop)
        loop.run_in_executor = partial(_call_at_once, loop)  # type: ignore[method-assign]
        loop.set_exception_handler(lambda loop, context: None)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.elapsed += loop.time()
            self.lives += 1
            asyncio.set_event_loop(None)
            loop.close()

    def _watch(self, loop: VirtualLoop) -> None:
        select, still, last = loop._selector.select, 0, -1.0  # type: ignore[attr-defined]

        def counted(timeout: float | None = None) -> Any:
            nonlocal still, last
            self.passes += 1
            now = loop.time()
            still, last = (still + 1, last) if now == last else (0, now)
            if still > MAX_STILL:
                raise BusyLoop(f"{still} passes of the loop at second {now}")
            return select(timeout)

        loop._selector.select = counted  # type: ignore[attr-defined]

    def runtime(self, log: LifeLog, **more: Any) -> Runtime:
        """A Runtime of this life; its process counts as dead for all others."""
        clock = SimClock(self)
        runtime = Runtime(log, clock=clock, ids=Ids(clock.now, self.rng.getrandbits), **more)  # type: ignore[arg-type]
        runtime.owner = Owner(2**22 + 1, "never", f"life {self.lives}")
        return runtime


def _call_at_once(
    loop: VirtualLoop, executor: None, function: Callable[..., Any], *args: Any
) -> asyncio.Future[Any]:
    """Stand in for `run_in_executor`: a thread would take real time, and outlive the life that began it."""
    future: asyncio.Future[Any] = loop.create_future()
    try:
        future.set_result(function(*args))
    except Exception as error:
        future.set_exception(error)
    return future


class SimClock:
    """Wall time that steps when the world says so, and monotonic time that does not."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> int:
        return EPOCH + self.monotonic() + self._world.step

    def monotonic(self) -> int:
        return round((self._world.elapsed + asyncio.get_running_loop().time()) * 1e6)

    def draw(self) -> float:
        return self._world.rng.random()


class LifeLog:
    """The store as one life sees it: commits take a moment, may be refused, and one may be the last."""

    def __init__(self, world: World, *, dies_at: int | None = None, acknowledges: bool = False) -> None:
        """`dies_at`: the process dies at the commit with this number, before it, or with `acknowledges` once
        it is in the store and before the caller is told."""
        self._world = world
        self._store = world.store
        self._dies_at, self._acknowledges = dies_at, acknowledges
        self._queue: list[tuple[Append, asyncio.Future[None]]] = []
        self._commits = 0
        self._writing = False
        self.refuses_until = -1.0
        self.dead = False
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not iscoroutinefunction(value):
            return value

        async def called(*args: Any, **kwargs: Any) -> Any:
            self._check()
            if name.startswith("save_") and self._refuses():
                raise StorageUnavailable("the disk is full")
            result = await value(*args, **kwargs)
            if name.startswith("save_"):
                await asyncio.sleep(self._world.rng.choice((0, 0.001)))
                self._check()
            return result

        return called

    def _check(self) -> None:
        if self.dead:
            raise LogClosed

    def _refuses(self) -> bool:
        return asyncio.get_running_loop().time() < self.refuses_until

    def die(self) -> None:
        """End the process."""
        self.dead = True
        if not self.died.done():
            self.died.set_result(None)

    def append(self, batch: Append) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self.dead:
            future.set_exception(LogClosed())
            return future
        self._queue.append((batch, future))
        if not self._writing:
            self._writing = True
            loop.call_later(self._world.rng.choice((0.0, 0.001, 0.01)), self._write)
        return future

    def _write(self) -> None:
        self._writing = False
        group, self._queue = self._queue, []
        for batch, future in group:
            if self.dead or future.cancelled():
                continue
            if self._refuses():
                future.set_exception(StorageUnavailable("the disk is full"))
                continue
            last = self._commits == self._dies_at
            self._commits += 1
            if last and not self._acknowledges:
                self.die()
                continue
            written = self._store.append(batch)
            if last:
                self.die()
            elif (error := written.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(None)

    async def close(self) -> None:
        """The store outlives the life."""


class _Wakes:
    """Counts the wake-ups of each run."""

    def __init__(self, world: World) -> None:
        self._world = world

    def wants(self, message_type: type) -> bool:
        return message_type in (Wake, Overdue)

    @contextmanager
    def handling(self, ref: Any, message: Any, trace: Any) -> Iterator[None]:
        name = message.workflow_id if isinstance(message, Overdue) else ref.path.rpartition("/")[2]
        self._world.wakes[name] += 1
        yield


@contextmanager
def intercepting(interceptor: Interceptor) -> Iterator[None]:
    """Put an interceptor into the actor systems of the Runtimes that are entered meanwhile.

    A Runtime imports the class from `actors` when it is entered.
    """

    def system(*args: Any, **kwargs: Any) -> ActorSystem:
        return ActorSystem(*args, interceptor=interceptor, **kwargs)

    with patch.object(actors, "ActorSystem", system):
        yield


def counting_wakes(world: World) -> Interceptor:
    """An interceptor that counts wake-ups in `world.wakes`."""
    return _Wakes(world)
