"""A limit on how much an actor does at once: `ctx.limiter(n)`.

`submit` takes the message in hand over and does its work beside the mailbox, in the order of submitting, at
most n pieces at a time. The result is the answer. Work whose asker has gone is dropped, or cancelled
when it has begun. It all belongs to one instance of the actor and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, KeysView
from functools import partial
from typing import Any

from actors.errors import ActorStopped, AskTimeout, HandlerCancelled, MailboxFull, SpecError
from actors.kernel.answers import defer
from actors.kernel.cell import Cell, Envelope
from actors.kernel.owned import Pipe
from actors.kernel.routines import thrown_away
from actors.question import Reply
from actors.signals import DeadLetter
from actors.states import DRAIN

__all__ = ["Limiter"]

log = logging.getLogger("actors")

CANCEL_TIMEOUT_S = 5.0
"""Seconds that cancelled work may keep its place. It is cancelled again every second, and still owned when
its place is given away: one function that swallows cancellation must not stop the service for ever."""


class _Job:
    """One piece of work, from `submit` until it is over."""

    __slots__ = (
        "begun",
        "envelope",
        "keep",
        "key",
        "on_error",
        "on_timeout",
        "pipe",
        "placed",
        "reply",
        "settled",
        "tell_back",
        "timeout",
        "timer",
        "work",
    )

    def __init__(self, work: Callable[[], Awaitable[Any]], reply: Reply[Any], envelope: Envelope) -> None:
        self.work = work
        self.reply = reply
        self.envelope = envelope
        self.key: Hashable = None
        self.timeout: float | None = None
        self.on_timeout: Callable[[], Any] | None = None
        self.on_error: Callable[[BaseException], Any] | None = None
        self.tell_back = self.keep = False
        self.pipe: Pipe | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.begun = self.placed = self.settled = False


class Limiter:
    """At most `limit` pieces of work at once; see the module and `Context.limiter`."""

    def __init__(self, cell: Cell, limit: int) -> None:
        self._cell = cell
        self._set_limit(limit)
        self._active = 0
        self._waiting: OrderedDict[_Job, None] = OrderedDict()
        self._keyed: dict[Hashable, _Job] = {}
        self._vacancy: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def limit(self) -> int:
        """Pieces of work at once; may be set at any time. Fewer than are at work: they go on."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._set_limit(limit)
        self._next()

    def _set_limit(self, limit: int) -> None:
        if limit < 1:
            raise SpecError(f"limiter({limit}): give the pieces of work at once, 1 or more")
        self._limit = limit

    @property
    def active(self) -> int:
        """Places that are taken."""
        return self._active

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for a place."""
        return len(self._waiting)

    @property
    def keys(self) -> KeysView[Hashable]:
        """Keys of the work that waits for a place or is at work."""
        return self._keyed.keys()

    def submit(
        self,
        work: Callable[[], Awaitable[Any]],
        *,
        key: Hashable = None,
        timeout: float | None = None,
        on_timeout: Callable[[], Any] | None = None,
        tell_back: bool = False,
        on_error: Callable[[BaseException], Any] | None = None,
        keep: bool = False,
    ) -> bool:
        """Take the message in hand over: call `work` once a place is free, and answer with its result.

        Never waits; for the mailbox to be the queue, `await vacancy()` first. An exception of `work` goes
        to the asker, or to the log if the message was told; it does not fail the actor. `tell_back`: the
        result of a message that was told is told to the actor that sent it; what `on_error` makes of an
        exception of `work` is told likewise. `timeout` (seconds) counts from the beginning of the work; then
        the work is cancelled and the answer is at once what `on_timeout` returns, or else `AskTimeout`. When
        the asker stops waiting, the work is dropped or cancelled; with `keep`, only dropped. `key` is for
        `cancel`; earlier work of the same key is cancelled.

        A place is free again when the work has ended. Cancelled work that goes on all the same is cancelled
        again every second; after 5 s its place is given away and the log names it. Returns false if the
        asker no longer waits. Raises `ActorStopped` when the instance is ending.
        """
        cell = self._cell
        if self._closed:
            raise ActorStopped(f"{cell.path} is ending; it begins no more work")
        reply = defer(cell)
        if reply.abandoned:
            return False
        job = _Job(work, reply, cell.taken())
        job.timeout, job.on_timeout, job.tell_back, job.keep = timeout, on_timeout, tell_back, keep
        job.on_error = on_error
        if key is not None:
            self.cancel(key)
            job.key = key
            self._keyed[key] = job
        if reply.asked:
            reply.on_abandon(lambda: self._abandoned(job))
        if self._active < self._limit and not self._waiting:
            self._begin(job)
        else:
            self._waiting[job] = None
        return True

    def cancel(self, key: Hashable) -> bool:
        """Cancel the work of this key; who asked for it gets `HandlerCancelled`. False if there is none."""
        job = self._keyed.pop(key, None)
        if job is None:
            return False
        job.settled = True
        job.reply.fail(HandlerCancelled(f"{self._cell.path}: the work {key!r} was cancelled"))
        self._drop(job)
        return True

    async def vacancy(self) -> None:
        """Wait until a place is free. For the one handler that submits: no other takes it meanwhile."""
        while self._active >= self._limit or self._waiting:
            if self._vacancy is None:
                self._vacancy = self._cell.scheduler.loop.create_future()
            await self._vacancy

    def owed(self) -> bool:
        """Return whether anything was accepted that is not over."""
        return self._active > 0 or bool(self._waiting)

    def close(self) -> None:
        """End the instance: begin nothing more. The asker learns of it with all deferred questions."""
        self._closed = True
        while self._waiting:
            job, _ = self._waiting.popitem(last=False)
            if not job.reply.asked:
                self._cell.bury(job.envelope, "stopped")

    def _begin(self, job: _Job) -> None:
        self._active += 1
        job.placed = True
        # The envelope's trace and question, not those of whatever piece of work has just made room.
        job.pipe = Pipe(self._cell, self._run(job), _nothing, None, job.envelope)
        if job.timeout is not None:
            self._after(job.timeout, self._expire, job)

    def _after(self, delay: float, callback: Callable[[_Job], None], job: _Job) -> None:
        scheduler = self._cell.scheduler
        if job.timer is not None:
            job.timer.cancel()
        job.timer = scheduler.loop.call_later(delay, callback, job, context=scheduler.base)

    async def _run(self, job: _Job) -> None:
        job.begun = True
        try:
            result = await job.work()
        except (Exception, asyncio.CancelledError, GeneratorExit) as error:
            if job.pipe is None or not job.pipe.due() or thrown_away(error, job.pipe.task):
                raise
            self._fail(job, error)
        else:
            self._answer(job, result)
        finally:
            self._leave(job)

    def _answer(self, job: _Job, result: Any) -> None:
        cell = self._cell
        if job.reply.asked:
            job.reply.set(result)
            return
        sender = job.envelope[1]
        if not job.tell_back or sender is None:
            return
        if job.settled:
            cell.scheduler.dead_letters.publish(DeadLetter("late", result, sender.ref, cell.ref))
            return
        envelope = (result, cell, job.envelope[2], None)
        try:
            sender.receive(envelope)
        except MailboxFull:
            sender.bury(envelope, "full")

    def _fail(self, job: _Job, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            cancelled = HandlerCancelled(f"{self._cell.path}: work cancelled itself")
            cancelled.__cause__ = error
            error = cancelled
        if job.reply.asked:
            job.reply.fail(error)
        elif job.tell_back and job.on_error is not None:
            self._answer(job, self._cell.scheduler.call(self._cell, partial(job.on_error, error)))
        elif not job.settled:
            message = type(job.envelope[0]).__name__
            log.error("%s: the work of %s failed", self._cell.path, message, exc_info=error)

    def _expire(self, job: _Job) -> None:
        cell = self._cell
        if not job.placed or job.settled:
            return
        try:
            if job.on_timeout is None:
                raise AskTimeout(f"{cell.path}: the work took more than {job.timeout:g} s")
            answer = cell.scheduler.call(cell, job.on_timeout)
        except Exception as error:
            self._fail(job, error)
        else:
            self._answer(job, answer)
        job.settled = True
        self._drop(job)

    def _abandoned(self, job: _Job) -> None:
        if not job.settled and not (job.keep and job.placed):
            job.settled = True
            self._drop(job)

    def _drop(self, job: _Job) -> None:
        pipe = job.pipe
        if pipe is None:
            self._waiting.pop(job, None)
            self._leave(job)
        elif not pipe.done:
            pipe.cancel()
            if job.begun:
                self._after(CANCEL_TIMEOUT_S, self._write_off, job)
            else:  # cancelled before its first step: `_run` will never give the place back
                self._leave(job)

    def _write_off(self, job: _Job) -> None:
        if job.placed:
            message = type(job.envelope[0]).__name__
            log.error(
                "%s: the work of %s goes on %g s after it was cancelled; its place is given to the next",
                self._cell.path,
                message,
                CANCEL_TIMEOUT_S,
            )
            self._leave(job)

    def _leave(self, job: _Job) -> None:
        """Make room for the next, because the job is over, or no longer counted."""
        if job.timer is not None:
            job.timer.cancel()
        if job.key is not None and self._keyed.get(job.key) is job:
            del self._keyed[job.key]
        if job.placed:
            job.placed = False
            self._active -= 1
        self._next()
        if self._cell.order & DRAIN:
            self._cell.enqueue()

    def _next(self) -> None:
        if self._closed:
            return
        while self._waiting and self._active < self._limit:
            job, _ = self._waiting.popitem(last=False)
            self._begin(job)
        if self._vacancy is not None and self._active < self._limit:
            if not self._vacancy.done():
                self._vacancy.set_result(None)
            self._vacancy = None


def _nothing(_: None) -> None:
    return None
