"""One supervised child process per model file: started at first use, started again when it died.

It must never leave a process behind, nor show the child's key in arguments, logs or errors.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from agentflow.definition.failure import ErrorInfo
from agentflow.logs import get_logger
from agentflow.models.base import ModelError

__all__ = ["Endpoint", "LocalServer"]

_START_SECONDS: Final = 60.0
_NOTICE_SECONDS: Final = 1.0
_STARTS_ALLOWED: Final = 5
_STARTS_WINDOW: Final = 60.0
_TAIL_LINES: Final = 20
_TAIL_WIDTH: Final = 300
_SECRET_SUFFIXES: Final = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")

_log = get_logger("agentflow.models.local")


class Endpoint(NamedTuple):
    """Where the child listens, and its key. `number` counts the starts of this model's process."""

    number: int
    url: str
    key: str


class LocalServer:
    """The process that serves one model file.

    Belongs to the loop that first calls `ensure`. A process that ends is replaced at the next `ensure`, at
    most five starts in a minute; after that calls fail until the minute is over.
    """

    def __init__(self, path: Path, alias: str, *, threads: int, context: int = 0) -> None:
        self._path, self._alias = path, alias
        self._threads, self._context = threads, context
        self._process: asyncio.subprocess.Process | None = None
        self._endpoint: Endpoint | None = None
        self._reader: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._starts: deque[float] = deque(maxlen=_STARTS_ALLOWED)
        self._count = 0
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process id of the live child; None when there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def ensure(self) -> Endpoint:
        """Return the endpoint of a process that runs, started if need be. Raises ModelError."""
        async with self._lock:
            if self._endpoint is not None and self.pid is not None:
                return self._endpoint
            if self._process is not None and self._process.returncode is not None:
                _log.warning(
                    "local_model_ended", model=self._alias, how=self._ending(self._process.returncode)
                )
            await self._stop()
            self._allow_start()
            self._endpoint = await self._start()
            return self._endpoint

    async def died(self) -> str | None:
        """Return how the process ended, if it did or does within a second; None while it lives.

        A broken connection is seen before the end of the process that caused it, hence the wait."""
        process = self._process
        if process is None:
            return "it was stopped"
        try:
            async with asyncio.timeout(_NOTICE_SECONDS):
                code = await process.wait()
        except TimeoutError:
            return None
        return self._ending(code)

    async def aclose(self) -> None:
        """End the process and wait for it; idempotent."""
        async with self._lock:
            await self._stop()

    def _allow_start(self) -> None:
        now = time.monotonic()
        if len(self._starts) == _STARTS_ALLOWED and now - self._starts[0] < _STARTS_WINDOW:
            raise self._failure(
                f"was started {_STARTS_ALLOWED} times within {_STARTS_WINDOW:.0f} s and ended each time",
                permanent=True,
            )
        self._starts.append(now)

    async def _start(self) -> Endpoint:
        began = time.monotonic()
        key = secrets.token_urlsafe(24)
        self._tail.clear()
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_without_secrets(os.environ),
                # Ctrl-C in a terminal goes to the parent, which ends its child when it is done with it.
                start_new_session=True,
            )
        except OSError as failure:
            raise self._failure(f"could not be started: {failure}", permanent=True) from failure
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._reader = asyncio.create_task(self._keep_tail(process.stderr))
        try:
            port = await self._await_port(process, key)
        except BaseException:
            await self._stop()
            raise
        self._count += 1
        _log.info(
            "local_model_ready",
            model=self._alias,
            pid=process.pid,
            seconds=round(time.monotonic() - began, 2),
        )
        return Endpoint(self._count, f"http://127.0.0.1:{port}/v1", key)

    async def _await_port(self, process: asyncio.subprocess.Process, key: str) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_SECONDS):
                with suppress(ConnectionError):
                    process.stdin.write(key.encode() + b"\n")
                    await process.stdin.drain()
                line = await process.stdout.readline()
                if line:
                    return int(line)
                code = await process.wait()
        except TimeoutError:
            raise self._failure(f"was not ready within {_START_SECONDS:.0f} s") from None
        if self._reader is not None:
            await self._reader
        raise self._failure(f"did not start: {self._ending(code)}", permanent=True)

    def _command(self) -> list[str]:
        options = {
            "model": str(self._path),
            "alias": self._alias,
            "threads": str(self._threads),
            "context": str(self._context),
            "parent": str(os.getpid()),
        }
        command = [sys.executable, "-m", "agentflow.models.local.server"]
        return command + [part for name, value in options.items() for part in (f"--{name}", value)]

    async def _keep_tail(self, stderr: asyncio.StreamReader) -> None:
        """Read what the child says, so that it never blocks, and keep the last lines for errors."""
        rest = b""
        while chunk := await stderr.read(8192):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_TAIL_WIDTH:]
            self._tail.extend(_line(line) for line in lines if line.strip())
        if rest.strip():
            self._tail.append(_line(rest))

    async def _stop(self) -> None:
        process, self._process, self._endpoint = self._process, None, None
        reader, self._reader = self._reader, None
        if process is not None:
            await asyncio.shield(_end(process))
        if reader is not None:
            await reader

    def _ending(self, code: int) -> str:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        said = " | ".join(list(self._tail)[-3:])
        return f"{how}; it said: {said}" if said else how

    def _failure(self, problem: str, *, permanent: bool = False) -> ModelError:
        info = ErrorInfo(
            category="agent" if permanent else "transient",
            code="local_model_failed" if permanent else "server_error",
            message=f"the process of local:{self._alias} {problem}",
            retryable=not permanent,
            provider="local",
        )
        return ModelError(info)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the child, which has nothing to save, and return when it is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ProcessLookupError):
        process.kill()
    process.stdin.close()
    await process.wait()
    # Read to the end: a pipe that is not drained keeps its transport open.
    await process.stdout.read()


def _line(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip()[:_TAIL_WIDTH]


def _without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child that needs no provider's key."""
    return {name: value for name, value in env.items() if not name.upper().endswith(_SECRET_SUFFIXES)}
