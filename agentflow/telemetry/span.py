"""A span as the projection makes it: plain values without OpenTelemetry, which can be compared."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

from agentflow.telemetry import conventions as c

__all__ = ["Limits", "Note", "Relation", "Span"]


_LATEST = (1 << 63) // 1000 - 1  # µs; as nanoseconds they fit 64 bits


class Note(NamedTuple):
    """A span event: something that happened at a time (µs)."""

    name: str
    at: int
    attributes: dict[str, Any]


class Relation(NamedTuple):
    """A link to another span; hex ids."""

    trace_id: str
    span_id: str
    attributes: dict[str, Any]


class Limits(NamedTuple):
    """What one span may hold: characters of a string, events, links; the rest is counted and dropped."""

    value: int
    notes: int
    relations: int


class Span:
    """One span, open until `end` is set. Times in µs since the epoch, ids in lower-case hex."""

    __slots__ = (
        "attributes",
        "dropped_notes",
        "dropped_relations",
        "end",
        "error",
        "kind",
        "name",
        "notes",
        "parent_id",
        "relations",
        "remote_parent",
        "span_id",
        "start",
        "trace_id",
    )

    def __init__(
        self,
        name: str,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        start: int,
        *,
        kind: Literal["internal", "client"] = "internal",
    ) -> None:
        self.name = name
        self.kind: Literal["internal", "client"] = kind
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.remote_parent = False
        self.start = start
        self.end: int | None = None
        self.error: str | None = None
        self.attributes: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.relations: list[Relation] = []
        self.dropped_notes = 0
        self.dropped_relations = 0

    def note(self, name: str, at: int, attributes: dict[str, Any], limits: Limits) -> None:
        """Add an event; beyond the limit it is only counted, so that a span stays of bounded size."""
        if len(self.notes) >= limits.notes:
            self.dropped_notes += 1
            return
        self.notes.append(Note(name, at, bounded(attributes, limits)))

    def relate(self, relation: Relation, limits: Limits) -> None:
        """Add a link; beyond the limit it is only counted."""
        if len(self.relations) >= limits.relations:
            self.dropped_relations += 1
            return
        self.relations.append(relation)

    def close(self, at: int, duration_ms: int | None = None) -> None:
        """End the span; a clock that stepped back is answered with the measured duration."""
        if at < self.start:
            at = min(self.start + 1000 * max(0, duration_ms or 0), _LATEST)
            self.attributes[c.CLOCK_STEPPED] = True
        self.end = at

    def key(self) -> tuple[Any, ...]:
        """Return all that the span says, for comparing."""
        return tuple(getattr(self, name) for name in self.__slots__)


def bounded(attributes: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the attributes as they can be sent: long texts are cut, `…` says so, and integers fit 64 bits.

    Changes and returns the given mapping.
    """
    for name, value in attributes.items():
        if isinstance(value, str):
            if len(value) > limits.value:
                attributes[name] = cut(value, limits.value)
        elif isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:  # no exporter can encode it, now or ever
                attributes[name] = str(value)
        elif isinstance(value, list):
            words = cast("list[Any]", value)[: limits.notes]
            attributes[name] = [cut(w, limits.value) if isinstance(w, str) else w for w in words]
    return attributes


def cut(text: str, length: int) -> str:
    """Return at most `length` characters."""
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"[:length]
