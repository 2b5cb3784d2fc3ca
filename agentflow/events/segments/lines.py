"""One line of a segment: an event, its place in its batch, and a checksum (page 000 §7).

    {"c":"<crc32>","b":batch,"i":index,"n":count,"r":{…},"e":{event}}

A batch is what one sync made durable. The checksum covers the bytes after `c`. `r` is there only when the
event changes what the log records of its run beside the events: its identity, its state, its epoch.

A segment that was rewritten without the lines of deleted runs begins with a line that says so:

    {"c":"<crc32>","g":generation,"first":batch,"last":batch}
"""

from __future__ import annotations

import re
import zlib

import msgspec

__all__ = [
    "Head",
    "Line",
    "Rewritten",
    "RunChange",
    "RunIdentity",
    "Salvaged",
    "encode_change",
    "encode_line",
    "encode_rewritten",
    "event_of",
    "parse_line",
    "parse_rewritten",
    "salvage",
]

_PREFIX = len('{"c":"00000000",')


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is from its first event on."""

    name: str | None
    definition_hash: str
    created_at: int
    labels: dict[str, str]


class RunChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an event changes in its run's row; absent members stay as they were."""

    run: RunIdentity | None = None
    state: str | None = None
    epoch: int | None = None


class Head(msgspec.Struct, frozen=True):
    """The members of an event that the index needs."""

    offset: int
    timestamp: str
    type: str
    workflow_id: str


class Line(msgspec.Struct, frozen=True):
    """A line without its checksum; `e` is the event as it was appended."""

    b: int
    i: int
    n: int
    e: msgspec.Raw
    r: RunChange | None = None

    def head(self) -> Head:
        """Where the event belongs. msgspec.DecodeError if it does not say so."""
        return _head_decoder.decode(self.e)


class Rewritten(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a segment that was rewritten: how often, and which batches it held."""

    g: int
    first: int
    last: int


class Salvaged(msgspec.Struct, frozen=True):
    """What a damaged line still says of itself; to be believed only if its neighbours agree."""

    b: int
    i: int
    n: int
    offset: int
    workflow_id: str


_line_decoder = msgspec.json.Decoder(Line)
_rewritten_decoder = msgspec.json.Decoder(Rewritten)
_head_decoder = msgspec.json.Decoder(Head)
_change_encoder = msgspec.json.Encoder()
_SALVAGE = re.compile(
    rb'"b":(\d+),"i":(\d+),"n":(\d+),(?:"r":\{[^\n]*?\},)?'
    rb'"e":\{"id":"[^"]*","offset":(\d+),"timestamp":"[^"]*","type":"[^"]*","workflow_id":"([^"]+)"'
)


def encode_line(batch: int, index: int, count: int, change: bytes, body: bytes) -> bytes:
    """The line, with its end. `change` is the JSON of a RunChange, or empty."""
    middle = b'"r":%b,"e":' % change if change else b'"e":'
    rest = b'"b":%d,"i":%d,"n":%d,%b%b}' % (batch, index, count, middle, body)
    return b'{"c":"%08x",%b\n' % (zlib.crc32(rest), rest)


def encode_rewritten(head: Rewritten) -> bytes:
    """The first line of a rewritten segment, with its end."""
    rest = msgspec.json.encode(head)[1:]
    return b'{"c":"%08x",%b\n' % (zlib.crc32(rest), rest)


def parse_rewritten(line: bytes) -> Rewritten | None:
    """The head of a rewritten segment, if this is one: its first line without the end."""
    if not _is_intact(line):
        return None
    try:
        return _rewritten_decoder.decode(b"{" + line[_PREFIX:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def encode_change(change: RunChange) -> bytes:
    """The JSON of `r`."""
    return _change_encoder.encode(change)


def parse_line(line: bytes) -> Line | None:
    """The line (without its end) if it is what was written, else None."""
    if not _is_intact(line):
        return None
    try:
        return _line_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_intact(line: bytes) -> bool:
    return line[:6] == b'{"c":"' and line[6:14] == b"%08x" % zlib.crc32(memoryview(line)[_PREFIX:])


def event_of(line: bytes, size: int) -> bytes | None:
    """The event, `size` bytes long, of a line (without its end), or None if the line is damaged."""
    if line[6:14] != b"%08x" % zlib.crc32(memoryview(line)[_PREFIX:]):
        return None
    return line[-1 - size : -1]


def salvage(line: bytes) -> list[Salvaged]:
    """What damaged bytes still name; several events if a line end between them is gone."""
    return [
        Salvaged(int(m[1]), int(m[2]), int(m[3]), int(m[4]), m[5].decode(errors="replace"))
        for m in _SALVAGE.finditer(line)
    ]
