"""A child process that speaks lines over its pipes, and how it is ended: all of it, and always reaped.

It leads a process group of its own, so that what it starts ends with it and a Ctrl-C at our terminal is ours
alone. Its standard error is read all the time, since a full pipe would stop it, and the end of it is kept.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["Child", "start"]

MAX_LINE = 16 << 20
_GRACE = 2.0
_TAIL = 4 << 10


class Child:
    """A running process. For one event loop; what starts it must call `end`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tail = b""
        self._drain = asyncio.create_task(self._read_errors())

    @property
    def pid(self) -> int:
        """Its process id, which is that of its group too."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    def last_words(self) -> str:
        """Return the end of what it wrote to its standard error."""
        return self._tail.decode("utf-8", "replace").strip()

    async def read_line(self) -> bytes:
        """Return the next line it writes, b"" at its end. Raises ValueError for a line above 16 MiB."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def write(self, data: bytes) -> None:
        """Write to the standard input of the child; waits while its pipe is full. Raises OSError if it has
        closed it."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(1 << 16):
            self._tail = (self._tail + chunk)[-_TAIL:]

    async def end(self) -> None:
        """Close its input and wait; then ask its group to end, then make it. At most 2 s each; cancelled, it
        makes it at once."""
        process = self._process
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    self._signal(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE):
                        await self._ended()
                        break
        finally:
            self._signal(signal.SIGKILL)  # what it left behind in its group
            self._drain.cancel()
            # A process that left the group may hold the pipes: they must not wait for it.
            transport = getattr(process, "_transport", None)
            if transport is not None:
                transport.close()
        await asyncio.wait({self._drain})

    async def _ended(self) -> None:
        """Wait until it has exited and no process holds its pipes any more; what it still says is dropped."""
        process = self._process
        assert process.stdout is not None
        while await process.stdout.read(1 << 16):
            pass
        await process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def start(command: str, args: list[str], environment: Mapping[str, str], folder: Path | None) -> Child:
    """Start a process with this environment and no more. Raises OSError, ValueError (a NUL character)."""
    process = await asyncio.create_subprocess_exec(
        command,
        *args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=dict(environment),
        cwd=folder,
        start_new_session=True,
        limit=MAX_LINE,
    )
    return Child(process)
