"""Server-sent events, as bytes come in: the parser of the HTML standard, without `id` and `retry`.

Pure: it does no I/O. Lines end at CR, LF or CRLF only, so that U+2028 inside a JSON text stays where it is.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["EventDecoder", "StreamTooLong", "is_event_stream"]

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


_FIELDS: Final = (b"data", b"event", b"id", b"retry", b":")


def is_event_stream(start: bytes, declared: bool) -> bool | None:
    """Return whether a body that begins so is a stream of events; None if more of it is needed to tell.

    `declared`: its content type says so, which is believed unless JSON follows.
    """
    text = start.removeprefix(_BOM).lstrip()
    if not text or _BOM.startswith(text):
        return None
    if declared:
        return text[:1] not in (b"{", b"[")
    for field in _FIELDS:
        if text.startswith(field):
            rest = text[len(field) : len(field) + 1]
            return None if field != b":" and not rest else field == b":" or rest in (b":", b"\n", b"\r")
    return None if any(field.startswith(text) for field in _FIELDS) else False


class StreamTooLong(Exception):
    """One event of the stream is longer than the decoder holds."""


class EventDecoder:
    """Turns chunks of bytes into the data of events, in time linear in the bytes. `limit` bounds the bytes of
    one event, `max_lines` the lines of the stream: a line costs more than its bytes."""

    def __init__(self, limit: int = 16 << 20, max_lines: int = 1_000_000) -> None:
        self._limit = limit
        self._lines_left = self._max_lines = max_lines
        self._line: list[bytes] = []  # the pieces of the line that has not ended
        self._line_size = 0
        self._data: list[bytes] = []
        self._size = 0
        self._start: bytes | None = b""  # what may be the beginning of a byte order mark, None after it
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that the chunk completes, in order. Raises StreamTooLong."""
        chunk = self._without_mark(chunk)
        if not chunk:
            return []
        # A CR at the end ended its line at once; the LF that may follow belongs to it.
        ended_by_cr, self._after_cr = self._after_cr, chunk.endswith(b"\r")
        if ended_by_cr:
            chunk = chunk.removeprefix(b"\n")
        *ends, rest = _LINE_END.split(chunk)
        self._lines_left -= len(ends)
        if self._lines_left < 0:
            raise StreamTooLong(f"the stream has more than {self._max_lines:,} lines")
        events: list[bytes] = []
        for end in ends:
            self._line.append(end)
            line = b"".join(self._line)
            self._line, self._line_size = [], 0
            self._take(line, events)
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
        self._check_size(self._line_size)
        return events

    def _without_mark(self, chunk: bytes) -> bytes:
        """Return the chunk without a byte order mark, if it is the first one."""
        if self._start is None:
            return chunk
        chunk = self._start + chunk
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._start = chunk
            return b""
        self._start = None
        return chunk.removeprefix(_BOM)

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += max(1, len(value))
        self._check_size(0)

    def _check_size(self, line: int) -> None:
        if self._size + line > self._limit:
            raise StreamTooLong(f"an event of the stream is longer than {self._limit:,} bytes")
