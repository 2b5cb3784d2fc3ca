"""Telemetry: spans and metrics as projections of the event log, for OpenTelemetry.

Off unless the standard `OTEL_*` variables turn it on; until then OpenTelemetry is not even imported. Knows
events and nothing of actors or of the runtime, which starts it and ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.telemetry.settings import TelemetrySettings, read_settings

if TYPE_CHECKING:
    from agentflow.telemetry.telemetry import Telemetry

__all__ = ["TelemetrySettings", "read_settings", "telemetry_from_env"]


def telemetry_from_env(tracer_provider: object | None = None) -> Telemetry | None:
    """Return the telemetry that the environment asks for, or None. Spans go through `tracer_provider` if
    there is one. Raises ConfigurationError naming a wrong variable, and for a provider that exports
    nothing."""
    settings = read_settings()
    if not settings.active and tracer_provider is None:
        return None
    from agentflow.telemetry.telemetry import Telemetry

    if tracer_provider is None:
        return Telemetry(settings)
    from agentflow.telemetry.provider_sink import ProviderSink

    return Telemetry(settings, sink=ProviderSink(tracer_provider, settings.convention))
