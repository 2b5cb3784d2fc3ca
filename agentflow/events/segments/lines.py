"""One line of a segment: a batch of one run, with a checksum (page 000 §7).

    {"c":"<crc32>","v":2,"b":12,"s":11,"p":["wf_a",7],"w":"wf_b","o":3,"r":{…},"m":[[ts,type,length],…],"e":[…]}

`c` covers all bytes behind it, up to the end of the line. `v` is the version of this form. `b` is the batch's
number: each line has the next one. `s` is the last batch that was known to be synced when the line was
written: lines of one write share it, and an intact line proves that all batches up to its `s` were durable.
`p` names run and first offset of the batch before, so that a damaged line is attributed by its intact
successor; its own bytes are never asked. `w` and `o` are run and first offset, `m` time (µs), type and length
of each event, `e` the events as they were appended. `r` is there only if the batch changes the run's row.

A line without `w` is about removals: `gone` holds tombstones of deleted runs, `dropped` the numbers of the
segments that were removed with their last run, as ranges.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.events.envelope import StoredEvent
from agentflow.events.tombstone import Tombstone

__all__ = [
    "FORMAT",
    "Head",
    "Line",
    "Range",
    "RunChange",
    "RunIdentity",
    "encode_line",
    "encode_meta",
    "is_intact",
    "parse_line",
    "refuse_newer",
]

FORMAT = 2
"""The version of the form that is written. Version 1, without `v`, is read (see `first_form`)."""

PREFIX_BYTES = len('{"c":"00000000",')
_VERSION = b'"v":'
_EVENTS = b',"e":['
_BEGINNING = re.compile(rb'\{"c":"[^"\n]*","v":(\d{1,6}),')

Range = tuple[int, int]


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

    v: int = msgspec.field(default=FORMAT)
    b: int
    s: int
    p: tuple[str, int] | None = None
    w: str | None = None
    o: int = 0
    r: RunChange | None = None
    m: list[tuple[int, str, int]] = []
    gone: list[Tombstone] = []
    dropped: list[Range] = []


class Line(msgspec.Struct, frozen=True):
    """An intact line; its events begin at byte `start` of `raw`.

    In the first version a batch had `count` lines of one event each; this is the one at `index`.
    """

    head: Head
    raw: bytes
    start: int
    index: int = 0
    count: int = 1
    first_form: bool = False

    def events(self) -> list[StoredEvent]:
        """Return the events, as they were appended."""
        found: list[StoredEvent] = []
        position, raw = self.start, self.raw
        for offset, (ts, type, length) in enumerate(self.head.m, start=self.head.o):
            found.append(StoredEvent(offset, ts, type, raw[position : position + length]))
            position += length + 1
        return found


_head_decoder = msgspec.json.Decoder(Head)


def encode_meta(events: Sequence[StoredEvent]) -> bytes:
    """Return the JSON of `m`. Raises TypeError or ValueError for events that have no JSON form."""
    return msgspec.json.encode([(event.ts, event.type, len(event.body)) for event in events])


def encode_line(head: Head, meta: bytes = b"", events: bytes = b"") -> bytes:
    """Return the line, with its end. `meta` is the JSON of `m`, `events` the bodies joined by commas."""
    rest = b'"v":%d,' % FORMAT + msgspec.json.encode(head)[1:]
    if meta:
        rest = b'%b,"m":%b%b%b]}' % (rest[:-1], meta, _EVENTS, events)
    return b'{"c":"%08x",%b\n' % (zlib.crc32(rest), rest)


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
    if head is None or head.v != FORMAT:
        refuse_newer(line)
        return None
    return Line(head, line, at + len(_EVENTS) if at >= 0 else len(line))


def refuse_newer(beginning: bytes) -> None:
    """Raise ConfigurationError if these bytes begin a line of a newer version.

    Its checksum may be computed in another way: what cannot be read for that reason is not torn.
    """
    found = _BEGINNING.match(beginning)
    if found is not None and int(found[1]) > FORMAT:
        raise ConfigurationError(
            f"the store was written by a newer agentflow (format {int(found[1])}, this one knows {FORMAT})",
            hint="upgrade agentflow, or name another directory for the store",
        )
