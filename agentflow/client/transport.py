"""Transport from a client to the daemon: one pooled HTTP client, over TCP or a Unix socket."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec

from agentflow import __version__
from agentflow.client.errors import Unreachable, error_of
from agentflow.config import default_socket
from agentflow.errors import AgentflowError, ConfigurationError

__all__ = ["Transport", "daemon_url"]

T = TypeVar("T")

_CONNECT = 5.0
_ANSWER = 90.0
"""Seconds for an answer: commands wait for their run, for a minute at most."""


def daemon_url(url: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return where the daemon is: as given, else `AGENTFLOW_URL`, else the default socket."""
    environment = os.environ if env is None else env
    return url or environment.get("AGENTFLOW_URL") or f"unix:{default_socket(environment)}"


class Transport:
    """Requests and their answers as values. `url`: `http://HOST:PORT`, `https://…` or `unix:PATH`.

    `token` defaults to `AGENTFLOW_TOKEN`. ConfigurationError for another URL.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None) -> None:
        self.url = daemon_url(url)
        self.token = token if token is not None else os.environ.get("AGENTFLOW_TOKEN")
        scheme, colon, rest = self.url.partition(":")
        self.local = scheme == "unix"
        if not colon or scheme not in ("unix", "http", "https") or not rest.strip("/"):
            raise ConfigurationError(
                f"{self.url!r} is not the URL of a daemon", hint="write http://HOST:PORT or unix:PATH"
            )
        self._socket = _socket_path(rest) if self.local else None
        self._http: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Make the pool; no connection is made yet."""
        headers = {"User-Agent": f"agentflow/{__version__}", "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        limits = httpx.Limits(max_connections=1_000, max_keepalive_connections=20)
        # Reading the certificates of this machine takes 50 ms: only where they are needed.
        secure = self.url.startswith("https:")
        transport = httpx.AsyncHTTPTransport(uds=self._socket, limits=limits, verify=secure)
        self._http = httpx.AsyncClient(
            # The name in the URL of a socket is only for the Host header.
            base_url="http://localhost" if self.local else self.url,
            headers=headers,
            transport=transport,
            timeout=httpx.Timeout(_ANSWER, connect=_CONNECT),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    @property
    def http(self) -> httpx.AsyncClient:
        """The pool."""
        if self._http is None:
            raise AgentflowError("the client is not open: use `async with Client(...)`")
        return self._http

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = _ANSWER,
    ) -> T:
        """Send one request; return its answer as `kind`. Raises what the daemon says, or Unreachable."""
        response = await self.send(method, path, query=query, body=body, headers=headers, timeout=timeout)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._not_a_daemon(response.status_code) from None

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = _ANSWER,
    ) -> httpx.Response:
        """Send one request; return its answer as it is, if it is a success."""
        content = None if body is None else msgspec.json.encode(body)
        more = {} if body is None else {"Content-Type": "application/json"}
        try:
            response = await self.http.request(
                method,
                path,
                params=parameters(query),
                content=content,
                headers={**more, **(headers or {})},
                timeout=httpx.Timeout(timeout, connect=_CONNECT),
            )
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error
        if response.status_code >= 400:
            raise self._error_of(response, response.content)
        return response

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, Any], timeout: float
    ) -> AsyncGenerator[httpx.Response]:
        """Open an answer that comes bit by bit; `timeout` in seconds without a byte. httpx.HTTPError as it
        is."""
        headers = {"Accept": "application/x-ndjson"}
        limits = httpx.Timeout(timeout, connect=_CONNECT)
        async with self.http.stream(
            "GET", path, params=parameters(query), headers=headers, timeout=limits
        ) as response:
            if response.status_code >= 400:
                body = await response.aread()
                raise self._error_of(response, body)
            if "json" not in response.headers.get("Content-Type", ""):
                raise self._not_a_daemon(response.status_code)
            yield response

    def _error_of(self, response: httpx.Response, body: bytes) -> AgentflowError:
        if "json" not in response.headers.get("Content-Type", ""):
            return self._not_a_daemon(response.status_code)
        return error_of(response.status_code, body, response.headers.get("Retry-After"))

    def _not_a_daemon(self, status: int) -> Unreachable:
        """Return the error of an answer that no agentflow daemon gives."""
        return Unreachable(
            f"what answers at {self.url} is no agentflow daemon (HTTP status {status})",
            hint="look at --url and AGENTFLOW_URL; `agentflow serve` starts a daemon",
        )

    def unreachable(self, error: Exception) -> Unreachable:
        """Return the error that means that there is no answer."""
        reason = str(error) or type(error).__name__
        return Unreachable(
            f"no daemon answers at {self.url}: {reason}", hint="start one with `agentflow serve`"
        )


def parameters(query: Mapping[str, Any] | None) -> dict[str, str]:
    """Query parameters; those that are None are left out."""
    found: dict[str, str] = {}
    for name, value in (query or {}).items():
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif value is not None:
            found[name] = str(value)
    return found


def _socket_path(rest: str) -> str:
    return rest[2:] if rest.startswith("///") else rest
