"""The blob that a fork begins with: the events that it keeps of the old run, one a line.

Large values stay blobs of their own, so that a fork stores none anew. Then a first line says where they go:
`{"blobs":[[line, position, name], …]}`. No I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from io import BytesIO

import msgspec

from agentflow.aside import compute_aside
from agentflow.events.blobs import Blob, insert_blobs
from agentflow.events.envelope import stored_event

__all__ = ["encode_base", "expand_base", "lines_of"]

_HEAD = b'{"blobs":'


class _Head(msgspec.Struct, frozen=True):
    blobs: list[tuple[int, int, str]]


_head_decoder = msgspec.json.Decoder(_Head)


def encode_base(events: Sequence[tuple[str, bytes]]) -> tuple[bytes, list[bytes]]:
    """Return the blob of these events (type and JSON), and those that it names, to be stored before it."""
    stored = [stored_event(0, 0, type, body) for type, body in events]
    lines = [event.text for event in stored]
    places = [(line, blob.at, blob.name) for line, event in enumerate(stored) for blob in event.blobs]
    if places:
        lines.insert(0, msgspec.json.encode(_Head(places)))
    named = {blob.name: blob.data for event in stored for blob in event.blobs}
    return _join(lines), list(named.values())


async def expand_base(base: bytes, get_blob: Callable[[str], Awaitable[bytes | None]]) -> bytes | None:
    """Return the whole JSON of the events, one a line; None if a value is not in the store."""
    if not base.startswith(_HEAD):
        return base
    places = _head_decoder.decode(base[: base.find(b"\n")]).blobs
    values: dict[str, bytes] = {}
    for name in dict.fromkeys(name for _, _, name in places):
        data = await get_blob(name)
        if data is None:
            return None
        values[name] = data
    return await compute_aside(_expand, base, places, values)


def _expand(base: bytes, places: Sequence[tuple[int, int, str]], values: Mapping[str, bytes]) -> bytes:
    blobs: dict[int, list[Blob]] = {}
    for line, at, name in places:
        blobs.setdefault(line, []).append(Blob(at, name, values[name]))
    texts = lines_of(base)
    next(texts)  # the head
    return _join([insert_blobs(text, blobs.get(line, ())) for line, text in enumerate(texts)])


def lines_of(base: bytes) -> Iterator[bytes]:
    """Yield the lines of a base. `bytes.split` would hold the interpreter for 1 ms a MB; this lets it go."""
    for line in BytesIO(base):
        if text := line.rstrip(b"\n"):
            yield text


def _join(lines: Sequence[bytes]) -> bytes:
    """Return `b"\\n".join(lines)`, without holding the interpreter for as long."""
    joined, between = BytesIO(), b""
    for line in lines:
        joined.write(between)
        joined.write(line)
        between = b"\n"
    return joined.getvalue()
