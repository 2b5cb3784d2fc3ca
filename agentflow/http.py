"""The one seam to HTTP: a pooled client that sends one request and streams the answer's bytes.

The HTTP library, certificates and proxies are read in a thread before the first request, because they take
200 ms of CPU. Only this module knows the HTTP library. It never follows redirects, never sends a request
twice unless its client was made with `resend_stale`, and what it raises holds neither headers nor bodies nor
the user part of a URL.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import re
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import UNSET, UnsetType

from agentflow.addresses import PrivateAddress
from agentflow.content_encoding import BadEncoding, Decompressor
from agentflow.public_transport import public_transport

if TYPE_CHECKING:
    import httpx

__all__ = ["AnswerTooLarge", "HttpClient", "HttpFailure", "HttpResponse", "retry_after"]

_CONNECT_TIMEOUT = 10.0
# A server may close an idle connection in the moment in which a request goes out on it, and a POST must not
# be repeated behind the caller's back: so connections are kept for less than the 5 s of most servers.
_IDLE_CONNECTION = 4.0
_ERROR_BODY_LIMIT = 64 << 10


class HttpFailure(Exception):
    """No answer, or not the whole of it: `kind` says where it stopped, `sent` whether the request may have
    reached the server."""

    def __init__(
        self,
        kind: Literal["connect", "first_byte", "stalled", "broken", "denied"],
        message: str,
        *,
        sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.sent = sent


class AnswerTooLarge(HttpFailure):
    """The body has more bytes than the caller takes."""

    def __init__(self, limit: int) -> None:
        super().__init__("broken", f"the answer has more than {limit:,} bytes")


class HttpResponse:
    """An answer whose body has not been read yet. Header names are case-insensitive."""

    def __init__(
        self, response: httpx.Response, deadline: asyncio.Timeout, byte_timeout: float | None
    ) -> None:
        self._response = response
        self._deadline = deadline
        self._byte_timeout = byte_timeout
        self._winding_up = False
        self.has_begun = False
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    @property
    def url(self) -> str:
        """Where the answer came from."""
        return str(self._response.url)

    @property
    def address(self) -> str | None:
        """The IP address of the connection; None if the HTTP library does not tell."""
        stream: Any = self._response.extensions.get("network_stream")
        peer: Any = None if stream is None else stream.get_extra_info("server_addr")
        return str(cast("tuple[Any, ...]", peer)[0]) if isinstance(peer, tuple) and peer else None

    async def chunks(self, limit: int | None = None) -> AsyncGenerator[bytes]:
        """Yield the body as it comes, in pieces of at most 64 KiB without what `Content-Encoding` did to it.

        The first bytes, even if they decompress to nothing yet, end the wait for the first byte; all later
        ones put the limit between two bytes off. Raises AnswerTooLarge beyond `limit` bytes after
        decompression, HttpFailure if the body breaks off or cannot be read.
        """
        size = 0
        async for piece in self._pieces(alive=True):
            size += len(piece)
            if limit is not None and size > limit:
                raise AnswerTooLarge(limit)
            yield piece

    def wind_up(self, grace: float) -> None:
        """Give the rest of the body, which frees the connection for the next request, `grace` seconds; then
        `chunks` raises HttpFailure. For a caller that has all that matters."""
        if not self._winding_up:
            self._winding_up = True
            self._deadline.reschedule(asyncio.get_running_loop().time() + grace)

    async def error_body(self) -> bytes:
        """Return the body of a refusal, at most 64 KiB of it, read within the wait for the first byte."""
        body = bytearray()
        async for piece in self._pieces(alive=False):
            body += piece
            if len(body) >= _ERROR_BODY_LIMIT:
                break
        return bytes(body[:_ERROR_BODY_LIMIT])

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises AnswerTooLarge beyond `limit` bytes, having held hardly more than
        that in memory however small the compressed body was, and HttpFailure as `chunks` does."""
        return b"".join([chunk async for chunk in self.chunks(limit)])

    async def _pieces(self, *, alive: bool) -> AsyncGenerator[bytes]:
        try:
            decompressor = Decompressor(self.headers.get("content-encoding", ""))
            async for chunk in self._response.aiter_raw():
                if alive:
                    self._put_off()
                for piece in decompressor.pieces(chunk):
                    yield piece
            decompressor.check_end()
        except BadEncoding as error:
            raise HttpFailure("broken", f"the answer {error}") from error

    def _put_off(self) -> None:
        """Bytes have come: the next ones have `byte_timeout` seconds."""
        self.has_begun = True
        if not self._winding_up:
            now = asyncio.get_running_loop().time()
            self._deadline.reschedule(None if self._byte_timeout is None else now + self._byte_timeout)


