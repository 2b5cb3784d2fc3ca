"""Ids that follow from the log: the engine draws no random numbers.

A derived id has the form of a ULID (48 bits of time, 80 bits of content) but its content is a hash of
what it names, so the same log gives the same ids, and an idempotency key made from one survives a
crash between the decision and its append.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

__all__ = ["derive", "named"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]


_last_time = (-1, "")


def derive(prefix: str, now: int, *parts: object) -> str:
    """`prefix` + 26 characters of Crockford base 32. `now` is in microseconds since the epoch."""
    global _last_time
    ms = now // 1000
    known, head = _last_time
    if known != ms:
        head = _ten(ms)
        _last_time = (ms, head)
    texts: Any = parts
    try:
        text = "\x1f".join(texts)  # most parts are texts
    except TypeError:
        text = "\x1f".join(map(str, parts))
    n = int.from_bytes(blake2b(text.encode(), digest_size=10).digest(), "big")
    p = _PAIRS
    # Written out, and by 20 bits: ids are made for every call, and small integers are quick.
    a, b, c, d = n >> 60, n >> 40 & 0xFFFFF, n >> 20 & 0xFFFFF, n & 0xFFFFF
    return (
        f"{prefix}{head}{p[a >> 10]}{p[a & 1023]}{p[b >> 10]}{p[b & 1023]}"
        f"{p[c >> 10]}{p[c & 1023]}{p[d >> 10]}{p[d & 1023]}"
    )


def named(prefix: str, *parts: object) -> str:
    """Return an id that is the same at any time: all 26 characters come from the content."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=16).digest()
    n = int.from_bytes(digest, "big")
    return prefix + "".join(_PAIRS[n >> shift & 1023] for shift in range(120, -1, -10))


def _ten(ms: int) -> str:
    """Return the 48 bits of the time as ten characters."""
    p = _PAIRS
    high, low = ms >> 20, ms & 0xFFFFF
    return f"{p[high >> 20 & 1023]}{p[high >> 10 & 1023]}{p[high & 1023]}{p[low >> 10]}{p[low & 1023]}"
