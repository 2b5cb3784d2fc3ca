"""Accept connections of one listener, within the limit of connections.

asyncio's own servers accept until the descriptors are gone, and without any they try again in a busy loop.
Here the reader of a listening socket accepts a batch a turn; at the limit the oldest idle connection makes
room, and if none is idle the new one is answered 503. Without descriptors the listener rests for 100 ms.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from agentflow import logs
from agentflow.server.sockets import Listener

__all__ = ["Acceptor", "Gate"]

_log = logs.get_logger("agentflow.server")
_BATCH = 64
"""Connections accepted before others have their turn."""
_REST_S = 0.1
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Gate(Protocol):
    """Says what becomes of a connection that was accepted."""

    def is_open(self) -> bool:
        """Return whether one more may be accepted in this turn of the loop."""
        ...

    def protocol(self, listener: Listener, tls: bool) -> Callable[[], asyncio.Protocol]:
        """Return the factory of its protocol, which may be one that only refuses."""
        ...


class Acceptor:
    """Accepts on one listener from `start` to `stop`."""

    def __init__(
        self, listener: Listener, gate: Gate, tls: ssl.SSLContext | None, handshake_s: float
    ) -> None:
        self._listener = listener
        self._gate = gate
        self._tls = tls
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._opening: dict[asyncio.Task[None], None] = {}  # oldest first
        self._open = False

    @property
    def opening(self) -> int:
        """Connections between accept and protocol, such as those in a TLS handshake."""
        return len(self._opening)

    def start(self) -> None:
        """Begin to accept."""
        self._open = True
        self._loop.add_reader(self._listener.sock.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no more; connections that are not open yet are dropped."""
        self._open = False
        if self._resting is not None:
            self._resting.cancel()
        if self._listener.sock.fileno() >= 0:
            self._loop.remove_reader(self._listener.sock.fileno())
        for task in list(self._opening):
            task.cancel()

    async def wait_stopped(self) -> None:
        """Wait for the connections that were dropped."""
        if self._opening:
            await asyncio.wait(list(self._opening))

    def drop_oldest(self) -> bool:
        """Drop the connection that has been in its handshake the longest; False if there is none."""
        for task in self._opening:
            if self._tls is not None and not task.cancelling():
                task.cancel()
                return True
        return False

    def _accept(self) -> None:
        for _ in range(_BATCH):
            if not self._gate.is_open():
                return  # what was closed gives its descriptor back between two turns
            try:
                sock, _ = self._listener.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._rest(error)
                return
            self._take(sock)

    def _rest(self, error: OSError) -> None:
        _log.warning("accept_without_descriptors", listener=self._listener.name, error=error.strerror)
        self._loop.remove_reader(self._listener.sock.fileno())
        self._resting = self._loop.call_later(_REST_S, self.start)

    def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        factory = self._gate.protocol(self._listener, self._tls is not None)
        task = self._loop.create_task(self._connect(factory, sock))
        self._opening[task] = None
        task.add_done_callback(self._opened)

    async def _connect(self, factory: Callable[[], asyncio.Protocol], sock: socket.socket) -> None:
        timeout = None if self._tls is None else self._handshake_s
        try:
            await self._loop.connect_accepted_socket(
                factory, sock, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except OSError:  # gone, or no TLS; ssl.SSLError is one of them
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise

    def _opened(self, task: asyncio.Task[None]) -> None:
        del self._opening[task]
        if not task.cancelled() and (error := task.exception()):
            _log.error("connection_failed", exc_info=error)
