"""One line of a segment: a batch of one run, with a checksum (page 000 §7).

    {"c":"<crc32>","v":2,"b":12,"s":11,"p":["wf_a",7],"w":"wf_b","o":3,"r":{…},"m":[[ts,type,length],…],"e":[…]}

`c` covers all bytes behind it, up to the end of the line. A line without `w` is about removals: `gone` holds
tombstones of deleted runs, `dropped` the numbers of all segments that were removed, as ranges, and `ends`
where the numbers of batches stop before these.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.events.blobs import Blob, reference_to
from agentflow.events.envelope import StoredEvent
from agentflow.events.tombstone import Tombstone

__all__ = [
    "PREFIX_BYTES",
    "BlobRef",
    "Head",
    "Line",
    "Range",
    "RunChange",
    "RunIdentity",
    "encode_line",
    "is_intact",
    "parse_line",
    "refuse_newer",
]

FORMAT = 2
"""The version that is written. Version 1, whose lines have no `v`, is read (see `first_version`)."""
FORMAT_WITH_BLOBS = 3
"""The version of a line that names blobs."""

PREFIX_BYTES = len('{"c":"00000000",')
_VERSION = b'"v":'
_EVENTS = b',"e":['
_BEGINNING = re.compile(rb'\{"c":"[^"\n]*","v":(\d{1,6}),')

Range = tuple[int, int]

BlobRef = tuple[int, int, str, int, bool]
"""Number of the event in the line, position of the reference in it, name of the blob, its size, and whether
readers get the value in place of the reference."""


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is from its first event on."""

    name: str | None
    definition_hash: str
    created_at: int
    labels: dict[str, str]


class RunChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a batch changes in its run's row; absent members stay as they were."""

    run: RunIdentity | None = None
    state: str | None = None
    epoch: int | None = None


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of a line but its checksum and its events."""

    v: int = FORMAT
    b: int
    """Number of the batch: each line has the next one."""
    s: int
    """The last batch that was synced when this one was written, so an intact line proves that all up to it
    were durable. Lines of one write share it."""
    p: tuple[str, int] | None = None
    """Run and first offset of the batch before, or the one run that was deleted there and -1. A damaged line
    is attributed by its intact successor; its own bytes are never believed."""
    w: str | None = None
    """The run."""
    o: int = 0
    """Offset of the first event."""
    r: RunChange | None = None
    m: list[tuple[int, str, int]] = []
    """Time (µs), type and length of each event."""
    x: list[BlobRef] = []
    """The blobs of the events, in order; an event has references in their places."""
    gone: list[Tombstone] = []
    dropped: list[Range] = []
    ends: list[tuple[int, int]] = []
    """Each segment before a removed one, and its last batch: what is missing behind that is no damage."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """An intact line without its end; its events begin at byte `start` of `raw`."""

    head: Head
    raw: bytes
    start: int

    @property
    def size(self) -> int:
        """Bytes of its events with their blobs."""
        blobs = sum(size - len(reference_to(name, size)) for _, _, name, size, _ in self.head.x)
        return sum([size for _, _, size in self.head.m]) + blobs

    def events(self, blob_of: Callable[[str], bytes]) -> list[StoredEvent]:
        """Return the events, as they were appended; `blob_of` returns a blob by its name."""
        found: list[StoredEvent] = []
        position, raw = self.start, self.raw
        for offset, (ts, type, length) in enumerate(self.head.m, start=self.head.o):
            found.append(StoredEvent(offset, ts, type, raw[position : position + length]))
            position += length + 1
        for number, at, name, _, hidden in self.head.x:
            event = found[number]
            blobs = (*event.blobs, Blob(at, name, blob_of(name), hidden))
            found[number] = msgspec.structs.replace(event, blobs=blobs)
        return found


_head_decoder = msgspec.json.Decoder(Head)


def encode_line(head: Head, events: Sequence[StoredEvent] = ()) -> Line:
    """Return the line of `head`, whose `m` describes `events`.

    Raises TypeError or ValueError for events that have no JSON form, or not in one line.
    """
    version = FORMAT_WITH_BLOBS if head.x else FORMAT
    rest = b'"v":%d,' % version + msgspec.json.encode(head)[1:]
    start = PREFIX_BYTES + len(rest) - 1 + len(_EVENTS)
    if events:
        bodies = b",".join([event.text for event in events])
        times = [event.ts for event in events]
        if b"\n" in bodies or max(times) >= 1 << 63 or min(times) < -(1 << 63):
            raise ValueError("an event is one line, its time 64 bits")
        rest = b"%b%b%b]}" % (rest[:-1], _EVENTS, bodies)
    return Line(head, b'{"c":"%08x",%b' % (zlib.crc32(rest), rest), start)


def is_intact(line: bytes) -> bool:
    """Return True if the checksum at the beginning of `line` is that of the bytes behind it."""
    return line[:6] == b'{"c":"' and line[6:14] == b"%08x" % zlib.crc32(memoryview(line)[PREFIX_BYTES:])


def parse_line(line: bytes) -> Line | None:
    """Return the parts of a line (without its end), or None if it is not what was written.

    Raises ConfigurationError for a line of a newer version.
    """
    if not line.startswith(_VERSION, PREFIX_BYTES) or not is_intact(line):
        return None
    # A quote inside a string is escaped, so the first match is the member `e`.
    at = line.find(_EVENTS)
    try:
        head = _head_decoder.decode(line if at < 0 else line[:at] + b"}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        head = None
    if head is None or head.v not in (FORMAT, FORMAT_WITH_BLOBS):
        refuse_newer(line)
        return None
    return Line(head, line, at + len(_EVENTS) if at >= 0 else len(line))


def refuse_newer(line: bytes) -> None:
    """Raise ConfigurationError if these bytes begin a line of a newer version.

    Its checksum may be computed in another way: what cannot be read for that reason is not torn.
    """
    found = _BEGINNING.match(line)
    if found is not None and int(found[1]) > FORMAT_WITH_BLOBS:
        raise ConfigurationError(
            f"the store was written by a newer agentflow (format {int(found[1])}, this one knows"
            f" {FORMAT_WITH_BLOBS})",
            hint="upgrade agentflow, or name another directory for the store",
        )
