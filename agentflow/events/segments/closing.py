"""Records up to where the files of a store are durable, when it is closed in order.

What lies before the recorded end cannot be torn: what is bad there, or missing, is damage. The files only
grow, so the record stays true until the next one replaces it.
"""

from __future__ import annotations

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.files import replace_file
from agentflow.events.segments.files import StoreFiles, content_of, seal, unseal
from agentflow.events.segments.index import Index, Place

__all__ = ["Closed", "load_closed", "save_closed"]

_FAR = 1 << 62


class Closed(msgspec.Struct, frozen=True):
    """Newest segment and its length, the last batch, and what that is about (see `Head.p`).

    The defaults stand for a record that is damaged itself: all that is there was durable.
    """

    segment: int = _FAR
    end: int = 0
    batch: int = -1
    last: tuple[str, int] | None = None
    removed: int = 0
    """Length of the file of removals of the first version."""

    def covers(self, place: Place) -> bool:
        """Return True if what is at this segment and position was durable."""
        return place < (self.segment, self.end)

    @property
    def proven(self) -> int:
        """The last batch that is known to have been durable."""
        return _FAR if self.batch < 0 else self.batch


def save_closed(files: StoreFiles, index: Index) -> None:
    """Write the record, durably. Raises OSError."""
    removed = files.removed.stat().st_size if files.removed.exists() else 0
    closed = Closed(*index.end, index.batch, index.last, removed)
    replace_file(files.closed, seal(msgspec.json.encode(closed)) + b"\n")


def load_closed(files: StoreFiles) -> Closed:
    """Return the record; one that covers nothing if no process has closed the store yet. Raises OSError."""
    content = content_of(files.closed)
    if content is None:
        return Closed(0, 0, 0, None, 0)
    try:
        return msgspec.json.decode(unseal(content[:-1], files.closed.name), type=Closed)
    except (LogCorrupt, msgspec.DecodeError):
        return Closed()
