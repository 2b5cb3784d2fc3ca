"""`LocalRef`: how a ref reaches its actor. `ref.Ref` says what the methods promise."""

from __future__ import annotations

import asyncio
import threading
from math import inf
from typing import Any

from actors.errors import ActorError, ActorStopped, AskTimeout, DeadlockError, MailboxFull, WrongThread
from actors.kernel import life, orders
from actors.kernel.cell import Cell, Envelope
from actors.kernel.wheel import TICKS
from actors.messages import M
from actors.question import Answer, Question
from actors.ref import DEFAULT_TIMEOUT, Ref
from actors.signals import DeadLetter
from actors.states import DEAD, IDLE, QUEUED
from actors.trace import FRAME, current_trace, owns_task

__all__ = ["DebugRef", "LocalRef", "delegate"]


class LocalRef(Ref[M]):
    """The ref of an actor of this process."""

    __slots__ = ()

    cell: Cell

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def path(self) -> str:
        return self.cell.path

    @property
    def incarnation(self) -> int:
        return self.cell.uid

    @property
    def is_alive(self) -> bool:
        return self.cell.phase != DEAD

    def __repr__(self) -> str:
        return f"<Ref {self.path}#{self.incarnation}>"

    def __copy__(self) -> Ref[M]:
        return self

    def __deepcopy__(self, memo: object) -> Ref[M]:
        return self  # a copy of a message (`dataclasses.asdict`) names the same actor

    def __reduce__(self) -> str:
        raise TypeError(f"{self!r} is of this process only; send the path instead")

    def tell(self, message: M, trace: Any = None) -> None:
        cell = self.cell
        scheduler = cell.scheduler
        sender = scheduler.running
        if sender is not None:
            if trace is None:
                trace = sender.hand[2]
        else:
            frame = FRAME.get()
            if frame is not None:
                sender = frame[0]
                if trace is None:
                    trace = frame[1]
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

    def tell_now(self, message: M, trace: Any = None) -> None:
        cell = self.cell
        sender = cell.scheduler.running
        if sender is not None:
            if trace is None:
                trace = sender.hand[2]
        else:
            frame = FRAME.get()
            if frame is not None:
                sender = frame[0]
                if trace is None:
                    trace = frame[1]
        if cell.mode == IDLE:
            cell.wake((message, sender, trace, None))
        else:
            cell.receive((message, sender, trace, None))

    def try_tell(self, message: M) -> bool:
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
        cell = self.cell
        frame = FRAME.get()
        sender, trace = (None, None) if frame is None else frame[:2]
        await _deliver(cell, (message, sender, trace, None))

    async def ask(self, message: Any, timeout: float | None = DEFAULT_TIMEOUT) -> Any:
        cell = self.cell
        question, sender, trace = self._prepare(timeout, True)
        bucket = question.bucket
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
                future.exception()  # settled in the same moment, and never looked at
            raise
        finally:
            if bucket is not None:
                bucket.pop(question, None)

    def ask_soon(self, message: Any, timeout: float | None = DEFAULT_TIMEOUT) -> asyncio.Future[Any]:
        return self.question(message, timeout, awaited=False)

    def question(self, message: Any, timeout: float | None, awaited: bool) -> asyncio.Future[Any]:
        """See `ask_soon`; with `awaited` the asking handler does nothing but wait for the answer."""
        cell = self.cell
        try:
            question, sender, trace = self._prepare(timeout, awaited)
        except ActorError as exc:
            future = cell.scheduler.loop.create_future()
            future.set_exception(exc)
            return future
        envelope = (message, sender, trace, question)
        box = cell.box
        if cell.limit < 0:
            question.fail(ActorStopped(f"{cell.path} has stopped"))
        elif box is not None and len(box) < cell.limit:
            box.append(envelope)
        elif cell.mode == IDLE:
            cell.wake(envelope)
        elif not cell.is_full():
            cell.accept(envelope)
        else:  # it waits for a slot in a task
            if question.bucket is not None:
                question.bucket.pop(question, None)
            return asyncio.ensure_future(self.ask(message, timeout))
        return question.future

    def _prepare(self, timeout: float | None, awaited: bool) -> tuple[Question, Cell | None, Any]:
        """Make a question, due at its deadline; return it with sender and trace.

        Raises `AskTimeout` if there is no time, and `DeadlockError` if the target waits for this very asker.
        """
        cell = self.cell
        scheduler = cell.scheduler
        loop = scheduler.loop
        deadline = loop.time() + (DEFAULT_TIMEOUT if timeout is None else timeout)
        waiting = parent = None
        frame = FRAME.get()
        if frame is None:
            sender = trace = None
            if not awaited and scheduler.running is not None:
                sender = scheduler.running
                trace, parent = sender.hand[2:]
                if type(parent) is not Question:
                    parent = None
        else:
            sender, trace, parent, _, held = frame
            if awaited and owns_task(frame):  # else it was begun here, and no handler waits for it
                waiting = sender.ref if held and sender is not None else None
                if waiting is not None or parent is not None:
                    self._check_cycle(waiting, parent)
        if parent is not None:
            if parent.future.done():
                parent = None
            elif timeout is None or parent.deadline < deadline:
                deadline = parent.deadline
        if timeout is not None and timeout <= 0:
            raise AskTimeout(f"{cell.path}: there is no time left to ask")
        future = loop.create_future() if awaited else Answer(loop)
        question = Question(future, deadline, parent, waiting)
        if deadline != inf:
            tick = int(deadline * TICKS) + 1
            bucket = scheduler.wheel.buckets.get(tick)
            if bucket is None:
                bucket = scheduler.wheel.bucket(tick)
            bucket[question] = cell
            question.bucket = bucket
        return question, sender, trace

    def _check_cycle(self, asker: Ref[Any] | None, question: Question | None) -> None:
        """Raise `DeadlockError` if the target waits, over any number of asks, for this very asker, or for
        the question that it works on."""
        first = question
        if asker is not self:
            while question is not None and not question.future.done():
                if question.waiting is self:
                    break
                question = question.parent
            else:
                return
        chain = [] if asker is None else [asker]
        while first is not None and asker is not self:
            if first.waiting is not None:
                chain.append(first.waiting)
            first = None if first is question else first.parent
        path = " asks ".join([*(each.path for each in reversed(chain)), self.path])
        raise DeadlockError(
            f"{path}: none of them could ever answer; ask from `ctx.pipe`, or tell, in one of them"
        )

    def tell_threadsafe(self, message: M) -> None:
        self.cell.scheduler.knock(self.cell, message, current_trace())

    def stop(self, grace: float | None = None) -> None:
        cell = self.cell
        orders.stop(cell)
        if grace is not None and cell.phase != DEAD:
            extras = cell.extra()
            if extras.grace is not None:
                extras.grace.cancel()
            extras.grace = cell.scheduler.loop.call_later(grace, orders.kill, cell)

    def drain(self) -> None:
        orders.drain(self.cell)

    def kill(self) -> None:
        orders.kill(self.cell)

    async def terminated(self) -> None:
        if self.cell.phase != DEAD and not life.end_at_once(self.cell):
            await life.ended_future(self.cell)


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


class DebugRef(LocalRef[M]):
    """A ref that refuses any thread but the system's own."""

    __slots__ = ()

    def _check_thread(self) -> None:
        if threading.get_ident() != self.cell.scheduler.thread:
            raise WrongThread(
                f"{self.path} was used from {threading.current_thread().name}; use tell_threadsafe"
            )

    def tell(self, message: M, trace: Any = None) -> None:
        self._check_thread()
        super().tell(message, trace)

    def tell_now(self, message: M, trace: Any = None) -> None:
        self._check_thread()
        super().tell_now(message, trace)

    async def send(self, message: M) -> None:
        self._check_thread()
        await super().send(message)

    async def ask(self, message: Any, timeout: float | None = DEFAULT_TIMEOUT) -> Any:
        self._check_thread()
        return await super().ask(message, timeout)

    def question(self, message: Any, timeout: float | None, awaited: bool) -> asyncio.Future[Any]:
        self._check_thread()
        return super().question(message, timeout, awaited)

    def stop(self, grace: float | None = None) -> None:
        self._check_thread()
        super().stop(grace)

    def drain(self) -> None:
        self._check_thread()
        super().drain()

    def kill(self) -> None:
        self._check_thread()
        super().kill()
