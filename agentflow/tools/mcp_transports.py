"""Transports to an MCP server: a child process, or streamable HTTP. Needs the extra `mcp`.

Both give the SDK the pair of streams that it wants, and notice when there will be nothing more to read.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agentflow.public_transport import public_transport
from agentflow.tools.child import Child, start

__all__ = ["Exchange", "Streams", "exchange", "http_streams", "process_streams"]

Streams = tuple[Any, Any]

_log = logging.getLogger("agentflow.tools")
_CONNECT_TIMEOUT = 10.0
_MAX_ANSWER = 8 << 20


class Exchange:
    """What HTTP said to the requests of one call."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.failure: Exception | None = None


# The SDK sends a request in a task of its own that has the caller's context.
exchange: ContextVar[Exchange | None] = ContextVar("agentflow.tools.exchange", default=None)


@asynccontextmanager
async def process_streams(
    command: str,
    args: list[str],
    environment: Mapping[str, str],
    folder: Path | None,
    *,
    started: Callable[[Child], None],
    ended: Callable[[], None],
) -> AsyncGenerator[Streams]:
    """Start the server; leaving ends it. Of our environment it sees what every program needs (HOME, PATH …).

    Raises OSError, ValueError when it cannot be started. `ended` is called when it closes its output.
    """
    child = await start(command, args, {**get_default_environment(), **environment}, folder)
    started(child)
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        async with to_session:
            try:
                while line := await child.read_line():
                    message = _parsed(line)
                    if message is not None:
                        await to_session.send(message)
            except ValueError:
                _log.warning("an MCP server wrote a line of more than 16 MiB and is ended")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass  # the session is over
            finally:
                ended()

    async def write() -> None:
        async with from_session:
            try:
                async for message in from_session:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await child.write(text.encode() + b"\n")
            except OSError:
                await to_session.aclose()  # so that the session hears of it

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
            try:
                yield from_server, to_server
            finally:
                tasks.cancel_scope.cancel()
    finally:
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()
        # However this ends: the process ends, and is reaped.
        with anyio.CancelScope(shield=True):
            await child.end()


def _parsed(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # Many a server prints to its output what belongs to its log.
        _log.debug("an MCP server wrote a line that is no message")
        return None


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], *, public_only: bool, ended: Callable[[], None]
) -> AsyncGenerator[Streams]:
    """Open streams to a server at a URL. The status of each request of a call is noted in `exchange`."""

    client = _Client(
        # A limit on compressed bytes would be none.
        headers={**headers, "accept-encoding": "identity"},
        # How long an answer takes is bounded by the call, not here.
        timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT),
        transport=_public_transport() if public_only else None,
        trust_env=not public_only,
    )
    try:
        async with (
            client,
            streamable_http_client(url, http_client=client, max_sse_event_size=_MAX_ANSWER) as (read, write),
        ):
            yield read, write
    finally:
        ended()


class _Client(httpx2.AsyncClient):
    """Notes what came of a request, and bounds what is read of an answer that is no stream of events."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        # What comes over the open stream of events, if the server has one, belongs to no call.
        current = exchange.get() if request.method == "POST" else None
        try:
            response = await super().send(request, **options)
        except Exception as failure:
            if current is not None:
                current.failure = failure
            raise
        if current is not None:
            current.status = response.status_code
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            failure = httpx2.DecodingError("the answer is compressed, which was not asked for")
            if current is not None:
                current.failure = failure
            raise failure
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)
        return response


def _public_transport() -> httpx2.AsyncBaseTransport:
    import httpcore2

    return public_transport(httpx2, httpcore2, ssl_context=httpx2.create_ssl_context(trust_env=False))


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > _MAX_ANSWER:
                raise httpx2.StreamError(f"the answer has more than {_MAX_ANSWER:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
