"""What the options of a run say of the export of its spans (page 003 §12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = ["Telemetry", "telemetry_of"]


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """What is exported of one run; a field that is not set leaves it to the process."""

    enabled: bool = True
    sample_rate: float | None = None
    payload_mode: Literal["full_payload", "redacted_payload"] | None = None
    tool_trace_mode: Literal["full", "redacted", "off"] | None = None
    edge_spans: bool = False
    """Whether what each edge did with each message is a span too."""


def telemetry_of(options: Mapping[str, Any]) -> Telemetry | None:
    """Return what the options of a recorded run say of its export; None if they say nothing."""
    given = options.get("telemetry")
    return msgspec.convert(given, Telemetry) if isinstance(given, dict) else None
