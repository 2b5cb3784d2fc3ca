"""One actor's runtime: its turn on the run queue, and the pump that takes over when a handler awaits.

A cell lives from spawn to `Terminated`, across restarts. Exactly one party serves it at any time, and `mode`
says which: none (IDLE), the run queue (QUEUED), a pump task (BUSY) or a routine (HELD; PARKED between two).
That is what makes one message at a time true. This module never decides about failures; it hands them to
`fate`.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, cast
from weakref import ReferenceType

from actors.behaviour import Handler
from actors.errors import (
    ActorStopped,
    HandlerCancelled,
    HandlerTimeout,
    MailboxFull,
    Reject,
    Unhandled,
)
from actors.kernel import fate, life, orders
from actors.kernel.cell import Cell, Envelope, Failure
from actors.kernel.routines import awaiting, drive, thrown_away
from actors.question import Question
from actors.signals import SIGNALS, DeadLetter, DeadLetterReason
from actors.states import (
    BLOCKED,
    BUSY,
    COROUTINE,
    DEAD,
    DRAIN,
    FAIL,
    HALT,
    IDLE,
    KILL,
    NESTED,
    NOTHING,
    QUEUED,
    SLICE,
    START,
    STOP,
)
from actors.trace import FRAME, Frame, current_trace

__all__ = ["ActorCell"]

log = logging.getLogger("actors")


def find_refusal(exc: BaseException) -> Reject | None:
    """Return the `Reject` that an exception is, or that a group of nothing else holds."""
    if isinstance(exc, Reject):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        refusals = [find_refusal(part) for part in group.exceptions]
        if all(refusals):
            return refusals[0]
    return None


def ignore(actor: object, message: object) -> None:
    """Do nothing about a signal that the actor does not declare."""


class ActorCell(Cell):
    """A cell that serves its actor; see the module."""

    __slots__ = ()

    def wake(self, envelope: Envelope) -> None:
        """Deliver to an idle actor: served in the sender's time, unless it is time to yield."""
        scheduler = self.scheduler
        self.mode = QUEUED
        clock = scheduler.clock
        # Not always: messages that are served at once, one after the other, would never let the loop go on.
        now = clock()
        if now >= scheduler.yield_at:
            scheduler.yield_at = now + scheduler.slice
        elif scheduler.nested < NESTED:
            running = scheduler.running
            context = scheduler.base.copy()
            scheduler.nested += 1
            try:
                context.run(self.serve, envelope, context)
            finally:
                scheduler.nested -= 1
            scheduler.running = running
            late = clock() - scheduler.yield_at
            if late > BLOCKED:
                scheduler.report_blocked(self, late)
            return
        boxes = scheduler.boxes
        self.box = box = boxes.pop() if boxes else scheduler.new_box()
        box.append(envelope)
        scheduler.queue.append(self)
        if not scheduler.armed:
            scheduler.arm()

    def serve(self, envelope: Envelope, context: Context) -> None:
        """Handle a message that finds the actor idle, without the mailbox, and what comes in meanwhile."""
        scheduler = self.scheduler
        self.hand = envelope
        message, _, _, question = envelope
        scheduler.running = self
        try:
            handler = self.table.get(type(message)) or self.handler(message)
            result = handler(self.actor, message)
            if result is not None and (type(result) is COROUTINE or isinstance(result, Future)):
                self.take_over(result)
                return
            if question is not None and not question.deferred:
                if question.future.done():
                    self.too_late(question, result)
                else:
                    question.answer(result)
        except BaseException as exc:
            scheduler.running = None
            self.conclude(self.judge(exc))
            return
        finally:
            scheduler.running = None
        if self.box:
            if context == scheduler.base and scheduler.clock() <= scheduler.yield_at:
                self.turn(scheduler.yield_at, context)
                return
        elif not (self.order or self.urgent or not self.limit):
            extras = self.extras
            if extras is None or extras.idle is None:
                self.hand = NOTHING
                self.mode = IDLE
                return
        self.conclude()

    def turn(self, until: float, context: Context) -> None:
        """Serve up to 64 messages, not past `until` (perf_counter seconds). Called by the run queue.

        `context` is the one in which it runs; a handler that sets a variable there is the last of its turn.
        """
        if (self.order or self.urgent is not None) and self.attend(until, context):
            return
        box = self.box
        if not box:
            self.conclude()
            return
        scheduler = self.scheduler
        actor = self.actor
        popleft = box.popleft
        budget, clock, clean = scheduler.burst, scheduler.clock, scheduler.base
        scheduler.running = self
        try:
            while True:
                self.hand = envelope = popleft()
                message, _, _, question = envelope
                # Not a local: `ctx.become` counts from the next message on.
                handler = self.table.get(type(message)) or self.handler(message)
                if question is not None and question.future.done():
                    self.bury(envelope, "expired")
                else:
                    result = handler(actor, message)
                    if result is not None and (type(result) is COROUTINE or isinstance(result, Future)):
                        self.take_over(result)
                        return
                    if question is not None and not question.deferred:
                        future = question.future
                        if future.done():
                            self.too_late(question, result)
                        else:
                            question.answered = True
                            if question.bucket is not None:
                                question.bucket.pop(question, None)
                            future.set_result(result)
                budget -= 1
                # Copies of one context that no one changed are equal at the cost of comparing two pointers.
                if not box or not budget or clock() > until or context != clean:
                    break
        except BaseException as exc:
            scheduler.running = None
            self.conclude(self.judge(exc))
            return
        finally:
            scheduler.running = None
        self.conclude()

    def attend(self, until: float, context: Context) -> bool:
        """See to orders and the signal lane; true if the cell has passed into other hands."""
        if self.order and self.obey():
            return True
        scheduler = self.scheduler
        budget, clock = scheduler.burst, scheduler.clock
        scheduler.running = self
        try:
            while self.urgent:
                handler = self.take_urgent()
                if handler is None:
                    continue
                result = handler(self.actor, self.hand[0])
                if result is not None and (type(result) is COROUTINE or isinstance(result, Future)):
                    self.take_over(result)
                    return True
                budget -= 1
                if self.order & ~DRAIN or not budget or clock() > until or context != scheduler.base:
                    break
        except BaseException as exc:
            scheduler.running = None
            self.conclude(self.judge(exc))
            return True
        finally:
            scheduler.running = None
        if not self.urgent:
            self.urgent = None
        if self.order & ~DRAIN or self.urgent or context != scheduler.base:
            self.conclude()
            return True
        return False

    def take_urgent(self) -> Handler | None:
        """Take the next item of the signal lane; None if it no longer applies. Raises what it carries."""
        assert self.urgent is not None
        self.hand = envelope = self.urgent.popleft()
        message, _, _, condition = envelope
        if condition is not None:
            if isinstance(condition, Failure):
                raise condition.error
            if not condition.due():
                return None
        return self.table.get(type(message)) or self.handler(message)

    def handler(self, message: object) -> Handler:
        """Return the handler of a message whose exact type has none, or else one that reports it."""
        found = self.table.find(type(message))
        if found is None:
            found = ignore if isinstance(message, SIGNALS) else self.unhandled
        return found

    def unhandled(self, actor: object, message: Any) -> Any:
        question = self.hand[3]
        if type(question) is Question and not question.future.done():
            question.fail(
                Unhandled(
                    f"{self.path} ({type(actor).__name__}) has no handler for {type(message).__name__}; "
                    f"declare one with `@on({type(message).__name__})`"
                )
            )
        else:
            self.bury(self.hand, "unhandled")

    def expired(self, actor: object, message: object) -> None:
        """Instead of the handler: the asker no longer waits."""
        self.hand[3].deferred = True  # no answer to settle
        self.bury(self.hand, "expired")

    def too_late(self, question: Question, result: Any) -> None:
        """Note that the question in hand is settled already: the handler's return value comes late, if it is
        one."""
        if not question.answered:
            self.late_answer(question, result)

    def late_answer(self, question: Question, value: Any) -> None:
        reason: DeadLetterReason = "duplicate" if question.answered else "late"
        self.scheduler.dead_letters.publish(
            DeadLetter(reason, value, question.waiting, self.ref, self.hand[2])
        )

    def judge(self, exc: BaseException) -> BaseException | None:
        """Tell the asker that a handler raised. Returns the error by which the actor fails, if it does."""
        question = self.hand[3] if type(self.hand[3]) is Question else None
        refusal = find_refusal(exc)
        if refusal is not None:
            if type(self.hand[3]) is Failure:
                log.warning("%s: its own work was rejected: %s", self.path, refusal)
            elif question is None:
                self.bury(self.hand, "unhandled")
            elif not question.fail(refusal):
                self.late_answer(question, refusal)
            return None
        fault: BaseException | None = exc
        if isinstance(exc, KeyboardInterrupt | SystemExit):
            self.scheduler.crash(exc)
            self.order |= KILL
            fault = None
        elif isinstance(exc, asyncio.CancelledError):
            if self.order & (KILL | HALT):
                fault = None
            elif self.order & FAIL:
                self.order &= ~FAIL
                extras = self.extra()
                fault, extras.failure = extras.failure, None
            else:
                fault = HandlerCancelled(
                    f"{self.path}: the handler of {type(self.hand[0]).__name__} was cancelled"
                )
                fault.__cause__ = exc
        if question is not None:
            told = fault or ActorStopped(f"{self.path} stopped before it answered")
            if not question.fail(told) and not question.answered and fault is not None:
                self.late_answer(question, fault)
        return fault

    def take_over(self, awaitable: Any) -> None:
        """Hand the actor over to a pump task, because a handler awaits."""
        scheduler = self.scheduler
        coroutine = awaitable if type(awaitable) is COROUTINE else awaiting(awaitable)
        if self.limit == 0:
            self.grant()
        self.mode = BUSY
        self.fresh = coroutine  # until the pump takes its first step
        self.since = scheduler.clock()
        scheduler.busy[self] = None
        self.limit_handler()
        task = scheduler.start(self.pump(coroutine), self.name)
        if not task.done():  # begun eagerly, it may be over
            self.task = task

    def limit_handler(self) -> None:
        """Start the time limit of the handler that is about to await, if its class sets one."""
        limit = None if self.actor is None else self.actor.__handler_timeout__
        if limit is not None:
            scheduler, extras = self.scheduler, self.extra()
            if extras.overdue is not None:
                extras.overdue.cancel()
            extras.overdue = scheduler.loop.call_later(
                limit, self.overdue, self.hand, limit, context=scheduler.base
            )

    def overdue(self, hand: Envelope, limit: float) -> None:
        """Fail the actor if it still handles the message that it had in hand when the limit began."""
        if self.mode == BUSY and self.hand is hand:
            message = type(hand[0]).__name__
            error = HandlerTimeout(f"{self.path}: the handler of {message} took over {limit:g} s")
            orders.interrupt(self, error)

    async def pump(self, coroutine: Coroutine[Any, Any, Any] | None) -> None:
        """Serve the actor, beginning with a handler's coroutine, for one turn: 64 messages or 2 ms."""
        self.fresh = None
        # Before anything else: in an eager first step (3.12) `take_over` does not know the task yet.
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.task = cast("asyncio.Task[Any] | None", task)
        if self.order & (
            KILL | FAIL | HALT
        ):  # before the first step, which a cancelled task would never take
            assert coroutine is not None
            coroutine.close()
            self.give_back()
            self.conclude()
            return
        frame: Frame | None = None
        own = ReferenceType(task)  # weak, or the task and its context would be a cycle
        del task
        bare: Frame = (self, None, None, own, True)
        clean: Context | None = None
        fault: BaseException | None = None
        result: Any = None
        handler: Handler = self.unhandled
        message, _, trace, question = self.hand
        if type(question) is not Question:
            question = None
        budget, clock = self.scheduler.burst, self.scheduler.clock
        until = self.since + SLICE
        while True:
            wanted = bare if question is None and trace is None else (self, trace, question, own, True)
            if wanted is not frame:
                FRAME.set(wanted)
                frame = wanted
                clean = copy_context()
            try:
                if coroutine is None:
                    result = handler(self.actor, message)
                    if result is not None and (type(result) is COROUTINE or isinstance(result, Future)):
                        self.limit_handler()
                        result = await cast("Future[Any]", result)
                else:
                    result = await coroutine
                    coroutine = None
            except BaseException as exc:
                own_task: asyncio.Task[Any] | None = self.task
                if thrown_away(exc, own_task):
                    if own_task is None or self.scheduler.aborting is not own_task:
                        raise
                    exc = asyncio.CancelledError()  # it swallowed this until now
                coroutine = None
                self.parting = None
                fault = self.judge(exc)
                if fault is not None:
                    break
            else:
                if question is not None and not question.deferred:
                    future = question.future
                    if future.done():
                        self.too_late(question, result)
                    else:
                        question.answered = True
                        if question.bucket is not None:
                            question.bucket.pop(question, None)
                        future.set_result(result)
            box = self.box
            if not box or self.urgent is not None or self.order & ~DRAIN:
                break
            budget -= 1
            self.since = clock()
            if not budget or self.since > until or copy_context() != clean:
                break
            if self.parting is not None:
                self.part()
            self.hand = envelope = box.popleft()
            if self.limit == 0:
                self.grant()
            message, _, trace, question = envelope
            if question is not None and question.future.done():
                handler = self.expired
            else:
                handler = self.table.get(type(message)) or self.handler(message)
        self.conclude(fault)
        if self.parting is not None:
            self.part()

    def part(self) -> None:
        """Send what the handler that has returned asked for."""
        assert self.parting is not None
        parting, self.parting = self.parting, None
        for ref, message in parting:
            try:
                ref.tell_now(message)
            except MailboxFull:
                cell = cast("Any", ref).cell
                cell.bury((message, self, current_trace(), None), "full")

    def conclude(self, fault: BaseException | None = None) -> None:
        """End a turn: pass the cell on to what serves it next."""
        hand, self.hand = self.hand, NOTHING
        if self.mode == BUSY:
            self.task = None
            del self.scheduler.busy[self]
            if self.extras is not None and self.extras.overdue is not None:
                self.extras.overdue.cancel()
                self.extras.overdue = None
        if fault is not None:
            fate.failed(self, fault, hand)
            return
        if self.limit == 0:
            self.grant()
        if self.extras is not None and self.extras.idle is not None:
            self.extras.idle.touch()
        box = self.box
        if self.order and (self.order & ~DRAIN or not (box or self.urgent)):
            self.mode = QUEUED
            if self.obey():
                return
        if box or self.urgent:
            self.mode = QUEUED
            scheduler = self.scheduler
            scheduler.queue.append(self)
            if not scheduler.armed:
                scheduler.arm()
            return
        if box is not None:
            self.box = None
            if len(self.scheduler.boxes) < 1024:
                self.scheduler.boxes.append(box)
        self.mode = IDLE

    def obey(self) -> bool:
        """Carry out what was ordered, between two messages; true if the cell has passed into a routine."""
        order = self.order
        if self.phase == DEAD or life.end_at_once(self):
            return True  # dead: it was in the run queue when `Ref.terminated` ended it
        if order & KILL:
            drive(self.scheduler, life.finish(self, "killed", None))
        elif order & STOP or (order == DRAIN and self.drained()):
            drive(self.scheduler, life.finish(self, "stopped", None))
        elif order & START:
            self.order &= ~START
            drive(self.scheduler, fate.begin(self))
        elif order & HALT:
            orders.halt(self)
        elif order & FAIL:
            extras = self.extra()
            assert extras.failure is not None
            fate.failed(self, extras.failure)
        else:
            return False
        return True

    def drained(self) -> bool:
        """Return true if everything that was accepted is handled and answered."""
        if self.box or self.urgent:
            return False
        extras = self.extras
        return extras is None or not (extras.deferred or any(limiter.owed() for limiter in extras.limiters))
