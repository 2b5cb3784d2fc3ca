"""One actor's runtime: its mailbox, its turn on the run queue, and the pump that takes over when a handler
awaits.

A cell lives from spawn to `Terminated`, across restarts. Exactly one party serves it at any time, and `mode`
says which: nobody (IDLE), the run queue (QUEUED), a pump task (BUSY) or a routine of `lifecycle` (HELD).
That is what makes one message at a time true. This module never decides about failures; it hands them to
`lifecycle`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from actors import lifecycle
from actors.actor import UNBOUNDED, Actor, Handler, Table
from actors.errors import ActorStopped, HandlerCancelled, MailboxFull, Reject, Unhandled
from actors.messages import SIGNALS, DeadLetter, DeadLetterReason
from actors.question import Question
from actors.states import (
    BUSY,
    COROUTINE,
    DRAIN,
    FAIL,
    HALT,
    HELD,
    IDLE,
    KILL,
    NOTHING,
    QUEUED,
    SLICE,
    STARTING,
    STOPPING,
)
from actors.supervision import Intensity, RestartType, Streak
from actors.trace import FRAME, Frame

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from actors.context import Context
    from actors.dispatch import Scheduler
    from actors.groups import Group
    from actors.ref import Ref
    from actors.timers import Idle, Pipe, Timer

__all__ = ["Cell", "Envelope", "Extras"]

Envelope = tuple[object, "Cell | None", Any, Any]
"""message, sender, trace, and the `Question` of an ask (in the signal lane: what makes the item
conditional)."""


NO_HANDLERS = Table()


def ignore(actor: object, message: object) -> None:
    """What happens to a signal that the actor does not declare."""


class Failure:
    """An item of the signal lane that makes the actor fail, as if a handler had raised: owned work raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Extras:
    """What most actors never need; made on first use, so that an idle actor costs a few hundred bytes."""

    __slots__ = (
        "deferred",
        "ended",
        "failure",
        "grace",
        "group",
        "groups",
        "halted",
        "idle",
        "intensity",
        "leftover",
        "links",
        "muted",
        "pipes",
        "reserved",
        "stack",
        "stash",
        "streak",
        "timers",
        "waiters",
        "wake",
        "watchers",
        "watching",
    )

    def __init__(self) -> None:
        self.deferred: dict[Question, None] = {}
        self.ended: list[asyncio.Future[None]] = []
        self.failure: BaseException | None = None
        self.grace: asyncio.TimerHandle | None = None
        self.group: deque[tuple[Cell, BaseException]] | None = None
        self.groups: dict[Group, None] = {}
        self.halted: asyncio.Future[None] | None = None
        self.idle: Idle | None = None
        self.intensity: Intensity | None = None
        self.leftover: deque[Envelope] | None = None
        self.links: dict[Cell, None] = {}
        self.muted: set[Cell] = set()
        self.pipes: dict[Pipe, None] = {}
        self.reserved = 0
        self.stack: AsyncExitStack | None = None
        self.stash: deque[Envelope] = deque()
        self.streak: Streak | None = None
        self.timers: dict[Any, Timer] = {}
        self.waiters: deque[asyncio.Future[None]] = deque()
        self.wake: asyncio.Future[None] | None = None
        self.watchers: dict[Cell, None] = {}
        self.watching: dict[Cell, None] = {}


