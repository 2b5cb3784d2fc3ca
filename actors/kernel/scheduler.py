"""The run queue, the tasks, and the door for other threads: one `Scheduler` for each system.

One loop callback serves the actors that have work, in slices of 2 ms, so that a busy system never freezes
the loop. Nothing here knows what a message or a failure means.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from math import inf
from random import Random
from reprlib import Repr
from time import perf_counter
from types import CoroutineType
from typing import Any, Generic, Protocol, TypeVar
from weakref import ReferenceType, WeakSet

from actors.behaviour import Table
from actors.deadletters import DeadLetters
from actors.errors import ActorStopped, MailboxFull
from actors.interceptor import Interceptor, intercepted
from actors.kernel.wheel import Target, Wheel
from actors.question import Question
from actors.ref import Ref
from actors.signals import DeadLetterReason
from actors.states import BLOCKED, BURST, SLICE
from actors.trace import FRAME, SCHEDULERS

__all__ = ["Scheduler"]

Envelope = tuple[Any, Any, Any, Any]


class Served(Target, Protocol):
    """What the scheduler serves: the cell of an actor, as far as it matters here."""

    since: float
    hand: Envelope

    def turn(self, until: float, context: Context) -> None: ...

    def receive(self, envelope: Envelope) -> None: ...

    def bury(self, envelope: Envelope, reason: DeadLetterReason) -> None: ...


C = TypeVar("C", bound=Served)
T = TypeVar("T")
log = logging.getLogger("actors")

EAGER = sys.version_info >= (3, 12)
_eager_task: Any = asyncio.Task

AGAIN = 1.0
"""Seconds after which a task that was cancelled and lives is cancelled again."""

CANCELS = 10
"""Cancellations that a task may swallow; after as many seconds its coroutine is closed by force."""


_REPR = Repr()
_REPR.maxother = _REPR.maxstring = 200


def show_message(message: object) -> str:
    """Return a message's repr of at most 200 characters, for the report of a crash."""
    text = _REPR.repr(message)
    return text if len(text) <= 200 else f"{text[:197]}..."


STARTS = 100
"""Pump tasks that one turn of the run queue may start; each takes a step at the loop's next turn."""

DOOR = 10_000
"""Messages of other threads that may wait to be delivered."""


