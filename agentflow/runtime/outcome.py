"""Outcome: a result that any number of tasks wait for, of which none can cancel it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Generic, TypeVar

__all__ = ["Outcome"]

T = TypeVar("T")


class Outcome(Generic[T]):
    """What a shielded future is, at half of its cost: a waiter is woken in one step of the loop, and an error
    without a waiter is not reported. For one event loop."""

    __slots__ = ("_done", "_error", "_result", "_traceback", "_waiters")

    _result: T

    def __init__(self) -> None:
        self._done = False
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    def done(self) -> bool:
        """Return whether there is a result or an error."""
        return self._done

    def result(self) -> T:
        """Return the result, or raise the error. Raises InvalidStateError before there is one."""
        if not self._done:
            raise asyncio.InvalidStateError("there is no outcome yet")
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)  # else each raise would make it longer
        return self._result

    def exception(self) -> BaseException | None:
        """Return the error, None if there is a result. Raises InvalidStateError before that."""
        if not self._done:
            raise asyncio.InvalidStateError("there is no outcome yet")
        return self._error

    def set_result(self, result: T) -> None:
        """Set the result and wake who waits. Raises InvalidStateError if there is an outcome."""
        self._settle()
        self._result = result

    def set_exception(self, error: BaseException) -> None:
        """Set the error and wake who waits. Raises InvalidStateError if there is an outcome."""
        self._settle()
        self._error, self._traceback = error, error.__traceback__

    def _settle(self) -> None:
        if self._done:
            raise asyncio.InvalidStateError("there is an outcome already")
        self._done = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def settled(self) -> asyncio.Future[None]:
        """Return a future that is done once there is an outcome, whatever it is."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._done:
            waiter.set_result(None)
        elif self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    async def wait(self) -> T:
        """Wait for the result and return it, or raise the error."""
        if not self._done:
            waiter = self.settled()
            try:
                await waiter
            except asyncio.CancelledError:
                if self._waiters is not None:
                    self._waiters.remove(waiter)
                raise
        return self.result()
