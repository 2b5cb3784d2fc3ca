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


def telemetry_from_env() -> Telemetry | None:
    """Return the telemetry that the environment asks for, or None. Raises ConfigurationError naming a wrong
    variable."""
    settings = read_settings()
    if not settings.active:
        return None
    from agentflow.telemetry.telemetry import Telemetry

    return Telemetry(settings)