class Scheduler(Generic[C]):
    """What the cells of one system share; see the module."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dead_letters: DeadLetters,
        crash: Callable[[BaseException], None],
    ) -> None:
        self.loop = loop
        self.clock: Callable[[], float] = perf_counter  # uvloop's `loop.time()` ticks in milliseconds
        self.burst = BURST
        self.slice = SLICE
        self.thread = threading.get_ident()
        self.queue: deque[C] = deque()
        self.started = 0
        self.armed = False
        self.running: C | None = None
        self.boxes: list[deque[Envelope]] = []
        self.busy: dict[C, None] = {}
        self.wheel = Wheel(loop)
        self.uid = 0
        self.aborting: asyncio.Task[Any] | None = None
        self.given_up: dict[asyncio.Future[Any], asyncio.Future[None]] = {}
        self._cancelled: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.random = Random()
        self.show: Callable[[Any], str] = show_message
        self.dead_letters = dead_letters
        self.crash = crash
        self.make_ref: Callable[[C], Ref[Any]]
        self.system: Any = None
        self.interceptor: Interceptor | None = None
        self._reported: dict[C, float] = {}
        self._watchdog: asyncio.TimerHandle | None = None
        self.base = copy_context()
        self.base.run(FRAME.set, None)
        self._controls: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._starting = False
        self.yield_at = 0.0
        self.nested = 0
        """Actors that are served in the time of another one, at this moment."""
        self._door: deque[tuple[C, Any, Any]] | None = deque()
        self._door_open = False
        SCHEDULERS.setdefault(self.thread, []).append(self)

    def arm(self) -> None:
        """See to it that the run queue is served."""
        self.armed = True
        # Without a context of its own the callback would run in that of the first sender.
        self.loop.call_soon(self.turn, context=self.base)

    def turn(self) -> None:
        """Serve the run queue for 2 ms."""
        queue = self.queue
        copy = self.base.copy
        clock = self.clock
        until = clock() + self.slice
        self.started = 0
        try:
            while queue:
                cell = queue.popleft()
                context = copy()
                context.run(cell.turn, until, context)
                now = clock()
                if now > until:
                    if now - until > BLOCKED:
                        self.report_blocked(cell, now - until)
                    break
                if self.started >= STARTS:  # the pumps need the next turn of the loop for themselves
                    break
        finally:
            self.armed = False
            if queue:
                self.arm()

    def report_blocked(self, cell: C, seconds: float) -> None:
        """Say who held up the loop."""
        log.warning("%s kept the event loop from all else for %.3f s", cell.path, seconds)

    def new_box(self) -> deque[Envelope]:
        """Return an empty mailbox."""
        return self.boxes.pop() if self.boxes else deque()

    def table(self, handlers: Table) -> Table:
        """Return what serves an actor with these handlers."""
        if self.interceptor is None:
            return handlers
        return intercepted(handlers, self.interceptor)

    def watch(self, slow: float) -> None:
        """Report, from now on, every handler that has been at work for more than `slow` seconds."""
        now = self.clock()
        for cell in self.busy:
            if now - cell.since > slow and self._reported.get(cell) != cell.since:
                self._reported[cell] = cell.since
                log.warning("%s: the handler of %s has been at work for %.1f s", cell.path, *cell.busy())
        for cell in [cell for cell in self._reported if cell not in self.busy]:
            del self._reported[cell]
        self._watchdog = self.loop.call_later(slow / 2, self.watch, slow, context=self.base)

    def call(self, cell: C, function: Callable[..., T], *arguments: object) -> T:
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
        cell: C | None = None,
        trace: Any = None,
        question: Question | None = None,
        held: bool = True,
    ) -> asyncio.Task[T]:
        """Start a task in a context of its own; it works for `cell`, which waits for it if `held`, and on a
        question."""
        context = self.base.copy()
        task = asyncio.Task(coroutine, loop=self.loop, name=name, context=context)
        if cell is not None:
            context.run(FRAME.set, (cell, trace, question, ReferenceType(task), held))
        return task

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task for a pump. Where the interpreter can (3.12), its first step is taken at once."""
        self.started += 1
        if not EAGER or self._starting:  # nested, a chain of asks would exhaust the stack
            return asyncio.Task(coroutine, loop=self.loop, name=name, context=self.base.copy())
        running, self.running = self.running, None
        self._starting = True
        try:
            task: asyncio.Task[None] = _eager_task(
                coroutine, loop=self.loop, name=name, context=self.base.copy(), eager_start=True
            )
            return task
        finally:
            self._starting = False
            self.running = running

    def control(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a routine of the runtime, which is never cancelled."""
        task = self.task(coroutine, "actors-control")
        self._controls.add(task)
        task.add_done_callback(self._controls.discard)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task; every second again if it swallows the cancellation, after 10 s by force."""
        if not task.done():
            task.cancel()
            if task not in self._cancelled:
                self._cancelled.add(task)
                self.loop.call_later(AGAIN, self._cancel_again, ReferenceType(task), 1)

    def _cancel_again(self, reference: ReferenceType[asyncio.Task[Any]], times: int) -> None:
        task = reference()
        if task is None or task.done():
            return
        if times < CANCELS:
            task.cancel()
        elif times == CANCELS:
            log.error("%r swallowed its cancellation %d times; closing it by force", task, times)
            self.abort(task)
        else:  # the one who waits for its end goes on; the close of the system names it
            given_up = self.given_up.pop(task, None)
            if given_up is not None and not given_up.done():
                given_up.set_result(None)
            task.cancel()
        self.loop.call_later(AGAIN, self._cancel_again, reference, times + 1)

    def abort(self, task: asyncio.Task[Any]) -> None:
        """Close the coroutine of a task that swallows its cancellation where it waits: the last resort.

        Only code that catches even GeneratorExit survives this.
        """
        coroutine = task.get_coro()
        if task.done() or not isinstance(coroutine, CoroutineType):
            return
        self.aborting = task
        try:
            coroutine.close()
        except BaseException as exc:
            log.error("%r cannot be ended by force: %r", task, exc)
        finally:
            self.aborting = None
        task.add_done_callback(_looked_at)
        task.cancel()  # it awakes, and finds itself closed

    # The door for other threads

    def knock(self, cell: C, message: Any, trace: Any) -> None:
        """Deliver from another thread.

        Raises `ActorStopped` when the system is closed, or its loop was, and `MailboxFull` while 10,000
        messages of other threads wait to be taken in.
        """
        with self._lock:
            door = self._door
            if door is None:
                raise ActorStopped("the actor system is closed")
            if len(door) >= DOOR:
                raise MailboxFull(f"{DOOR:,} messages of other threads wait to be delivered; slow down")
            if not self._door_open:
                try:
                    self.loop.call_soon_threadsafe(self._open_door, context=self.base)
                except RuntimeError as exc:  # closed before the system
                    self._door = None
                    raise ActorStopped("the event loop of the actor system is closed") from exc
                self._door_open = True
            door.append((cell, message, trace))

    def _open_door(self) -> None:
        """Take in at most 64 messages, for at most 2 ms; the rest at the next turn of the loop."""
        if self._take_in(BURST, self.clock() + SLICE):
            self.loop.call_soon(self._open_door, context=self.base)

    def _take_in(self, budget: float, until: float) -> bool:
        """Deliver messages of other threads; true if some are left."""
        while self._door:
            if not budget or self.clock() > until:
                return True
            cell, message, trace = self._door.popleft()  # atomic, as threads append to the other end
            envelope = (message, None, trace, None)
            try:
                cell.receive(envelope)
            except MailboxFull:
                cell.bury(envelope, "full")
            budget -= 1
        with self._lock:
            self._door_open = bool(self._door)  # one may have come in after the last look
            return self._door_open

    def close(self) -> None:
        """Stop taking messages from other threads, and forget all deadlines."""
        self._take_in(inf, inf)
        with self._lock:
            self._door = None
        self.wheel.close()
        if self._watchdog is not None:
            self._watchdog.cancel()
        SCHEDULERS[self.thread].remove(self)
        if not SCHEDULERS[self.thread]:
            del SCHEDULERS[self.thread]


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
