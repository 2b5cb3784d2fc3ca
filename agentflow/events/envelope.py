"""The envelope of an event, and its bytes (page 000 §6).

What the engine decides is the data alone; `sealing` makes the envelope around it. `encode` and `decode` are
the only place where events become JSON and back. Readers ignore fields and types that they do not know.
This module never reads a clock by itself and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from agentflow.errors import ConfigurationError, LogCorrupt
from agentflow.events.blobs import LARGE_BYTES, Blob, extract_blobs, insert_blobs
from agentflow.events.catalogue import TYPES, Custom, RunEvent
from agentflow.events.ids import Ids, iso, micros, new_id

__all__ = [
    "SCHEMA_VERSION",
    "UPCASTERS",
    "Event",
    "Ids",
    "StoredEvent",
    "Trace",
    "Unknown",
    "Upcaster",
    "decode",
    "encode",
    "id_of",
    "iso",
    "micros",
    "new_id",
    "stored_event",
    "type_of",
    "upcast",
]

SCHEMA_VERSION = 1
"""The meaning of event data that this release writes. An event says its own, unless it is 1: a run that is
taken up by a later release has events of both."""

D = TypeVar("D", bound=RunEvent, covariant=True)


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The span that an event opens or closes: lower-case hex ids of W3C trace context."""

    trace_id: str
    span_id: str
    parent_span_id: str | None = None


class Unknown(RunEvent, frozen=True, kw_only=True):
    """Data of a type that this release does not know, kept as it was read."""

    EVENT_TYPE: ClassVar[str] = "unknown"

    type: str
    data: dict[str, Any]

    @property
    def event_type(self) -> str:
        """The type as it was read."""
        return self.type


class Event(msgspec.Struct, Generic[D], frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One event of a run's log. `offset` counts from 0 without gap; `timestamp` may tie or step back."""

    id: str
    offset: int
    timestamp: str
    type: str
    workflow_id: str
    data: D
    trace: Trace | None = None
    step: str | None = None
    attempt: int | None = None
    schema_version: int = 1


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as the log keeps it: `ts` in microseconds since the epoch."""

    offset: int
    ts: int
    type: str
    text: bytes
    """The JSON of the envelope, with references in place of `blobs`."""
    blobs: tuple[Blob, ...] = ()
    """Its values above 256 KiB, in order."""

    @property
    def body(self) -> bytes:
        """The whole JSON of the envelope. With blobs it is made at each call, about 0.1 ms a MiB."""
        return insert_blobs(self.text, self.blobs) if self.blobs else self.text

    @property
    def wire(self) -> bytes:
        """The JSON as readers see it: references in place of large values, where the type allows them."""
        return insert_blobs(self.text, self.blobs, hidden_only=True) if self.blobs else self.text

    @property
    def size(self) -> int:
        """Bytes of `body`."""
        return len(self.text) + sum(blob.saved for blob in self.blobs) if self.blobs else len(self.text)


class _Id(msgspec.Struct):
    id: str


_id_decoder = msgspec.json.Decoder(_Id)


def id_of(event: StoredEvent) -> str:
    """Return the id of a stored event."""
    return _id_decoder.decode(event.text).id


def stored_event(offset: int, ts: int, type: str, body: bytes, data: Any = None) -> StoredEvent:
    """Return the stored form of an event with these bytes: large values become its blobs. With `data`, of
    which the bytes were made, that costs less."""
    if len(body) <= LARGE_BYTES:
        return StoredEvent(offset, ts, type, body)
    return StoredEvent(offset, ts, type, *extract_blobs(body, TYPES.get(type, dict[str, Any]), data))


_OPEN = frozenset({Custom, Unknown})  # their type is not that of the class, and their object is the data


def type_of(data: RunEvent) -> str:
    """Return the type of an event as it stands in the envelope."""
    return data.EVENT_TYPE if data.__class__ not in _OPEN else data.event_type


_encoder = msgspec.json.Encoder()


def encode(event: Event[Any]) -> bytes:
    """Return the JSON of one event on one line, without a line end."""
    if event.data.__class__ in _OPEN:
        event = msgspec.structs.replace(event, data=event.data.data)
    return _encoder.encode(event)


class _Envelope(msgspec.Struct):
    """The first phase of decoding: `data` stays bytes until its type is known."""

    id: str
    offset: int
    timestamp: str
    type: str
    workflow_id: str
    data: msgspec.Raw
    trace: Trace | None = None
    step: str | None = None
    attempt: int | None = None
    schema_version: int | None = None


_envelope_decoder = msgspec.json.Decoder(_Envelope)
_object_decoder = msgspec.json.Decoder(dict[str, Any])
_data_decoders: dict[str, msgspec.json.Decoder[RunEvent]] = {}


def _data_decoder(event_type: str) -> msgspec.json.Decoder[RunEvent] | None:
    """Return the decoder of a type of the catalogue, made when an event of it is first read."""
    decoder = _data_decoders.get(event_type)
    if decoder is None and event_type in TYPES:
        decoder = _data_decoders[event_type] = msgspec.json.Decoder(TYPES[event_type])
    return decoder


def decode(body: bytes, *, schema_version: int = 1) -> Event[Any]:
    """Decode an event, its data upgraded to the present schema; `schema_version` is the default of an event
    without one. Raises LogCorrupt if the bytes are no event, and ConfigurationError if it is of a later
    release."""
    kind: Any = _Envelope
    try:
        head = _envelope_decoder.decode(body)
        kind = TYPES.get(head.type, dict[str, Any])
        version = schema_version if head.schema_version is None else head.schema_version
        data = _decode_data(head.type, head.data, version)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        from agentflow.definition.type_errors import undecodable

        raise LogCorrupt(f"an event cannot be read: {undecodable(error, kind)}") from error
    if data.__class__ is Custom and head.step is not None:
        data = msgspec.structs.replace(data, step_id=head.step, attempt=head.attempt)
    return Event(
        id=head.id,
        offset=head.offset,
        timestamp=head.timestamp,
        type=head.type,
        workflow_id=head.workflow_id,
        data=data,
        trace=head.trace,
        step=head.step,
        attempt=head.attempt,
        schema_version=SCHEMA_VERSION,
    )


def _decode_data(event_type: str, raw: msgspec.Raw, schema_version: int) -> RunEvent:
    decoder = _data_decoder(event_type)
    if decoder is None:
        value = _object_decoder.decode(raw)
        if event_type.startswith("custom."):
            return Custom(name=event_type[len("custom.") :], data=value)
        return Unknown(type=event_type, data=value)
    if schema_version == SCHEMA_VERSION:
        return _data_decoders[event_type].decode(raw)
    if schema_version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"an event of type {event_type} was written by a newer agentflow (schema {schema_version}, "
            f"this one knows {SCHEMA_VERSION})",
            hint="upgrade agentflow",
        )
    value = upcast(event_type, schema_version, _object_decoder.decode(raw))
    return msgspec.convert(value, TYPES[event_type])


Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""A change of meaning registers a step, a pure function of data, under (type, version it starts from)."""


def upcast(event_type: str, schema_version: int, data: dict[str, Any]) -> dict[str, Any]:
    """Bring data of an older `schema_version` to today's meaning, version by version."""
    for version in range(schema_version, SCHEMA_VERSION):
        step = UPCASTERS.get((event_type, version))
        if step is not None:
            data = step(data)
    return data
