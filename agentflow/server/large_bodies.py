"""Request bodies that cost: how many there may be at once, and how many values one may hold.

Decoding holds the interpreter until it is done, for 50 to 100 ns a value, and freeing does the same. A body
of 8 MiB could hold 4 million arrays, which is 0.4 s; so what may be in it is bounded before it is decoded.
A name that occurs for the first time costs five times as much: distinct names have a bound of their own. So
have the digits of long integers, whose cost grows with the square of their length, and the numbers with
exponents.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from agentflow.json_numbers import costly_numbers
from agentflow.server.problems import Refusal

__all__ = ["LARGE_BODY", "LargeBodies", "check_numbers", "check_values"]

LARGE_BODY: Final = 64 * 1024
"""Bytes beyond which a body is decoded in a thread, one at a time."""
MAX_VALUES: Final = 500_000
"""Arrays, objects and members of one body: 50 ms of decoding."""
MAX_NAMES: Final = 100_000
"""Distinct names of members of one body: 30 to 50 ms of decoding; 400,000 took 200 ms."""
MAX_DIGITS: Final = 256 * 1024
"""Digits of one body in numbers of more than 100 digits: 4 ms to decode, 12 ms to write; 7 MiB took 0.3 s."""

_MAX_LARGE: Final = 32
_TEXT: Final = re.compile(rb'"[^"]*+"?')
_NAME_OR_TEXT: Final = re.compile(rb'"([^"]*+)"?(\s*+:)?')
_LONG_NUMBER: Final = re.compile(rb"(?<!\d)\d{101,}+")
_PIECE: Final = 256 * 1024
"""Bytes that are searched at once, so that other threads have the interpreter in between."""


class LargeBodies:
    """Counts the large bodies that are being read, wait, or are decoded: at most 32, 256 MiB together."""

    def __init__(self) -> None:
        self.open = 0

    @contextmanager
    def admit(self, announced: int | None) -> Generator[None]:
        """Count a body while it is read and decoded; one without an announced length counts as large.

        Raises Refusal `queue_full` before anything of it is read.
        """
        if announced is not None and announced <= LARGE_BODY:
            yield
            return
        if self.open >= _MAX_LARGE:
            detail = f"{_MAX_LARGE} request bodies of more than {LARGE_BODY >> 10} KiB are being read"
            raise Refusal("queue_full", detail, hint="send it again in a second")
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


def check_values(data: bytes) -> None:
    """Refuse (`payload_too_large`) a JSON text with more than 500,000 arrays, objects and members, with more
    than 100,000 distinct names of members, with more than 256 Ki digits in numbers of more than 100, or with
    numbers that `check_numbers` refuses.

    Takes up to 1 s, so it is for a thread.
    """
    check_numbers(data)
    many, members = _count(data) > MAX_VALUES, data.count(b":") > MAX_NAMES
    digits = _digits(data) > MAX_DIGITS
    if not (many or members or digits):
        return
    # Escapes are written so that each quote that is left begins or ends a text; names stay distinct.
    plain = data.replace(b"\\\\", b"\1\1").replace(b'\\"', b"\1\2")
    if many or digits:
        _check_outside_of_texts(plain)
    if members:
        _check_names(plain)


def check_numbers(data: bytes) -> None:
    """Refuse (`payload_too_large`) a JSON text with numbers that take more than 50 ms to decode."""
    costly = costly_numbers(data)
    if costly is not None:
        hint = "split it, or send such numbers as texts"
        raise Refusal("payload_too_large", f"the body holds {costly}", hint=hint)


def _check_outside_of_texts(plain: bytes) -> None:
    count = digits = at = 0
    for text in _TEXT.finditer(plain):
        between = plain[at : text.start()]
        count += _count(between)
        digits += _digits(between)
        at = text.end()
    if count + _count(plain[at:]) > MAX_VALUES:
        raise Refusal(
            "payload_too_large",
            f"the body holds more than {MAX_VALUES:,} arrays, objects and members",
            hint="split it, or pass what is large by reference",
        )
    if digits + _digits(plain[at:]) > MAX_DIGITS:
        raise Refusal(
            "payload_too_large",
            f"the body holds more than {MAX_DIGITS:,} digits in numbers of more than 100 digits",
            hint="send such numbers as texts",
        )


def _check_names(plain: bytes) -> None:
    names: set[bytes] = set()
    for found in _NAME_OR_TEXT.finditer(plain):
        if found[2] is None:
            continue
        names.add(found[1])
        if len(names) > MAX_NAMES:
            raise Refusal(
                "payload_too_large",
                f"the body holds more than {MAX_NAMES:,} distinct names of members",
                hint="pass a list of entries instead of one object, or split it",
            )


def _count(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{") + data.count(b":")


def _digits(data: bytes) -> int:
    """Return the digits in runs of more than 100; a run over the border of two pieces may count for less."""
    pieces = range(0, len(data), _PIECE)
    return sum(
        found.end() - found.start()
        for start in pieces
        for found in _LONG_NUMBER.finditer(data, start, start + _PIECE)
    )
