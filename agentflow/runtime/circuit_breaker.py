"""The circuit of one provider key: calls to a provider that is down fail fast (page 000 §9).

It opens after 5 transient failures in a row and is half-open after 30 s: one call then probes the provider,
the others wait for what comes of it. It does no I/O; time is that of the running loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from agentflow.definition.failure import ErrorInfo

__all__ = ["AdmittedCall", "Circuit", "CircuitOpen"]

_FAILURES_TO_OPEN: Final = 5
_OPEN_S: Final = 30.0
_MAX_IN_DOUBT: Final = 9
"""Failures in a row and calls under way at most, before another call begins: enough to find out whether the
provider is down, so that many waiting calls do not all find out for themselves."""


class CircuitOpen(Exception):
    """The provider is taken to be down; `retry_after` is the seconds until it is tried again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"not called for {retry_after:.0f} s after {_FAILURES_TO_OPEN} failures in a row")
        self.retry_after = retry_after


class AdmittedCall:
    """Identity of a call: a probe ends by its own record, not by that of an older call."""

    __slots__ = ()


class Circuit:
    """For the calls of one event loop. Each `admit` is followed by exactly one `record` of its call."""

    def __init__(self) -> None:
        self._failures = 0
        self._under_way = 0
        self._open_until: float | None = None
        self._probe: AdmittedCall | None = None
        self._changed: asyncio.Future[None] | None = None

    @property
    def health(self) -> int:
        """0 while it is open, 1 after a failure and while it is half-open, 2 otherwise."""
        if self._open_until is not None:
            return 0 if self._open_until > asyncio.get_running_loop().time() else 1
        return 1 if self._failures else 2

    async def admit(self) -> AdmittedCall:
        """Return a call once it may be made. Raises CircuitOpen while the circuit is open.

        Waits for the probe of a half-open circuit, and while enough calls are under way to find out whether
        the provider is down.
        """
        call = AdmittedCall()
        while True:
            if self._open_until is not None:
                left = self._open_until - asyncio.get_running_loop().time()
                if left > 0:
                    raise CircuitOpen(left)
                if self._probe is None:
                    self._probe = call
                    break
            elif not self._failures or self._failures + self._under_way < _MAX_IN_DOUBT:
                break
            await self._change()
        self._under_way += 1
        return call

    def record(self, call: AdmittedCall, error: ErrorInfo | None, *, conclusive: bool = True) -> None:
        """Note how a call ended; `error` None is an answer.

        A refusal (a key, a limit of rate, an invalid request) is an answer too: the provider is there. A
        call that is not `conclusive` was cancelled, or failed here. A call that began before the probe and
        fails beside it says nothing new, and leaves the probe alone.
        """
        self._under_way -= 1
        was_probe = call is self._probe
        if was_probe:
            self._probe = None
        if conclusive and (error is None or error.category not in ("transient", "timeout")):
            self._failures, self._open_until, self._probe = 0, None, None
        elif conclusive:
            self._failures += 1
            opens = self._open_until is None and self._failures >= _FAILURES_TO_OPEN
            if opens or was_probe:
                self._open_until = asyncio.get_running_loop().time() + _OPEN_S
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def _change(self) -> None:
        """Wait until a call has ended."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)
