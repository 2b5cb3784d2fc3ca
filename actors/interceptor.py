"""The seam for tracing and metrics: code that runs around the handlers of the messages it asks for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from inspect import iscoroutinefunction
from typing import Any, Protocol

from actors.behaviour import Handler, Table
from actors.ref import Ref

__all__ = ["Interceptor", "intercepted"]


class Interceptor(Protocol):
    """Given to `ActorSystem(interceptor=...)`; without one the message path has no such step at all."""

    def wants(self, message_type: type) -> bool:
        """Return whether to intercept messages of this class; asked once for each table of handlers."""
        ...

    def handling(self, ref: Ref[Any], message: Any, trace: Any) -> AbstractContextManager[object]:
        """Entered before the handler starts and left after it ended, with its exception if it raised.

        `trace` is the trace context that the message carries; `actors.tracing` inside sets that of the
        messages which the handler sends. For an `async` handler it is entered and left in the task that runs
        the handler.
        """
        ...


class _Intercepted(Table):
    """A table whose handlers are wrapped the first time that a type of message is looked up."""

    def __init__(self, table: Table, interceptor: Interceptor) -> None:
        super().__init__()
        self._table = table
        self._interceptor = interceptor

    def find(self, message: type[Any]) -> Handler | None:
        if message not in self:
            handler = self._table.find(message)
            if handler is not None and self._interceptor.wants(message):
                handler = _wrap(handler, self._interceptor)
            self[message] = handler
        return self[message]


def intercepted(table: Table, interceptor: Interceptor) -> Table:
    """Return the same handlers, with the interceptor around those of the types that it wants."""
    return _Intercepted(table, interceptor)


def _wrap(handler: Handler, interceptor: Interceptor) -> Handler:
    if iscoroutinefunction(handler):

        async def awaiting(actor: Any, message: Any) -> Any:
            with interceptor.handling(actor.ctx.self, message, actor.ctx.trace):
                return await handler(actor, message)

        return awaiting

    def plain(actor: Any, message: Any) -> Any:
        with interceptor.handling(actor.ctx.self, message, actor.ctx.trace):
            return handler(actor, message)

    return plain
