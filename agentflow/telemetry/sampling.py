"""Which runs are traced: the samplers of OpenTelemetry, which decide by the trace id and the submitter.

A decision is a function of the log, so a run that goes on elsewhere, or is projected again, keeps it.
"""

from __future__ import annotations

from agentflow.events.tracing import TraceParent
from agentflow.telemetry.settings import TelemetrySettings

__all__ = ["is_sampled"]


def is_sampled(settings: TelemetrySettings, trace_id: str, parent: TraceParent | None) -> bool:
    """Return whether the spans of a run with this trace and submitter are exported (OTEL_TRACES_SAMPLER)."""
    name = settings.sampler
    if name.startswith("parentbased_"):
        if parent is not None:
            return parent.sampled
        name = name.removeprefix("parentbased_")
    if name == "traceidratio":
        # The lower 64 bits of the id against a bound, so that all services of a trace decide alike.
        return int(trace_id[16:], 16) < round(settings.sampler_ratio * (1 << 64))
    return name == "always_on"
