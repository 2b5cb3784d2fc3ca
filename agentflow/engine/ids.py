"""Ids that follow from the log: the engine draws no random numbers.

A derived id has the form of a ULID (48 bits of time, 80 bits of content) but its content is a hash of
what it names, so the same log gives the same ids, and an idempotency key made from one survives a
crash between the decision and its append.
"""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["derive"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]


def derive(prefix: str, now: int, *parts: object) -> str:
    """`prefix` + 26 characters of Crockford base 32. `now` is in microseconds since the epoch."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=10).digest()
    n = ((now // 1000) & (2**48 - 1)) << 80 | int.from_bytes(digest, "big")
    pairs = _PAIRS
    out: list[str] = []
    for _ in range(13):
        out.append(pairs[n & 1023])
        n >>= 10
    out.reverse()
    return prefix + "".join(out)
