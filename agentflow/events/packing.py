"""The stored form of a batch: one record, in which nothing stands twice (page 000 §7).

    form (1 byte) + deflated or plain: length of the head (4 bytes) + head (MessagePack) + text

The text holds the JSON of the events one behind the other, without their blobs. A value of 1 KiB or more that
an earlier event of the run holds (the output of a step that is the input of the next) is left out and named
by its place: in this batch, or in the batch that has it in full. What is shorter, and what all events have in
common, takes some bytes because the text is deflated with a dictionary of events. `unpack` gives back what
`pack` was given, byte for byte. No I/O.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Final

import msgspec

from agentflow.events.blobs import Blob
from agentflow.events.envelope import StoredEvent

__all__ = ["VARIED_TIMES", "EarlierValues", "pack", "sources_of", "text_of", "times_of", "unpack"]

VARIED_TIMES: Final = 2
"""Bit of the first byte: the events of the batch have different times."""

_DEFLATED: Final = 1
_DEFLATE_BELOW: Final = 256 << 10  # bytes; a longer text is stored as it is: deflating it takes 10 ms a MiB
_SHARED_FROM: Final = 1 << 10  # bytes; below it deflating finds what is repeated
_COMPARED: Final = 8  # values and events before an event in which its own are searched
_LENGTH_BYTES: Final = 4
_REMEMBERED: Final = 32  # values of earlier batches

_Copy = tuple[int, int, int, int, int]
"""A value that was left out: the event, its position in what is stored of that, then the earlier event, its
position there, and its length. An earlier event below 0 is a batch: -1 the first of `sources`, and the
position is in its text."""

_BlobRef = tuple[int, int, str, bool]
"""Event, position of the reference in its text, name, and whether readers get the value in its place."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """`lengths` are those of the stored texts; `times` of the events, None if all have that of the batch."""

    lengths: list[int]
    times: list[int] | None = None
    copies: list[_Copy] = []
    sources: list[int] = []
    """Batches of the run that hold values of this one, as `pack` was told of them."""
    blobs: list[_BlobRef] = []


class EarlierValues:
    """Places of the large values in the newest batches of one run, 32 at most."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, int]] = {}

    def find(self, value: bytes) -> tuple[int, int] | None:
        """Return the batch that has this value, and the position in its text."""
        return self._places.get(_digest(value)) if self._places else None

    def add(self, value: bytes, batch: int, place: int) -> None:
        """Note a value; the oldest one is dropped beyond 32."""
        self._places[_digest(value)] = (batch, place)
        if len(self._places) > _REMEMBERED:
            del self._places[next(iter(self._places))]


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


class _Values(msgspec.Struct):
    """The members of event data by which events hand a value on."""

    input: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()
    value: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()
    partial_output: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    data: _Values


class _Data(msgspec.Struct):
    data: msgspec.Raw


_head_decoder = msgspec.msgpack.Decoder(_Head)
_body_decoder = msgspec.json.Decoder(_Body)
_data_decoder = msgspec.json.Decoder(_Data)

# The dictionary belongs to the form: rows that were deflated with it cannot be read with another one.
_dictionary = "\n".join(
    msgspec.json.decode(resources.files("agentflow.events").joinpath("packing-1.json").read_bytes())
).encode()
# A window of 8 KiB, which reaches over a batch and the end of the dictionary: `copy` copies it, and 128 KiB
# of a full one for each batch cost more than deflating it.
_deflater = zlib.compressobj(1, zlib.DEFLATED, -13, 4, zdict=_dictionary)


