"""Ids and times as they stand in events: ULIDs and RFC 3339 in UTC (page 000 §1).

The clock and the randomness are given, so that a simulated run has the same ids every time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["IdRange", "Ids", "iso", "micros", "new_id", "written"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Two digits of base 32 at a time: the random part of a ULID is eight look-ups.
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_LOW_BITS = 20
_LOW_MASK = (1 << _LOW_BITS) - 1


class Ids:
    """Makes ULIDs that rise strictly within this object, also when the clock stands still or steps back.

    `clock` gives microseconds since the epoch, `random` that many random bits. Not for use by several
    threads at once.
    """

    __slots__ = ("_clock", "_head", "_high", "_low", "_ms", "_random")

    def __init__(
        self, clock: Callable[[], int] | None = None, random: Callable[[int], int] | None = None
    ) -> None:
        self._clock = clock or _wall_clock
        self._random = random or secrets.randbits
        self._ms = -1
        self._high = 0
        self._low = _LOW_MASK
        self._head = ""

    def ulid(self, prefix: str) -> str:
        """Return the next id: `prefix` (as `evt_`) and 26 characters."""
        ms = self._clock() // 1000
        if ms > self._ms:
            self._ms = ms
            bits = self._random(80)
            self._high, self._low = bits >> _LOW_BITS, bits & _LOW_MASK
            self._head = ""
        elif self._low < _LOW_MASK:
            self._low += 1
        else:
            self._low = 0
            self._high = (self._high + 1) & ((1 << 60) - 1)
            if self._high == 0:  # 2**80 ids in a millisecond; borrow the next one
                self._ms += 1
            self._head = ""
        if not self._head:
            self._head = _head(self._ms, self._high)
        low = self._low
        return f"{prefix}{self._head}{_PAIRS[low >> 10]}{_PAIRS[low & 1023]}"

    def reserve(self, count: int) -> IdRange:
        """Take the next `count` ids, to be written later; the clock is read once for all, unless they do not
        fit its moment."""
        ms = self._clock() // 1000
        if ms > self._ms:
            self._ms = ms
            bits = self._random(80)
            self._high, self._low = bits >> _LOW_BITS, (bits & _LOW_MASK) - 1
            self._head = ""
        low = self._low + 1
        if low + count > _LOW_MASK:
            return [self.ulid("") for _ in range(count)]
        self._low = low + count - 1
        return self._ms, self._high, low, count


IdRange = tuple[int, int, int, int] | list[str]
"""Ids that were reserved: milliseconds, high bits, the first low bits and how many; or their texts."""


def written(prefix: str, reserved: IdRange) -> list[str]:
    """Return the ids that were reserved, in order."""
    if isinstance(reserved, list):
        return [prefix + text for text in reserved]
    ms, high, low, count = reserved
    head = prefix + _head(ms, high)
    return [f"{head}{_PAIRS[n >> 10]}{_PAIRS[n & 1023]}" for n in range(low, low + count)]


_last_head: tuple[int, int, str] = (-1, 0, "")  # batches of one millisecond share it


def _head(ms: int, high: int) -> str:
    """Return the 22 digits of an id but the last four: ten of the time, twelve of the random part."""
    global _last_head
    known = _last_head  # read once: another thread may replace it
    if known[0] != ms or known[1] != high:
        p = _PAIRS
        time_digits = (
            f"{p[ms >> 40 & 1023]}{p[ms >> 30 & 1023]}{p[ms >> 20 & 1023]}{p[ms >> 10 & 1023]}{p[ms & 1023]}"
        )
        digits = (
            f"{p[high >> 50 & 1023]}{p[high >> 40 & 1023]}{p[high >> 30 & 1023]}"
            f"{p[high >> 20 & 1023]}{p[high >> 10 & 1023]}{p[high & 1023]}"
        )
        known = _last_head = (ms, high, time_digits + digits)
    return known[2]


def _wall_clock() -> int:
    return time.time_ns() // 1000


_shared = Ids()


def new_id(prefix: str) -> str:
    """Return an id from the wall clock of this machine; where a seam exists, use its `Ids` instead."""
    return _shared.ulid(prefix)


_MILLIS = tuple(f"{n:03d}" for n in range(1000))
# The text up to the decimal point is made once a second; formatting it costs more than all the rest.
_second: tuple[int, str] = (0, "1970-01-01T00:00:00.")


def iso(ts_us: int) -> str:
    """Format microseconds since the epoch as `2026-01-31T23:59:59.000001Z`."""
    global _second
    seconds = ts_us // 1_000_000
    rest = ts_us - seconds * 1_000_000
    cached = _second  # read once: another thread may replace it
    if cached[0] != seconds:
        cached = (seconds, datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S."))
        _second = cached
    return f"{cached[1]}{_MILLIS[rest // 1000]}{_MILLIS[rest % 1000]}Z"


def micros(text: str) -> int:
    """Parse an RFC 3339 time, the inverse of `iso`. Raises ValueError without a time zone."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    delta = at - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
