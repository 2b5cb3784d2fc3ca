"""The one seam to HTTP: a pooled client that sends one request and streams the answer's bytes.

Only this module knows the HTTP library. It never retries, never follows redirects, and what it raises
holds neither headers nor bodies nor the user part of a URL.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from agentflow.addresses import PrivateAddress, check_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["AnswerTooLarge", "HttpClient", "HttpFailure", "HttpResponse", "public_backend", "retry_after"]

_CONNECT_TIMEOUT = 10.0
# A server may close an idle connection in the moment in which a request goes out on it, and a POST must not
# be repeated behind the caller's back: so connections are kept for less than the 5 s of most servers.
_IDLE_CONNECTION = 4.0
_ERROR_BODY_LIMIT = 64 << 10
# What cannot have reached the server: everything else may have been carried out there.
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)


class HttpFailure(Exception):
    """No answer, or not the whole of it: `kind` says where it stopped, `sent` whether the request may have
    reached the server."""

    def __init__(
        self, kind: Literal["connect", "first_byte", "broken", "denied"], message: str, *, sent: bool = True
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

    def __init__(self, response: httpx.Response, deadline: asyncio.Timeout) -> None:
        self._response = response
        self._deadline = deadline
        self._winding_up = False
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    @property
    def url(self) -> str:
        """Where the answer came from."""
        return str(self._response.url)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes; the first chunk ends the wait for the first byte. Raises HttpFailure."""
        async for chunk in self._response.aiter_bytes():
            if not self._winding_up:
                self._deadline.reschedule(None)
            if chunk:
                yield chunk

    def wind_up(self, grace: float) -> None:
        """All that matters has come: the rest of the body, which frees the connection for the next request,
        has `grace` seconds; then `chunks` raises HttpFailure."""
        if not self._winding_up:
            self._winding_up = True
            self._deadline.reschedule(asyncio.get_running_loop().time() + grace)

    async def error_body(self) -> bytes:
        """The body of a refusal, at most 64 KiB of it, within the wait for the first byte."""
        return await self._read(_ERROR_BODY_LIMIT)

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises AnswerTooLarge beyond `limit` bytes, having held hardly more than that in
        memory, however small the compressed body was; HttpFailure when it breaks off or cannot be read."""
        body = await self._read(limit + 1)
        if len(body) > limit:
            raise AnswerTooLarge(limit)
        return body

    async def _read(self, limit: int) -> bytes:
        """At most the first `limit` bytes of the body, without what `Content-Encoding` did to it."""
        unpack = _unpacker(self.headers.get("content-encoding", ""))
        body = bytearray()
        try:
            async for chunk in self._response.aiter_raw():
                body += unpack(chunk, limit - len(body))
                if len(body) >= limit:
                    break
        except zlib.error as error:
            raise HttpFailure("broken", "the answer is not compressed as it says") from error
        return bytes(body)


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    """A function (chunk, most bytes) → bytes that never makes more of a chunk than is wanted."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return lambda chunk, most: chunk[: max(0, most)]
    if name not in ("gzip", "x-gzip", "deflate"):
        raise HttpFailure("broken", "the answer is compressed in a way that was not asked for")
    stream = zlib.decompressobj(wbits=47)  # a gzip or a zlib header, whichever comes
    return lambda chunk, most: stream.decompress(chunk, max(1, most))


