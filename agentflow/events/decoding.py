"""Decodes pages of events: off the event loop if they are long.

An event holds up to 8 MiB of input, output or conversation, and a page hundreds of events; decoding takes
10 to 30 ms a MiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from agentflow.aside import compute_aside
from agentflow.events.envelope import Event, decode

__all__ = ["decode_page"]

_LONG_BYTES: Final = 256 * 1024
_LONG_EVENTS: Final = 256


class _Row(Protocol):
    @property
    def body(self) -> bytes: ...

    @property
    def size(self) -> int: ...


async def decode_page(rows: Sequence[_Row]) -> list[Event[Any]]:
    """Return the events of these rows; in a thread if they have more than 256 KiB together.

    With 256 rows or more the event loop goes on in between.

    Raises LogCorrupt and ConfigurationError as `decode` does.
    """
    if sum(row.size for row in rows) <= _LONG_BYTES:
        if len(rows) >= _LONG_EVENTS:  # a log in memory is read without ever waiting
            await asyncio.sleep(0)
        return _decode_each(rows)
    return await compute_aside(_decode_each, rows)


def _decode_each(rows: Sequence[_Row]) -> list[Event[Any]]:
    return [decode(row.body) for row in rows]
