"""Records up to where the files of a store are durable, when it is closed in order.

What lies before the recorded end cannot be torn: what is bad there, or missing, is damage. The files only
grow, so the record stays true until the next one replaces it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.files import replace_file
from agentflow.events.segments.files import content_of, seal, unseal

__all__ = ["Closed", "load_closed", "save_closed"]


class Closed(msgspec.Struct, frozen=True):
    """Newest segment and its length, and the last batch; all are unknown (-1) if the record is damaged."""

    segment: int = -1
    end: int = -1
    batch: int = -1
    removed: int = -1
    """Length of the file of removals of the first version."""
    last: tuple[str, int] | None = None
    """Run and first offset of the last batch: it has no successor that names them."""

    @property
    def legible(self) -> bool:
        """True if the record says where the files end."""
        return self.batch >= 0

    def covers(self, segment: int, position: int) -> bool:
        """Return True if this place may have been durable when the store was closed."""
        return not self.legible or (segment, position) < (self.segment, self.end)


def save_closed(path: Path, closed: Closed) -> None:
    """Write the record, durably. Raises OSError."""
    replace_file(path, seal(msgspec.json.encode(closed)) + b"\n")


def load_closed(path: Path) -> Closed | None:
    """Return the record, or None if the last process did not close the store. Raises OSError."""
    content = content_of(path)
    if content is None:
        return None
    try:
        return msgspec.json.decode(unseal(content[:-1], path.name), type=Closed)
    except (LogCorrupt, msgspec.DecodeError):
        return Closed()
