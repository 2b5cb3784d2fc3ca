"""The one seam to HTTP: a pooled client that posts JSON and streams the answer's bytes.

Only this module knows the HTTP library. It never retries, never follows redirects, and what it raises
holds neither headers nor bodies nor the user part of a URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

import httpx

__all__ = ["HttpClient", "HttpFailure", "HttpResponse"]

_CONNECT_TIMEOUT = 10.0
# A server may close an idle connection in the moment in which a request goes out on it, and a POST must not
# be repeated behind the caller's back: so connections are not kept for long.
_IDLE_CONNECTION = 5.0
_ERROR_BODY_LIMIT = 64 << 10


class HttpFailure(Exception):
    """No answer, or not the whole of it: `kind` says where it stopped."""

    def __init__(self, kind: Literal["connect", "first_byte", "broken"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


class HttpResponse:
    """An answer whose body has not been read yet. Header names are case-insensitive."""

    def __init__(self, response: httpx.Response, deadline: asyncio.Timeout) -> None:
        self._response = response
        self._deadline = deadline
        self._winding_up = False
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

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
        body = b""
        async for chunk in self._response.aiter_bytes():
            body += chunk
            if len(body) >= _ERROR_BODY_LIMIT:
                break
        return body[:_ERROR_BODY_LIMIT]


class HttpClient:
    """One connection pool, made on the running loop at the first request.

    `first_byte_timeout` (seconds) bounds the time from the request to the first byte of the body; after
    that the caller's own time-out counts. `loopback` is for a server of our own on this machine: no proxy,
    no certificates, a new connection for each request.
    """

    def __init__(self, *, first_byte_timeout: float = 30.0, loopback: bool = False) -> None:
        self._first_byte_timeout = first_byte_timeout
        self._loopback = loopback
        self._client: httpx.AsyncClient | None = None

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[HttpResponse]:
        """Send one request; leaving the block closes the exchange, so cancelling it aborts the request.

        Raises HttpFailure: connect (nothing was answered), first_byte (too late), broken (cut short).
        """
        answered = False
        try:
            async with (
                asyncio.timeout(self._first_byte_timeout) as deadline,
                self._open().stream("POST", url, headers=dict(headers), content=body) as response,
            ):
                answered = True
                yield HttpResponse(response, deadline)
        except TimeoutError:
            waited = f"no answer within {self._first_byte_timeout:g} s"
            raise HttpFailure("first_byte", waited) from None
        except httpx.InvalidURL as failure:
            raise HttpFailure("connect", "the address is not a URL") from failure
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as failure:
            kind = type(failure).__name__
            if answered:
                raise HttpFailure("broken", f"the answer broke off ({kind})") from failure
            raise HttpFailure("connect", f"no connection to {httpx.URL(url).host} ({kind})") from failure

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
                raise HttpFailure("connect", problem) from failure
        return self._client

    def _made(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT),
            limits=httpx.Limits(
                max_keepalive_connections=0 if self._loopback else None, keepalive_expiry=_IDLE_CONNECTION
            ),
            trust_env=not self._loopback,
            verify=not self._loopback,
        )
