"""Resources of an actor besides its mailbox: keyed timers, receive timeout, and work in tasks (`ctx.pipe`).

Each ends with the instance that began it; a message of an older generation is never handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextvars import copy_context
from inspect import iscoroutine
from typing import Any, Generic, TypeVar

from actors.errors import HandlerCancelled
from actors.kernel.cell import Cell
from actors.kernel.routines import thrown_away
from actors.messages import M
from actors.question import Answer
from actors.signals import ReceiveTimeout
from actors.states import IDLE, NESTED
from actors.trace import FRAME, current_trace

__all__ = ["Idle", "Pipe", "Timer", "Timers"]

T = TypeVar("T")


class Timer:
    """One started timer. A repeating one has at most one message waiting, however slow the actor is."""

    __slots__ = (
        "_cell",
        "_delay",
        "_due",
        "_handle",
        "_key",
        "_live",
        "_message",
        "_queued",
        "_repeat",
        "_trace",
    )

    def __init__(
        self, cell: Cell, key: Any, delay: float, message: Any, repeat: bool, fixed: bool = False
    ) -> None:
        self._cell = cell
        self._key = key
        self._delay = delay
        self._message = message
        self._repeat = repeat
        self._trace = current_trace()
        self._live = True
        self._queued = False
        scheduler = cell.scheduler
        self._due = scheduler.loop.time() + delay if fixed else None
        self._handle = scheduler.loop.call_later(delay, self._fire, context=scheduler.base)

    def touch(self) -> None:
        """Do nothing: a timer is not moved by messages."""

    def _fire(self) -> None:
        if not self._queued:
            self._queued = True
            self._cell.signal(self._message, self, self._trace)
        if self._repeat:
            scheduler = self._cell.scheduler
            now = scheduler.loop.time()
            if self._due is None:
                due = now + self._delay
            else:
                self._due += self._delay * max(1, int((now - self._due) / self._delay) + 1)
                due = self._due
            self._handle = scheduler.loop.call_at(due, self._fire, context=scheduler.base)

    def due(self) -> bool:
        """Return whether the message that waits is still wanted."""
        self._queued = False
        if self._live and not self._repeat and self._cell.extras is not None:
            self._cell.extras.timers.pop(self._key, None)
        return self._live

    def cancel(self) -> None:
        self._live = False
        self._handle.cancel()


class Timers(Generic[M]):
    """`ctx.timers`: messages to oneself, later. They take no slot of the mailbox and end with a restart."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def start(
        self, key: Hashable, delay: float, message: M, *, repeat: bool = False, fixed_rate: bool = False
    ) -> None:
        """Send `message` to this actor after `delay` seconds, every `delay` seconds with `repeat`.

        With `fixed_rate` too the times are `delay`, `2 * delay` and so on from now, and what is late for one
        is not late for the next: the average rate is exact. Times that were missed altogether are skipped.

        An earlier timer of the same key is cancelled first, and its message with it if it waits unhandled.
        Raises `ValueError` for a delay that is none, `ActorStopped` when the actor is gone.
        """
        if not delay >= 0 or ((repeat or fixed_rate) and delay == 0):
            raise ValueError(f"timer {key!r}: a delay of {delay} s is not possible")
        timers = self._cell.living().timers
        if key in timers:
            timers[key].cancel()
        timers[key] = Timer(self._cell, key, delay, message, repeat or fixed_rate, fixed_rate)

    def cancel(self, key: Hashable) -> bool:
        """Cancel a timer; its message is not handled even if it waits already. False if there is none."""
        extras = self._cell.extras
        timer = None if extras is None else extras.timers.pop(key, None)
        if timer is None:
            return False
        timer.cancel()
        return True

    def __contains__(self, key: object) -> bool:
        return self._cell.extras is not None and key in self._cell.extras.timers


class Idle:
    """The receive timeout: a `ReceiveTimeout` signal after every `after` seconds without a message."""

    __slots__ = ("_after", "_cell", "_handle", "_last", "_live")

    def __init__(self, cell: Cell, after: float) -> None:
        self._cell = cell
        self._after = after
        self._live = True
        self._last = cell.scheduler.loop.time()
        self._arm(after)

    def _arm(self, delay: float) -> None:
        scheduler = self._cell.scheduler
        self._handle = scheduler.loop.call_later(delay, self._fire, context=scheduler.base)

    def touch(self) -> None:
        """Note that the actor had a turn."""
        self._last = self._cell.scheduler.loop.time()

    def _fire(self) -> None:
        quiet = self._cell.scheduler.loop.time() - self._last
        if self._cell.hand[0] is not None:
            self._arm(self._after)
        elif quiet < self._after:
            self._arm(self._after - quiet)
        else:
            self._cell.signal(ReceiveTimeout(self._after), self)
            self._arm(self._after)

    def due(self) -> bool:
        return self._live

    def cancel(self) -> None:
        self._live = False
        self._handle.cancel()


