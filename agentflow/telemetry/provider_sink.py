"""Sends spans through the TracerProvider of an application, so that its processors and exporters get them.

The spans keep the ids that follow from the log: what functions opened inside their calls hangs below them.
The provider samples, limits and exports as for any other span; whether one arrived is its affair, so that
each is sent once, and not again when the provider's exporter fails.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agentflow.errors import ConfigurationError
from agentflow.telemetry import conventions as c
from agentflow.telemetry.span import Span

__all__ = ["ProviderSink"]

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}


class _GivenIds(IdGenerator):
    """Gives the ids of the span that is being sent."""

    def __init__(self) -> None:
        self.span: Span | None = None

    def generate_span_id(self) -> int:
        """Implement IdGenerator."""
        assert self.span is not None
        return int(self.span.span_id, 16)

    def generate_trace_id(self) -> int:
        """Implement IdGenerator."""
        assert self.span is not None
        return int(self.span.trace_id, 16)


class ProviderSink:
    """A SpanSink over a TracerProvider of the SDK. Raises ConfigurationError for another one."""

    struggling = False

    def __init__(self, provider: object, convention: str = "gen_ai_latest_experimental") -> None:
        if not isinstance(provider, TracerProvider):
            kind = type(provider).__name__
            raise ConfigurationError(
                f"tracer_provider is a {kind}, which exports nothing",
                hint="pass a TracerProvider of opentelemetry.sdk.trace",
            )
        self._ids = _GivenIds()
        self._convention = c.PINNED[convention]
        self._tracer: Any = provider.get_tracer(c.SCOPE, version("agentflow"), self._convention.schema_url)
        if not hasattr(self._tracer, "id_generator"):  # the SDK is switched off, by OTEL_SDK_DISABLED
            raise ConfigurationError("tracer_provider exports nothing: OTEL_SDK_DISABLED is set")
        # Of this tracer alone; others of the provider keep their own.
        self._tracer.id_generator = self._ids
        self._lock = threading.Lock()

    def send(self, spans: Sequence[Span]) -> int:
        """Implement SpanSink: nothing is refused."""
        with self._lock:
            for span in spans:
                self._send(span)
        return 0

    def _send(self, span: Span) -> None:
        self._ids.span = span
        assert span.end is not None
        made = self._tracer.start_span(
            span.name,
            _context_of(span),
            _KINDS[span.kind],
            self._convention.names(span.attributes),
            [Link(_context(r.trace_id, r.span_id, is_remote=False), r.attributes) for r in span.relations],
            start_time=span.start * 1000,
        )
        for note in span.notes:
            made.add_event(note.name, note.attributes, note.at * 1000)
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.end * 1000)

    def close(self) -> None:
        """Implement SpanSink. The provider is the application's, which shuts it down."""


def _context_of(span: Span) -> Context:
    """Return the context of the parent; an empty one for a root, whatever is current in this thread."""
    if span.parent_id is None:
        return Context()
    parent = _context(span.trace_id, span.parent_id, is_remote=span.remote_parent)
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())


def _context(trace_id: str, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)
