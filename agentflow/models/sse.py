"""Server-sent events, as bytes come in: the parser of the HTML standard, without `id` and `retry`.

Pure: it does no I/O. Lines end at CR, LF or CRLF only, so that U+2028 inside a JSON text stays where it is.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["EventDecoder", "StreamTooLong"]

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class StreamTooLong(Exception):
    """One event of the stream is longer than the decoder holds."""


class EventDecoder:
    """Turns chunks of bytes into the data of events. `limit` bounds the bytes of one unfinished event."""

    def __init__(self, limit: int = 16 << 20) -> None:
        self._limit = limit
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that the chunk completes, in order. Raises StreamTooLong."""
        if not chunk:
            return []
        buffer = self._rest + chunk
        if self._first and len(buffer) >= len(_BOM):
            buffer = buffer.removeprefix(_BOM)
            self._first = False
        # A CR at the end ended its line at once; the LF that may follow belongs to it.
        ended_by_cr, self._after_cr = self._after_cr, buffer.endswith(b"\r")
        if ended_by_cr:
            buffer = buffer.removeprefix(b"\n")
        *lines, self._rest = _LINE_END.split(buffer)
        events: list[bytes] = []
        for line in lines:
            self._line(line, events)
        if len(self._rest) + self._size > self._limit:
            raise StreamTooLong(f"an event of the stream is longer than {self._limit} bytes")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