def pack(events: Sequence[StoredEvent], batch: int = 0, earlier: EarlierValues | None = None) -> bytes:
    """Return the stored form of a batch; takes about 15 µs, and up to 10 ms a MiB.

    With `earlier`, values that it knows are left out, and those of this batch are added to it under the
    number `batch`.
    """
    texts = [event.text for event in events]
    copies: list[_Copy] = []
    sources: list[int] = []
    if (len(texts) > 1 or earlier is not None) and max(map(len, texts)) >= _SHARED_FROM:
        texts = _leave_out(texts, copies, batch, earlier, sources)
    times: list[int] | None = [event.ts for event in events]
    varied = times.count(times[0]) != len(times)
    if not varied:
        times = None
    blobs: list[_BlobRef] = []
    for number, event in enumerate(events):
        if event.blobs:
            blobs += [(number, blob.at, blob.name, blob.hidden) for blob in event.blobs]
    lengths = [*map(len, texts)]
    if blobs or sources:
        head = msgspec.msgpack.encode(_Head(lengths, times, copies, sources, blobs))
    else:
        head = msgspec.msgpack.encode((lengths, times, copies))
    content = b"".join((len(head).to_bytes(_LENGTH_BYTES), head, *texts))
    form = VARIED_TIMES if varied else 0
    if len(content) >= _DEFLATE_BELOW:
        return bytes((form,)) + content
    deflater = _deflater.copy()
    return b"".join((bytes((form | _DEFLATED,)), deflater.compress(content), deflater.flush()))


def _no_batch(batch: int) -> bytes:
    raise ValueError(f"a value is named by batch {batch}, which cannot be asked for")


def _no_blob(name: str) -> bytes:
    raise ValueError(f"blob {name} cannot be asked for")


def unpack(
    packed: bytes,
    first: int,
    ts: int,
    types: Sequence[str],
    *,
    text_of: Callable[[int], bytes] = _no_batch,
    blob_of: Callable[[str], bytes] = _no_blob,
) -> list[StoredEvent]:
    """Return the events of a batch that begins at offset `first`; `ts` is the time of the last one.

    `text_of` returns the text of another batch of the run by its number, `blob_of` a blob by its name.
    """
    head, content, position = _open(packed)
    texts: list[bytes] = []
    for length in head.lengths:
        texts.append(content[position : position + length])
        position += length
    if head.copies:
        _put_back(texts, head.copies, [text_of(source) for source in head.sources])
    times = head.times or [ts] * len(texts)
    events = [
        StoredEvent(offset, at, type, text)
        for offset, (at, type, text) in enumerate(zip(times, types, texts, strict=True), start=first)
    ]
    for number, at, name, hidden in head.blobs:
        event = events[number]
        blob = Blob(at, name, blob_of(name), hidden)
        events[number] = msgspec.structs.replace(event, blobs=(*event.blobs, blob))
    return events


def text_of(packed: bytes) -> bytes:
    """Return the text of a batch, for `unpack` of another one."""
    _, content, position = _open(packed)
    return content[position:]


def sources_of(packed: bytes) -> list[int]:
    """Return the numbers of the batches that this one cannot be read without."""
    return _open(packed)[0].sources


def times_of(packed: bytes) -> tuple[int, int] | None:
    """Return the earliest and the latest time of the events of a batch whose times differ; None if it is
    damaged."""
    try:
        times = _open(packed)[0].times
    except (msgspec.DecodeError, zlib.error, IndexError):
        return None
    return (min(times), max(times)) if times else None


def _open(packed: bytes) -> tuple[_Head, bytes, int]:
    """Return the head, the content, and where in it the text begins."""
    if packed[0] & _DEFLATED:
        inflater = zlib.decompressobj(-15, zdict=_dictionary)
        content = inflater.decompress(memoryview(packed)[1:]) + inflater.flush()
        position = 0
    else:
        content, position = packed, 1
    start = position + _LENGTH_BYTES
    position = start + int.from_bytes(content[position:start])
    return _head_decoder.decode(content[start:position]), content, position


