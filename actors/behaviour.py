"""Behaviour of an actor's class: its handlers by type of message, its settings, its hooks."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, Literal

from actors.messages import M
from actors.ref import Ref
from actors.signals import SIGNALS
from actors.states import HOOK_TIME
from actors.supervision import DEFAULT_STRATEGY, Strategy

__all__ = ["UNBOUNDED", "Behaviour", "Handler", "Overflow", "Table"]

Overflow = Literal["raise", "drop_new", "drop_old"]
Handler = Callable[[Any, Any], Any]

UNBOUNDED = sys.maxsize


class Table(dict[type[Any], Handler | None]):
    """The handlers of a class by type of message; remembers what it finds by base classes."""

    def find(self, message: type[Any]) -> Handler | None:
        """Return the handler of a message class, of its own or of its nearest base; None if there is none."""
        if message in self:
            return self[message]
        found = None
        if message not in SIGNALS:
            found = next((self[base] for base in message.__mro__ if self.get(base) is not None), None)
        self[message] = found
        return found


class Behaviour(Generic[M]):
    """The part of `Actor` that the kernel works with."""

    __slots__ = ("__weakref__",)

    __mailbox__: ClassVar[int] = 1000
    __overflow__: ClassVar[Overflow] = "raise"
    __stash__: ClassVar[int] = 100
    __start_timeout__: ClassVar[float] = HOOK_TIME
    __stop_timeout__: ClassVar[float | None] = None
    __handler_timeout__: ClassVar[float | None] = None
    __handlers__: ClassVar[Table] = Table()
    __handler_names__: ClassVar[dict[type, str]] = {}

    supervise: Strategy = DEFAULT_STRATEGY

    def on_start(self) -> Awaitable[None] | None:
        """Called before the first message, with `ctx` set. An exception fails the start."""

    def on_stop(self) -> Awaitable[None] | None:
        """Called when the actor ends, after its children have, except by kill. An exception is logged."""

    def on_restart(self, exc: BaseException) -> Awaitable[None] | None:
        """Called on the old instance before a new one takes over. An exception is logged."""

    def __bind__(self, cell: Any, context: Any) -> Any:
        """Take the kernel's cell and the context of an earlier instance, if any; return the context."""
        return context

    def __bound__(self) -> Ref[Any] | None:
        """Return the ref of the actor that this instance has been, if any."""
        return None
