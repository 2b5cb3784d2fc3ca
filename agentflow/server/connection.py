"""One HTTP/1.1 connection: bytes in, requests to the application one at a time, answers out.

Uses asyncio's and httptools' public interfaces alone. The next request of a connection is not parsed before
the one in front of it is answered; what has arrived of it waits as bytes (at most one read), so that memory
does not depend on what a client sends. Deadlines are plain numbers that the server checks once a second.
"""

from __future__ import annotations

import asyncio
import http
import math
import select
import socket
import struct
import time
from typing import Any, Protocol

from starlette.types import ASGIApp

from agentflow.server.exchange import Exchange, problem_bytes
from agentflow.server.limits import HIGH_WATER, Limits
from agentflow.server.problems import RETRY_AFTER, STATUS
from agentflow.server.request_parser import BadRequest, RequestHead, RequestParser
from agentflow.server.sockets import Kind

__all__ = ["HIGH_WATER", "Connection", "Host", "Link", "link_of", "refusal_bytes"]

EXTENSION = "agentflow.connection"
"""Where the ASGI scope holds the Link of a request, in `extensions`."""


class Link:
    """The connection of a request, as the application sees it. `uid` and `pid` are those of a Unix peer,
    if known."""

    __slots__ = ("_connection", "kind", "pid", "transport", "uid")

    def __init__(
        self, connection: Connection, kind: Kind, transport: Any, pid: int | None, uid: int | None
    ) -> None:
        self._connection = connection
        self.kind: Kind = kind
        self.transport = transport
        self.pid = pid
        self.uid = uid

    @property
    def buffered(self) -> int:
        """Bytes that were sent and that the socket has not taken yet."""
        return self.transport.get_write_buffer_size()

    @property
    def half_closed(self) -> bool:
        """True if the client sends nothing more, but may still read."""
        return self._connection.half_closed

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        await self._connection.wait_closed()

    def abort(self) -> None:
        """End the connection now; what is buffered is lost."""
        self.transport.abort()


