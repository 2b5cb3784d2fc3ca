"""RetryPolicy: one shape in documents, IR and Python (page 000 §9). Durations are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

__all__ = ["MAX_SECONDS", "NO_RETRY", "Backoff", "RetryPolicy"]

MAX_SECONDS = 36_500 * 86_400.0
"""The longest duration: a moment that lies further away has no date."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delay before attempt n+1: `min(max, initial * multiplier**(n-1))` seconds.

    The policy of an executor may state durations as texts: `Backoff(initial="200ms")`.
    """

    initial: float = 1.0
    multiplier: float = 2.0
    max: float = 30.0

    if TYPE_CHECKING:  # an executor turns texts into seconds; documents and the IR have seconds alone

        def __init__(
            self, *, initial: float | str = 1.0, multiplier: float = 2.0, max: float | str = 30.0
        ) -> None: ...

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after the given number (≥ 1) of failed attempts, before jitter."""
        try:
            return min(self.max, self.initial * self.multiplier ** (failures - 1))
        except OverflowError:
            return self.max


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often and when an attempt is repeated. Attempts count from 1.

    `timeout` bounds one attempt, `max_elapsed` runs from the first failure to the start of the last
    attempt; `retry_on` takes error categories and codes. The policy of an executor may state durations as
    texts: `timeout="5s"`.
    """

    max_attempts: int = 4
    backoff: Backoff = Backoff()
    jitter: float = 0.1
    max_elapsed: float = 60.0
    timeout: float | None = 300.0
    retry_on: tuple[str, ...] = ("transient", "timeout", "rate_limited")

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            max_attempts: int = 4,
            backoff: Backoff | float | str = ...,
            jitter: float = 0.1,
            max_elapsed: float | str = 60.0,
            timeout: float | str | None = 300.0,
            retry_on: Sequence[str] = ...,
        ) -> None: ...

    def covers(self, category: str, code: str) -> bool:
        """Return whether an error of this category and code is one that the policy repeats."""
        return category in self.retry_on or code in self.retry_on


NO_RETRY = RetryPolicy(max_attempts=1, timeout=None)
