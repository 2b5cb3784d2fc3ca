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
from agentflow.events.ids import micros
from agentflow.events.segments.closing import Closed
from agentflow.events.segments.files import content_of
from agentflow.events.segments.index import Index, RunIndex
from agentflow.events.segments.lines import (
    PREFIX_BYTES,
    Head,
    Line,
    RunChange,
    RunIdentity,
    is_intact,
    parse_line,
)
from agentflow.events.tombstone import Tombstone

__all__ = [
    "Removed",
    "Rewritten",
    "Salvaged",
    "find_position",
    "load_removed",
    "read_line",
    "rewritten",
    "salvage",
]


class _OldLine(msgspec.Struct, frozen=True):
    b: int
    i: int
    n: int
    e: msgspec.Raw
    r: RunChange | None = None


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


_line_decoder = msgspec.json.Decoder(_OldLine)
_event_decoder = msgspec.json.Decoder(_EventHead)
_rewritten_decoder = msgspec.json.Decoder(Rewritten)
# Only the beginning of a line matches, with `r` of exactly this shape: a value may look like a line.
_SALVAGE = re.compile(
    rb'\{"c":"[^"\n]{8}","b":(\d+),"i":(\d+),"n":(\d+),'
    rb'(?:"r":\{(?:"run":\{[^{}\n]*\{[^{}\n]*\}\},?)?(?:"state":"[^"\n]*",?)?(?:"epoch":\d+)?\},)?'
    rb'"e":\{"id":"[^"\n]*","offset":(\d+),"timestamp":"[^"\n]*","type":"[^"\n]*","workflow_id":"([^"\n]+)"'
)


def read_line(text: bytes) -> Line | None:
    """Return the parts of a line (without its end) of either form, or None if it is not what was written."""
    line = parse_line(text)
    if line is not None or not is_intact(text):
        return line
    try:
        old = _line_decoder.decode(text)
        body = bytes(old.e)
        event = _event_decoder.decode(body)
        meta = [(micros(event.timestamp), event.type, len(body))]
    except (msgspec.DecodeError, ValueError):
        return None
    head = Head(b=old.b, s=old.b - 1, w=event.workflow_id, o=event.offset, r=old.r, m=meta)
    return Line(head, text, len(text) - 1 - len(body), old.i, old.n, first_form=True)


def rewritten(text: bytes) -> Rewritten | None:
    """Return the head of a rewritten segment if `text`, its first line without the end, is one."""
    if not is_intact(text):
        return None
    try:
        return _rewritten_decoder.decode(b"{" + text[PREFIX_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def salvage(text: bytes) -> Salvaged | None:
    """Return what the beginning of a damaged line still names, or None."""
    m = _SALVAGE.match(text)
    return m and Salvaged(int(m[1]), int(m[2]), int(m[3]), int(m[4]), m[5].decode(errors="replace"))


def find_position(path: Path, position: int, generation: int, batch: int, index: int) -> int:
    """Return where the next line lies behind line `index` of `batch`, where a cursor of this version stood.

    That is `position` unless the segment was rewritten since, which its generation tells.
    """
    at = 0
    with path.open("rb") as file:
        for raw in file:
            head = None if at else rewritten(raw[:-1])
            if not at and generation == (0 if head is None else head.g):
                return position
            line = read_line(raw[:-1])
            if line is not None and (line.head.b, line.index) > (batch, index):
                break
            at += len(raw)
    return at


# -- removals


class _Deleted(msgspec.Struct, frozen=True, tag_field="kind", tag="deleted"):
    tombstone: Tombstone


class _Trimmed(msgspec.Struct, frozen=True, tag_field="kind", tag="trimmed"):
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
        self.trimmed: dict[str, _Trimmed] = {}
        self.length = 0
        """Bytes of the file that are intact."""
        self.torn_bytes = 0
        """Bytes behind them, of a line that was being written when the process was killed."""

    def begin(self, index: Index, workflow_id: str) -> RunIndex | None:
        """Add a run that was trimmed; return None if it was not."""
        trimmed = self.trimmed.get(workflow_id)
        if trimmed is None:
            return None
        run = index.create(workflow_id, trimmed.identity)
        run.earliest, run.last = trimmed.earliest, trimmed.earliest - 1
        run.state, run.epoch, run.stored_epoch = trimmed.state, trimmed.epoch, trimmed.epoch
        run.parent = trimmed.parent
        run.names |= frozenset(trimmed.names)
        return run

    def is_gone(self, workflow_id: str, offset: int) -> bool:
        """Return True if this event was removed."""
        trimmed = self.trimmed.get(workflow_id)
        return workflow_id in self.gone or (trimmed is not None and offset < trimmed.earliest)


_removal_decoder: msgspec.json.Decoder[_Deleted | _Trimmed] = msgspec.json.Decoder(_Deleted | _Trimmed)
_REMOVAL_BYTES = len('{"c":"00000000","x":')


def load_removed(path: Path, closed: Closed | None, *, read_only: bool) -> Removed:
    """Return all removals of a file that may not exist; cut its torn end off, unless `read_only`.

    Raises LogCorrupt if more than the last line is damaged, or what was durable at the last closing; OSError.
    """
    removed, data = Removed(), content_of(path) or b""
    while (end := data.find(b"\n", removed.length) + 1) and (
        removal := _removal(data[removed.length : end - 1])
    ):
        if isinstance(removal, _Deleted):
            removed.gone[removal.tombstone.workflow_id] = removal.tombstone
            removed.trimmed.pop(removal.tombstone.workflow_id, None)
        else:
            removed.trimmed[removal.workflow_id] = removal
        removed.length = end
    removed.torn_bytes = len(data) - removed.length
    durable = 0 if closed is None else closed.removed if closed.legible else len(data)
    if removed.length < durable or b"\n" in data[removed.length : -1]:
        raise LogCorrupt(
            f"{path} is damaged at byte {removed.length}, and which run was deleted cannot be told",
            hint="restore the store from a copy",
        )
    if removed.torn_bytes and not read_only:
        with path.open("r+b") as file:
            file.truncate(removed.length)
            os.fsync(file.fileno())
    return removed


def _removal(text: bytes) -> _Deleted | _Trimmed | None:
    body = text[_REMOVAL_BYTES:-1]
    if text != b'{"c":"%08x","x":%b}' % (zlib.crc32(body), body):
        return None
    try:
        return _removal_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
