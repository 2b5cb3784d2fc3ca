"""A limit on how much an actor does at once: `ctx.limiter(n)`.

`submit` takes the message in hand over and does its work beside the mailbox, in the order of submitting
(groups take turns), at most n pieces at a time. The result is the answer. Work whose asker has gone is
dropped, or cancelled when it has begun. It all belongs to one instance of the actor and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, KeysView
from functools import partial
from itertools import takewhile
from typing import Any, Protocol
from weakref import ReferenceType

from actors.errors import ActorStopped, AskTimeout, HandlerCancelled, MailboxFull, SpecError
from actors.fair_queue import FairQueue
from actors.kernel.answers import defer, question_in_hand
from actors.kernel.cell import Cell, Envelope
from actors.kernel.routines import thrown_away
from actors.kernel.scheduler import Scheduler
from actors.question import Reply
from actors.signals import DeadLetter
from actors.states import DRAIN, IDLE
from actors.trace import FRAME

__all__ = ["Limiter", "Pace"]

log = logging.getLogger("actors")

CANCEL_TIMEOUT_S = 5.0
"""Seconds that cancelled work may keep its place. It is cancelled again every second, and still owned when
its place is given away: one function that swallows cancellation must not stop the service for ever."""


class Pace(Protocol):
    """Says when work may begin although there is a place for it. Its methods must not raise."""

    def admit(self, cost: Any, /) -> float:
        """Return the seconds that the next piece of work must wait; `inf` until another one has ended.

        After 0 it begins, and counts. `cost` is what `submit` was given. Work behind it waits too.
        """
        ...

    def leave(self, cost: Any, /) -> None:
        """Take note that work which was admitted has ended, or that its place was given away."""
        ...


class _Job:
    """One piece of work, from `submit` until it is over; once it has begun the instance owns it."""

    __slots__ = (
        "begun",
        "cancelled",
        "cell",
        "cost",
        "due",
        "envelope",
        "keep",
        "key",
        "lane",
        "on_error",
        "on_timeout",
        "placed",
        "reply",
        "settled",
        "task",
        "tell_back",
        "timeout",
        "timer",
        "work",
    )

    task: asyncio.Task[Any]
    """Set when the work has a place."""
    due: float
    """Loop time at which its limit ends, if it has one."""

    def __init__(
        self, cell: Cell, work: Callable[[], Awaitable[Any]], reply: Reply[Any] | None, envelope: Envelope
    ) -> None:
        self.cell = cell
        self.work = work
        self.reply = reply
        self.envelope = envelope
        self.timer: asyncio.TimerHandle | None = None
        self.lane: dict[_Job, None] | None = None
        self.begun = self.placed = self.settled = self.cancelled = False

    def cancel(self) -> None:
        """Cancel the work that has a place; nothing comes of it any more."""
        self.cancelled = True
        self.cell.scheduler.cancel(self.task)

    def end(self) -> None:
        """Cancel, because the actor ends. A message that was told, and whose work has not begun, is a dead
        letter."""
        if self.reply is None and not self.begun and not self.cancelled:
            self.cell.bury(self.envelope, "stopped")
        self.cancel()


class _Lane:
    """The deadlines of work with the same time limit, which fall due in the order of its beginning: one timer
    serves all. Work that ends leaves, and the timer of work that has left only looks for the next."""

    __slots__ = ("_armed_for", "_expire", "_handle", "_lanes", "_scheduler", "_timeout", "jobs")

    def __init__(
        self,
        lanes: dict[float, _Lane],
        scheduler: Scheduler[Cell],
        timeout: float,
        expire: Callable[[_Job], None],
    ) -> None:
        self._lanes = lanes
        self._scheduler = scheduler
        self._timeout = timeout
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self.jobs: dict[_Job, None] = {}

    def add(self, job: _Job) -> None:
        job.due = self._scheduler.loop.time() + self._timeout
        job.lane = self.jobs
        self.jobs[job] = None
        if self._handle is None:
            self._arm(job.due)

    def _arm(self, due: float) -> None:
        self._armed_for = due
        scheduler = self._scheduler
        self._handle = scheduler.loop.call_at(due, self._fire, context=scheduler.base)

    def _fire(self) -> None:
        # The loop may call a little early, by the resolution of its clock.
        now = max(self._scheduler.loop.time(), self._armed_for)
        self._handle = None
        for job in list(takewhile(lambda job: job.due <= now, self.jobs)):
            self._expire(job)
        left = next((job for job in self.jobs if job.due > now), None)
        if self._handle is not None:
            return
        if left is not None:
            self._arm(left.due)
        elif not self.jobs:
            self._lanes.pop(self._timeout, None)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class Limiter:
    """At most `limit` pieces of work at once; see the module and `Context.limiter`."""

    def __init__(self, cell: Cell, limit: int, pace: Pace | None = None) -> None:
        self._cell = cell
        self._set_limit(limit)
        self._pace = pace
        self._delayed: asyncio.TimerHandle | None = None
        self._active = 0
        self._waiting: FairQueue[_Job] = FairQueue()
        self._queued = self._waiting.waiting
        self._keyed: dict[Hashable, _Job] = {}
        self._vacancy: asyncio.Future[None] | None = None
        self._lanes: dict[float, _Lane] = {}
        self._closed = False
        self._task_name = f"{cell.name}-work"

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
        group: Hashable = None,
        cost: Any = None,
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
        `cancel`; earlier work of the same key is cancelled. Work that waits is begun in turn between `group`s
        and in the order of submitting within one; the limiter's pace is asked about `cost`.

        A place is free again when the work has ended. Cancelled work that goes on all the same is cancelled
        again every second; after 5 s its place is given away and the log names it. Returns false if the
        asker no longer waits. Raises `ActorStopped` when the instance is ending.
        """
        cell = self._cell
        if self._closed:
            raise ActorStopped(f"{cell.path} is ending; it begins no more work")
        if cell.hand[3] is None:
            job = _Job(cell, work, None, cell.hand)
        else:
            reply = None if question_in_hand(cell) is None else defer(cell)
            if reply is not None and reply.abandoned:
                return False
            job = _Job(cell, work, reply, cell.taken())
        job.timeout, job.on_timeout, job.tell_back, job.keep = timeout, on_timeout, tell_back, keep
        job.on_error, job.cost, job.key = on_error, cost, key
        if key is not None:
            if key in self._keyed:
                self.cancel(key)
            self._keyed[key] = job
        if job.reply is not None:
            job.reply.on_abandon(lambda: self._abandoned(job))
        if self._queued or self._active >= self._limit or self._is_delayed(job):
            self._waiting.add(job, group)
        else:
            self._begin(job)
        return True

    def cancel(self, key: Hashable) -> bool:
        """Cancel the work of this key; who asked for it gets `HandlerCancelled`. False if there is none."""
        job = self._keyed.pop(key, None)
        if job is None:
            return False
        job.settled = True
        if job.reply is not None:
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
        for lane in self._lanes.values():
            lane.close()
        if self._delayed is not None:
            self._delayed.cancel()
        while self._waiting:
            job = self._waiting.pop()
            if job.reply is None:
                self._cell.bury(job.envelope, "stopped")

    def _begin(self, job: _Job) -> None:
        cell = self._cell
        scheduler = cell.scheduler
        self._active += 1
        job.placed = True
        job.task = scheduler.task(self._run(job), self._task_name)
        (cell.extras or cell.extra()).pipes[job] = None
        if job.timeout is None:
            return
        lane = self._lanes.get(job.timeout)
        if lane is None:
            lane = self._lanes[job.timeout] = _Lane(self._lanes, scheduler, job.timeout, self._expire)
        lane.add(job)

    def _after(self, delay: float, callback: Callable[[_Job], None], job: _Job) -> None:
        scheduler = self._cell.scheduler
        if job.timer is not None:
            job.timer.cancel()
        job.timer = scheduler.loop.call_later(delay, callback, job, context=scheduler.base)

    async def _run(self, job: _Job) -> None:
        cell = job.cell
        job.begun = True
        _, _, trace, question = job.envelope
        # The envelope's trace and question, not those of whatever piece of work has just made room.
        FRAME.set((cell, trace, question, ReferenceType(job.task), False))
        try:
            try:
                result = await job.work()
            except BaseException as error:
                ordinary = isinstance(error, Exception | asyncio.CancelledError | GeneratorExit)
                if not ordinary or thrown_away(error, job.task):
                    self._leave(job)
                    raise
                try:
                    if not job.cancelled:
                        self._fail(job, error)
                finally:
                    self._leave(job)
            else:
                self._leave(job)  # before the answer, which may bring the next piece of work
                self._answer(job, result)
        except (KeyboardInterrupt, SystemExit) as error:
            cell.scheduler.crash(error)
        except BaseException as error:
            if thrown_away(error, job.task):
                raise
            if not job.cancelled:
                cell.signal_failure(error)
        finally:
            if cell.extras is not None:
                cell.extras.pipes.pop(job, None)

    def _answer(self, job: _Job, result: Any) -> None:
        cell = self._cell
        if job.reply is not None:
            job.reply.set(result)
            return
        sender = job.envelope[1]
        if not job.tell_back or sender is None:
            return
        if job.settled:
            cell.scheduler.dead_letters.publish(DeadLetter("late", result, sender.ref, cell.ref))
            return
        envelope = (result, cell, job.envelope[2], None)
        if sender.mode == IDLE:
            sender.wake(envelope)
            return
        try:
            sender.receive(envelope)
        except MailboxFull:
            sender.bury(envelope, "full")

    def _fail(self, job: _Job, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            cancelled = HandlerCancelled(f"{self._cell.path}: work cancelled itself")
            cancelled.__cause__ = error
            error = cancelled
        if job.reply is not None:
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
        if not job.placed:
            self._waiting.remove(job)
            self._leave(job)
        elif not job.task.done():
            job.cancel()
            if job.begun:
                self._after(CANCEL_TIMEOUT_S, self._write_off, job)
            else:  # cancelled before its first step: `_run` will never give the place back
                self._leave(job)
                job.task.add_done_callback(lambda _: self._forget(job))

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
        if job.lane is not None:
            job.lane.pop(job, None)
        if job.key is not None and self._keyed.get(job.key) is job:
            del self._keyed[job.key]
        if job.placed:
            job.placed = False
            self._active -= 1
            if self._pace is not None:
                self._cell.scheduler.call(self._cell, self._pace.leave, job.cost)
        if self._queued or self._vacancy is not None:
            self._next()
        if self._cell.order & DRAIN:
            self._cell.enqueue()

    def _forget(self, job: _Job) -> None:
        if self._cell.extras is not None:
            self._cell.extras.pipes.pop(job, None)

    def _next(self) -> None:
        if self._closed:
            return
        while self._waiting and self._active < self._limit and not self._is_delayed(self._waiting.peek()):
            self._begin(self._waiting.pop())
        if self._vacancy is not None and self._active < self._limit:
            if not self._vacancy.done():
                self._vacancy.set_result(None)
            self._vacancy = None

    def _is_delayed(self, job: _Job) -> bool:
        """Ask whether the next piece of work must wait, and set the timer for when it need not."""
        if self._pace is None:
            return False
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
        scheduler = self._cell.scheduler
        wait = scheduler.call(self._cell, self._pace.admit, job.cost)
        if wait <= 0:
            return False
        if wait != math.inf:
            self._delayed = scheduler.loop.call_later(wait, self._next, context=scheduler.base)
        return True