class Pipe:
    """Work that an actor owns: it runs beside the mailbox and its result arrives as a message
    (`ctx.pipe`)."""

    __slots__ = (
        "_awaitable",
        "_begun",
        "_cancelled",
        "_cell",
        "_on_error",
        "_to_message",
        "_trace",
        "task",
    )

    def __init__(
        self,
        cell: Cell,
        awaitable: Awaitable[Any],
        to_message: Callable[[Any], Any],
        on_error: Callable[[BaseException], Any] | None,
    ) -> None:
        self._cell = cell
        self._awaitable = awaitable
        self._to_message = to_message
        self._on_error = on_error
        self._trace = current_trace()
        self._begun = self._cancelled = False
        scheduler = cell.scheduler
        if isinstance(awaitable, asyncio.Future) and not isinstance(awaitable, asyncio.Task):
            # The answer to an `ask_soon`, as a rule: a task would cost it two passes of the loop.
            self._begun = True
            self.task: asyncio.Future[Any] = awaitable
            context = scheduler.base.copy()
            context.run(FRAME.set, (cell, self._trace, None, None, False))
            if type(awaitable) is not Answer:
                awaitable.add_done_callback(self._settled, context=context)
            elif awaitable.done():
                context.run(self._give_later, awaitable)
            else:
                awaitable.call_at_once(self._given, context, always=True)
        else:
            self.task = scheduler.task(self._run(), f"{cell.name}-pipe", cell, self._trace, held=False)
            self.task.add_done_callback(self._ended)
        cell.extra().pipes[self] = None

    def cancel(self) -> None:
        """Cancel the work; nothing arrives, not even a result that waits to be handled."""
        self._cancelled = True
        if isinstance(self.task, asyncio.Task):
            self._cell.scheduler.cancel(self.task)
        else:
            self.task.cancel()

    def end(self) -> None:
        """Cancel, because the actor ends."""
        self.cancel()

    def due(self) -> bool:
        """Return whether the result that waits is still wanted."""
        return not self._cancelled

    @property
    def done(self) -> bool:
        """Whether the work is over."""
        return self.task.done()

    def _given(self, answer: asyncio.Future[Any]) -> None:
        """Deliver an answer in the time of the actor that gives it, unless the one who asked is at work, or
        an answer before it is still on its way."""
        cell = self._cell
        scheduler = cell.scheduler
        if (
            cell.mode != IDLE
            or cell.extra().answers
            or scheduler.nested >= NESTED
            or answer.cancelled()
            or answer.exception() is not None
        ):
            self._give_later(answer)
            return
        running, scheduler.running = scheduler.running, None  # what follows is not sent by who answers
        scheduler.nested += 1
        try:
            self._settled(answer)
        finally:
            scheduler.nested -= 1
            scheduler.running = running

    def _give_later(self, answer: asyncio.Future[Any]) -> None:
        """Deliver an answer at the next turn of the loop."""
        self._cell.extra().answers += 1
        self._cell.scheduler.loop.call_soon(self._given_later, answer, context=copy_context())

    def _given_later(self, answer: asyncio.Future[Any]) -> None:
        extras = self._cell.extras
        if extras is not None:
            extras.answers -= 1
        self._settled(answer)

    def _settled(self, future: asyncio.Future[Any]) -> None:
        """Deliver what has become of a future that no task awaits."""
        self._ended(future)
        if self._cancelled:
            if not future.cancelled():
                future.exception()  # looked at
            return
        try:
            message = self._to_message(future.result())
        except BaseException as exc:
            self._failed(exc)
        else:
            self._deliver(message)

    async def _run(self) -> None:
        self._begun = True
        try:
            message = self._to_message(await self._awaitable)
        except BaseException as exc:
            if thrown_away(exc, self.task):
                raise
            self._failed(exc)
        else:
            self._deliver(message)

    def _failed(self, exc: BaseException) -> None:
        if self._cancelled and isinstance(exc, asyncio.CancelledError):
            return
        if isinstance(exc, KeyboardInterrupt | SystemExit):
            self._cell.scheduler.crash(exc)
            return
        if isinstance(exc, asyncio.CancelledError):
            cancelled = HandlerCancelled(f"{self._cell.path}: its piped work was cancelled")
            cancelled.__cause__ = exc
            exc = cancelled
        if self._on_error is None:
            self._fail(exc)
            return
        try:
            message = self._on_error(exc)
        except BaseException as error:
            self._fail(error)
        else:
            self._deliver(message)

    def _deliver(self, message: Any) -> None:
        if message is not None and not self._cancelled:
            self._cell.signal(message, self, self._trace)

    def _fail(self, exc: BaseException) -> None:
        if not self._cancelled:
            self._cell.signal_failure(exc)

    def _ended(self, _: asyncio.Future[Any]) -> None:
        if not self._begun and iscoroutine(self._awaitable):
            self._awaitable.close()  # cancelled before the first step
        if self._cell.extras is not None:
            self._cell.extras.pipes.pop(self, None)
