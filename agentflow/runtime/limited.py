"""Actors that do slow work for others, a bounded number of pieces at once, in the order of asking.

Who asks gets a reply, who tells gets the result as a message. Work that nobody wants any more (its asker
was cancelled, killed or timed out; its teller sent CancelCall) is dropped, or cancelled when it has begun.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable
from typing import Any

from actors import Actor, Pipe, Ref, Reply, on
from agentflow.runtime.messages import CancelCall

__all__ = ["LimitedActor"]

_log = logging.getLogger("agentflow.runtime")


class _Piece:
    __slots__ = ("begun", "call_id", "dropped", "message", "pipe", "reply", "sender")

    def __init__(self, message: Any, reply: Reply[Any], sender: Ref[Any] | None) -> None:
        self.message = message
        self.reply = reply
        self.sender = sender
        self.call_id: str = message.call_id
        self.pipe: Pipe | None = None
        self.begun = False
        self.dropped = False


class LimitedActor(Actor, mailbox=10_000):
    """Subclasses give the limit and say what a piece of work is; `work` must not raise but for bugs."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active = 0
        self._queue: deque[_Piece] = deque()
        self._told: dict[str, _Piece] = {}

    def work(self, message: Any) -> Awaitable[Any]:
        """The work of one message; what it returns is the reply."""
        raise NotImplementedError

    def enqueue(self, message: Any) -> None:
        """Take the message in hand over; called from a handler."""
        piece = _Piece(message, self.ctx.defer(), self.ctx.sender)
        if piece.reply.asked:
            piece.reply.on_abandon(lambda: self._drop(piece))
        else:
            self._told[piece.call_id] = piece
        if self._active < self._limit:
            self._begin(piece)
        else:
            self._queue.append(piece)

    @on(CancelCall)
    def cancel_call(self, message: CancelCall) -> None:
        piece = self._told.get(message.call_id)
        if piece is not None:
            self._drop(piece)

    def _drop(self, piece: _Piece) -> None:
        piece.dropped = True
        self._told.pop(piece.call_id, None)
        if piece.pipe is not None:
            piece.pipe.cancel()
            if not piece.begun:  # cancelled before its first step: `_run` will never give the place back
                piece.begun = True
                self._active -= 1
                self._next()

    def _begin(self, piece: _Piece) -> None:
        self._active += 1
        piece.pipe = self.ctx.pipe(self._run(piece), _nothing)

    async def _run(self, piece: _Piece) -> None:
        piece.begun = True
        try:
            result = await self.work(piece.message)
        except Exception as error:
            # A bug of `work` is that call's misfortune; the service goes on for all others.
            _log.exception("%s: %r", self.ctx.self.path, piece.call_id)
            piece.reply.fail(error)
        else:
            if piece.reply.asked:
                piece.reply.set(result)
            elif piece.sender is not None:
                piece.sender.tell(result)
        finally:
            self._told.pop(piece.call_id, None)
            self._active -= 1
            self._next()

    def _next(self) -> None:
        while self._queue and self._active < self._limit:
            piece = self._queue.popleft()
            if not piece.dropped:
                self._begin(piece)


def _nothing(_: None) -> None:
    return None
