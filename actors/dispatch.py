"""The run queue, the wheel of ask deadlines, and the door for other threads: one `Scheduler` for each system.

One loop callback serves the actors that have work, in slices of 2 ms, so that a busy system never freezes
the loop. Nothing here knows what a message or a failure means.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from math import inf
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from actors.errors import ActorStopped, AskTimeout, MailboxFull
from actors.states import SLICE
from actors.trace import FRAME, SCHEDULERS

if TYPE_CHECKING:
    from actors.actor import Actor, Handler
    from actors.cell import Cell, Envelope
    from actors.context import Context
    from actors.deadletters import DeadLetters
    from actors.question import Question
    from actors.ref import Ref
    from actors.system import ActorSystem

__all__ = ["Scheduler", "Wheel"]

T = TypeVar("T")

TICKS = 20
"""Ticks of the wheel in a second: a deadline is met up to 1/20 s late, never early."""

AGAIN = 1.0
"""Seconds after which a task that was cancelled and lives is cancelled again."""


class Wheel:
    """Deadlines of questions in buckets of 50 ms: far cheaper than a timer each."""

    __slots__ = ("_buckets", "_handle", "_loop", "_next")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Question, None]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._next: float = inf

    def bucket(self, deadline: float) -> dict[Question, None]:
        """Where to keep a question until `deadline` (loop time); take it out when it is settled."""
        tick = int(deadline * TICKS) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            if tick < self._next:
                self._arm(tick)
        return bucket

    def _arm(self, tick: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next = tick
        self._handle = self._loop.call_at(tick / TICKS, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        for tick in sorted(tick for tick in self._buckets if tick / TICKS <= now):
            for question in self._buckets.pop(tick):
                if not question.future.done():
                    question.future.set_exception(
                        AskTimeout(f"{question.target.path} did not answer in time")
                    )
        self._handle, self._next = None, inf
        if self._buckets:
            self._arm(min(self._buckets))

    def close(self) -> None:
        """Forget all deadlines."""
        self._buckets.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self._next = None, inf


class Scheduler:
    """What the cells of one system share; see the module."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dead_letters: DeadLetters,
        crash: Callable[[BaseException], None],
    ) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.queue: deque[Cell] = deque()
        self.armed = False
        self.running: Cell | None = None
        self.boxes: list[deque[Envelope]] = []
        self.busy: dict[Cell, None] = {}
        self.wheel = Wheel(loop)
        self.uid = 0
        self.random = Random()
        self.dead_letters = dead_letters
        self.crash = crash
        self.ref_type: type[Ref[Any]]
        self.context_type: type[Context]
        self.system: ActorSystem
        self.base = copy_context()
        self.base.run(FRAME.set, None)
        self._controls: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._door: deque[tuple[Cell, Any, Any]] | None = deque()
        SCHEDULERS.setdefault(self.thread, []).append(self)

    def arm(self) -> None:
        """See to it that the run queue is served."""
        self.armed = True
        # Without a context of its own the callback would run in that of whoever happened to send first.
        self.loop.call_soon(self.turn, context=self.base)

    def turn(self) -> None:
        """Serve the run queue for 2 ms."""
        queue = self.queue
        copy = self.base.copy
        until = perf_counter() + SLICE
        try:
            while queue:
                copy().run(queue.popleft().turn, until)
                if perf_counter() > until:
                    break
        finally:
            self.armed = False
            if queue:
                self.arm()

    def new_box(self) -> deque[Envelope]:
        """An empty mailbox."""
        return self.boxes.pop() if self.boxes else deque()

    def table(self, actor: type[Actor[Any]]) -> dict[type, Handler | None]:
        """The table of handlers that serves this class."""
        return actor.__handlers__

    def call(self, cell: Cell, function: Callable[..., T], *arguments: object) -> T:
        """Call user code in place on behalf of an actor, in a context of its own."""
        previous, self.running = self.running, cell
        try:
            return self.base.copy().run(function, *arguments)
        finally:
            self.running = previous

    def task(
        self,
        coroutine: Coroutine[Any, Any, T],
        name: str,
        cell: Cell | None = None,
        trace: Any = None,
        held: bool = True,
    ) -> asyncio.Task[T]:
        """A task in a context of its own; it works for `cell`, which waits for it if `held`."""
        context = self.base.copy()
        if cell is not None:
            context.run(FRAME.set, (cell, trace, None, held))
        return asyncio.Task(coroutine, loop=self.loop, name=name, context=context)

    def control(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a routine of the runtime, which nobody cancels."""
        task = self.task(coroutine, "actors-control")
        self._controls.add(task)
        task.add_done_callback(self._controls.discard)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task, again and again if it swallows the cancellation."""
        if not task.done():
            task.cancel()
            self.loop.call_later(AGAIN, self.cancel, task)

    # The door for other threads

    def knock(self, cell: Cell, message: Any, trace: Any) -> None:
        """Deliver from another thread. Raises `ActorStopped` when the system is closed."""
        with self._lock:
            if self._door is None:
                raise ActorStopped("the actor system is closed")
            self._door.append((cell, message, trace))
            if len(self._door) == 1:
                self.loop.call_soon_threadsafe(self._open_door)

    def _open_door(self) -> None:
        with self._lock:
            if self._door is None:
                return
            arrived, self._door = self._door, deque()
        for cell, message, trace in arrived:
            envelope = (message, None, trace, None)
            try:
                cell.receive(envelope)
            except MailboxFull:
                cell.bury(envelope, "full")

    def close(self) -> None:
        """Stop taking messages from other threads, and forget all deadlines."""
        self._open_door()
        with self._lock:
            self._door = None
        self.wheel.close()
        SCHEDULERS[self.thread].remove(self)
        if not SCHEDULERS[self.thread]:
            del SCHEDULERS[self.thread]