class Cell:
    """The runtime of one actor; see the module."""

    __slots__ = (
        "actor",
        "box",
        "capacity",
        "children",
        "context",
        "extras",
        "factory",
        "fresh",
        "hand",
        "limit",
        "mode",
        "name",
        "order",
        "parent",
        "phase",
        "ref",
        "restart",
        "scheduler",
        "shutdown",
        "since",
        "table",
        "task",
        "uid",
        "urgent",
    )

    ref: Ref[Any]
    context: Context

    def __init__(
        self,
        scheduler: Scheduler,
        parent: Cell | None,
        name: str,
        factory: Callable[[], Actor[Any]],
        restart: RestartType,
        shutdown: float | None,
    ) -> None:
        self.scheduler = scheduler
        self.parent = parent
        self.name = name
        self.factory = factory
        self.restart: RestartType = restart
        self.shutdown = shutdown
        self.actor: Actor[Any] | None = None
        self.table = NO_HANDLERS
        self.box: deque[Envelope] | None = None
        self.urgent: deque[Envelope] | None = None
        self.capacity = self.limit = UNBOUNDED
        self.mode = HELD
        self.phase = STARTING
        self.order = 0
        self.hand = NOTHING
        self.task: asyncio.Task[Any] | None = None
        self.fresh = False
        self.since = 0.0
        self.children: dict[str, Cell] | None = None
        self.extras: Extras | None = None
        scheduler.uid = self.uid = scheduler.uid + 1

    @property
    def path(self) -> str:
        parts: list[str] = []
        cell: Cell = self
        while cell.parent is not None:
            parts.append(cell.name)
            cell = cell.parent
        return "/" + "/".join(reversed(parts))

    def busy(self) -> tuple[str | None, float | None]:
        """The type of the message in hand, and for how long (seconds) its handler has been at work."""
        if self.hand is NOTHING:
            return None, None
        return type(self.hand[0]).__name__, max(0.0, self.scheduler.clock() - self.since)

    def extra(self) -> Extras:
        extras = self.extras
        if extras is None:
            extras = self.extras = Extras()
        return extras

    # Receiving

    def enqueue(self) -> None:
        """Ask for a turn, if nobody serves this cell."""
        if self.mode == IDLE:
            self.mode = QUEUED
            scheduler = self.scheduler
            scheduler.queue.append(self)
            if not scheduler.armed:
                scheduler.arm()

    def accept(self, envelope: Envelope) -> None:
        """Put a message into the mailbox; the caller has seen that there is room."""
        box = self.box
        if box is None:
            self.box = box = self.scheduler.new_box()
        box.append(envelope)
        if self.mode == IDLE:
            self.enqueue()

    def wake(self, envelope: Envelope) -> None:
        """Serve an idle actor: by its pump at once if the handler awaits, by the run queue otherwise."""
        scheduler = self.scheduler
        message = envelope[0]
        if scheduler.direct and type(message) in self.table.awaiting:
            self.hand = envelope
            self.take_over(self.handler(message)(self.actor, message))
            return
        boxes = scheduler.boxes
        self.box = box = boxes.pop() if boxes else scheduler.new_box()
        box.append(envelope)
        self.mode = QUEUED
        scheduler.queue.append(self)
        if not scheduler.armed:
            scheduler.arm()

    def receive(self, envelope: Envelope) -> None:
        """The slow half of `tell`: no mailbox yet, a full one, or an actor that takes no more."""
        limit = self.limit
        box = self.box
        if limit < 0:
            self.bury(envelope, "stopped")
        elif (0 if box is None else len(box)) < limit:
            self.accept(envelope)
        elif self.overflow == "drop_new":
            self.bury(envelope, "full")
        elif self.overflow == "drop_old" and box and limit:
            self.bury(box.popleft(), "full")
            box.append(envelope)
        else:
            raise MailboxFull(f"{self.path}: the mailbox has no free slot of {self.capacity}")

    @property
    def overflow(self) -> str:
        actor = self.actor
        return "raise" if actor is None else actor.__overflow__

    def signal(self, message: Any, condition: Any = None, trace: Any = None) -> None:
        """Deliver past the mailbox: signals, timers, results of pipes. Never refused while the actor
        lives."""
        if self.phase >= STOPPING or (
            isinstance(message, SIGNALS) and self.table.find(type(message)) is None
        ):
            return
        if self.urgent is None:
            self.urgent = deque()
        self.urgent.append((message, None, trace, condition))
        if self.mode == IDLE:
            self.enqueue()

    def signal_failure(self, error: BaseException) -> None:
        """Let the actor fail by `error` as soon as it has handled the message in hand."""
        self.signal(None, Failure(error))

    def bury(self, envelope: Envelope, reason: DeadLetterReason) -> None:
        """This message will not be handled: fail its asker, or publish a dead letter."""
        message, sender, trace, question = envelope
        if question is not None:
            if reason == "stopped" and question.fail(ActorStopped(f"{self.path} stopped before it answered")):
                return
            if reason == "full" and question.fail(
                MailboxFull(f"{self.path} dropped the question for a newer one")
            ):
                return
        self.scheduler.dead_letters.publish(
            DeadLetter(reason, message, self.ref, None if sender is None else sender.ref, trace)
        )

    async def slot(self, question: Question | None) -> None:
        """Wait, first come first served, until the mailbox has room for one message; append before any await.

        The waiter itself appends: a message handed over on its behalf could not be taken back when it is
        cancelled.
        """
        extras = self.extra()
        waiter: asyncio.Future[None] = self.scheduler.loop.create_future()
        if question is not None:
            question.future = waiter  # the deadline now ends this wait
        extras.waiters.append(waiter)
        self.limit = 0  # nobody barges in while someone waits
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                extras.reserved -= 1
            self.grant()
            raise
        extras.reserved -= 1
        if self.limit < 0:
            raise ActorStopped(f"{self.path} has stopped")

    def grant(self) -> None:
        """Let waiting senders have the slots that are free."""
        extras = self.extras
        if extras is None or self.limit < 0:
            return
        waiters = extras.waiters
        free = self.capacity - extras.reserved - (0 if self.box is None else len(self.box))
        while waiters and (free > 0 or waiters[0].done()):
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                extras.reserved += 1
                free -= 1
        if not waiters and not extras.reserved:
            self.limit = self.capacity

    # Serving

    def turn(self, until: float) -> None:
        """Serve up to 64 messages, not past `until` (perf_counter seconds). Called by the run queue."""
        if (self.order or self.urgent is not None) and self.attend():
            return
        box = self.box
        if not box:
            self.conclude()
            return
        scheduler = self.scheduler
        actor = self.actor
        popleft = box.popleft
        budget, clock = scheduler.burst, scheduler.clock
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
                    if type(result) is COROUTINE:
                        self.take_over(result)
                        return
                    if question is not None and not question.deferred:
                        future = question.future
                        if future.done():
                            self.too_late(question, result)
                        else:
                            question.answered = True
                            future.set_result(result)
                budget -= 1
                if not box or not budget or clock() > until:
                    break
        except BaseException as exc:
            scheduler.running = None
            self.conclude(self.judge(exc))
            return
        finally:
            scheduler.running = None
        self.conclude()

    def attend(self) -> bool:
        """See to orders and the signal lane; true if the cell has passed into other hands."""
        if self.order and lifecycle.obey(self):
            return True
        scheduler = self.scheduler
        scheduler.running = self
        try:
            while self.urgent:
                handler = self.take_urgent()
                if handler is None:
                    continue
                result = handler(self.actor, self.hand[0])
                if type(result) is COROUTINE:
                    self.take_over(result)
                    return True
                if self.order & ~DRAIN:
                    break
        except BaseException as exc:
            scheduler.running = None
            self.conclude(self.judge(exc))
            return True
        finally:
            scheduler.running = None
        if not self.urgent:
            self.urgent = None
        if self.order & ~DRAIN:
            self.conclude()
            return True
        return False

    def take_urgent(self) -> Handler | None:
        """Take the next item of the signal lane in hand; None if it no longer applies. Raises what it
        carries."""
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
        """The handler of a message whose exact type has none; one that reports it if there is no other
        either."""
        found = self.table.find(type(message))
        if found is None:
            found = ignore if isinstance(message, SIGNALS) else self.unhandled
        return found

    def unhandled(self, actor: object, message: Any) -> Any:
        question = self.hand[3]
        if type(question) is Question and not question.future.done():
            question.fail(
                Unhandled(f"{self.path} ({type(actor).__name__}) has no handler for {type(message).__name__}")
            )
        else:
            self.bury(self.hand, "unhandled")

    def expired(self, actor: object, message: object) -> None:
        """Instead of the handler: the asker no longer waits."""
        self.hand[3].deferred = True  # no answer to settle
        self.bury(self.hand, "expired")

    def too_late(self, question: Question, result: Any) -> None:
        """The question in hand is settled already: the handler's return value comes late, if it is one."""
        if not question.answered:
            self.late_answer(question, result)

    def late_answer(self, question: Question, value: Any) -> None:
        reason: DeadLetterReason = "duplicate" if question.answered else "late"
        target = None if question.waiting is None else question.waiting.ref
        self.scheduler.dead_letters.publish(DeadLetter(reason, value, target, self.ref, self.hand[2]))

    def forget_deferred(self, question: Question) -> None:
        if self.extras is not None:
            self.extras.deferred.pop(question, None)

    def judge(self, exc: BaseException) -> BaseException | None:
        """A handler raised: tell the asker. Returns the error by which the actor fails, None if it may go
        on."""
        question = self.hand[3] if type(self.hand[3]) is Question else None
        if isinstance(exc, Reject) and not exc.delivered:
            exc.delivered = True
            if question is None:
                self.bury(self.hand, "unhandled")
            elif not question.fail(exc):
                self.late_answer(question, exc)
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

    def take_over(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """A handler awaits: a pump task serves the actor from here on."""
        scheduler = self.scheduler
        if self.limit == 0:
            self.grant()
        self.mode = BUSY
        self.fresh = True
        self.since = scheduler.clock()
        scheduler.busy[self] = None
        self.task = asyncio.Task(
            self.pump(coroutine), loop=scheduler.loop, name=self.name, context=scheduler.base.copy()
        )

    async def pump(self, coroutine: Coroutine[Any, Any, Any] | None) -> None:
        """Serve the actor, beginning with a handler's coroutine, for one turn: 64 messages or 2 ms."""
        self.fresh = False
        if self.order & (
            KILL | FAIL | HALT
        ):  # before the first step, which a cancelled task would never take
            assert coroutine is not None
            coroutine.close()
            self.give_back()
            self.conclude()
            return
        frame: Frame | None = None
        bare: Frame = (self, None, None, True)
        fault: BaseException | None = None
        handler: Handler = self.unhandled
        message, _, trace, question = self.hand
        if type(question) is not Question:
            question = None
        budget, clock = self.scheduler.burst, self.scheduler.clock
        until = self.since + SLICE
        while True:
            wanted = bare if question is None and trace is None else (self, trace, question, True)
            if wanted is not frame:
                FRAME.set(wanted)
                frame = wanted
            try:
                if coroutine is None:
                    result: Any = handler(self.actor, message)
                    if type(result) is COROUTINE:
                        result = await result
                else:
                    result = await coroutine
                    coroutine = None
            except GeneratorExit:
                raise
            except BaseException as exc:
                coroutine = None
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
                        future.set_result(result)
            box = self.box
            if not box or self.urgent is not None or self.order & ~DRAIN:
                break
            budget -= 1
            self.since = clock()
            if not budget or self.since > until:
                break
            self.hand = envelope = box.popleft()
            if self.limit == 0:
                self.grant()
            message, _, trace, question = envelope
            if question is not None and question.future.done():
                handler = self.expired
            else:
                handler = self.table.get(type(message)) or self.handler(message)
        self.conclude(fault)

    def give_back(self) -> None:
        """Return the message in hand, whose handler never began."""
        message, _, _, question = self.hand
        if isinstance(message, SIGNALS) or (question is not None and type(question) is not Question):
            return  # from the signal lane, which ends with the instance
        if self.order & KILL:
            self.bury(self.hand, "stopped")
        else:
            self.box = self.box if self.box is not None else self.scheduler.new_box()
            self.box.appendleft(self.hand)

    def conclude(self, fault: BaseException | None = None) -> None:
        """End a turn: pass the cell on to whoever serves it next."""
        self.hand = NOTHING
        if self.task is not None:
            self.task = None
            self.scheduler.busy.pop(self, None)
        if fault is not None:
            lifecycle.failed(self, fault)
            return
        if self.limit == 0:
            self.grant()
        if self.extras is not None and self.extras.idle is not None:
            self.extras.idle.touch()
        box = self.box
        if self.order and (self.order & ~DRAIN or not (box or self.urgent)):
            self.mode = QUEUED
            if lifecycle.obey(self):
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
