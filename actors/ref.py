"""`Ref`, the only handle to an actor, from inside and outside of actors.

A ref stays valid across restarts, and after the end: then messages become dead letters and asks fail at
once. Two refs are equal if they name the same actor of the same system; the incarnation tells a later actor
of the same path apart. This module says what a ref does; `handle` does it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar, overload

from actors.messages import Asks, M, Plain

__all__ = ["DEFAULT_TIMEOUT", "Ref"]

R = TypeVar("R")
P = TypeVar("P", bound=Plain)

DEFAULT_TIMEOUT = 5.0
"""Seconds that an ask waits for its answer unless it says otherwise."""


class Ref(Generic[M]):
    """The handle to an actor that takes messages of the types `M` (`Ref[Any]`: anything)."""

    __slots__ = ("__weakref__", "cell")

    cell: Any
    """The kernel's side of the actor; of no use outside of this package."""

    @property
    def name(self) -> str:
        """Unique among living siblings."""
        raise NotImplementedError

    @property
    def path(self) -> str:
        """The names from the root down: `/desk/r0`."""
        raise NotImplementedError

    @property
    def incarnation(self) -> int:
        """Number that tells apart actors which had the same path one after the other; a restart keeps it."""
        raise NotImplementedError

    @property
    def is_alive(self) -> bool:
        """False once `Terminated` was sent; an actor that is stopping is still alive."""
        raise NotImplementedError

    def tell(self, message: M, trace: Any = None) -> None:
        """Send and go on; never waits. Order is kept for each sender and receiver.

        The message carries `trace` if one is given, else that of the message in hand.

        Raises `MailboxFull` when there is no free slot, or applies the class's `overflow` policy. A message
        to an actor that has stopped, or is asked to, becomes a dead letter.
        """
        raise NotImplementedError

    def tell_now(self, message: M, trace: Any = None) -> None:
        """Send as `tell` does; an idle actor handles the message before this returns.

        Its turn is a part of the sender's slice of 2 ms; once that is over, and while the actor is at work,
        this is `tell`. The handler runs in a context of its own, and its failures are supervised as ever.
        """
        raise NotImplementedError

    def try_tell(self, message: M) -> bool:
        """Send as `tell` does; return false, without an exception, if the message is refused.

        Refused are messages to an actor that takes no more (a dead letter, `stopped`) or has no free slot
        (`full`).
        """
        raise NotImplementedError

    async def send(self, message: M) -> None:
        """Send, and wait for a free slot if there is none; waiters are served first come first served.

        Cancelled while it waits, the message is not delivered. Raises `ActorStopped` when the actor takes no
        more.
        """
        raise NotImplementedError

    @overload
    async def ask(self, message: Asks[M, R], timeout: float | None = DEFAULT_TIMEOUT) -> R: ...
    @overload
    async def ask(self: Ref[P], message: P, timeout: float | None = DEFAULT_TIMEOUT) -> Any: ...
    async def ask(self, message: Any, timeout: float | None = DEFAULT_TIMEOUT) -> Any:
        """Send and wait for the answer: the return value of the handler.

        `timeout` in seconds, met up to 50 ms late, includes the wait for a free slot. None means the time
        that the question in hand has left (5 s outside of one); `math.inf` sets no limit. Inside a handler
        no ask outlasts the question in hand. Raises `AskTimeout`, `ActorStopped` (at once), `DeadlockError`
        (a cycle of asks), or what the handler raised. Cancelled, the question is dropped if its handler has
        not started.
        """
        raise NotImplementedError

    @overload
    def ask_soon(self, message: Asks[M, R], timeout: float | None = DEFAULT_TIMEOUT) -> asyncio.Future[R]: ...
    @overload
    def ask_soon(
        self: Ref[P], message: P, timeout: float | None = DEFAULT_TIMEOUT
    ) -> asyncio.Future[Any]: ...
    def ask_soon(self, message: Any, timeout: float | None = DEFAULT_TIMEOUT) -> asyncio.Future[Any]:
        """Send now and return a future of the answer, which costs no task: for many questions at once.

        What `ask` raises is the future's exception. Cancel the future to take the question back. The actor
        that asks counts as free: a cycle of such asks is no `DeadlockError`, and ends by its deadline.
        """
        raise NotImplementedError

    def tell_threadsafe(self, message: M) -> None:
        """Send from any thread; if the mailbox is full, to the dead letters.

        Raises `ActorStopped` when the system or its loop is closed, and `MailboxFull` while 10,000
        messages of threads wait to be delivered to the system.
        """
        raise NotImplementedError

    def stop(self, grace: float | None = None) -> None:
        """Ask the actor to end after the message in hand; kill it after `grace` seconds. Stopping twice is
        harmless.

        Children end first. What waits in the mailbox becomes dead letters, waiting asks fail. Final: no
        restart.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """Ask the actor to handle everything accepted so far, refuse the rest, and end."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the subtree now: what runs is cancelled, `on_stop` skipped, what it entered closed."""
        raise NotImplementedError

    async def terminated(self) -> None:
        """Wait until the actor is gone."""
        raise NotImplementedError
