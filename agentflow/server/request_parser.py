"""Split the bytes of one connection into requests, within bounds.

llhttp (httptools, by its public callbacks) is the only parser: nothing here decides what a byte means. Input
is handed to it in slices that end no later than the request does: at the announced Content-Length, or at
CR LF CR LF, by which every head and every chunked body ends; and after 8 KiB outside a body of known length.
So at most one request is taken at a time, and what is not body is counted exactly: head, trailers and chunk
extensions of a request have 64 KiB together. Fields after the head are dropped.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn, Protocol, cast
from urllib.parse import unquote

import httptools

from agentflow.server.limits import Limits

__all__ = ["BadRequest", "Receiver", "RequestHead", "RequestParser"]

_END = b"\r\n\r\n"
_CHUNK_BYTES = 32
"""Of a chunk's own framing: a size of 16 digits and two line ends are 20."""


class BadRequest(Exception):
    """What arrived is no HTTP/1.1 request, or exceeds a limit. The message is for the client."""


class RequestHead(NamedTuple):
    """A request line and its fields. `path` is decoded, `raw_path` is as it was sent."""

    method: str
    version: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    keep_alive: bool
    expects_continue: bool


class Receiver(Protocol):
    """Takes what was parsed. Called from within `RequestParser.feed`."""

    def request_begun(self, head: RequestHead) -> None:
        """Take a head."""
        ...

    def body_received(self, data: bytes) -> None:
        """Take a piece of the body."""
        ...

    def request_ended(self) -> None:
        """Take the end of the body; also called for a request without one."""
        ...


