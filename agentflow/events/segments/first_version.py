"""Reads stores of the first version of `file:`, of which nothing is ever written.

    {"c":"<crc32>","b":batch,"i":index,"n":count,"r":{…},"e":{event}}      a line: one event of a synced batch
    {"c":"<crc32>","g":generation,"first":batch,"last":batch}             first line of a rewritten segment
    {"c":"<crc32>","x":{"kind":"deleted",…} or {"kind":"trimmed",…}}       a line of `removed.ndjson`

A line becomes a `Line` of the present form with one event, so index and reader know no other. Removals had a
file of their own. A segment could be rewritten without the lines of deleted runs.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.ids import micros
from agentflow.events.segments.files import Closed, content_of
from agentflow.events.segments.index import Index, Place, unattributable
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

__all__ = ["FirstVersion", "find_position", "load_removed", "look_at", "read_line"]


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


class _Rewritten(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a segment was rewritten, and which batches it held."""

    g: int
    first: int
    last: int


_line_decoder = msgspec.json.Decoder(_OldLine)
_event_decoder = msgspec.json.Decoder(_EventHead)
_rewritten_decoder = msgspec.json.Decoder(_Rewritten)


def _decode(text: bytes) -> tuple[_OldLine, Line] | None:
    if not is_intact(text):
        return None
    try:
        old = _line_decoder.decode(text)
        body = bytes(old.e)
        event = _event_decoder.decode(body)
        meta = [(micros(event.timestamp), event.type, len(body))]
    except (msgspec.DecodeError, ValueError):
        return None
    head = Head(b=old.b, s=old.b - 1, w=event.workflow_id, o=event.offset, r=old.r, m=meta)
    return old, Line(head, text, len(text) - 1 - len(body))


def read_line(text: bytes) -> Line | None:
    """Return the parts of a line (without its end) of either form, or None if it is not what was written."""
    line = parse_line(text)
    if line is None and (found := _decode(text)) is not None:
        return found[1]
    return line


def _rewritten(text: bytes) -> _Rewritten | None:
    try:
        return _rewritten_decoder.decode(b"{" + text[PREFIX_BYTES:]) if is_intact(text) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def look_at(path: Path) -> tuple[bool, int | None]:
    """Return whether a segment is of the first version, and the number of the batch before it, if any of its
    lines is intact; each damaged line before that one is taken for a batch.
    """
    with path.open("rb") as file:
        for damaged, raw in enumerate(file):
            if (line := parse_line(raw[:-1])) is not None:
                return False, line.head.b - 1 - damaged
            if (old := _decode(raw[:-1])) is not None:
                return True, old[0].b - 1 - damaged
            if (head := _rewritten(raw[:-1])) is not None:
                return True, head.first - 1
    return False, None


def find_position(path: Path, batch: int, index: int) -> int:
    """Return where the next line lies behind line `index` of `batch`, where a cursor of this version stood.

    The segment may have been rewritten since.
    """
    at = 0
    with path.open("rb") as file:
        for raw in file:
            found = _decode(raw[:-1])
            if found is not None and (found[0].b, found[0].i) > (batch, index):
                break
            at += len(raw)
    return at


class FirstVersion:
    """Adds the segments of the first version, which come before all others, to the index.

    A lost batch is attributed by the gap that it leaves in its run; the store is refused if it leaves none.
    """

    def __init__(self, index: Index, closed: Closed) -> None:
        self._index = index
        self._closed = closed
        self._part: list[tuple[Place, Line]] = []
        """Lines of the batch that is not whole yet."""
        self._lost = 0
        """Batches of which lines are missing."""
        self.begin: Place | None = None
        """Where the first line is that is damaged, or of a batch that is not whole."""

    def scan(self, number: int, path: Path) -> None:
        """Add a segment. Raises LogCorrupt."""
        position, head = 0, None
        with path.open("rb") as file:
            for raw in file:
                place = (number, position)
                whole = raw.endswith(b"\n") or self._closed.covers(place)
                found = _decode(raw.removesuffix(b"\n")) if whole else None
                if not position and (head := _rewritten(raw[:-1])) is not None:
                    self.prove(head.first)
                elif found is None and head is not None:
                    raise unattributable(place)
                elif found is None:
                    self.begin = self.begin or place
                elif head is not None:  # of batches that were whole once: each line stands for itself
                    self._index.add(place, found[1])
                else:
                    self._take(place, *found)
                position += len(raw)
        if head is not None:
            self._index.batch = head.last

    def _take(self, place: Place, old: _OldLine, line: Line) -> None:
        if old.b <= self._index.batch:
            raise unattributable(place)
        self.prove(old.b)
        self.begin = self.begin or place
        self._part.append((place, line))
        if len(self._part) == old.n:
            self._flush()

    def _flush(self) -> None:
        for place, line in self._part:
            self._index.add(place, line)
        self._part, self.begin = [], None

    def prove(self, batch: int) -> None:
        """Take note that all before `batch` was durable: what is not there is lost."""
        if batch > self._index.batch + 1:
            self._lost += batch - self._index.batch - 1
            self._flush()
            self._index.batch, self._index.last = batch - 1, None

    def finish(self, next_batch: int | None) -> None:
        """End the scan of these segments, if `next_batch` is not None before a segment that begins with it.

        Raises LogCorrupt if it cannot be told whose events are lost. `begin` is then that of a torn tail.
        """
        if self.begin is not None and (next_batch is not None or self._closed.covers(self.begin)):
            if next_batch is None and self._closed.batch < 0:
                raise unattributable(self.begin)
            self.prove(self._closed.batch + 1 if next_batch is None else next_batch)
            self.begin = None
        if self._lost > len(self._index.damaged):
            raise unattributable((1, 0))


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


_removal_decoder: msgspec.json.Decoder[_Deleted | _Trimmed] = msgspec.json.Decoder(_Deleted | _Trimmed)
_REMOVAL_BYTES = len('{"c":"00000000","x":')


def load_removed(path: Path, closed: Closed, index: Index, *, read_only: bool) -> int:
    """Add all removals of a file that may not exist to an empty index, cut its torn tail off.

    Returns the length of that tail; it stays if `read_only`. Raises LogCorrupt if more than the last line is
    damaged, or what was durable at the last closing; OSError.
    """
    data, length = content_of(path) or b"", 0
    trimmed: dict[str, _Trimmed] = {}
    while (end := data.find(b"\n", length) + 1) and (removal := _removal(data[length : end - 1])):
        length = end
        if isinstance(removal, _Trimmed):
            trimmed[removal.workflow_id] = removal  # the newest counts
        else:
            index.gone[removal.tombstone.workflow_id] = removal.tombstone
            trimmed.pop(removal.tombstone.workflow_id, None)
    durable = len(data) if closed.batch < 0 else closed.removed
    if length < durable or b"\n" in data[length:-1]:
        raise LogCorrupt(
            f"{path} is damaged at byte {length}, and which run was deleted cannot be told",
            hint="restore the store from a copy",
        )
    for was in trimmed.values():
        run = index.create(was.workflow_id, was.identity)
        run.earliest, run.last = was.earliest, was.earliest - 1
        run.state, run.epoch, run.stored_epoch, run.parent = was.state, was.epoch, was.epoch, was.parent
        run.names |= frozenset(was.names)
    if length < len(data) and not read_only:
        os.truncate(path, length)
    return len(data) - length


def _removal(text: bytes) -> _Deleted | _Trimmed | None:
    body = text[_REMOVAL_BYTES:-1]
    if text != b'{"c":"%08x","x":%b}' % (zlib.crc32(body), body):
        return None
    try:
        return _removal_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
