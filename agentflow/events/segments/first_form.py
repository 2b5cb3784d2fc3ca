"""The form of the first version, which is read beside the present one and never written.

    {"c":"<crc32>","b":batch,"i":index,"n":count,"r":{…},"e":{event}}      a line: one event of a synced batch
    {"c":"<crc32>","g":generation,"first":batch,"last":batch}             first line of a rewritten segment
    {"c":"<crc32>","x":{"kind":"deleted",…} or {"kind":"trimmed",…}}       a line of `removed.ndjson`

Removals had a file of their own. A segment could be rewritten without the lines of deleted runs.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.envelope import StoredEvent
from agentflow.events.ids import micros
from agentflow.events.segments.closing import Closed
from agentflow.events.segments.lines import PREFIX_BYTES, RunChange, RunIdentity, is_intact
from agentflow.events.tombstone import Tombstone

__all__ = [
    "OldLine",
    "Removed",
    "Rewritten",
    "Salvaged",
    "Trimmed",
    "cut_removed",
    "load_removed",
    "old_line",
    "rewritten",
    "salvage",
]


class OldLine(msgspec.Struct, frozen=True):
    """A line without its checksum; `e` is the event as it was appended."""

    b: int
    i: int
    n: int
    e: msgspec.Raw
    r: RunChange | None = None

    def event(self) -> tuple[str, StoredEvent]:
        """Return the run and the event. Raises DecodeError or ValueError if `e` is no event."""
        body = bytes(self.e)
        head = _head_decoder.decode(body)
        return head.workflow_id, StoredEvent(head.offset, micros(head.timestamp), head.type, body)


class _EventHead(msgspec.Struct, frozen=True):
    offset: int
    timestamp: str
    type: str
    workflow_id: str


class Rewritten(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a segment was rewritten, and which batches it held."""

    g: int
    first: int
    last: int


class Salvaged(msgspec.Struct, frozen=True):
    """What a damaged line says of itself; to be believed only if its neighbours agree."""

    b: int
    i: int
    n: int
    offset: int
    workflow_id: str


_line_decoder = msgspec.json.Decoder(OldLine)
_rewritten_decoder = msgspec.json.Decoder(Rewritten)
_head_decoder = msgspec.json.Decoder(_EventHead)
# Only the beginning of a line is asked, and `r` has exactly this shape: a value further on may look like a
# line.
_SALVAGE = re.compile(
    rb'\{"c":"[^"\n]{8}","b":(\d+),"i":(\d+),"n":(\d+),'
    rb'(?:"r":\{(?:"run":\{[^{}\n]*\{[^{}\n]*\}\},?)?(?:"state":"[^"\n]*",?)?(?:"epoch":\d+)?\},)?'
    rb'"e":\{"id":"[^"\n]*","offset":(\d+),"timestamp":"[^"\n]*","type":"[^"\n]*","workflow_id":"([^"\n]+)"'
)


def old_line(line: bytes) -> OldLine | None:
    """Return the parts of a line (without its end), or None if it is not what was written."""
    if not is_intact(line):
        return None
    try:
        return _line_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def rewritten(line: bytes) -> Rewritten | None:
    """Return the head of a rewritten segment if `line`, its first one without the end, is one."""
    if not is_intact(line):
        return None
    try:
        return _rewritten_decoder.decode(b"{" + line[PREFIX_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def salvage(line: bytes) -> Salvaged | None:
    """Return what the beginning of a damaged line still names, or None."""
    m = _SALVAGE.match(line)
    return m and Salvaged(int(m[1]), int(m[2]), int(m[3]), int(m[4]), m[5].decode(errors="replace"))


# -- removals


class _Deleted(msgspec.Struct, frozen=True, tag_field="kind", tag="deleted"):
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
    """All removals of the first version; the newest trimming of a run counts."""

    def __init__(self) -> None:
        self.gone: dict[str, Tombstone] = {}
        self.trimmed: dict[str, Trimmed] = {}
        self.torn_bytes = 0
        """Length of a last line that was being written when the process was killed; it is passed over."""

    def is_gone(self, workflow_id: str, offset: int) -> bool:
        """Return True if this event was removed."""
        trimmed = self.trimmed.get(workflow_id)
        return workflow_id in self.gone or (trimmed is not None and offset < trimmed.earliest)


_removal_decoder: msgspec.json.Decoder[_Deleted | Trimmed] = msgspec.json.Decoder(_Deleted | Trimmed)
_REMOVAL_BYTES = len('{"c":"00000000","x":')


def load_removed(path: Path, closed: Closed | None) -> Removed:
    """Return all removals of a file that may not exist. Raises LogCorrupt or OSError."""
    removed, good = Removed(), 0
    data = path.read_bytes() if path.exists() else b""
    while good < len(data):
        end = data.find(b"\n", good) + 1
        removal = _removal(data[good : end - 1]) if end else None
        if removal is None:
            if (end and end < len(data)) or (closed is not None and closed.covers_removal(good)):
                raise _damaged(path, good)
            break
        if isinstance(removal, _Deleted):
            removed.gone[removal.tombstone.workflow_id] = removal.tombstone
            removed.trimmed.pop(removal.tombstone.workflow_id, None)
        else:
            removed.trimmed[removal.workflow_id] = removal
        good = end
    if closed is not None and good < closed.removed:
        raise _damaged(path, good)
    removed.torn_bytes = len(data) - good
    return removed


def cut_removed(path: Path, torn_bytes: int) -> None:
    """Cut a torn last line off, durably. Raises OSError."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - torn_bytes)
        os.fsync(file.fileno())


def _damaged(path: Path, position: int) -> LogCorrupt:
    return LogCorrupt(
        f"{path} is damaged at byte {position}, and which run was deleted cannot be told",
        hint="restore the store from a copy",
    )


def _removal(line: bytes) -> _Deleted | Trimmed | None:
    body = line[_REMOVAL_BYTES:-1]
    if line != b'{"c":"%08x","x":%b}' % (zlib.crc32(body), body):
        return None
    try:
        return _removal_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
