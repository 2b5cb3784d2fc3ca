"""Numbers that cost to read: a bound that holds before a JSON text is decoded.

The decoder takes 20 to 50 ns for a usual number, 0.4 µs for one halfway between two doubles such as `1e23`,
and up to 10 µs for one whose exponent is near the ends of the range, such as `1e300`. It holds the
interpreter until the whole text is decoded, so that 8 MiB of such numbers stop every thread for 10 s. Both
kinds are written with an exponent.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_EXPONENTS", "MAX_LONG_EXPONENTS", "costly_numbers"]

MAX_LONG_EXPONENTS: Final = 5_000
"""Numbers of one text whose exponent has three digits or more: 50 ms of decoding."""
MAX_EXPONENTS: Final = 100_000
"""Numbers of one text with an exponent: 40 ms of decoding."""

_STARTS: Final = tuple(b"%c%c" % (letter, after) for letter in b"eE" for after in b"+-0123456789")
_EXPONENT: Final = re.compile(rb"[0-9.][eE][+-]?([0-9]++)")
_TEXT: Final = re.compile(rb'"[^"]*+"?')
_PIECE: Final = 64 * 1024
"""Bytes that are searched at once, so that other threads have the interpreter in between."""


def costly_numbers(data: bytes) -> str | None:
    """Return the end of a sentence, "more than 5,000 numbers with …", about a JSON text that takes more than
    50 ms to decode because of its numbers; None for any other. Takes 1 ms for 1 MiB of usual JSON, and 0.2 s
    for 8 MiB of numbers, without holding the interpreter."""
    if len(data) < 4 * MAX_LONG_EXPONENTS:
        return None
    starts = 0
    for each in _STARTS:  # a loop in Python: `sum` would hold the interpreter for all of them
        starts += data.count(each)
    if starts <= MAX_LONG_EXPONENTS:
        return None
    # Escapes are written so that each quote that is left begins or ends a text.
    plain = data.replace(b"\\\\", b"\1\1").replace(b'\\"', b"\1\2")
    exponents = longs = at = 0
    for text in _TEXT.finditer(plain):
        found, found_long = _count(plain, at, text.start())
        exponents, longs, at = exponents + found, longs + found_long, text.end()
    found, found_long = _count(plain, at, len(plain))
    if longs + found_long > MAX_LONG_EXPONENTS:
        return f"more than {MAX_LONG_EXPONENTS:,} numbers with an exponent of three digits"
    if exponents + found > MAX_EXPONENTS:
        return f"more than {MAX_EXPONENTS:,} numbers with an exponent"
    return None


def _count(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return how many numbers have an exponent there, and how many a long one; one over the border of two
    pieces may be missed."""
    found = longs = 0
    for at in range(start, end, _PIECE):
        digits = _EXPONENT.findall(data, at, min(at + _PIECE, end))
        found += len(digits)
        longs += sum(len(each) > 2 for each in digits)
    return found, longs
