"""Events as bytes of a stream: lines of NDJSON, frames of Server-Sent Events. Pure.

The bodies of events are sent as they are stored; nothing is decoded unless blobs are to be put in their
place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from agentflow.events.envelope import StoredEvent

__all__ = ["Frames", "Ndjson", "Sse", "expand"]

_CHUNK = 128 * 1024


class Frames:
    """How a stream writes events and signs of life."""

    media = ""

    def events(self, events: Sequence[StoredEvent]) -> bytes:
        """Return the frames of events, in order."""
        raise NotImplementedError

    def begin(self) -> bytes:
        """Return the frame before the first event."""
        return b""

    def heartbeat(self, event: bytes | None) -> bytes:
        """Return a heartbeat; `event` is its content where one is wanted."""
        raise NotImplementedError

    def aside(self, kind: str, body: bytes) -> bytes:
        """Return a frame that is no event and has no offset."""
        raise NotImplementedError

    def gap(self, workflow_id: str | None, reason: str) -> bytes:
        """Return where something of a run is missing because the store is damaged; None: it is not known of
        which.

        A frame of type `gap`, which is no event and has no offset.
        """
        body = msgspec.json.encode({"type": "gap", "workflow_id": workflow_id, "reason": reason})
        return self.aside("gap", body)


class Ndjson(Frames):
    """One event a line; an empty line is a sign of life."""

    media = "application/x-ndjson"

    def events(self, events: Sequence[StoredEvent]) -> bytes:
        return b"\n".join([event.body for event in events]) + b"\n"

    def heartbeat(self, event: bytes | None) -> bytes:
        return b"\n" if event is None else event + b"\n"

    def aside(self, kind: str, body: bytes) -> bytes:
        return body + b"\n"


class Sse(Frames):
    """A frame for each event. Without `named` it leaves the type out, so that browsers call `onmessage`."""

    media = "text/event-stream"

    def __init__(self, named: bool = True) -> None:
        self._named = named

    def begin(self) -> bytes:
        return b"retry: 3000\n\n"

    def events(self, events: Sequence[StoredEvent]) -> bytes:
        if self._named:
            return b"".join(
                [b"id: %d\nevent: %b\ndata: %b\n\n" % (e.offset, e.type.encode(), e.body) for e in events]
            )
        return b"".join([b"id: %d\ndata: %b\n\n" % (e.offset, e.body) for e in events])

    def marked(self, event_type: str, body: bytes, mark: str | None) -> bytes:
        """Return a frame with an id that is no offset."""
        head = b"" if mark is None else b"id: %b\n" % mark.encode()
        if self._named:
            head += b"event: %b\n" % event_type.encode()
        return head + b"data: %b\n\n" % body

    def heartbeat(self, event: bytes | None) -> bytes:
        return b"event: heartbeat\ndata: %b\n\n" % (event or b"{}")

    def aside(self, kind: str, body: bytes) -> bytes:
        return self.marked(kind, body, None)


def pieces(data: bytes) -> Sequence[bytes]:
    """Split data into pieces that a connection may hold at once."""
    if len(data) <= _CHUNK:
        return (data,)
    return [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]


GetBlob = Callable[[str], Awaitable[bytes | None]]


async def expand(body: bytes, get_blob: GetBlob) -> bytes:
    """Return the event with every `{"$blob": …}` of its data replaced by what it names; one that is gone
    stays."""
    if b'"$blob"' not in body:
        return body
    return msgspec.json.encode(await expand_value(msgspec.json.decode(body), get_blob))


async def expand_value(value: Any, get_blob: GetBlob) -> Any:
    """Return a JSON value with its blobs in their places."""
    if isinstance(value, list):
        return [await expand_value(item, get_blob) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, dict):
        return value
    name: Any = value.get("$blob")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if isinstance(name, str) and name.startswith("sha256:"):
        data = await get_blob(name)
        return value if data is None else msgspec.json.decode(data)  # pyright: ignore[reportUnknownVariableType]
    return {key: await expand_value(item, get_blob) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
