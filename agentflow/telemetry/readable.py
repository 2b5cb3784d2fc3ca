"""From our spans to those that OpenTelemetry's exporters take. Imported only when something is exported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, TypeVar
from uuid import uuid4

from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agentflow.telemetry import conventions as c
from agentflow.telemetry.span import Span

__all__ = ["Readables", "resource_of"]

T = TypeVar("T")

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_UNSET = Status(StatusCode.UNSET)


def resource_of(*, instance: bool) -> Resource:
    """Return the resource that sends: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES over our own name and
    version.

    Without `instance` it names the service and no process: a run goes on in another one, and its spans stay
    the same. Metrics need one, since each process counts for itself.
    """
    found: dict[str, Any] = {SERVICE_VERSION: version("agentflow"), **Resource.create({}).attributes}
    if str(found[SERVICE_NAME]).startswith("unknown_service"):
        found[SERVICE_NAME] = c.SCOPE
    if not instance and SERVICE_INSTANCE_ID not in OTELResourceDetector().detect().attributes:
        found.pop(SERVICE_INSTANCE_ID, None)
    elif instance:
        found.setdefault(SERVICE_INSTANCE_ID, str(uuid4()))
    return Resource(found)


class Readables:
    """Makes ReadableSpans of one service, with the ids and times that the log gave."""

    def __init__(self, convention: str = "gen_ai_latest_experimental") -> None:
        self._convention = c.PINNED[convention]
        self._resource = resource_of(instance=False)
        self._scope = InstrumentationScope(c.SCOPE, version("agentflow"), self._convention.schema_url)

    def of(self, spans: Iterable[Span]) -> list[ReadableSpan]:
        """Return the spans in the same order. Every span must have ended."""
        return [self._one(span) for span in spans]

    def _one(self, span: Span) -> ReadableSpan:
        trace_id = int(span.trace_id, 16)
        assert span.end is not None
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace_id, int(span.span_id, 16), False, _SAMPLED),
            parent=None
            if span.parent_id is None
            else SpanContext(trace_id, int(span.parent_id, 16), span.remote_parent, _SAMPLED),
            resource=self._resource,
            attributes=self._convention.names(span.attributes),
            events=_counted(
                [Event(note.name, note.attributes, note.at * 1000) for note in span.notes], span.dropped_notes
            ),
            links=_counted(
                [
                    Link(SpanContext(int(r.trace_id, 16), int(r.span_id, 16), False, _SAMPLED), r.attributes)
                    for r in span.relations
                ],
                span.dropped_relations,
            ),
            kind=_KINDS[span.kind],
            status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start * 1000,
            end_time=span.end * 1000,
            instrumentation_scope=self._scope,
        )


def _counted(items: list[T], dropped: int) -> Sequence[T]:
    """Return the items, and how many there were beside them; only a BoundedList can say that."""
    if not dropped:
        return items
    counted: BoundedList[T] = BoundedList(len(items))
    counted.extend(items)
    counted.dropped = dropped
    return counted