def link_of(scope: Any) -> Link | None:
    """Return the Link of a request; None when the application runs in another HTTP server."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return extensions.get(EXTENSION)


class Host(Protocol):
    """What all connections of a server share."""

    app: ASGIApp
    common_fields: bytes
    limits: Limits

    def opened(self, connection: Connection) -> None:
        """Count a connection."""
        ...

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        ...

    def busy(self, connection: Connection) -> None:
        """Keep a connection: a request of it is being answered."""
        ...

    def idle(self, connection: Connection) -> None:
        """Let a connection go when another needs its place."""
        ...

    def start(self, exchange: Exchange) -> None:
        """Run the application for a request."""
        ...


class Connection(asyncio.Protocol):
    """A connection of one listener. `deadline` (loop time) is when it is given up."""

    def __init__(self, host: Host, kind: Kind, *, tls: bool = False) -> None:
        self._host = host
        self._limits = host.limits
        self._kind: Kind = kind
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(self, host.limits)
        self._exchange: Exchange | None = None  # from a head to the end of its answer
        self._input = b""  # what has arrived and was not parsed
        self._turn: asyncio.Handle | None = None
        self._body_until = math.inf
        self._eof = False
        self._discarding = False
        self._reading = True
        self._writable: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None
        self._stalled_at = 0  # bytes in front of a client that does not read
        self.write_paused = False
        self.deadline = math.inf
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self._scope: dict[str, Any] = {}
        self._link: Link | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        pid, uid = _peer(transport) if self._kind == "unix" else (None, None)
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": local[:2] if isinstance(local, tuple) else (str(local), None),
            "client": peer[:2] if isinstance(peer, tuple) else None,
            "scheme": "https" if self._tls else "http",
            "root_path": "",
        }
        self._link = Link(self, self._kind, self.transport, pid, uid)
        self.deadline = self._loop.time() + self._limits.head_s
        self._host.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.closed(self)
        self._input = b""
        if self._turn is not None:
            self._turn.cancel()
        if self._exchange is not None:
            self._exchange.disconnect()
            self._exchange = None
        self._parser.close()
        self._link = None
        self.resume_writing()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._input = self._input + data if self._input else data
        if self._turn is None:
            self._parse()

    def eof_received(self) -> bool:
        self._eof = True
        # TLS has no half-closed connections in asyncio.
        return not self._tls and (bool(self._input) or not self._end_input())

    def pause_writing(self) -> None:
        self.write_paused = True
        self._stalled_at = self.transport.get_write_buffer_size()
        self.deadline = self._loop.time() + self._limits.stall_s

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._set_deadline()

    # -- parsing, a turn at a time

    def _parse(self) -> None:
        self._turn = None
        data, at, parser = self._input, 0, self._parser
        end = min(len(data), self._limits.turn_bytes)
        was_idle = self._exchange is None and not parser.in_head
        try:
            until = time.perf_counter() + self._limits.turn_s  # uvloop's own time stands still within a turn
            while at < end and self._takes_input():
                at = parser.feed(data, at, end)
                if time.perf_counter() >= until:
                    break
        except BadRequest as error:
            self._refuse(str(error))
            return
        self._input = data[at:] if at < len(data) else b""
        if self._input and self._takes_input():
            self._turn = self._loop.call_soon(self._parse)  # other connections have their turn first
        self._read(not self._input)
        if self._eof and not self._input and self._end_input():
            self._close()
        if was_idle or not parser.in_head:
            self._set_deadline()

    def _takes_input(self) -> bool:
        """Return whether the next bytes may be parsed now."""
        if self._discarding or self.transport.is_closing():
            return False
        exchange = self._exchange
        if exchange is None:
            return True
        return self._parser.in_body and exchange.buffered < self._limits.turn_bytes

    def _read(self, wanted: bool) -> None:
        if wanted == self._reading or self._eof or self.transport.is_closing():
            return
        self._reading = wanted
        self.transport.resume_reading() if wanted else self.transport.pause_reading()

    def request_begun(self, head: RequestHead) -> None:
        """Start the application for a request whose head has arrived."""
        scope = {
            **self._scope,
            "http_version": head.version,
            "method": head.method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "headers": head.headers,
            "state": {},
            "extensions": {EXTENSION: self._link},
        }
        self._exchange = Exchange(self, head, scope)
        self._body_until = self._loop.time() + self._limits.body_s
        self._host.busy(self)
        self._host.start(self._exchange)

    def body_received(self, data: bytes) -> None:
        """Hand a piece of the body on; after an early answer it is thrown away."""
        if self._exchange is not None:
            self._exchange.feed(data)

    def request_ended(self) -> None:
        """Tell the application that it has the whole body."""
        if self._exchange is not None:
            self._exchange.end_body()

    # -- for the exchange

    @property
    def common_fields(self) -> bytes:
        """Fields of every answer."""
        return self._host.common_fields

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if data:
            self.transport.write(data)

    def write_parts(self, *parts: bytes) -> None:
        """Send bytes that lie in several places; a large one is not copied where the loop can do that."""
        self.transport.writelines(parts)

    async def wait_writable(self) -> None:
        """Wait until the client has taken most of what was sent, or is gone."""
        if self._writable is None or self._writable.done():
            self._writable = self._loop.create_future()
        await asyncio.shield(self._writable)

    def body_wanted(self) -> None:
        """Parse on: the application has taken what had arrived of the body."""
        if self._input and self._turn is None:
            self._turn = self._loop.call_soon(self._parse)

    def answered(self, exchange: Exchange) -> None:
        """Go on to the next request, or close, after the rest of this one has arrived."""
        self._exchange = None
        if self.transport.is_closing():
            return
        self._host.idle(self)
        if self._parser.in_body and not self._eof:
            # Closing now would discard the answer. What is left of the body is read, and not even parsed.
            self._discard(self._limits.linger_s)
            return
        if not exchange.keep_alive or (self._eof and not self._input):
            self._close()
            return
        self._set_deadline()
        if self._input:
            self.body_wanted()

    def abort(self) -> None:
        """End the connection now; what is buffered is lost."""
        self.transport.abort()

    # -- ends

    @property
    def half_closed(self) -> bool:
        """True if the client sends nothing more, but may still read."""
        return self._eof and not self.transport.is_closing()

    async def wait_closed(self) -> None:
        """Wait for `connection_lost`."""
        if self._gone is None:
            self._gone = self._loop.create_future()
        await asyncio.shield(self._gone)

    def shutdown(self) -> None:
        """Close when the answer in progress is out; now if there is none."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.keep_alive = False

    def evict(self) -> None:
        """Close an idle connection whose place is needed, without waiting for a client that does not read."""
        if self._parser.in_body or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self._close()

    def check(self, now: float) -> None:
        """Give the connection up if its client is gone, reads nothing, or lets its deadline pass."""
        if self.write_paused:
            size = self.transport.get_write_buffer_size()
            if size < self._stalled_at:
                self._stalled_at, self.deadline = size, now + self._limits.stall_s
        if (self._eof or not self._reading) and _peer_is_gone(self.transport):
            self.transport.abort()
        elif now >= self.deadline:
            if self.transport.is_closing() or self.write_paused or self._parser.in_body:
                self.transport.abort()
            else:
                self._close()

    def _end_input(self) -> bool:
        """Return whether the connection is to be closed, now that the client sends no more."""
        exchange = self._exchange
        if exchange is None or self._parser.in_body or _peer_is_gone(self.transport):
            return True
        exchange.close_input()
        return False

    def _refuse(self, detail: str) -> None:
        """Answer what is no request, and end the connection. A request is never answered twice."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.disconnect()
            if exchange.started:
                self.transport.abort()
                return
        self.transport.write(refusal_bytes("malformed_request", detail, self.common_fields))
        self._host.idle(self)
        self._discard(self._limits.refusal_s)

    def _discard(self, seconds: float) -> None:
        """Send and parse nothing more; close when the client does, in `seconds` at the latest."""
        self._input, self._discarding = b"", True
        self._read(True)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline = self._loop.time() + seconds

    def _close(self) -> None:
        self.deadline = self._loop.time() + self._limits.stall_s
        self.transport.close()

    def _set_deadline(self) -> None:
        if self._discarding or self.write_paused or self.transport.is_closing():
            return
        limits, now = self._limits, self._loop.time()
        if self._exchange is not None:
            waits = self._parser.in_body and self._reading
            self.deadline = min(now + limits.body_silence_s, self._body_until) if waits else math.inf
        else:
            self.deadline = now + (limits.head_s if self._parser.in_head else limits.keep_alive_s)


def refusal_bytes(code: str, detail: str, common: bytes) -> bytes:
    """Return the whole answer to what never reaches the application; the connection ends with it."""
    status, body = STATUS[code][0], problem_bytes(code, detail)
    more = b"retry-after: %d\r\n" % RETRY_AFTER[code] if code in RETRY_AFTER else b""
    return b"HTTP/1.1 %d %b\r\n%bcontent-type: application/problem+json\r\n%b" % (
        status,
        http.HTTPStatus(status).phrase.encode(),
        common,
        b"%bconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (more, len(body), body),
    )


def _peer_is_gone(transport: asyncio.Transport) -> bool:
    """Return whether both directions are closed. A client that only sends no more is still there."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    poller = select.poll()
    poller.register(sock.fileno(), 0)  # POLLHUP and POLLERR are always reported
    return bool(poller.poll(0))


def _peer(transport: asyncio.BaseTransport) -> tuple[int | None, int | None]:
    """Return process and user of a Unix peer, as far as the system tells them."""
    option = getattr(socket, "SO_PEERCRED", None)
    sock = transport.get_extra_info("socket")
    if option is None or sock is None:
        return None, None
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return pid, uid
