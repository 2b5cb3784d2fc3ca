"""Request bodies that cost: how many there may be at once, and how many values one may hold.

Decoding holds the interpreter until it is done, for 50 to 100 ns a value, and freeing does the same. A body
of 8 MiB could hold 4 million arrays, which is 0.4 s; so what may be in it is bounded before it is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from agentflow.server.problems import Refusal

__all__ = ["LARGE_BODY", "LargeBodies", "check_values"]

LARGE_BODY: Final = 64 * 1024
"""Bytes beyond which a body is decoded in a thread, one at a time."""
MAX_VALUES: Final = 500_000
"""Arrays, objects and members of one body: 50 ms of decoding."""

_MAX_LARGE: Final = 32
# A text that has no end goes to the end of the body, so that the search never begins again inside of it.
_TEXT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


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
    """Refuse (`payload_too_large`) a JSON text with more than 500,000 arrays, objects and members."""
    if _count(data) <= MAX_VALUES:
        return
    # Most of them may stand inside of texts: those are left out, which takes up to 1 s in a thread.
    count = at = 0
    for text in _TEXT.finditer(data):
        count += _count(data[at : text.start()])
        at = text.end()
    if count + _count(data[at:]) > MAX_VALUES:
        raise Refusal(
            "payload_too_large",
            f"the body holds more than {MAX_VALUES:,} arrays, objects and members",
            hint="split it, or pass what is large by reference",
        )


def _count(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{") + data.count(b":")
