"""The trace of the application around a Runtime, through OpenTelemetry's API.

A run that is submitted inside an active span becomes its child. Inside a function, handler or adapter, the
span of the call is the current one, so that what the application and its instrumentations open there hangs
below it. OpenTelemetry is used where the application has imported it, and never imported for others.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["attach_span", "detach_span", "has_host_tracing", "host_trace_options"]


def host_trace_options() -> dict[str, str]:
    """Return `traceparent`, and `tracestate` and `baggage` if there are any, of the application's active
    span; nothing outside of one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    span: Any = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    found = {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}
    state = span.trace_state.to_header()
    if state:
        found["tracestate"] = state
    baggage = _current_baggage()
    if baggage:
        found["baggage"] = baggage
    return found


def _current_baggage() -> str:
    """Return the current baggage as the header that W3C Baggage writes, "" if there is none."""
    module = sys.modules.get("opentelemetry.baggage")
    if module is None or not module.get_all():
        return ""
    from opentelemetry.baggage.propagation import W3CBaggagePropagator

    carrier: dict[str, str] = {}
    W3CBaggagePropagator().inject(carrier)
    return carrier.get("baggage", "")


def has_host_tracing() -> bool:
    """Return whether the application has imported OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


def attach_span(trace_id: str, span_id: str, sampled: bool, baggage: str | None) -> Any:
    """Make a span of a run the current one of OpenTelemetry, which the application uses; return what
    `detach_span` takes. Both must be called in the same task."""
    trace = sys.modules["opentelemetry.trace"]
    from opentelemetry import context

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else trace.TraceFlags.DEFAULT)
    span = trace.NonRecordingSpan(trace.SpanContext(int(trace_id, 16), int(span_id, 16), False, flags))
    made = trace.set_span_in_context(span)
    if baggage is not None:
        from opentelemetry.baggage.propagation import W3CBaggagePropagator

        made = W3CBaggagePropagator().extract({"baggage": baggage}, made)
    return context.attach(made)


def detach_span(token: Any) -> None:
    """Make the span current again that was so before `attach_span`."""
    if token is not None:
        from opentelemetry import context

        context.detach(token)
