"""Which runs are traced: the samplers of OpenTelemetry, which decide by the trace id and the submitter.

A decision is a function of the log, so a run that goes on elsewhere, or is projected again, keeps it.
"""

from __future__ import annotations

import hashlib

from agentflow.events.tracing import TraceParent
from agentflow.telemetry.settings import TelemetrySettings

__all__ = ["is_in_sample", "is_sampled"]


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


def is_in_sample(trace_id: str, rate: float) -> bool:
    """Return whether a run with this trace is among the part `rate` of all, by a hash of the id."""
    drawn = int.from_bytes(hashlib.sha256(trace_id.encode()).digest()[:8])
    return drawn < round(rate * (1 << 64))
