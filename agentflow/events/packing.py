"""The stored form of a batch: one record, in which nothing stands twice (page 000 §7).

    form (1 byte) + deflated or plain: length of the head (4 bytes) + head (MessagePack) + text

The text holds the JSON of the events one behind the other. A value of 1 KiB or more that an earlier event of
the batch holds (the output of a step that is the input of the next) is left out and named by its place. What
is shorter, and what all events have in common, takes some bytes because the text is deflated with a
dictionary of events. `unpack` gives back what `pack` was given, byte for byte. No I/O.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from importlib import resources
from typing import Final

import msgspec

from agentflow.events.envelope import StoredEvent

__all__ = ["VARIED_TIMES", "pack", "unpack"]

VARIED_TIMES: Final = 2
"""Bit of the first byte: the events of the batch have different times."""

_DEFLATED: Final = 1
_DEFLATE_BELOW: Final = 256 << 10  # bytes; a longer text is stored as it is: deflating it takes 10 ms a MiB
_SHARED_FROM: Final = 1 << 10  # bytes; below it deflating finds what is repeated
_COMPARED: Final = 8  # values and events before an event in which its own are searched
_LENGTH_BYTES: Final = 4

_Copy = tuple[int, int, int, int, int]
"""A value that was left out: the event, its position in what is stored of that, then the earlier event, its
position there, and its length."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """`lengths` are those of the stored texts; `times` of the events, None if all have that of the batch."""

    lengths: list[int]
    times: list[int] | None = None
    copies: list[_Copy] = []


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


_head_decoder = msgspec.msgpack.Decoder(_Head)
_body_decoder = msgspec.json.Decoder(_Body)

# The dictionary belongs to the form: rows that were deflated with it cannot be read with another one.
_dictionary = "\n".join(
    msgspec.json.decode(resources.files("agentflow.events").joinpath("packing-1.json").read_bytes())
).encode()
_deflater = zlib.compressobj(1, zlib.DEFLATED, -15, 4, zdict=_dictionary)


def pack(events: Sequence[StoredEvent]) -> bytes:
    """Return the stored form of a batch; takes about 15 µs, and up to 10 ms a MiB."""
    bodies = [event.body for event in events]
    copies: list[_Copy] = []
    if len(bodies) > 1 and max(map(len, bodies[1:])) >= _SHARED_FROM:
        bodies = _leave_out(bodies, copies)
    last = events[-1].ts
    varied = any(event.ts != last for event in events)
    times = [event.ts for event in events] if varied else None
    head = msgspec.msgpack.encode(_Head([len(body) for body in bodies], times, copies))
    content = b"".join((len(head).to_bytes(_LENGTH_BYTES), head, *bodies))
    form = VARIED_TIMES if varied else 0
    if len(content) >= _DEFLATE_BELOW:
        return bytes((form,)) + content
    deflater = _deflater.copy()
    return b"".join((bytes((form | _DEFLATED,)), deflater.compress(content), deflater.flush()))


def unpack(packed: bytes, first: int, ts: int, types: Sequence[str]) -> list[StoredEvent]:
    """Return the events of a batch that begins at offset `first`; `ts` is the time of the last one."""
    if packed[0] & _DEFLATED:
        inflater = zlib.decompressobj(-15, zdict=_dictionary)
        content = inflater.decompress(memoryview(packed)[1:]) + inflater.flush()
        position = 0
    else:
        content, position = packed, 1
    start = position + _LENGTH_BYTES
    position = start + int.from_bytes(content[position:start])
    head = _head_decoder.decode(content[start:position])
    bodies: list[bytes] = []
    for length in head.lengths:
        bodies.append(content[position : position + length])
        position += length
    if head.copies:
        _put_back(bodies, head.copies)
    times = head.times or [ts] * len(bodies)
    return [
        StoredEvent(offset, at, type, body)
        for offset, (at, type, body) in enumerate(zip(times, types, bodies, strict=True), start=first)
    ]


def _leave_out(bodies: list[bytes], copies: list[_Copy]) -> list[bytes]:
    """Return the bodies without the values that an earlier one holds; `copies` says what was left out."""
    kept: list[bytes] = []
    known: dict[bytes, tuple[int, int]] = {}  # values of the earlier bodies: which, and where
    large: list[int] = []  # the earlier bodies that may hold a value
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
        kept.append(_without(body, number, sorted(found), copies))
        for value, at in own:
            known.setdefault(value, (number, at))
        large.append(number)
    return kept


def _values_of(body: bytes) -> list[tuple[bytes, int]]:
    """Return the large values that an event holds, and where."""
    try:
        data = _body_decoder.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    values = (bytes(value) for value in msgspec.structs.astuple(data))
    return [(value, body.find(value)) for value in values if len(value) >= _SHARED_FROM]


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


def _put_back(bodies: list[bytes], copies: list[_Copy]) -> None:
    """Complete the bodies in place; a copy names an event before its own, which is complete by then."""
    by_event: dict[int, list[_Copy]] = {}
    for copy in copies:
        by_event.setdefault(copy[0], []).append(copy)
    for number, own in by_event.items():
        body, parts, taken = bodies[number], list[bytes](), 0
        for _, at, earlier, place, length in own:
            parts += (body[taken:at], bodies[earlier][place : place + length])
            taken = at
        bodies[number] = b"".join((*parts, body[taken:]))