class HttpClient:
    """One connection pool, made on the running loop at the first request.

    `first_byte_timeout` (seconds, None = none) bounds the time from the request to the first byte of the
    body; after that the caller's own time-out counts. `loopback` is for a server of our own on this machine:
    no proxy, no certificates, a new connection for each request. `public_only`: no connection to an address
    that is not public (checked for each connection, whatever the name resolved to before), and no proxy,
    which could not be held to that.
    """

    def __init__(
        self,
        *,
        first_byte_timeout: float | None = 30.0,
        loopback: bool = False,
        public_only: bool = False,
    ) -> None:
        self._first_byte_timeout = first_byte_timeout
        self._loopback = loopback
        self._public_only = public_only
        self._client: httpx.AsyncClient | None = None

    def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """`request` with the method POST."""
        return self.request("POST", url, headers=headers, body=body)

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[HttpResponse]:
        """Send one request; leaving the block closes the exchange, so cancelling it aborts the request.

        Credentials inside the URL are sent as Basic, unless the headers have an Authorization of their own.

        Raises HttpFailure: connect (nothing was answered), first_byte (too late), broken (cut short), denied
        (the address is not public).
        """
        answered = False
        try:
            url, headers = _authorized(url, headers)
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            async with (
                asyncio.timeout(self._first_byte_timeout) as deadline,
                self._open().stream(method, url, headers=raw, content=body) as response,
            ):
                answered = True
                yield HttpResponse(response, deadline)
        except TimeoutError:
            waited = f"no answer within {self._first_byte_timeout:g} s"
            raise HttpFailure("first_byte", waited) from None
        except PrivateAddress as denied:
            raise HttpFailure("denied", str(denied), sent=False) from None
        except httpx.InvalidURL as failure:
            raise HttpFailure("connect", "the address is not a URL", sent=False) from failure
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as failure:
            kind = type(failure).__name__
            if answered:
                raise HttpFailure("broken", f"the answer broke off ({kind})") from failure
            message = f"no connection to {httpx.URL(url).host} ({kind})"
            raise HttpFailure("connect", message, sent=not isinstance(failure, _NOT_SENT)) from failure

    async def aclose(self) -> None:
        """Close the pool; idempotent. A later request opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            try:
                self._client = self._made()
            except (ImportError, ValueError, OSError) as failure:
                kind = type(failure).__name__
                problem = f"the proxy or the certificates of the environment cannot be used ({kind})"
                raise HttpFailure("connect", problem, sent=False) from failure
        return self._client

    def _made(self) -> httpx.AsyncClient:
        limits = httpx.Limits(
            max_keepalive_connections=0 if self._loopback else None, keepalive_expiry=_IDLE_CONNECTION
        )
        return httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT),
            limits=limits,
            trust_env=not (self._loopback or self._public_only),
            verify=False if self._loopback else _certificates(not self._public_only),
            transport=_PublicTransport(limits) if self._public_only else None,
        )


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
def _certificates(trust_env: bool) -> ssl.SSLContext:
    """Those that servers are checked by: read once, since that takes longer than most requests."""
    return httpx.create_ssl_context(trust_env=trust_env)


class _PublicTransport(httpx.AsyncHTTPTransport):
    """Connects to public addresses only."""

    def __init__(self, limits: httpx.Limits) -> None:
        import httpcore

        super().__init__(limits=limits, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=_certificates(False),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=public_backend(httpcore),
        )


def public_backend(core: Any) -> Any:
    """A network backend for the connection pools of `core` (a module with httpcore's names) that resolves a
    name, refuses it unless every address is public, and connects to an address that it has checked."""

    class Backend(core.AsyncNetworkBackend):
        def __init__(self) -> None:
            self._inner = core.AnyIOBackend()

        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> Any:
            try:
                async with asyncio.timeout(timeout):
                    addresses = await check_host(host, port)
            except TimeoutError as error:
                raise core.ConnectTimeout(f"{host} was not resolved in time") from error
            except OSError as error:
                raise core.ConnectError(f"{host} does not resolve") from error
            failure: Exception | None = None
            for address in addresses:
                try:
                    return await self._inner.connect_tcp(
                        address, port, timeout, local_address, socket_options
                    )
                except (core.ConnectError, core.ConnectTimeout) as error:
                    failure = error
            raise failure or core.ConnectError(f"{host} has no address")

        async def connect_unix_socket(self, path: str, *_: Any, **__: Any) -> Any:
            raise PrivateAddress("a Unix socket is not a public address")

        async def sleep(self, seconds: float) -> None:
            await self._inner.sleep(seconds)

    return Backend()
