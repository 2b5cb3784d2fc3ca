"""One connection to an MCP server: opened when it is needed, opened anew when it was lost, closed when it has
not been used for a while.

The SDK's task groups are entered and left in a task of the connection's own; calls come from any task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import mcp_types as types
from mcp.client import Client

from agentflow import __version__
from agentflow.tools.mcp_transports import Streams

__all__ = ["McpConnection"]

_log = logging.getLogger("agentflow.tools")
_IDLE = 600.0

Open = Callable[[Callable[[], None]], AbstractAsyncContextManager[Streams]]
"""Makes a transport, given what to call when there is nothing more to read from it."""


class McpConnection:
    """For one event loop. `idle` in seconds; `changed` is called when the server's functions have changed."""

    def __init__(self, name: str, open: Open, changed: Callable[[], None], *, idle: float = _IDLE) -> None:
        self._name = name
        self._open = open
        self._changed = changed
        self._idle = idle
        self._live: _Live | None = None
        self._lock = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether a call would find the server at once."""
        return self._live is not None and self._live.usable

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """Yield the connected client, for one call. Raises what kept it from being connected."""
        live = await self._connected()
        live.users += 1
        try:
            yield live.client.result()
        finally:
            live.users -= 1
            live.touch()

    async def _connected(self) -> _Live:
        async with self._lock:
            live = self._live
            if live is None or not live.usable:
                if live is not None:
                    await live.close()
                live = self._live = _Live(self._name, self._open, self._changed, self._idle)
            try:
                await asyncio.shield(live.client)
            except BaseException:
                # Also if the caller has waited too long.
                self._live = None
                await live.close()
                raise
            return live

    async def lost(self) -> None:
        """Note that the server does not know this connection any more: the next call opens another."""
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    async def aclose(self) -> None:
        """End the connection, and the process behind it; idempotent. A later call opens it again."""
        await self.lost()


class _Live:
    """One connection from its beginning to its end."""

    def __init__(self, name: str, open: Open, changed: Callable[[], None], idle: float) -> None:
        loop = asyncio.get_running_loop()
        self.client: asyncio.Future[Client] = loop.create_future()
        self.users = 0
        self._name = name
        self._idle = idle
        self._changed = changed
        self._stop = asyncio.Event()
        self._used = loop.time()
        self._task = asyncio.create_task(self._serve(open), name=f"agentflow mcp {name}")

    @property
    def usable(self) -> bool:
        return not (self._stop.is_set() or self._task.done())

    def touch(self) -> None:
        self._used = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Wait for its end, also if the caller is cancelled."""
        self._stop.set()
        if not self.client.done():
            self._task.cancel()  # it is on the way to a server that does not answer
        await asyncio.wait({self._task})

    async def _serve(self, open: Open) -> None:
        try:
            client = Client(
                open(self._stop.set),
                cache=None,
                client_info=types.Implementation(name="agentflow", version=__version__),
                message_handler=self._message,
            )
            async with client:
                self.touch()
                self.client.set_result(client)
                await self._until_over()
        except BaseException as failure:  # also groups of them, and cancellation
            self._stop.set()
            if not self.client.done():
                self.client.set_exception(_first(failure))
                self.client.exception()  # the caller may be gone
            else:
                _log.debug("the connection to the MCP server %s ended: %r", self._name, _first(failure))
            if isinstance(failure, KeyboardInterrupt | SystemExit):
                raise

    async def _until_over(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            rest = self._idle if self.users else self._used + self._idle - loop.time()
            if rest <= 0:
                self._stop.set()
                return
            try:
                async with asyncio.timeout(rest):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def _message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed()


def _first(failure: BaseException) -> BaseException:
    """Return the error that a group of them began with."""
    while isinstance(failure, BaseExceptionGroup):
        errors = cast("tuple[BaseException, ...]", failure.exceptions)
        failure = next((e for e in errors if not isinstance(e, asyncio.CancelledError)), errors[0])
    if isinstance(failure, asyncio.CancelledError):
        return ConnectionAbortedError("the connection was given up")
    return failure
