"""What `Content-Encoding` did to a body, undone in pieces of bounded size.

It does no I/O. However small a compressed chunk is, no piece of more than 64 KiB is made of it at once, so
that a reader can stop before a small answer becomes a large one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

__all__ = ["BadEncoding", "Decompressor"]

_PIECE_BYTES: Final = 64 << 10
_GZIP_OR_ZLIB: Final = 47
_RAW_DEFLATE: Final = -15


class BadEncoding(ValueError):
    """The body is not encoded as its header says; the message is the end of a sentence about it."""


class Decompressor:
    """For one body. Takes no encoding, gzip (of several members too) and deflate; raises BadEncoding for
    any other."""

    def __init__(self, content_encoding: str) -> None:
        name = content_encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise BadEncoding("is compressed in a way that was not asked for")
        self._stream = None if name in ("", "identity") else zlib.decompressobj(_GZIP_OR_ZLIB)
        self._may_be_raw = name == "deflate"
        self._has_begun = False

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a chunk of the body stands for. Raises BadEncoding."""
        if self._stream is None:
            for start in range(0, len(chunk), _PIECE_BYTES):
                yield chunk[start : start + _PIECE_BYTES]
            return
        while True:
            if self._stream.eof:
                chunk = chunk.lstrip(b"\0")  # padding after a member
                if not chunk:
                    return
                self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
            self._has_begun = self._has_begun or bool(chunk)
            piece = self._decompress(chunk)
            chunk = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if piece:
                yield piece
            if not chunk and (self._stream.eof or len(piece) < _PIECE_BYTES):
                return

    def check_end(self) -> None:
        """Raise BadEncoding if the compressed body is not whole."""
        if self._stream is not None and self._has_begun and not self._stream.eof:
            raise BadEncoding("is compressed and was cut short")

    def _decompress(self, chunk: bytes) -> bytes:
        assert self._stream is not None
        try:
            piece = self._stream.decompress(chunk, _PIECE_BYTES)
        except zlib.error:
            if not self._may_be_raw:
                raise BadEncoding("is not compressed as it says") from None
            # Some servers send `deflate` without the header of zlib.
            self._stream = zlib.decompressobj(_RAW_DEFLATE)
            self._may_be_raw = False
            return self._decompress(chunk)
        self._may_be_raw = False
        return piece
