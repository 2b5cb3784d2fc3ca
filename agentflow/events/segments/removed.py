"""What was deleted and trimmed, in a file of its own: one checked line for each removal, never changed.

    {"c":"<crc32>","x":{"kind":"deleted",…} or {"kind":"trimmed",…}}

A removal is durable with its line; the bytes in the segments go later. Lines are synced one by one, so only
the last can be torn, and then nobody was told of it.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.files import make_durable
from agentflow.events.segments.closing import Closed
from agentflow.events.segments.lines import RunIdentity
from agentflow.events.tombstone import Tombstone

__all__ = ["Deleted", "Removed", "Trimmed", "encode_removal", "load_removed"]


class Deleted(msgspec.Struct, frozen=True, tag_field="kind", tag="deleted"):
    """A run that is gone."""

    tombstone: Tombstone


class Trimmed(msgspec.Struct, frozen=True, tag_field="kind", tag="trimmed"):
    """A run without what lies before `earliest`, and what its first lines had said of it."""

    workflow_id: str
    earliest: int
    identity: RunIdentity
    state: str
    epoch: int
    parent: str | None
    names: list[str]


class Removed:
    """All removals; the newest trimming of a run counts."""

    def __init__(self) -> None:
        self.gone: dict[str, Tombstone] = {}
        self.trimmed: dict[str, Trimmed] = {}

    def add(self, removal: Deleted | Trimmed) -> None:
        """Take note of a removal that is durable."""
        if isinstance(removal, Deleted):
            workflow_id = removal.tombstone.workflow_id
            self.gone[workflow_id] = removal.tombstone
            self.trimmed.pop(workflow_id, None)
        else:
            self.trimmed[removal.workflow_id] = removal


_decoder: msgspec.json.Decoder[Deleted | Trimmed] = msgspec.json.Decoder(Deleted | Trimmed)
_PREFIX = len('{"c":"00000000","x":')


def encode_removal(removal: Deleted | Trimmed) -> bytes:
    """The line, with its end."""
    body = msgspec.json.encode(removal)
    return b'{"c":"%08x","x":%b}\n' % (zlib.crc32(body), body)


def load_removed(path: Path, closed: Closed | None) -> tuple[Removed, int]:
    """All removals of a file, durable now, and the bytes of a torn last line that were cut off.

    LogCorrupt, OSError.
    """
    removed, good = Removed(), 0
    data = path.read_bytes() if path.exists() else b""
    while good < len(data):
        end = data.find(b"\n", good) + 1
        removal = _parse(data[good : end - 1]) if end else None
        if removal is None:
            if (end and end < len(data)) or (closed is not None and closed.covers_removal(good)):
                raise _damaged(path, good)
            with path.open("r+b") as file:
                file.truncate(good)
                os.fsync(file.fileno())
            break
        removed.add(removal)
        good = end
    if closed is not None and good < closed.removed:
        raise _damaged(path, good)
    if good and (closed is None or good != closed.removed):
        make_durable(path)
    return removed, len(data) - good


def _damaged(path: Path, position: int) -> LogCorrupt:
    return LogCorrupt(
        f"{path} is damaged at byte {position}, and which run was deleted cannot be told",
        hint="restore the store from a copy",
    )


def _parse(line: bytes) -> Deleted | Trimmed | None:
    body = line[_PREFIX:-1]
    if line != b'{"c":"%08x","x":%b}' % (zlib.crc32(body), body):
        return None
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
