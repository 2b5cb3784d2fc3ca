"""A cell's state and its mailbox: how messages get in, wait, and are refused.

Two lanes: the mailbox, bounded, and the signal lane, which is neither bounded nor ever refused while the
actor lives. The mailbox exists only while it holds something. Nothing here serves messages; that is `cell`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from actors.actor import Actor, Overflow, Table
from actors.errors import ActorStopped, MailboxFull
from actors.extras import Envelope, Extras, Failure
from actors.messages import SIGNALS, DeadLetter, DeadLetterReason, EndReason
from actors.states import DEAD, HELD, IDLE, NOTHING, STARTING, STOPPING
from actors.supervision import ChildSpec, RestartType

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.context import Context
    from actors.dispatch import Scheduler
    from actors.question import Question
    from actors.ref import Ref

__all__ = ["Mailbox"]

NO_HANDLERS = Table()


class Mailbox:
    """The part of a `Cell` that receives."""

    __slots__ = (
        "actor",
        "box",
        "capacity",
        "children",
        "context",
        "extras",
        "factory",
        "fate",
        "fresh",
        "hand",
        "limit",
        "mode",
        "name",
        "order",
        "overflow",
        "parent",
        "phase",
        "ref",
        "restart",
        "scheduler",
        "shutdown",
        "since",
        "spec",
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
        spec: ChildSpec[Any] | None = None,
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
        self.spec = spec
        self.fate: EndReason = "stopped"
        kind = getattr(factory, "func", factory)  # of a functools.partial
        if not (isinstance(kind, type) and issubclass(kind, Actor)):
            kind = Actor  # the class is known once the factory has made the first instance
        self.capacity = self.limit = kind.__mailbox__
        self.overflow: Overflow = kind.__overflow__
        self.mode = HELD
        self.phase = STARTING
        self.order: int = 0
        self.hand = NOTHING
        self.task: asyncio.Task[Any] | None = None
        self.fresh: Coroutine[Any, Any, Any] | None = None
        self.since = 0.0
        self.children: dict[str, Cell] | None = None
        self.extras: Extras | None = None
        scheduler.uid = self.uid = scheduler.uid + 1

    @property
    def path(self) -> str:
        parts: list[str] = []
        cell: Mailbox = self
        while cell.parent is not None:
            parts.append(cell.name)
            cell = cell.parent
        return "/" + "/".join(reversed(parts))

    def extra(self) -> Extras:
        extras = self.extras
        if extras is None:
            extras = self.extras = Extras()
        return extras

    def living(self) -> Extras:
        """As `extra`, for what would outlive an actor that is gone. Raises `ActorStopped`."""
        if self.phase == DEAD:
            raise ActorStopped(f"{self.path} is gone; its context does nothing any more")
        return self.extra()

    def busy(self) -> tuple[str | None, float | None]:
        """The type of the message in hand, and for how long (seconds) its handler has been at work."""
        if self.hand is NOTHING:
            return None, None
        return type(self.hand[0]).__name__, max(0.0, self.scheduler.clock() - self.since)

    def enqueue(self) -> None:
        """Ask for a turn, if nobody serves this cell."""
        raise NotImplementedError

    def is_full(self) -> bool:
        """Return true if there is no free slot."""
        return (0 if self.box is None else len(self.box)) >= self.limit

    def accept(self, envelope: Envelope) -> None:
        """Put a message into the mailbox; the caller has seen that there is room."""
        box = self.box
        if box is None:
            self.box = box = self.scheduler.new_box()
        box.append(envelope)
        if self.mode == IDLE:
            self.enqueue()

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
        elif self.overflow == "drop_old":
            if box:  # waiting senders keep their places: the number of free slots stays the same
                self.bury(box.popleft(), "full")
                box.append(envelope)
            else:  # waiting senders have every slot
                self.bury(envelope, "full")
        else:
            raise MailboxFull(
                f"{self.path}: the mailbox has no free slot of {self.capacity}; "
                f"wait with `await ref.send(...)`, slow down, or enlarge it (`mailbox=`)"
            )

    def signal(self, message: Any, condition: Any = None, trace: Any = None) -> None:
        """Deliver past the mailbox: signals (ignored if not declared), timers, results of pipes."""
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
