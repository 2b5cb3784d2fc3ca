"""Actors that do slow work for others, a bounded number of pieces at once, in the order of asking.

A piece whose asker has gone (cancelled, timed out, killed) is dropped, or cancelled when it has begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import Any

from actors import Actor, Reply

__all__ = ["LimitedActor"]


class _Piece:
    __slots__ = ("cancelled", "message", "reply")

    def __init__(self, message: Any, reply: Reply[Any]) -> None:
        self.message = message
        self.reply = reply
        self.cancelled = False


class LimitedActor(Actor, mailbox=10_000):
    """Subclasses give the limit and say what a piece of work is; `work` must not raise but for bugs."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active = 0
        self._queue: deque[_Piece] = deque()

    def work(self, message: Any) -> Awaitable[Any]:
        """The work of one message; what it returns is the reply."""
        raise NotImplementedError

    def enqueue(self, message: Any) -> None:
        """Take the present ask over; called from a handler."""
        piece = _Piece(message, self.ctx.defer())
        if self._active < self._limit:
            self._begin(piece)
        else:
            self._queue.append(piece)

    def _begin(self, piece: _Piece) -> None:
        self._active += 1
        handle = self.ctx.pipe(self._run(piece), lambda _: None)

        def abandon() -> None:
            handle.cancel()

        piece.reply.on_abandon(abandon)

    async def _run(self, piece: _Piece) -> None:
        try:
            result = await self.work(piece.message)
        except Exception as error:
            piece.reply.fail(error)
        else:
            piece.reply.set(result)
        finally:
            self._active -= 1
            self._next()

    def _next(self) -> None:
        while self._queue and self._active < self._limit:
            piece = self._queue.popleft()
            if not piece.reply.abandoned:
                self._begin(piece)
