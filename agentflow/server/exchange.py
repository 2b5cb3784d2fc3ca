"""One request and its answer, as ASGI sees them."""

from __future__ import annotations

import asyncio
import http
import re
from typing import Any, Protocol

import msgspec
from starlette.types import ASGIApp, Message

from agentflow import logs
from agentflow.server.problems import STATUS
from agentflow.server.request_parser import RequestHead

__all__ = ["Exchange", "Wire", "problem_bytes"]

_log = logs.get_logger("agentflow.server")
_BAD_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LARGE_PIECE = 16 * 1024  # bytes; a copy of more costs more than another buffer of the socket
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}


class Wire(Protocol):
    """The connection below an exchange."""

    @property
    def common_fields(self) -> bytes:
        """Fields of every answer, each with its line end."""
        ...

    @property
    def write_paused(self) -> bool:
        """True while the client has more in front of it than it takes."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    def write_parts(self, *parts: bytes) -> None:
        """Send bytes that lie in several places."""
        ...

    async def wait_writable(self) -> None:
        """Wait until the client has taken most of what was sent, or is gone."""
        ...

    def body_wanted(self) -> None:
        """Read on: the application has taken what had arrived of the body."""
        ...

    def answered(self, exchange: Exchange) -> None:
        """Go on after the end of an answer."""
        ...

    def abort(self) -> None:
        """End the connection; what was not sent is lost."""
        ...


class Exchange:
    """A request and its answer. `receive` and `send` are for the one task that runs the application."""

    __slots__ = (
        "_chunked",
        "_delivered",
        "_expected",
        "_expects_continue",
        "_head",
        "_no_body",
        "_received",
        "_scope",
        "_version",
        "_waiter",
        "_wire",
        "body_ended",
        "complete",
        "disconnected",
        "input_closed",
        "keep_alive",
        "started",
    )

    def __init__(self, wire: Wire, head: RequestHead, scope: dict[str, Any]) -> None:
        self._wire = wire
        self._scope = scope
        self._version = head.version
        self._no_body = head.method == "HEAD"
        self._expects_continue = head.expects_continue
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._delivered = False  # the end of the body
        self._head = b""  # of an answer, until its first piece: most answers go out by one write
        self._chunked = False
        self._expected: int | None = None  # bytes of the answer's Content-Length that are to come
        self.keep_alive = head.keep_alive
        self.body_ended = False
        self.started = False
        self.complete = False
        self.disconnected = False
        """True once the connection is gone: what is sent is thrown away."""
        self.input_closed = False
        """True once the client sends no more; it may still read (page 000 §8.1)."""

    # -- from the connection

    @property
    def buffered(self) -> int:
        """Bytes of the request's body that the application has not taken."""
        return len(self._received)

    def feed(self, data: bytes) -> None:
        """Take a piece of the request's body. After the answer it is thrown away."""
        if not self.complete:
            self._received += data
            self._wake()

    def end_body(self) -> None:
        """Take the end of the request's body."""
        self.body_ended = True
        self._wake()

    def close_input(self) -> None:
        """Tell the application that the client sends nothing more."""
        self.input_closed = True
        self._wake()

    def disconnect(self) -> None:
        """Tell the application that the client is gone."""
        self.disconnected = True
        self._received = bytearray()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- ASGI

    async def run(self, app: ASGIApp) -> None:
        """Run the application for this request; what it raises is answered by 500."""
        try:
            await app(self._scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._wire.abort()
            raise
        except Exception as error:
            _log.error("request_crashed", exc_info=error)
            await self._fail()
        else:
            if not self.complete and not self.disconnected:
                _log.error("request_without_answer", path=self._scope["path"])
                await self._fail()

    async def _fail(self) -> None:
        if self.disconnected or self.complete:
            return
        if self.started:
            self._wire.abort()  # the only way to say that the answer is not whole
            return
        self.keep_alive = False
        body = problem_bytes("internal_error", "an error of the daemon")
        fields = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": 500, "headers": fields})
        await self.send({"type": "http.response.body", "body": body})

    async def receive(self) -> Message:
        """Return the next piece of the body, or `http.disconnect` once there can be none."""
        if self._expects_continue and not self.started and not self.body_ended and not self.disconnected:
            self._expects_continue = False
            self._wire.write(_CONTINUE)
        while not (self.disconnected or self.complete or self._delivered):
            if self._received or self.body_ended:
                body, self._received = bytes(self._received), bytearray()
                self._delivered = self.body_ended
                if not self.body_ended:
                    self._wire.body_wanted()
                return {"type": "http.request", "body": body, "more_body": not self.body_ended}
            await self._wait()
        while not (self.disconnected or self.complete or self.input_closed):
            await self._wait()
        return {"type": "http.disconnect"}

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def send(self, message: Message) -> None:
        """Send the head of the answer, or a piece of its body. The head leaves with the first piece."""
        if self._wire.write_paused and not self.disconnected:
            await self._wire.wait_writable()
        if self.disconnected:
            return
        if not self.started:
            self._start(message)
            return
        if message["type"] != "http.response.body" or self.complete:
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}")
        more: bool = message.get("more_body", False)
        body: bytes = message.get("body", b"")
        if self._chunked and more and len(body) >= _LARGE_PIECE:
            self._wire.write_parts(self._head + b"%x\r\n" % len(body), body, b"\r\n")
        else:
            self._wire.write(self._head + self._frame(body, more))
        self._head = b""
        if not more:
            if self._expected:
                raise RuntimeError("the answer is shorter than its Content-Length")
            self.complete = True
            self._received = bytearray()
            self._wake()
            self._wire.answered(self)

    def _start(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"expected 'http.response.start', not {message['type']!r}")
        status: int = message["status"]
        lines = [_STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status, self._wire.common_fields]
        framed = self._no_body or status in (204, 304)
        for name, value in message.get("headers", ()):
            if _BAD_NAME.search(name) or _BAD_VALUE.search(value):
                raise RuntimeError("a field of the answer holds what no field may hold")
            name = name.lower()
            if name == b"content-length":
                self._expected, framed = int(value), True
            elif name == b"transfer-encoding":
                continue  # how the answer is framed is decided here
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            lines += (name, b": ", value, b"\r\n")
        if self._no_body or status in (204, 304):
            self._no_body, self._expected = True, None
        if not self.body_ended:
            self.keep_alive = False  # an early answer: the rest of the body is not parsed
        if not framed:
            if self._version == "1.0":
                self.keep_alive = False  # the end of the connection is the end of the answer
            else:
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._head = b"".join(lines)
        self.started = True

    def _frame(self, body: bytes, more: bool) -> bytes:
        if self._no_body:
            return b""
        if self._chunked:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return framed if more else framed + b"0\r\n\r\n"
        if self._expected is not None:
            self._expected -= len(body)
            if self._expected < 0:
                raise RuntimeError("the answer is longer than its Content-Length")
        return body


def problem_bytes(code: str, detail: str) -> bytes:
    """Return a problem (RFC 9457) for requests that never reach the application."""
    status, title = STATUS[code]
    members = {"type": f"urn:agentflow:problem:{code}", "title": title, "status": status}
    return msgspec.json.encode({**members, "detail": detail, "code": code})
