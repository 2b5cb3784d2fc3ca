"""A transport that connects to public addresses only, for services that an untrusted submission declares.

Built from the public parts of httpx and httpcore (or of httpx2 and httpcore2, which the MCP SDK uses): the
modules are arguments, so that this one imports neither.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Collection, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from agentflow.addresses import PrivateAddress, check_host

__all__ = ["public_transport"]


def public_transport(http: Any, core: Any, *, allowed: Collection[str] = (), **pool_options: Any) -> Any:
    """Return an asynchronous transport for the clients of `http` over a connection pool of `core`.

    Each connection is made to an address that was checked just before, whatever the name resolved to
    earlier; those to hosts that are `allowed`, written HOST or HOST:PORT in lower case, are not checked.
    Errors of `core` are raised as the errors of `http` of the same name; PrivateAddress passes.
    """

    @contextmanager
    def translated() -> Generator[None]:
        kinds = (
            core.TimeoutException,
            core.NetworkError,
            core.ProtocolError,
            core.ProxyError,
            core.UnsupportedProtocol,
        )
        try:
            yield
        except kinds as error:
            raise getattr(http, type(error).__name__, http.TransportError)(str(error)) from error

    class Body(http.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncGenerator[bytes]:
            with translated():
                async for part in self._stream:
                    yield part

        async def aclose(self) -> None:
            with translated():
                await self._stream.aclose()

    class Transport(http.AsyncBaseTransport):
        def __init__(self) -> None:
            self._connections = core.AsyncConnectionPool(
                network_backend=_public_backend(core, frozenset(allowed)), **pool_options
            )

        async def handle_async_request(self, request: Any) -> Any:
            url = request.url
            wanted = core.Request(
                method=request.method,
                url=core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
            with translated():
                answer = await self._connections.handle_async_request(wanted)
            return http.Response(
                answer.status,
                headers=answer.headers,
                stream=Body(answer.stream),
                extensions=answer.extensions,
            )

        async def aclose(self) -> None:
            await self._connections.aclose()

    return Transport()


def _public_backend(core: Any, allowed: Collection[str]) -> Any:
    """A network backend for the connection pools of `core` (a module with httpcore's names) that resolves a
    name, refuses it unless every address is public, and connects to an address that it has checked. A host
    that is `allowed` may have any address."""

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
                    if host.lower() in allowed or f"{host.lower()}:{port}" in allowed:
                        addresses = await _addresses(host, port)
                    else:
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


async def _addresses(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))
