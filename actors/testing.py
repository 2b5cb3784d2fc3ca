"""Test kit for actors: a virtual clock, `run_until_idle`, seeded scheduling, and `Probe`.

`run(main())` runs a coroutine on a loop whose clock stands still while anything can run, and jumps to the
next timer when nothing can: a test of hours takes milliseconds, and takes them the same way every time. With
`seed=` actors are served in an order drawn from the seed, and the random numbers of the runtime are drawn
from it too; every order it makes is one that could happen. Sockets and threads work, in real time; while
they do, the clock may jump, but for a function in an executor of the loop (`asyncio.to_thread`), which it
waits for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, ParamSpec, TypeVar, overload

from actors.actor import Actor, on
from actors.kernel.cell import Cell
from actors.kernel.scheduler import Scheduler
from actors.ref import Ref
from actors.signals import Failed, ReceiveTimeout, Restarted, Terminated
from actors.states import BURST, NESTED
from actors.system import ActorSystem

__all__ = ["Probe", "VirtualLoop", "run", "run_until_idle", "virtual"]

P = ParamSpec("P")
T = TypeVar("T")

MAX_SELECT_S = 0.02
"""Real seconds to wait for sockets and threads before the clock jumps."""
MAX_EXECUTOR_S = 5.0
"""The same while a function is at work in an executor: one that waits for the clock would wait for ever."""


class _Selector(selectors.DefaultSelector):
    """Moves the clock of its loop instead of sleeping."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.loop.wake_idle():
            return []
        outside = len(self.get_map()) > 1 or threading.active_count() > 1  # 1: the loop's own wake-up socket
        if timeout is None:
            if not outside:
                # A thread may have woken the loop and ended since the look at the sockets.
                if events := super().select(0):
                    return events
                raise RuntimeError("every task waits for something that no task will do")
            return super().select(None)
        if outside:
            patience = MAX_EXECUTOR_S if self.loop.executing else min(timeout, MAX_SELECT_S)
            events = super().select(patience)
        if not events:
            self.loop.advance(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock, which starts at 0; see the module."""

    def __init__(self, seed: int | None = None) -> None:
        self._now = 0.0
        self._seed = seed
        self._idle: list[asyncio.Future[None]] = []
        self.executing = 0  # functions in executors
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call a function in a thread; the clock stands still until it returns."""
        done = super().run_in_executor(executor, func, *args)
        self.executing += 1
        done.add_done_callback(self._executed)
        return done

    def _executed(self, _: asyncio.Future[Any]) -> None:
        self.executing -= 1

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self._now += seconds

    def idle(self) -> asyncio.Future[None]:
        """Return a future that is done when nothing can run before the next timer."""
        future: asyncio.Future[None] = self.create_future()
        self._idle.append(future)
        return future

    def wake_idle(self) -> bool:
        """Tell those who waited for it that nothing can run; true if there were any."""
        waiting, self._idle = [future for future in self._idle if not future.done()], []
        for future in waiting:
            future.set_result(None)
        return bool(waiting)

    def actors_scheduler(self, *arguments: Any) -> Scheduler[Cell]:
        """Return the scheduler of the actor systems on this loop."""
        return _Scheduler(self._seed, *arguments)


class _Scheduler(Scheduler[Cell]):
    """Slices by the virtual clock; with a seed, serves in a random order."""

    def __init__(self, seed: int | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.clock = self.loop.time
        self.random = Random(0 if seed is None else seed)
        self._shuffle = seed is not None
        if self._shuffle:
            self.nested = NESTED  # no turn in place: each is one of those among which the seed chooses

    def turn(self) -> None:
        if not self._shuffle:
            super().turn()
            return
        self.queue.rotate(-self.random.randrange(len(self.queue)))
        self.burst = self.random.choice((1, 2, 3, BURST))
        try:
            cell = self.queue.popleft()
            context = self.base.copy()
            context.run(cell.turn, self.clock(), context)
        finally:
            self.armed = False
            if self.queue:
                self.arm()


def run(main: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    """Run to its end on a new `VirtualLoop`, in this thread; returns the result or raises what it raised.

    Raises `RuntimeError` when every task waits for something that no task will do.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        return runner.run(main)


@overload
def virtual(test: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, T]: ...
@overload
def virtual(
    *, seed: int | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, T]]: ...
def virtual(test: Callable[..., Any] | None = None, /, *, seed: int | None = None) -> Any:
    """Make an `async` test a plain one that runs on the virtual clock: `@virtual` or `@virtual(seed=7)`.

    Async fixtures of a test runner's own loop cannot be used by such a test; plain ones can.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @functools.wraps(test)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return run(test(*args, **kwargs), seed=seed)

        # Test runners ask for the parameters, and must not find the coroutine function behind it.
        vars(wrapper).pop("__wrapped__")
        vars(wrapper)["__signature__"] = inspect.signature(test)
        return wrapper

    return decorate if test is None else decorate(test)


async def run_until_idle() -> None:
    """Let everything run that can without the clock moving on. Only on a `VirtualLoop`."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("run_until_idle() needs the virtual clock: run the test by actors.testing.run")
    await loop.idle()


class _ProbeActor(Actor, mailbox=0):
    def __init__(self, arrived: Callable[[Any], None], answer: Callable[[Any], Any] | None) -> None:
        self._arrived = arrived
        self._answer = answer

    @on(object, Failed, Restarted, Terminated, ReceiveTimeout)
    def receive(self, message: Any) -> Any:
        self._arrived(message)
        return None if self._answer is None else self._answer(message)


class Probe:
    """An actor for tests that keeps what it gets: `probe = await Probe.start(system)`, give away
    `probe.ref`."""

    def __init__(self, ref: Ref[Any], arrived: deque[Any], signal: asyncio.Event) -> None:
        self.ref = ref
        self._arrived = arrived
        self._signal = signal

    @classmethod
    async def start(
        cls, system: ActorSystem, name: str | None = None, *, answer: Callable[[Any], Any] | None = None
    ) -> Probe:
        """Spawn one. `answer` makes the replies to asks of their messages; without it they are None."""
        arrived: deque[Any] = deque()
        signal = asyncio.Event()

        def keep(message: Any) -> None:
            arrived.append(message)
            signal.set()

        return cls(await system.spawn(lambda: _ProbeActor(keep, answer), name or None), arrived, signal)

    def watch(self, ref: Ref[Any]) -> None:
        """Get the `Terminated` of that actor."""
        self.ref.cell.context.watch(ref)

    @property
    def received(self) -> list[Any]:
        """What arrived and was not taken by `expect`."""
        return list(self._arrived)

    @overload
    async def expect(self, kind: type[T], *, within: float = 3.0) -> T: ...
    @overload
    async def expect(self, kind: None = None, *, within: float = 3.0) -> Any: ...
    async def expect(self, kind: type[Any] | None = None, *, within: float = 3.0) -> Any:
        """Take the next message, a `kind`, `within` so many seconds; else `AssertionError`."""
        try:
            async with asyncio.timeout(within):
                while not self._arrived:
                    self._signal.clear()
                    await self._signal.wait()
        except TimeoutError:
            name = "anything" if kind is None else kind.__name__
            raise AssertionError(
                f"{self.ref.path} expected {name}; nothing came within {within:g} s"
            ) from None
        message = self._arrived.popleft()
        if kind is not None and not isinstance(message, kind):
            raise AssertionError(f"{self.ref.path} expected {kind.__name__}; {message!r} came")
        return message

    async def expect_nothing(self, *, within: float = 0.1) -> None:
        """Raise `AssertionError` if anything is here or comes `within` so many seconds."""
        if not self._arrived:
            self._signal.clear()
            try:
                async with asyncio.timeout(within):
                    await self._signal.wait()
            except TimeoutError:
                return
        raise AssertionError(f"{self.ref.path} expected nothing; {self._arrived[0]!r} came")