class RequestParser:
    """Parser of one connection. After BadRequest it must not be fed again."""

    __slots__ = (
        "_body",
        "_chunks",
        "_fields",
        "_framing",
        "_head_bytes",
        "_limits",
        "_llhttp",
        "_receiver",
        "_refusal",
        "_remaining",
        "_tail",
        "_target",
        "ended",
        "in_body",
    )

    def __init__(self, receiver: Receiver, limits: Limits) -> None:
        self._receiver = receiver
        self._limits = limits
        self._llhttp = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._framing = 0  # bytes of the present request that are not body
        self._head_bytes = 0
        self._remaining = 0  # bytes of a body with Content-Length that have not arrived
        self._tail = b""  # the last 3 bytes that were parsed, if they may begin CR LF CR LF
        self._body = 0  # bytes of body in the present slice
        self._chunks = 0  # chunk heads in it
        self._refusal: BadRequest | None = None
        self.in_body = False
        """True from the end of a head to the end of its body."""
        self.ended = False
        """True if the last slice completed a request."""

    def close(self) -> None:
        """Let go of the receiver: parser and connection refer to each other."""
        del self._llhttp, self._receiver

    @property
    def in_head(self) -> bool:
        """True if a head has begun and not ended."""
        return self._framing > 0 and not self.in_body

    def feed(self, data: bytes, begin: int, end: int) -> int:
        """Parse `data[begin:end]`, one slice or to the end of the present request; return where that is.

        Raises BadRequest.
        """
        stop = self._find_boundary(data, begin, end)
        size = stop - begin
        chunked = self.in_body and not self._remaining
        if not self.in_body:
            self._framing += size
            self._check_framing()
        self._body = self._chunks = 0
        self.ended = False
        try:
            self._llhttp.feed_data(data if size == len(data) else data[begin:stop])
        except httptools.HttpParserUpgrade:
            pass  # no upgrade is offered: the request is answered like any other
        except httptools.HttpParserError:
            raise self._refusal or BadRequest("these bytes are no HTTP request") from None
        if chunked and not self.ended:
            self._framing += size - self._body - _CHUNK_BYTES * self._chunks
            self._framing = max(self._framing, self._head_bytes)
            self._check_framing()
        return stop

    def _find_boundary(self, data: bytes, begin: int, end: int) -> int:
        if self._remaining:
            return min(end, begin + self._remaining)
        end = min(end, begin + self._limits.slice_bytes)
        if self._tail:
            at = (self._tail + data[begin : min(end, begin + 3)]).find(_END)
            if at >= 0:
                stop = begin + at + len(_END) - len(self._tail)
                self._tail = b""
                return stop
        at = data.find(_END, begin, end)
        if at >= 0:
            self._tail = b""
            return at + len(_END)
        self._tail = (self._tail + data[max(begin, end - 3) : end])[-3:]
        return end

    def _check_framing(self) -> None:
        if self._framing > self._limits.framing_bytes:
            part = "trailers and chunk extensions" if self.in_body else "the head"
            raise BadRequest(f"{part} of a request: at most {self._limits.framing_bytes} bytes")

    # -- callbacks of llhttp

    def _refuse(self, detail: str) -> NoReturn:
        # httptools does not pass every exception of a callback on, so that it is kept here too.
        self._refusal = BadRequest(detail)
        raise self._refusal

    def on_message_begin(self) -> None:
        if self.ended:
            self._refuse("a request ends with CR LF CR LF or with its Content-Length")
        self._target = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_body:
            return  # a trailer: it must never be taken for a field of the head
        if len(self._fields) >= self._limits.head_fields:
            self._refuse(f"the head of a request has at most {self._limits.head_fields} fields")
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        llhttp, fields = self._llhttp, self._fields
        version = llhttp.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse("the versions of HTTP spoken here are 1.0 and 1.1")
        host, expects, chunked = None, False, False
        for name, value in fields:
            if name == b"content-length":
                self._take_length(fields, value)
            elif name == b"transfer-encoding":
                chunked = self._take_coding(fields, value, version)
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
            elif name == b"host":
                host = value
        has_body = chunked or self._remaining > 0
        if has_body and llhttp.should_upgrade():
            # llhttp takes such a request for one without a body, and its body for the next request.
            self._refuse("no upgrade is offered here: send the body without the header Upgrade")
        path, query = self._split_target(host)
        try:
            text = path.decode("ascii")
        except UnicodeDecodeError:
            self._refuse("the path is not ASCII")
        self.in_body = has_body
        self._head_bytes = self._framing
        self._fields = []
        self._receiver.request_begun(
            RequestHead(
                llhttp.get_method().decode("ascii"),
                version,
                unquote(text) if "%" in text else text,
                path,
                query,
                fields,
                version == "1.1" and llhttp.should_keep_alive(),
                expects,
            )
        )

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._body += size
        if self._remaining:
            self._remaining -= size
        self._receiver.body_received(body)

    def on_message_complete(self) -> None:
        self.in_body = False
        self.ended = True
        self._framing = self._head_bytes = self._remaining = 0
        self._tail = b""
        self._receiver.request_ended()

    # -- what frames a body, and what it is for

    def _take_length(self, fields: list[tuple[bytes, bytes]], value: bytes) -> None:
        if sum(name == b"content-length" for name, _ in fields) > 1 or not value.isdigit():
            self._refuse("Content-Length: give one number, once")
        self._remaining = int(value)

    def _take_coding(self, fields: list[tuple[bytes, bytes]], value: bytes, version: str) -> bool:
        names = [name for name, _ in fields]
        if names.count(b"transfer-encoding") > 1 or value.strip().lower() != b"chunked":
            self._refuse("Transfer-Encoding: only `chunked` is known, given once")
        if b"content-length" in names or version == "1.0":
            self._refuse("Transfer-Encoding: not beside Content-Length, and not in version 1.0")
        return True

    def _split_target(self, host: bytes | None) -> tuple[bytes, bytes]:
        try:
            url = httptools.parse_url(self._target)
        except httptools.HttpParserInvalidURLError:
            self._refuse("the target of the request is not readable")
        host_part, path = cast("bytes | None", url.host), cast("bytes | None", url.path)
        if host_part is not None:
            authority = self._target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            if host is None or authority.lower() != host.strip().lower():
                self._refuse("the target of the request names another host than the header Host")
        if path is None and host_part is None:
            self._refuse("the target of the request has no path")
        return path or b"/", url.query or b""
