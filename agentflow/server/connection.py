"""One HTTP connection, and the HTTP server around all of them: uvicorn, with what it leaves to its user.

A connection knows which listener it came in by and who is at its other end; requests that never end, heads
without bounds and sockets that take nothing are ended here. Everything else is ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Generator, Iterable
from functools import partial
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentflow.server.sockets import BACKLOG, Kind, Listener

__all__ = ["HIGH_WATER", "HttpServer", "Link", "link_of"]

EXTENSION = "agentflow.connection"
"""Where the ASGI scope holds the Link of a request, in `extensions`."""

_LARGEST_HEAD = 64 * 1024
HIGH_WATER = 128 * 1024
"""Bytes in front of a client at which a stream waits; with the chunk on its way that makes 256 KiB."""
_SLOWEST = 30.0
"""Seconds for a whole head, and of silence inside a body."""
_LINGER = 10.0
_GRACE = 5.0


class Link:
    """The connection of a request, as the application sees it. `uid` is that of a Unix peer, if known."""

    __slots__ = ("kind", "transport", "uid")

    def __init__(self, kind: Kind, transport: asyncio.Transport, uid: int | None) -> None:
        self.kind: Kind = kind
        self.transport = transport
        self.uid = uid

    @property
    def buffered(self) -> int:
        """Bytes that were sent and that the socket has not taken yet."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """End the connection now; what is buffered is lost."""
        self.transport.abort()


def link_of(scope: Any) -> Link | None:
    """The Link of a request; None when the application runs in somebody else's server."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return extensions.get(EXTENSION)


class Connection(HttpToolsProtocol):
    """A connection of one listener."""

    def __init__(self, kind: Kind, **given: Any) -> None:
        super().__init__(**given)
        self._kind: Kind = kind
        self._link: Link | None = None
        self._head = 0  # bytes of the head that is coming in
        self._heads = 0  # how many have come in
        self._in_head = True
        self._in_body = False
        self._too_slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        uid = _peer_uid(transport) if self._kind == "unix" else None
        self._link = Link(self._kind, transport, uid)
        self._give_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._take_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head and not self._head:
            self._give_time()
        heads = self._heads
        bodies = self._in_body
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_body:
            if not self.cycle.response_complete:
                self._give_time()
        elif heads == self._heads and not bodies:
            self._head += len(data)  # nothing but a part of one head
            if self._head > _LARGEST_HEAD:
                self.send_400_response(f"the head of a request has at most {_LARGEST_HEAD} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head = True, 0
        self.scope["extensions"] = {EXTENSION: self._link}  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._head = False, True, 0
        self._heads += 1
        self._take_time()
        version: str = self.parser.get_http_version()  # pyright: ignore[reportOptionalMemberAccess]
        if version not in ("1.0", "1.1"):
            raise ValueError("HTTP/1.1 is spoken here")  # which the parser makes an error of its own
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._in_body = True, False
        self._take_time()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            # Answered before its body was read, as too large: closing now would take the answer away with
            # it, so the rest is read for a while and thrown away.
            self._take_time()
            self._too_slow = self.loop.call_later(_LINGER, self._give_up)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, and close."""
        problem = {
            "type": "urn:agentflow:problem:malformed_request",
            "title": "Not an HTTP request",
            "status": 400,
            "detail": msg,
            "code": "malformed_request",
        }
        body = msgspec.json.encode(problem)
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(head + body)
        self.transport.close()

    def _give_time(self) -> None:
        self._take_time()
        self._too_slow = self.loop.call_later(_SLOWEST, self._give_up)

    def _take_time(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None

    def _give_up(self) -> None:
        self._too_slow = None
        if not self.transport.is_closing():
            self.transport.abort() if self._in_body else self.transport.close()


def _peer_uid(transport: asyncio.Transport) -> int | None:
    option = getattr(socket, "SO_PEERCRED", None)
    sock = transport.get_extra_info("socket")
    if option is None or sock is None:
        return None
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return uid


class HttpServer(uvicorn.Server):
    """Serves `app` on given sockets until `stop`. Signals are its owner's business."""

    def __init__(
        self, app: ASGIApp, listeners: Iterable[Listener], tls: ssl.SSLContext | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # what a client says of its own address is not to be believed
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            timeout_keep_alive=75,
        )
        super().__init__(config)
        self._listeners = list(listeners)
        self._tls = tls
        self._stopping = asyncio.Event()
        self.started_event = asyncio.Event()

    def stop(self) -> None:
        """Accept nothing more, let answers that have begun come to their end, then return from `serve`."""
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: Any = None) -> None:
        """Begin to accept; each listener's connections know where they came in."""
        loop = asyncio.get_running_loop()
        self.servers = []
        for listener in self._listeners:
            factory = partial(
                Connection, listener.kind, config=self.config, server_state=self.server_state, app_state={}
            )
            tls = self._tls if listener.kind != "unix" else None
            # asyncio listens once more, and its own backlog is too short for a crowd that comes back.
            self.servers.append(
                await loop.create_server(factory, sock=listener.sock, ssl=tls, backlog=BACKLOG)
            )
        self.started = True
        self.started_event.set()

    async def main_loop(self) -> None:
        """Keep the header Date right: one look a second, where uvicorn takes ten."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1.0)

    async def shutdown(self, sockets: Any = None) -> None:
        """What has begun has five seconds to come to its end; then it is cut off."""
        for server in self.servers:
            server.close()
        state, loop = self.server_state, asyncio.get_running_loop()
        for connection in list(state.connections):
            connection.shutdown()
        deadline = loop.time() + _GRACE
        # Connections tell nobody when they are gone, so this has to look.
        while (state.connections or state.tasks) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(state.tasks)
        for server in self.servers:
            await server.wait_closed()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """None are taken."""
        yield
