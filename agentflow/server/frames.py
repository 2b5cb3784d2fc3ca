"""Events as bytes of a stream: lines of NDJSON, frames of Server-Sent Events. Pure.

The bodies of events are sent as they are stored, large values by name unless whole events are asked for;
nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentflow.events.envelope import StoredEvent

__all__ = ["Frames", "Ndjson", "Sse"]

_CHUNK = 128 * 1024


class Frames:
    """How a stream writes events and signs of life."""

    media = ""
    form = ""
    """Name of what `events` returns: equal for what gives the same bytes."""

    def events(self, events: Sequence[StoredEvent], *, whole: bool = False) -> bytes:
        """Return the frames of events, in order; `whole` with their blobs in place."""
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
    form = "ndjson"

    def events(self, events: Sequence[StoredEvent], *, whole: bool = False) -> bytes:
        return b"\n".join([event.body if whole else event.wire for event in events]) + b"\n"

    def heartbeat(self, event: bytes | None) -> bytes:
        return b"\n" if event is None else event + b"\n"

    def aside(self, kind: str, body: bytes) -> bytes:
        return body + b"\n"


class Sse(Frames):
    """A frame for each event. Without `named` it leaves the type out, so that browsers call `onmessage`."""

    media = "text/event-stream"

    def __init__(self, named: bool = True) -> None:
        self._named = named
        self.form = "sse" if named else "sse, unnamed"

    def begin(self) -> bytes:
        return b"retry: 3000\n\n"

    def events(self, events: Sequence[StoredEvent], *, whole: bool = False) -> bytes:
        bodies = [event.body if whole else event.wire for event in events]
        if self._named:
            return b"".join(
                [
                    b"id: %d\nevent: %b\ndata: %b\n\n" % (e.offset, e.type.encode(), body)
                    for e, body in zip(events, bodies, strict=True)
                ]
            )
        return b"".join(
            [b"id: %d\ndata: %b\n\n" % (e.offset, body) for e, body in zip(events, bodies, strict=True)]
        )

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
