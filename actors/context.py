"""`Context`, what an actor can do beyond answering: its relations, children, timers, owned work, and more.

`self.ctx` is set before `on_start`, not in `__init__`. All of it belongs to the actor's own code, on the
loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import iscoroutine, iscoroutinefunction
from math import inf
from typing import Any, Generic, TypeVar, overload

from actors import gathering
from actors.behaviour import Behaviour, Table
from actors.errors import ActorError, ActorStopped, Finished, StashFull
from actors.kernel import answers, life, orders, spawning
from actors.kernel.cell import Cell
from actors.kernel.owned import Idle, Pipe, Timers
from actors.limiter import Limiter, Pace
from actors.messages import M
from actors.question import Reply
from actors.ref import Ref
from actors.signals import Terminated
from actors.specs import ChildSpec, RestartType
from actors.states import BUSY, DEAD, FAIL, HALT, KILL, NOTHING
from actors.system import ActorSystem

__all__ = ["Context"]

C = TypeVar("C", contravariant=True)
T = TypeVar("T")


class Context(Generic[M]):
    """`self.ctx`; see the module."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def self(self) -> Ref[M]:
        """The actor's own ref."""
        return self._cell.ref

    @property
    def parent(self) -> Ref[Any] | None:
        """The supervisor; None for an actor that the system itself supervises."""
        parent = self._cell.parent
        return None if parent is None or parent.parent is None else parent.ref

    @property
    def system(self) -> ActorSystem:
        """The system that the actor lives in."""
        return self._cell.scheduler.system

    @property
    def sender(self) -> Ref[Any] | None:
        """The actor that sent the message in hand; None if no actor did, or between messages."""
        sender = self._cell.hand[1]
        return None if sender is None else sender.ref

    @property
    def trace(self) -> Any:
        """The trace context that the message in hand carries."""
        return self._cell.hand[2]

    @property
    def children(self) -> dict[str, Ref[Any]]:
        """The living children by name, in start order."""
        return {name: cell.ref for name, cell in (self._cell.children or {}).items()}

    @property
    def remaining(self) -> float:
        """Seconds until the asker of the message in hand stops waiting; `inf` without one."""
        question = answers.question_in_hand(self._cell)
        return inf if question is None else max(0.0, question.deadline - self._cell.scheduler.loop.time())

    @property
    def interrupted(self) -> bool:
        """True if the handler at work is cancelled from outside: its actor is killed, fails or restarts, or
        the system or its event loop ends. False while it catches a cancellation that its own code asked for.
        """
        cell = self._cell
        return bool(cell.order & (KILL | FAIL | HALT)) or cell.scheduler.system.ending

    @property
    def asked(self) -> bool:
        """True if the message in hand was asked, so that its sender waits for an answer."""
        return answers.question_in_hand(self._cell) is not None

    # Children

    async def spawn(self, spec: ChildSpec[C] | Callable[[], Behaviour[C]], name: str | None = None) -> Ref[C]:
        """Start a child; returns when its `on_start` is done.

        Raises what its constructor or `on_start` raised, `NameTaken`, `SpecError`, or `ActorStopped` when
        this actor is itself stopping. Later failures are supervised.
        """
        return await spawning.spawn(self._cell, spec, name)

    def spawn_soon(self, spec: ChildSpec[C] | Callable[[], Behaviour[C]], name: str | None = None) -> Ref[C]:
        """Start a child at the next turn and return its ref at once; messages wait until it has started.

        A failure of its start is supervised like any other failure. Raises `NameTaken`, `SpecError`,
        `ActorStopped`.
        """
        return spawning.spawn_soon(self._cell, spec, name)

    def spawn_now(
        self, factory: Callable[[], Behaviour[C]], name: str, *, restart: RestartType = "permanent"
    ) -> Ref[C]:
        """Start a child at once, in the time of the caller, and return its ref; messages wait while its
        `on_start` awaits. An actor without `on_start` is idle on return, so that `tell_now` reaches it.

        `factory` and `restart` as in ChildSpec. A failure of its start is supervised like any other failure.
        Raises as `spawn_soon`.
        """
        return spawning.spawn_now(self._cell, factory, name, restart)

    async def restart_child(self, name: str) -> Ref[Any]:
        """Start a child that has ended anew, by its kept spec (`ChildSpec(keep=True)`); a new incarnation.

        Raises `SpecError` if no spec of this name is kept (as while the child lives), or as `spawn` does.
        """
        return await spawning.restart_child(self._cell, name)

    @property
    def kept(self) -> dict[str, ChildSpec[Any]]:
        """The kept specs of children that have ended, by name; a copy."""
        return {} if self._cell.extras is None else dict(self._cell.extras.kept)

    def forget(self, name: str) -> bool:
        """Drop a kept spec; false if there is none."""
        return self._cell.extras is not None and self._cell.extras.kept.pop(name, None) is not None

    # Watching

    def watch(self, ref: Ref[Any]) -> None:
        """Get exactly one `Terminated` signal when that actor is gone; at once if it already is."""
        cell, target = self._cell, ref.cell
        if target.phase == DEAD:
            cell.signal(Terminated(ref, target.fate))
            return
        extras = cell.living()
        extras.muted.discard(target)
        extras.watching[target] = None
        target.extra().watchers[cell] = None

    def unwatch(self, ref: Ref[Any]) -> None:
        """Get no `Terminated` of that actor, not even one that is already on its way."""
        cell, target = self._cell, ref.cell
        extras = cell.extra()
        extras.watching.pop(target, None)
        if target.extras is not None:
            target.extras.watchers.pop(cell, None)
        if target.parent is cell and target.phase != DEAD:
            extras.muted.add(target)
        if cell.urgent:
            kept = [
                item for item in cell.urgent if not (isinstance(item[0], Terminated) and item[0].ref is ref)
            ]
            cell.urgent.clear()
            cell.urgent.extend(kept)

    def link(self, ref: Ref[Any]) -> None:
        """Share the fate of that actor: if one of the two fails for good or is killed, the other fails by
        `LinkBroken`.

        An ordinary stop breaks nothing. Raises `ActorStopped` if that actor is gone.
        """
        if ref.cell.phase == DEAD:
            raise ActorStopped(f"{ref.path} has stopped; there is nothing to link")
        self._cell.living().links[ref.cell] = None
        ref.cell.extra().links[self._cell] = None

    def unlink(self, ref: Ref[Any]) -> None:
        """Undo `link`."""
        for one, other in ((self._cell, ref.cell), (ref.cell, self._cell)):
            if one.extras is not None:
                one.extras.links.pop(other, None)

    # Time and owned work

    @property
    def timers(self) -> Timers[M]:
        """Keyed timers: `start(key, seconds, message, repeat=False)` and `cancel(key)`."""
        return Timers(self._cell)

    def receive_timeout(self, seconds: float | None) -> None:
        """Get a `ReceiveTimeout` signal after every `seconds` without a message; None ends that."""
        if seconds is not None and not seconds > 0:
            raise ValueError(f"receive_timeout({seconds}): give more than 0 seconds, or None")
        extras = self._cell.living()
        if extras.idle is not None:
            extras.idle.cancel()
        extras.idle = None if seconds is None else Idle(self._cell, seconds)

    def pipe(
        self,
        awaitable: Awaitable[T],
        to_message: Callable[[T], Any],
        on_error: Callable[[BaseException], Any] | None = None,
    ) -> Pipe:
        """Do work beside the mailbox: what `to_message` makes of its result arrives as a message, None as
        nothing.

        What it raises goes through `on_error` likewise; without one the actor fails by it. The answer to an
        `ask_soon` is taken in the turn of the actor that gives it, unless this one is at work. Takes no slot
        of the mailbox. The work ends with this instance of the actor: cancelled, and awaited before the actor
        is gone. Raises `ActorStopped`, and closes a coroutine, when it is gone already.
        """
        if self._cell.phase == DEAD and iscoroutine(awaitable):
            awaitable.close()
        self._cell.living()
        return Pipe(self._cell, awaitable, to_message, on_error)

    async def enter(self, manager: AbstractAsyncContextManager[T] | AbstractContextManager[T]) -> T:
        """Enter a context manager that is left when this instance ends, however it ends; the last one first.

        It is left in another task than it was entered in, so it cannot be a task group or a cancel scope.
        """
        self._cell.living()
        stack = life.stack_of(self._cell)
        if isinstance(manager, AbstractAsyncContextManager):
            return await stack.enter_async_context(manager)
        return stack.enter_context(manager)

    def limiter(self, limit: int, *, pace: Pace | None = None) -> Limiter:
        """Return a limit on what this instance does at once beside its mailbox; see `Limiter.submit`.

        `pace` can delay work although there is a place for it. Make the limiter once, in `on_start`. Raises
        `SpecError`.
        """
        limiter = Limiter(self._cell, limit, pace)
        self._cell.living().limiters.append(limiter)
        return limiter

    # Answers

    def tell_after(self, ref: Ref[C], message: C) -> None:
        """Send a message when the handler at work has returned, in the order of the calls; it is dropped if
        the handler fails, and a dead letter (`full`) if there is no free slot then.

        It is sent by `tell_now`: an idle receiver handles it in this turn, and finds this actor idle unless
        more waits for it. From a handler that does not await this is `tell`.
        """
        cell = self._cell
        if cell.mode != BUSY:
            ref.tell(message)
        elif cell.parting is None:
            cell.parting = [(ref, message)]
        else:
            cell.parting.append((ref, message))

    def defer(self) -> Reply[Any]:
        """Take over the answer to the message in hand: `Reply` gives it, not the return value."""
        return answers.defer(self._cell)

    @overload
    async def gather(
        self, awaitables: Iterable[Awaitable[T]], /, *, timeout: float | None = None
    ) -> list[T]: ...
    @overload
    async def gather(
        self, awaitables: Iterable[Awaitable[T]], /, *, first: int, timeout: float | None = None
    ) -> list[T]: ...
    @overload
    async def gather(
        self, awaitables: Iterable[Awaitable[T]], /, *, collect: bool, timeout: float | None = None
    ) -> list[T | BaseException]: ...
    async def gather(
        self,
        awaitables: Iterable[Awaitable[Any]],
        /,
        *,
        first: int | None = None,
        collect: bool = False,
        timeout: float | None = None,
    ) -> list[Any]:
        """Await several things together.

        As it stands: all results, in the order given; the first failure cancels the rest and is raised.
        `first=n`: the first n results in the order they come, the rest is cancelled; raises the last failure
        when n cannot be reached. `collect=True`: all results, exceptions in their places. `timeout`
        (seconds) is one deadline for all and raises `TimeoutError`; with `collect` the missing ones are
        `TimeoutError`s. No task is left behind, whatever happens.
        """
        return await gathering.gather(awaitables, first=first, collect=collect, timeout=timeout)

    # Behaviour

    def become(self, handlers: Mapping[type[M], Callable[[Any], object]]) -> None:
        """Handle from the next message on by these functions (usually bound methods) instead of the class's
        handlers.

        A restart goes back to the class.
        """
        table = Table((message, _unbound(handler)) for message, handler in handlers.items())
        self._cell.table = self._cell.scheduler.table(table)

    def unbecome(self) -> None:
        """Go back to the class's handlers."""
        cell = self._cell
        if cell.actor is not None:
            cell.table = cell.scheduler.table(cell.actor.__handlers__)

    def stash(self) -> None:
        """Put the message in hand aside, unanswered, until `unstash_all`. Raises `StashFull`.

        A restart returns stashed messages to the mailbox; the end of the actor makes them dead letters.
        """
        cell = self._cell
        if cell.hand is NOTHING or cell.actor is None:
            raise ActorError("there is no message in hand to stash")
        extras = cell.extra()
        if len(extras.stash) >= cell.actor.__stash__:
            raise StashFull(
                f"{cell.path}: the stash has no free slot of {cell.actor.__stash__}; "
                f"unstash or reject messages earlier, or enlarge it (`stash=`)"
            )
        question = answers.question_in_hand(self._cell)
        if question is not None:
            question.deferred = True
        extras.stash.append(cell.taken())

    def unstash_all(self) -> None:
        """Put what was stashed back, in its order, before everything else in the mailbox."""
        life.unstash(self._cell)

    def finish(self) -> None:
        """End after the message in hand, because the work is done. A permanent child is restarted, others are
        gone.

        To end for good whatever the restart type, stop the ref: `ctx.self.stop()`.
        """
        cell = self._cell
        if cell.restart != "permanent":
            orders.stop(cell)
        elif not cell.order & FAIL:
            cell.extra().failure = Finished(f"{cell.path} finished, and is permanent")
            cell.order |= FAIL
            cell.enqueue()


def _unbound(handler: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    if iscoroutinefunction(handler):

        async def awaiting(_: object, message: Any) -> Any:
            return await handler(message)

        return awaiting
    return lambda _, message: handler(message)
