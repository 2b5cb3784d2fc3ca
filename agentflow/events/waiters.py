"""Subscribers that wait until something is published."""

from __future__ import annotations

import asyncio

__all__ = ["Waiters"]


class Waiters:
    """Tasks of one event loop that wait for the next `wake`; `len` is their number."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self) -> None:
        """Wait until the next `wake`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)

    def wake(self) -> None:
        """Wake every task that waits now."""
        futures, self._futures = self._futures, set()
        for future in futures:
            if not future.done():
                future.set_result(None)
