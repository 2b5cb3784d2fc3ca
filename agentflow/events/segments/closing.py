"""Notes up to where the files of a store are durable, when it is closed in order.

A torn end is cut off when a store is opened, since a crash leaves one. What lies before the end that was
noted cannot be torn: what is bad there, or missing, is damage. The files only grow, so the note stays true
until the next one takes its place.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from agentflow.events.files import replace_file

__all__ = ["Closed", "load_closed", "save_closed"]


class Closed(msgspec.Struct, frozen=True):
    """The newest segment and its length, and the last batch; all of them unknown (-1) if the note is
    damaged."""

    segment: int = -1
    end: int = -1
    batch: int = -1
    removed: int = -1
    """Length of the file of removals of the first version."""
    last: tuple[str, int] | None = None
    """Run and first offset of the last batch: it has no successor that names them."""

    @property
    def legible(self) -> bool:
        """True if the note says where the files end."""
        return self.batch >= 0

    def covers(self, segment: int, position: int) -> bool:
        """Return True if this place was durable when the store was closed; if that is not known, every place
        was."""
        return not self.legible or (segment, position) < (self.segment, self.end)

    def covers_removal(self, position: int) -> bool:
        """Return the same for the file of removals."""
        return not self.legible or position < self.removed


_decoder = msgspec.json.Decoder(Closed)


def save_closed(path: Path, closed: Closed) -> None:
    """Write the note, durably. Raises OSError."""
    body = msgspec.json.encode(closed)
    replace_file(path, b"%08x%b\n" % (zlib.crc32(body), body))


def load_closed(path: Path) -> Closed | None:
    """Return the note, or None if the last process did not close the store. Raises OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    body = data[8:-1]
    if data != b"%08x%b\n" % (zlib.crc32(body), body):
        return Closed()
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return Closed()
