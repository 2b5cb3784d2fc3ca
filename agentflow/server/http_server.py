"""The HTTP server of the daemon: all listeners, all connections, how many there may be.

A connection without a request in progress can be closed at any time, and is when another needs its place:
those that never sent a request first, then those that wait for their next one, each the oldest first. So
idle clients lock no other client out. If every connection has a request in progress, a new one is answered
503 with Retry-After.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import partial

from starlette.types import ASGIApp

from agentflow.server.acceptor import Acceptor
from agentflow.server.connection import Connection, refusal_bytes
from agentflow.server.exchange import Exchange
from agentflow.server.limits import Limits
from agentflow.server.sockets import Listener

__all__ = ["HttpServer"]

_FIELDS = b"x-content-type-options: nosniff\r\ncross-origin-resource-policy: same-origin\r\n"
_REFUSALS = 32
"""Refused connections that are kept until their client has read why; the oldest goes first."""


class HttpServer:
    """Serves `app` on given listeners until `stop`. Signals are left to the caller."""

    def __init__(
        self,
        app: ASGIApp,
        listeners: Iterable[Listener],
        tls: ssl.SSLContext | None = None,
        *,
        limits: Limits | None = None,
        max_connections: int = 4_096,
    ) -> None:
        self.app = app
        self.limits = limits or Limits()
        self.max_connections = max_connections
        self.common_fields = b""
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """Requests in progress."""
        self.started_event = asyncio.Event()
        self._listeners = list(listeners)
        self._tls = tls
        self._stopping = asyncio.Event()
        self._acceptors: list[Acceptor] = []
        self._new: dict[Connection, None] = {}  # no request yet; oldest first
        self._idle: dict[Connection, None] = {}  # answered; oldest first
        self._refused: dict[_Refused, None] = {}

    def stop(self) -> None:
        """Accept nothing more, let answers that have begun come to their end, then return from `serve`."""
        self._stopping.set()

    async def serve(self) -> None:
        """Serve until `stop`; answers in progress then have `shutdown_s`."""
        self._tell_date()
        for listener in self._listeners:
            tls = self._tls if listener.kind != "unix" else None
            acceptor = Acceptor(listener, self, tls, self.limits.handshake_s)
            acceptor.start()
            self._acceptors.append(acceptor)
        self.started_event.set()
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.limits.check_s)
            self._tell_date()
            self._check(loop.time())
        await self._shut_down()

    async def _shut_down(self) -> None:
        loop = asyncio.get_running_loop()
        for acceptor in self._acceptors:
            acceptor.stop()
            await acceptor.wait_stopped()
        for listener in self._listeners:
            listener.sock.close()  # clients are refused from now on, instead of waiting in the backlog
        for connection in list(self.connections):
            connection.shutdown()
        deadline = loop.time() + self.limits.shutdown_s
        while (self.connections or self.tasks) and loop.time() < deadline:  # noqa: ASYNC110  # many, no event
            await asyncio.sleep(0.01)
        for task in list(self.tasks):
            task.cancel()
        for connection in [*self.connections, *self._refused]:
            connection.transport.abort()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def _tell_date(self) -> None:
        self.common_fields = b"date: %b\r\n%b" % (formatdate(time.time(), usegmt=True).encode(), _FIELDS)

    def _check(self, now: float) -> None:
        # One pass over all, instead of a timer for each: 2,000 connections take about 0.5 ms.
        for connection in list(self.connections):
            connection.check(now)
        for refused in list(self._refused):
            if now >= refused.deadline:
                refused.transport.abort()

    # -- for acceptors

    def is_open(self) -> bool:
        """Return whether one more may be accepted now. Closed connections count until they are gone."""
        held = len(self.connections) + len(self._refused) + self._opening()
        if held < self.max_connections + _REFUSALS:
            return True
        if self._refused:
            next(iter(self._refused)).transport.abort()
        return False

    def _opening(self) -> int:
        return sum(acceptor.opening for acceptor in self._acceptors)

    def protocol(self, listener: Listener, tls: bool) -> Callable[[], asyncio.Protocol]:
        """Return the protocol of a connection that was accepted just now: one that refuses, at the limit."""
        if len(self.connections) + self._opening() >= self.max_connections and not self._make_room():
            if len(self._refused) >= _REFUSALS:
                next(iter(self._refused)).transport.abort()
            return partial(_Refused, self, self._refused)
        return partial(Connection, self, listener.kind, tls=tls)

    def _make_room(self) -> bool:
        for table in (self._new, self._idle):
            if table:
                connection = next(iter(table))
                del table[connection]
                connection.evict()
                return True
        return any(acceptor.drop_oldest() for acceptor in self._acceptors)

    # -- for connections

    def opened(self, connection: Connection) -> None:
        """Count a connection."""
        self.connections.add(connection)
        self._new[connection] = None

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def busy(self, connection: Connection) -> None:
        """Keep a connection: a request of it is being answered."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Let a connection go when another needs its place."""
        self._idle[connection] = None

    def start(self, exchange: Exchange) -> None:
        """Run the application for a request."""
        task = asyncio.get_running_loop().create_task(exchange.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class _Refused(asyncio.Protocol):
    """A connection beyond the limit: answered at once, then read until its client has closed it."""

    def __init__(self, server: HttpServer, table: dict[_Refused, None]) -> None:
        self._server = server
        self._table = table
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self.deadline = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._table[self] = None
        self.deadline = asyncio.get_running_loop().time() + self._server.limits.refusal_s
        detail = f"{self._server.max_connections} connections have requests in progress"
        self.transport.write(refusal_bytes("too_many_connections", detail, self._server.common_fields))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.pop(self, None)
