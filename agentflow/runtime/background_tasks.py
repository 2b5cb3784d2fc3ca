"""Tasks that outlive their caller, and tasks without a caller.

Each ends by itself or with the Runtime: none is leaked, and none is left half done because its caller was
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from agentflow.errors import AgentflowError

__all__ = ["BackgroundTasks"]

T = TypeVar("T")
_log = logging.getLogger("agentflow.runtime")


class BackgroundTasks:
    """Tasks of one event loop. No actor, because its callers await results and must be able to be cancelled.

    `run_shielded` completes even if its caller is cancelled; `start_soon` is cancelled by `close()`.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancellable: set[asyncio.Task[Any]] = set()  # cut off at the close
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self.closed = False

    async def close(self) -> None:
        """Cancel the cancellable tasks; return when they have ended."""
        self.closed = True
        cut = list(self._cancellable)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)

    @asynccontextmanager
    async def exclusive(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of a key: blocks with the same key run one after another, FIFO."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    async def run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end even if the caller is cancelled. Raises AgentflowError if `close()` cancelled it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._shielded_done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            asker = asyncio.current_task()
            if task.cancelled() and (asker is None or not asker.cancelling()):
                raise AgentflowError("the Runtime was closed; nothing was begun") from None
            raise

    def _shielded_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because its caller may have been cancelled

    def start_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that `close()` cancels. Its error is logged as a warning."""
        if self.closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._cancellable.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._cancellable.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a run could not be taken up: %s", error)

    @contextmanager
    def cancellable(self) -> Generator[None]:
        """Allow `close()` to cancel the current task inside this block."""
        task = asyncio.current_task()
        assert task is not None
        if task in self._cancellable:
            yield
            return
        self._cancellable.add(task)
        try:
            yield
        finally:
            self._cancellable.discard(task)
