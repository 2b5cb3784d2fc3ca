"""A cell: the state of one actor's runtime, and its mailbox; how messages get in, wait, and are refused.

Two lanes: the mailbox, bounded, and the signal lane, which is neither bounded nor ever refused while the
actor lives. The mailbox exists only while it holds something. Nothing here serves messages; that is `turn`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any, Protocol

from actors.behaviour import Behaviour, Overflow, Table
from actors.errors import ActorStopped, MailboxFull
from actors.kernel.scheduler import Scheduler
from actors.question import Question
from actors.ref import Ref
from actors.signals import SIGNALS, DeadLetter, DeadLetterReason, EndReason
from actors.specs import ChildSpec, RestartType
from actors.states import BUSY, DEAD, HELD, IDLE, KILL, NOTHING, QUEUED, STARTING, STOPPING
from actors.supervision import Intensity, Streak

__all__ = ["Cell", "Envelope", "Extras", "Failure"]

NO_HANDLERS = Table()

Envelope = tuple[object, "Cell | None", Any, Any]
"""message, sender, trace, and the `Question` of an ask (in the signal lane: what makes the item
conditional)."""


class Ends(Protocol):
    """A timer that ends with the instance."""

    def cancel(self) -> None: ...

    def touch(self) -> None: ...


class Work(Protocol):
    """Work that the instance owns: a task, or a future of the answer to a question."""

    @property
    def task(self) -> asyncio.Future[Any]: ...

    def end(self) -> None: ...


class Limits(Protocol):
    """A limiter of the instance."""

    def close(self) -> None: ...

    def owed(self) -> bool: ...


class Membership(Protocol):
    """Something that keeps refs and drops each when its actor is gone."""

    def leave(self, ref: Ref[Any], /) -> None: ...


class Failure:
    """An item of the signal lane that makes the actor fail, as if a handler had raised: owned work raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Extras:
    """What most actors never need; made on first use, so that an idle actor costs a few hundred bytes."""

    __slots__ = (
        "answers",
        "closing",
        "deferred",
        "ended",
        "failure",
        "grace",
        "group",
        "groups",
        "halted",
        "idle",
        "intensity",
        "kept",
        "leftover",
        "limiters",
        "links",
        "muted",
        "overdue",
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
        self.answers = 0
        """Piped answers that the loop is to deliver: others wait behind them."""
        self.closing: asyncio.Task[Any] | None = None
        """Closes the context managers of the instance while it ends."""
        self.deferred: dict[Question, None] = {}
        """Asks whose reply was deferred and has not been given."""
        self.ended: dict[asyncio.Future[None], None] = {}
        """Futures that are resolved once the actor is gone."""
        self.failure: BaseException | None = None
        self.grace: asyncio.TimerHandle | None = None
        """Kills the actor if a stop with a deadline takes longer."""
        self.group: deque[tuple[Cell, BaseException]] | None = None
        """Failed children that a running group restart still has to take; None if none is running."""
        self.groups: dict[Membership, None] = {}
        """Groups and registries that hold the ref."""
        self.halted: asyncio.Future[None] | None = None
        """Resolved once a group restart may take the actor: no handler is at work."""
        self.idle: Ends | None = None
        """The receive timeout."""
        self.intensity: Intensity | None = None
        """Restarts of the children in the time that limits them, of a supervisor."""
        self.kept: dict[str, ChildSpec[Any]] = {}
        """Specs of ended children that `restart_child` may start anew, by name."""
        self.leftover: deque[Envelope] | None = None
        """Messages that waited when the mailbox was closed; dead letters at the end."""
        self.limiters: list[Limits] = []
        self.links: dict[Cell, None] = {}
        """Actors that end with this one."""
        self.muted: set[Cell] = set()
        """Children whose `Terminated` is not wanted (`unwatch`)."""
        self.overdue: asyncio.TimerHandle | None = None
        """Ends a handler that has reached its time limit."""
        self.pipes: dict[Work, None] = {}
        """Work in tasks (`ctx.pipe`)."""
        self.reserved = 0
        """Free slots that were granted to waiting senders who have not appended yet."""
        self.stack: AsyncExitStack | None = None
        """Context managers that the instance entered."""
        self.stash: list[Envelope] = []
        self.streak: Streak | None = None
        """Failures in a row, for the backoff."""
        self.timers: dict[Any, Ends] = {}
        """Started timers by key."""
        self.waiters: list[asyncio.Future[None]] = []  # an empty deque takes 760 bytes
        """Senders that wait for a slot, the first one first."""
        self.wake: asyncio.Future[None] | None = None
        """Ends the backoff before a restart early, when a stop is asked for."""
        self.watchers: dict[Cell, None] = {}
        """Actors that get `Terminated` of this one."""
        self.watching: dict[Cell, None] = {}
        """Actors whose `Terminated` this one gets."""


class Cell:
    """The state and the mailbox of one actor; see the module."""

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
        "parting",
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
    context: Any

    def __init__(
        self,
        scheduler: Scheduler[Cell],
        parent: Cell | None,
        name: str,
        factory: Callable[[], Behaviour[Any]],
        restart: RestartType,
        shutdown: float | None,
        spec: ChildSpec[Any] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.parent = parent
        self.name = name
        self.factory = factory
        self.restart: RestartType = restart
        """When the parent starts the actor anew, see `ChildSpec`."""
        self.shutdown = shutdown
        """Seconds that the actor may take to end before it is killed; None: as long as it takes."""
        self.actor: Behaviour[Any] | None = None
        """The instance; None while there is none, as before the first start."""
        self.context = None
        self.table = NO_HANDLERS
        """Handlers of the present behaviour by type of message."""
        self.box: deque[Envelope] | None = None
        """The mailbox; None while it is empty and idle."""
        self.urgent: deque[Envelope] | None = None
        """The signal lane."""
        self.spec = spec
        self.fate: EndReason = "stopped"
        """How the actor ended or is about to end."""
        kind = getattr(factory, "func", factory)  # of a functools.partial
        if not (isinstance(kind, type) and issubclass(kind, Behaviour)):
            kind = Behaviour  # the class is known once the factory has made the first instance
        self.capacity = self.limit = kind.__mailbox__
        """Each sender compares `limit` with the length of the mailbox, the one comparison on the way of every
        message. It is `capacity` while messages are accepted, 0 while senders wait (FIFO: later ones queue
        behind them), CLOSED at the end."""
        self.overflow: Overflow = kind.__overflow__
        self.mode = HELD
        """Who serves the cell (`states`)."""
        self.phase = STARTING
        """Where the actor is in its life (`states`)."""
        self.order: int = 0
        """What was asked of the cell and is not carried out yet: bits (`states`)."""
        self.hand = NOTHING
        """The envelope that is being handled."""
        self.task: asyncio.Task[Any] | None = None
        """The pump: serves the cell while a handler awaits."""
        self.parting: list[tuple[Ref[Any], object]] | None = None
        """What the handler at work has asked to be sent when it has returned, and to whom; in order."""
        self.fresh: Coroutine[Any, Any, Any] | None = None
        """A coroutine that the pump has yet to start, closed if it is killed before that."""
        self.since = 0.0
        """When the message in hand was taken, by the clock of the scheduler."""
        self.children: dict[str, Cell] | None = None
        self.extras: Extras | None = None
        scheduler.uid = self.uid = scheduler.uid + 1

    @property
    def path(self) -> str:
        parts: list[str] = []
        cell = self
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
        """Return as `extra`, for what would outlive an actor that is gone. Raises `ActorStopped`."""
        if self.phase == DEAD:
            raise ActorStopped(f"{self.path} is gone; its context does nothing any more")
        return self.extra()

    def busy(self) -> tuple[str | None, float | None]:
        """Return the type of the message in hand, and for how long (seconds) its handler has been at work."""
        if self.hand is NOTHING:
            return None, None
        return type(self.hand[0]).__name__, max(0.0, self.scheduler.clock() - self.since)

    @property
    def depth(self) -> int:
        """Messages that wait."""
        return 0 if self.box is None else len(self.box)

    def enqueue(self) -> None:
        """Ask for a turn, if no one serves this cell."""
        if self.mode == IDLE:
            self.mode = QUEUED
            scheduler = self.scheduler
            scheduler.queue.append(self)
            if not scheduler.armed:
                scheduler.arm()

    def resume(self) -> None:
        """End what held this cell: it is idle, or has a turn if anything waits for it."""
        if self.mode == BUSY:
            self.task = None
            self.scheduler.busy.pop(self, None)
        if self.limit == 0:
            self.grant()
        if self.extras is not None and self.extras.idle is not None:
            self.extras.idle.touch()
        self.mode = IDLE
        if self.order or self.box or self.urgent:
            self.enqueue()
        else:
            self.box = None

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

    def wake(self, envelope: Envelope) -> None:
        """Deliver to an idle actor at once; see `turn.ActorCell`."""
        raise NotImplementedError

    def late_answer(self, question: Question, value: Any) -> None:
        """Publish an answer that comes too late; see `turn.ActorCell`."""
        raise NotImplementedError

    def taken(self) -> Envelope:
        """Return the message in hand, to be kept, without the condition of the signal lane."""
        message, sender, trace, question = self.hand
        return self.hand if type(question) is Question else (message, sender, trace, None)

    def turn(self, until: float, context: Context) -> None:
        """Serve the actor for one turn; see `turn.ActorCell`."""
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
        """Do the slow half of `tell`: no mailbox yet, a full one, or an actor that takes no more."""
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

    def wants(self, signal: type[Any]) -> bool:
        """Return true if the actor lives and declares this signal."""
        return self.phase < STOPPING and self.table.find(signal) is not None

    def signal_failure(self, error: BaseException) -> None:
        """Let the actor fail by `error` as soon as it has handled the message in hand."""
        self.signal(None, Failure(error))

    def bury(self, envelope: Envelope, reason: DeadLetterReason) -> None:
        """Fail the asker of a message that will not be handled, or publish a dead letter."""
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
        self.limit = 0  # FIFO: later senders queue behind waiting ones
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
            waiter = waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                extras.reserved += 1
                free -= 1
        if not waiters and not extras.reserved:
            self.limit = self.capacity
