"""Small files beside the segments, with a checksum before what they hold."""

from __future__ import annotations

import zlib

from agentflow.errors import LogCorrupt

__all__ = ["seal", "unseal"]

_LENGTH = 8


def seal(data: bytes) -> bytes:
    """The bytes of a file that holds `data`."""
    return b"%08x" % zlib.crc32(data) + data


def unseal(content: bytes, what: str) -> bytes:
    """What the file holds. LogCorrupt, naming `what`, if it is not as it was written."""
    data = content[_LENGTH:]
    if content[:_LENGTH] != b"%08x" % zlib.crc32(data):
        raise LogCorrupt(f"{what} is damaged", hint="restore the store from a copy")
    return data
