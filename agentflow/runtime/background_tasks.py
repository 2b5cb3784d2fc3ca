"""Work beside the actors: what somebody asked for and may go away from, and what nobody waits for.

It ends by itself or with its owner; none is left behind, and none is half done because its caller left.
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
    """For one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancellable: set[asyncio.Task[Any]] = set()  # cut off at the close
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self.closed = False

    async def close(self) -> None:
        """Cut off what may be; returns when that has ended."""
        self.closed = True
        cut = list(self._cancellable)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)

    @asynccontextmanager
    async def exclusive(self, key: str) -> AsyncGenerator[None]:
        """Whoever enters with the same key comes one after another."""
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
        """Do this though whoever waits for it goes away. AgentflowError: it was cut off."""
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
            task.exception()  # whoever wanted to hear of it may have gone away

    def start_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that nobody waits for: it is cut off at the close, and its errors are logged."""
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
        """In this block the present task may be cut off too."""
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