class HttpClient:
    """One connection pool, made on the running loop at the first request.

    `first_byte_timeout` (seconds, None = none) bounds the time from the request to the first byte of the
    body, `byte_timeout` that between two reads of it. `loopback` is for a server of our own on this machine:
    no proxy, no certificates, a new connection for each request. `public_only`: no connection to an address
    that is not public (checked for each connection, whatever the name resolved to before), and no proxy,
    which could not be held to that; hosts that are `allowed`, HOST or HOST:PORT, may have any address.
    `resend_stale`: a request on a reused connection that the server closed
    before any answer is sent once more on a new one; only for requests that may be carried out twice.
    """

    def __init__(
        self,
        *,
        first_byte_timeout: float | None = 30.0,
        byte_timeout: float | None = None,
        loopback: bool = False,
        public_only: bool = False,
        allowed: Iterable[str] = (),
        resend_stale: bool = False,
    ) -> None:
        self._first_byte_timeout = first_byte_timeout
        self._byte_timeout = byte_timeout
        self._loopback = loopback
        self._public_only = public_only
        self._allowed = frozenset(host.lower() for host in allowed)
        self._resend_stale = resend_stale
        self._client: httpx.AsyncClient | None = None
        self._unpooled: httpx.AsyncClient | None = None

    def post(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        first_byte_timeout: float | UnsetType | None = UNSET,
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """`request` with the method POST."""
        return self.request("POST", url, headers=headers, body=body, first_byte_timeout=first_byte_timeout)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        first_byte_timeout: float | UnsetType | None = UNSET,
    ) -> AsyncGenerator[HttpResponse]:
        """Send one request; leaving the block closes the exchange, so cancelling it aborts the request.

        Credentials inside the URL are sent as Basic, unless the headers have an Authorization of their own.

        `first_byte_timeout` wins over that of the client. Raises HttpFailure: connect (nothing was
        answered), first_byte (too late), stalled (no byte for too long), broken (cut short), denied (the
        address is not public).
        """
        wait = self._first_byte_timeout if first_byte_timeout is UNSET else first_byte_timeout
        answer: HttpResponse | None = None
        try:
            url, headers = _authorized(url, headers)
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            if not any(name.lower() == b"accept-encoding" for name, _ in raw):
                raw.append((b"Accept-Encoding", b"gzip, deflate"))
            async with asyncio.timeout(wait) as deadline, AsyncExitStack() as stack:
                response = await self._sent(stack, method, url, raw, body)
                answer = HttpResponse(response, deadline, self._byte_timeout)
                yield answer
        except TimeoutError:
            if answer is not None and answer.has_begun:
                raise HttpFailure("stalled", f"no byte came for {self._byte_timeout or 0:g} s") from None
            raise HttpFailure("first_byte", f"no answer within {wait or 0:g} s") from None
        except PrivateAddress as denied:
            raise HttpFailure("denied", str(denied), sent=False) from None
        except Exception as failure:
            told = _failure_of(failure, url, answered=answer is not None)
            if told is None:
                raise
            raise told from failure

    async def aclose(self) -> None:
        """Close the pool; idempotent. A later request opens a new one."""
        clients = self._client, self._unpooled
        self._client = self._unpooled = None
        for client in clients:
            if client is not None:
                await client.aclose()

    async def _sent(
        self,
        stack: AsyncExitStack,
        method: str,
        url: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes | None,
    ) -> httpx.Response:
        """The answer to a request, with its body still to come."""
        client = self._client or await self._open("_client", pooled=not self._loopback)
        is_new = False

        async def watch(event: str, _: Any) -> None:
            nonlocal is_new
            is_new = is_new or event.startswith("connection.")

        watched: dict[str, Any] = {"trace": watch} if self._resend_stale else {}
        try:
            return await stack.enter_async_context(
                client.stream(method, url, headers=headers, content=body, extensions=watched)
            )
        except Exception as failure:
            if is_new or not self._resend_stale or not _is_stale(failure):
                raise
        unpooled = self._unpooled or await self._open("_unpooled", pooled=False)
        return await stack.enter_async_context(unpooled.stream(method, url, headers=headers, content=body))

    async def _open(self, name: Literal["_client", "_unpooled"], *, pooled: bool) -> httpx.AsyncClient:
        """Make a client in a thread; of requests that come meanwhile the first one's client is kept."""
        made = await asyncio.to_thread(self._made, pooled=pooled)
        known: httpx.AsyncClient | None = getattr(self, name)
        if known is None:
            setattr(self, name, made)
            return made
        await made.aclose()
        return known

    def _made(self, *, pooled: bool) -> httpx.AsyncClient:
        _load_library()
        import httpx

        limits = httpx.Limits(
            max_keepalive_connections=None if pooled else 0, keepalive_expiry=_IDLE_CONNECTION
        )
        try:
            return httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT),
                limits=limits,
                trust_env=not (self._loopback or self._public_only),
                verify=False if self._loopback else _certificates(not self._public_only),
                transport=_public_transport(limits, self._allowed) if self._public_only else None,
            )
        except (ImportError, ValueError, OSError) as failure:
            kind = type(failure).__name__
            problem = f"the proxy or the certificates of the environment cannot be used ({kind})"
            raise HttpFailure("connect", problem, sent=False) from failure


