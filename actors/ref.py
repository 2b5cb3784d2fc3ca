"""`Ref`, the only handle to an actor, from inside and outside of actors.

A ref stays valid across restarts, and after the end: then messages become dead letters and asks fail at
once. Two refs are equal if they name the same actor of the same system; the incarnation tells a later actor
of the same path apart.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from actors import lifecycle, orders
from actors.errors import ActorStopped, AskTimeout, DeadlockError, MailboxFull, WrongThread
from actors.messages import Asks, DeadLetter
from actors.question import Question
from actors.states import DEAD, IDLE, QUEUED
from actors.trace import FRAME, current_trace
from actors.wheel import TICKS

if TYPE_CHECKING:
    import threading

    from actors.actor import M
    from actors.cell import Cell, Envelope
else:
    import threading

    M = TypeVar("M", contravariant=True)

__all__ = ["DebugRef", "Ref"]

R = TypeVar("R")

DEFAULT_TIMEOUT = 5.0


class Ref(Generic[M]):
    """The handle to an actor that takes messages of the types `M` (`Ref[Any]`: anything)."""

    __slots__ = ("__weakref__", "cell")

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    @property
    def name(self) -> str:
        """Unique among living siblings."""
        return self.cell.name

    @property
    def path(self) -> str:
        """The names from the root down: `/desk/r0`."""
        return self.cell.path

    @property
    def incarnation(self) -> int:
        """Tells apart actors that had the same path one after the other; restarts do not change it."""
        return self.cell.uid

    @property
    def is_alive(self) -> bool:
        """False once `Terminated` was sent; an actor that is stopping is still alive."""
        return self.cell.phase != DEAD

    def __repr__(self) -> str:
        return f"<Ref {self.path}#{self.incarnation}>"

    def __copy__(self) -> Ref[M]:
        return self

    def __deepcopy__(self, memo: object) -> Ref[M]:
        return self  # a copy of a message (`dataclasses.asdict`) names the same actor

    def __reduce__(self) -> str:
        raise TypeError(f"{self!r} is of this process only; send the path instead")

    def tell(self, message: M) -> None:
        """Send and go on; never waits. Order is kept for each sender and receiver.

        Raises `MailboxFull` when there is no free slot, or applies the class's `overflow` policy. A message
        to an actor that has stopped, or is asked to, becomes a dead letter.
        """
        cell = self.cell
        scheduler = cell.scheduler
        sender = scheduler.running
        if sender is not None:
            trace = sender.hand[2]
        else:
            frame = FRAME.get()
            if frame is None:
                trace = None
            else:
                sender, trace, _, _, _ = frame
        box = cell.box
        if box is not None and len(box) < cell.limit:
            box.append((message, sender, trace, None))
        elif cell.mode == IDLE:
            boxes = scheduler.boxes
            cell.box = box = boxes.pop() if boxes else scheduler.new_box()
            box.append((message, sender, trace, None))
            cell.mode = QUEUED
            scheduler.queue.append(cell)
            if not scheduler.armed:
                scheduler.arm()
        else:
            cell.receive((message, sender, trace, None))

    def try_tell(self, message: M) -> bool:
        """Send as `tell` does; false, and no exception, if the message is refused.

        Refused are messages to an actor that takes no more (a dead letter, `stopped`) or has no free slot
        (`full`).
        """
        cell = self.cell
        if cell.limit < 0 or (cell.overflow == "drop_new" and cell.is_full()):
            self.tell(message)
            return False
        try:
            self.tell(message)
        except MailboxFull:
            cell.scheduler.dead_letters.publish(DeadLetter("full", message, self, None, current_trace()))
            return False
        return True

    async def send(self, message: M) -> None:
        """Send, and wait for a free slot if there is none; waiters are served first come first served.

        Cancelled while it waits, the message is not delivered. Raises `ActorStopped` when the actor takes no
        more.
        """
        cell = self.cell
        frame = FRAME.get()
        sender, trace = (None, None) if frame is None else frame[:2]
        await _deliver(cell, (message, sender, trace, None))

    @overload
    async def ask(self, message: Asks[M, R], timeout: float | None = DEFAULT_TIMEOUT) -> R: ...
    @overload
    async def ask(self, message: M, timeout: float | None = DEFAULT_TIMEOUT) -> Any: ...
    async def ask(self, message: Any, timeout: float | None = DEFAULT_TIMEOUT) -> Any:
        """Send and wait for the answer: the return value of the handler.

        `timeout` in seconds, met up to 50 ms late, includes the wait for a free slot. None means the time
        that the question in hand has left (5 s outside of one); `math.inf` sets no limit. Inside a handler
        no ask outlasts the question in hand. Raises `AskTimeout`, `ActorStopped` (at once), `DeadlockError`
        (a cycle of asks), or what the handler raised. Cancelled, the question is dropped if its handler has
        not started.
        """
        cell = self.cell
        scheduler = cell.scheduler
        loop = scheduler.loop
        deadline = loop.time() + (DEFAULT_TIMEOUT if timeout is None else timeout)
        frame = FRAME.get()
        if frame is None:
            sender = waiting = trace = parent = None
        else:
            sender, trace, parent, own, held = frame
            waiting = None
            if (
                own is not None and own() is asyncio.current_task()
            ):  # else it was begun here, and no one waits for it
                waiting = sender if held else None
                if waiting is not None or parent is not None:
                    self._check_cycle(waiting, parent)
            if parent is not None:
                if parent.future.done():
                    parent = None
                elif timeout is None or parent.deadline < deadline:
                    deadline = parent.deadline
        if timeout is not None and timeout <= 0:
            raise AskTimeout(f"{cell.path}: there is no time left to ask")
        question = Question(loop.create_future(), deadline, parent, waiting)
        bucket = None
        if deadline != inf:
            tick = int(deadline * TICKS) + 1
            bucket = scheduler.wheel.buckets.get(tick)
            if bucket is None:
                bucket = scheduler.wheel.bucket(tick)
            bucket[question] = cell
        try:
            box = cell.box
            if box is not None and len(box) < cell.limit:
                box.append((message, sender, trace, question))
            elif cell.mode == IDLE:
                cell.wake((message, sender, trace, question))
            else:
                await _deliver(cell, (message, sender, trace, question))
            return await question.future
        except asyncio.CancelledError:
            future = question.future
            if future.done() and not future.cancelled():
                future.exception()  # settled in the same moment; nobody will look at it
            raise
        finally:
            if bucket is not None:
                bucket.pop(question, None)

    def _check_cycle(self, asker: Cell | None, question: Question | None) -> None:
        """Raise `DeadlockError` if the target waits, over any number of asks, for this very asker, or for
        the question that it works on."""
        cell = self.cell
        chain = [] if asker is None else [asker]
        if asker is not cell:
            while question is not None and not question.future.done():
                if question.waiting is not None:
                    chain.append(question.waiting)
                    if question.waiting is cell:
                        break
                question = question.parent
            else:
                return
        path = " asks ".join([*(each.path for each in reversed(chain)), cell.path])
        raise DeadlockError(
            f"{path}: none of them could ever answer; ask from `ctx.pipe`, or tell, in one of them"
        )

    def tell_threadsafe(self, message: M) -> None:
        """Send from any thread; if the mailbox is full, to the dead letters. Raises `ActorStopped`."""
        self.cell.scheduler.knock(self.cell, message, current_trace())

    def stop(self, grace: float | None = None) -> None:
        """Ask the actor to end after the message in hand; kill it after `grace` seconds. Stopping twice is
        harmless.

        Children end first. What waits in the mailbox becomes dead letters, waiting asks fail. Final: no
        restart.
        """
        cell = self.cell
        orders.stop(cell)
        if grace is not None and cell.phase != DEAD:
            extras = cell.extra()
            if extras.grace is not None:
                extras.grace.cancel()
            extras.grace = cell.scheduler.loop.call_later(grace, orders.kill, cell)

    def drain(self) -> None:
        """Ask the actor to handle everything accepted so far, refuse the rest, and end."""
        orders.drain(self.cell)

    def kill(self) -> None:
        """End the subtree now: what runs is cancelled, `on_stop` skipped, what it entered closed."""
        orders.kill(self.cell)

    async def terminated(self) -> None:
        """Wait until the actor is gone."""
        if self.cell.phase != DEAD:
            await lifecycle.ended_future(self.cell)


async def _deliver(cell: Cell, envelope: Envelope) -> None:
    """Put a message into the mailbox, as soon as there is a slot. Raises `ActorStopped`."""
    question = envelope[3]
    limit = cell.limit
    if limit < 0:
        raise ActorStopped(f"{cell.path} has stopped")
    if (0 if cell.box is None else len(cell.box)) < limit:
        cell.accept(envelope)
        return
    await cell.slot(question)
    if question is not None:
        question.future = cell.scheduler.loop.create_future()
    cell.accept(envelope)
    cell.grant()


async def delegate(ref: Ref[Any], message: Any, remaining: float) -> Any:
    """Ask for someone who waits `remaining` seconds more, but wait as long as the handler takes."""
    cell = ref.cell
    scheduler = cell.scheduler
    frame = FRAME.get()
    sender, trace, parent = (None, None, None) if frame is None else frame[:3]
    question = Question(scheduler.loop.create_future(), scheduler.loop.time() + remaining, parent, None)
    await _deliver(cell, (message, sender, trace, question))
    return await question.future


class DebugRef(Ref[M]):
    """A ref that refuses any thread but the system's own."""

    __slots__ = ()

    def _check_thread(self) -> None:
        if threading.get_ident() != self.cell.scheduler.thread:
            raise WrongThread(
                f"{self.path} was used from {threading.current_thread().name}; use tell_threadsafe"
            )

    def tell(self, message: M) -> None:
        self._check_thread()
        super().tell(message)

    async def send(self, message: M) -> None:
        self._check_thread()
        await super().send(message)

    if not TYPE_CHECKING:

        async def ask(self, message: Any, timeout: float | None = DEFAULT_TIMEOUT) -> Any:
            self._check_thread()
            return await super().ask(message, timeout)

    def stop(self, grace: float | None = None) -> None:
        self._check_thread()
        super().stop(grace)

    def drain(self) -> None:
        self._check_thread()
        super().drain()

    def kill(self) -> None:
        self._check_thread()
        super().kill()