def _leave_out(
    bodies: list[bytes],
    copies: list[_Copy],
    batch: int,
    earlier: EarlierValues | None,
    sources: list[int],
) -> list[bytes]:
    """Return the bodies without the values that an earlier one holds; `copies` says what was left out, and
    `sources` in which batches the values are that are in none of these bodies."""
    kept: list[bytes] = []
    known: dict[bytes, tuple[int, int]] = {}  # values of the earlier bodies: which, and where
    large: list[int] = []  # the earlier bodies that may hold a value
    new: list[tuple[bytes, int, int]] = []  # values that are stored here: which body, and where in its text
    for number, body in enumerate(bodies):
        if len(body) < _SHARED_FROM:
            kept.append(body)
            continue
        own = _values_of(body)
        found = [
            (at, len(value), *place) for value, at in own if (place := _find(value, known, large, bodies))
        ]
        if not found:
            recent = list(known.items())[-_COMPARED:]
            hits = ((body.find(value), value, place) for value, place in recent)
            found = [(at, len(value), *place) for at, value, place in hits if at >= 0]
        if earlier is not None:
            left = [(value, at) for value, at in own if not _overlaps(at, len(value), found)]
            for value, at in left:
                place = earlier.find(value)
                if place is None:
                    new.append((value, number, at))
                else:
                    found.append((at, len(value), _source(place[0], sources), place[1]))
        found.sort()
        kept.append(_without(body, number, found, copies))
        for value, at in own:
            known.setdefault(value, (number, at))
        large.append(number)
    if earlier is not None and new:
        _remember(new, kept, batch, earlier)
    return kept


def _source(batch: int, sources: list[int]) -> int:
    if batch not in sources:
        sources.append(batch)
    return -1 - sources.index(batch)


def _overlaps(at: int, length: int, found: list[tuple[int, int, int, int]]) -> bool:
    return any(at < other + size and other < at + length for other, size, _, _ in found)


def _remember(
    new: list[tuple[bytes, int, int]],
    kept: list[bytes],
    batch: int,
    earlier: EarlierValues,
) -> None:
    """Note where in the text of this batch the values lie that it is the first to have."""
    starts = [0]
    for body in kept:
        starts.append(starts[-1] + len(body))
    for value, number, _ in new:
        at = kept[number].find(value)
        if at >= 0:
            earlier.add(value, batch, starts[number] + at)


def _values_of(body: bytes) -> list[tuple[bytes, int]]:
    """Return the large values that an event holds, and where."""
    try:
        data = _body_decoder.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    values = [bytes(value) for value in msgspec.structs.astuple(data)]
    values += [_data_of(value) for value in values if value.startswith(b'{"data":')]  # of an agent
    return [(value, body.find(value)) for value in values if len(value) >= _SHARED_FROM]


def _data_of(value: bytes) -> bytes:
    return bytes(_data_decoder.decode(value).data)


def _find(
    value: bytes, known: dict[bytes, tuple[int, int]], large: list[int], bodies: list[bytes]
) -> tuple[int, int] | None:
    place = known.get(value)
    if place is None:
        for earlier in large[-_COMPARED:]:
            at = bodies[earlier].find(value)
            if at >= 0:
                return earlier, at
    return place


def _without(body: bytes, number: int, found: list[tuple[int, int, int, int]], copies: list[_Copy]) -> bytes:
    parts: list[bytes] = []
    taken = stored = 0
    for at, length, earlier, place in found:
        if at < taken:
            continue  # within one that was left out
        parts.append(body[taken:at])
        stored += at - taken
        copies.append((number, stored, earlier, place, length))
        taken = at + length
    parts.append(body[taken:])
    return b"".join(parts)


def _put_back(bodies: list[bytes], copies: list[_Copy], sources: list[bytes]) -> None:
    """Complete the bodies in place; a copy names an event before its own, which is complete by then, or one
    of the texts `sources`."""
    by_event: dict[int, list[_Copy]] = {}
    for copy in copies:
        by_event.setdefault(copy[0], []).append(copy)
    for number, own in by_event.items():
        body, parts, taken = bodies[number], list[bytes](), 0
        for _, at, earlier, place, length in own:
            source = bodies[earlier] if earlier >= 0 else sources[-1 - earlier]
            parts += (body[taken:at], source[place : place + length])
            taken = at
        bodies[number] = b"".join((*parts, body[taken:]))