def _address(url: str) -> str:
    """Return host and port of a URL."""
    import httpx

    parts = httpx.URL(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return host if port is None else f"{host}:{port}"


def _connect_problem(failure: BaseException) -> str:
    """Return why there is no connection, in our words: by the error of the operating system or of TLS below
    that of the HTTP library, else by the name of the latter."""
    import httpx

    for cause in _causes(failure):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "TLS failed: is it an http:// server?"
        if isinstance(cause, socket.gaierror):
            return "the name cannot be resolved"
        if isinstance(cause, ConnectionRefusedError):
            return "refused: no server listens there"
        if isinstance(cause, OSError) and cause.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return "the network does not lead there"
    if isinstance(failure, httpx.ConnectTimeout):
        return f"not within {_CONNECT_TIMEOUT:g} s"
    if isinstance(failure, httpx.ProxyError):
        return "the proxy of HTTP_PROXY or HTTPS_PROXY refused"
    return type(failure).__name__


def _causes(failure: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and all that led to it, those of a group too."""
    while failure is not None:
        yield failure
        if isinstance(failure, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", failure)
            for member in group.exceptions:
                yield from _causes(member)
        failure = failure.__cause__ or failure.__context__


def _failure_of(failure: Exception, url: str, *, answered: bool) -> HttpFailure | None:
    """Return what an exception of the HTTP library means; None for any other exception."""
    if "httpx" not in sys.modules:
        return None
    import httpx

    if isinstance(failure, httpx.InvalidURL):
        return HttpFailure("connect", "the address is not a URL", sent=False)
    if not isinstance(failure, httpx.TransportError | httpx.DecodingError | httpx.StreamError):
        return None
    kind = type(failure).__name__
    if answered:
        return HttpFailure("broken", f"the answer broke off ({kind})")
    # What cannot have reached the server: everything else may have been carried out there.
    not_sent = isinstance(
        failure,
        httpx.ConnectError
        | httpx.ConnectTimeout
        | httpx.PoolTimeout
        | httpx.ProxyError
        | httpx.LocalProtocolError
        | httpx.UnsupportedProtocol,
    )
    message = f"no connection to {_address(url)} ({_connect_problem(failure)})"
    return HttpFailure("connect", message, sent=not not_sent)


def _is_stale(failure: Exception) -> bool:
    """Return whether a connection failed as one does that the server closed while it lay in the pool."""
    import httpx

    return isinstance(failure, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)


def _authorized(url: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Return the URL without credentials, and the headers with them, because the HTTP library would put those
    of a URL in the place of a given Authorization."""
    if "@" not in url:
        return url, headers
    try:
        parts = urlsplit(url)
        user, password = parts.username, parts.password
    except ValueError:
        return url, headers
    if user is None:
        return url, headers
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if any(name.lower() == "authorization" for name in headers):
        return bare, headers
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return bare, {**headers, "Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait: `retry-after-ms`, or Retry-After as seconds or as a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        due = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, ((due if due.tzinfo else due.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())


def _number(text: str | None) -> float | None:
    """A count of seconds as HTTP writes it; None for anything else, `nan` and `inf` included."""
    return float(text) if text and re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else None


@cache
def _load_library() -> None:
    """Import the HTTP library, and what it would import on the event loop at its first request."""
    import anyio
    import httpcore
    import httpx

    anyio.run(anyio.sleep, 0)  # imports the back end for asyncio
    assert httpcore, httpx


@cache
def _certificates(trust_env: bool) -> Any:
    """Return those that servers are checked by: read once, since that takes longer than most requests."""
    import httpx

    return httpx.create_ssl_context(trust_env=trust_env)


def _public_transport(limits: httpx.Limits, allowed: Collection[str]) -> httpx.AsyncBaseTransport:
    import httpcore
    import httpx

    return public_transport(
        httpx,
        httpcore,
        allowed=allowed,
        ssl_context=_certificates(False),
        max_connections=limits.max_connections,
        max_keepalive_connections=limits.max_keepalive_connections,
        keepalive_expiry=limits.keepalive_expiry,
    )
