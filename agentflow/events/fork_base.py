"""The blob that a fork begins with: the events that it keeps of the old run, one a line.

Large values stay blobs of their own, so that a fork stores none anew. Then a first line says where they go:
`{"blobs":[[line, position, name], …]}`. No I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from agentflow.events.blobs import Blob, insert_blobs
from agentflow.events.envelope import stored_event

__all__ = ["encode_base", "expand_base"]

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
    return b"\n".join(lines), list(named.values())


async def expand_base(base: bytes, get_blob: Callable[[str], Awaitable[bytes | None]]) -> bytes | None:
    """Return the whole JSON of the events, one a line; None if a value is not in the store."""
    if not base.startswith(_HEAD):
        return base
    head, *lines = base.split(b"\n")
    values: dict[str, bytes] = {}
    blobs: dict[int, list[Blob]] = {}
    for line, at, name in _head_decoder.decode(head).blobs:
        data = values.get(name) or await get_blob(name)
        if data is None:
            return None
        values[name] = data
        blobs.setdefault(line, []).append(Blob(at, name, data))
    return b"\n".join([insert_blobs(text, blobs.get(line, ())) for line, text in enumerate(lines)])
