"""Signal handlers of a process that runs an event loop: the daemon's, and a command's."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

__all__ = ["SignalHandlers"]


class SignalHandlers:
    """While entered, `handler` is called on the signals `numbers`. For the main thread and its running loop.

    `handler(number, frame)` runs between two bytecodes, also while the loop is busy: this is why
    `loop.add_signal_handler`, whose callback waits for its turn, is not used. Python would run it only when
    the main thread comes back from waiting for I/O, which a signal does not end if it comes just before the
    wait begins or reaches another thread; so each signal also writes to a socket that the loop reads.
    """

    def __init__(
        self, numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
    ) -> None:
        self._numbers = tuple(numbers)
        self._handler = handler
        self._before: dict[signal.Signals, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def __enter__(self) -> None:
        self._wake_the_loop()
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._handler)

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._sockets is not None:
            read, write = self._sockets
            signal.set_wakeup_fd(-1)
            asyncio.get_running_loop().remove_reader(read)
            read.close()
            write.close()

    def _wake_the_loop(self) -> None:
        if sys.platform == "win32":  # its loop has a wake-up of its own, and no readers
            return
        loop = asyncio.get_running_loop()
        read, write = socket.socketpair()
        read.setblocking(False)
        write.setblocking(False)
        before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        if before != -1:  # uvloop has a wake-up of its own
            signal.set_wakeup_fd(before)
            read.close()
            write.close()
            return
        self._sockets = read, write
        loop.add_reader(read, _drain, read)


def _drain(read: socket.socket) -> None:
    """Take what signals wrote; their handlers ran before."""
    read.recv(4096)
