"""Settings of telemetry: the standard `OTEL_*` variables, read once.

Nothing is exported unless something is configured. This module must stay cheap: it decides whether
OpenTelemetry is imported at all, so it must not import it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.telemetry.conventions import PINNED

__all__ = ["Exporter", "Protocol", "TelemetrySettings", "read_settings"]

Exporter = Literal["none", "otlp", "console"]
Protocol = Literal["http/protobuf", "grpc"]

DEFAULT_ENDPOINT = "http://localhost:4318"
LENGTH_LIMIT = 8_192
LENGTH_AT_MOST = 131_072  # a request must stay below what collectors take
COUNT_LIMIT = 128


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is exported, and where to. `endpoint` is that of the spans, for messages.

    `value_length` in characters for one attribute, `event_count` and `link_count` for one span. `sampler` is
    the name of the OpenTelemetry sampler, `sampler_ratio` its argument.
    """

    traces: Exporter = "none"
    metrics: Exporter = "none"
    protocol: Protocol = "http/protobuf"
    metrics_protocol: Protocol = "http/protobuf"
    logs: Exporter = "none"
    logs_protocol: Protocol = "http/protobuf"
    endpoint: str = DEFAULT_ENDPOINT
    capture_content: bool = False
    value_length: int = LENGTH_LIMIT
    event_count: int = COUNT_LIMIT
    link_count: int = COUNT_LIMIT
    sampler: str = "parentbased_always_on"
    sampler_ratio: float = 1.0
    convention: str = "gen_ai_latest_experimental"
    """The version of the GenAI conventions, as OTEL_SEMCONV_STABILITY_OPT_IN names it."""

    @property
    def active(self) -> bool:
        """Whether anything is exported."""
        return (self.traces, self.metrics, self.logs) != ("none", "none", "none")


def read_settings(env: Mapping[str, str] | None = None) -> TelemetrySettings:
    """Read the settings of this process. Raises ConfigurationError naming the variable that cannot be
    honoured.

    Spans are exported when OTEL_TRACES_EXPORTER says so, or an OTLP endpoint for all signals or for traces is
    set. Metrics are exported when OTEL_METRICS_EXPORTER says so or an OTLP endpoint for metrics is set, log
    records likewise: a trace store such as Jaeger takes neither, so its address alone does not turn them on.
    """
    values = {key: value.strip() for key, value in (os.environ if env is None else env).items()}

    def get(name: str) -> str:
        return values.get(name, "")  # an empty variable counts as one that is not set, says the standard

    if get("OTEL_SDK_DISABLED").lower() == "true":
        return TelemetrySettings()
    everything = get("OTEL_EXPORTER_OTLP_ENDPOINT")
    own = get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    traces = _exporter("OTEL_TRACES_EXPORTER", get("OTEL_TRACES_EXPORTER"), bool(own or everything))
    metrics = _exporter(
        "OTEL_METRICS_EXPORTER",
        get("OTEL_METRICS_EXPORTER"),
        bool(get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")),
    )
    logs = _exporter(
        "OTEL_LOGS_EXPORTER", get("OTEL_LOGS_EXPORTER"), bool(get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"))
    )
    general = get("OTEL_EXPORTER_OTLP_PROTOCOL")
    sampler = get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    if sampler not in _SAMPLERS:
        raise ConfigurationError(
            f"OTEL_TRACES_SAMPLER: {sampler!r} is not supported", hint=f"write one of {', '.join(_SAMPLERS)}"
        )
    return TelemetrySettings(
        traces=traces,
        metrics=metrics,
        protocol=_protocol(get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or general, traces == "otlp"),
        metrics_protocol=_protocol(get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or general, metrics == "otlp"),
        logs=logs,
        logs_protocol=_protocol(get("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL") or general, logs == "otlp"),
        endpoint="the console" if traces == "console" else _shown(own or everything or DEFAULT_ENDPOINT),
        capture_content=_content(get(_CONTENT)),
        value_length=min(
            LENGTH_AT_MOST,
            _limit(
                values,
                ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"),
                LENGTH_LIMIT,
            ),
        ),
        event_count=_limit(values, ("OTEL_SPAN_EVENT_COUNT_LIMIT",), COUNT_LIMIT),
        link_count=_limit(values, ("OTEL_SPAN_LINK_COUNT_LIMIT",), COUNT_LIMIT),
        sampler=sampler,
        convention=_convention(get("OTEL_SEMCONV_STABILITY_OPT_IN")),
        sampler_ratio=_ratio(get("OTEL_TRACES_SAMPLER_ARG")) if "ratio" in sampler else 1.0,
    )


_SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def _convention(value: str) -> str:
    """Return the version of the GenAI conventions; entries of the list about other areas are passed over."""
    for entry in (part.strip() for part in value.split(",")):
        if entry in PINNED:
            return entry
        if entry.partition("/")[0].partition("_latest")[0] == "gen_ai":
            raise ConfigurationError(
                f"OTEL_SEMCONV_STABILITY_OPT_IN: {entry!r} is not supported",
                hint=f"write one of {', '.join(PINNED)}",
            )
    return "gen_ai_latest_experimental"


def _exporter(name: str, value: str, endpoint: bool) -> Exporter:
    if not value:
        return "otlp" if endpoint else "none"
    if value not in ("none", "otlp", "console"):
        raise ConfigurationError(f"{name}: {value!r} is not supported", hint="write otlp, console or none")
    return value


def _protocol(value: str, wanted: bool) -> Protocol:
    if not wanted or value in ("", "http/protobuf"):
        return "http/protobuf"
    if value != "grpc":
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {value!r} is not supported", hint="write http/protobuf"
        )
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.grpc")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_PROTOCOL: grpc needs the package opentelemetry-exporter-otlp-proto-grpc",
            hint="install it, or write http/protobuf and the HTTP port of the collector (4318)",
        )
    return "grpc"


def _content(value: str) -> bool:
    """Parse true, or one of the words that newer instrumentations know for "on spans"."""
    chosen = value.lower()
    if chosen in ("", "false", "no_content"):
        return False
    if chosen in ("true", "span_only", "span_and_event"):
        return True
    if chosen == "event_only":
        raise ConfigurationError(
            f"{_CONTENT}: content is recorded on spans only, not in events", hint="write span_only"
        )
    raise ConfigurationError(f"{_CONTENT}: {value!r} is neither true nor false")


def _shown(url: str) -> str:
    """Return an address without the credentials that may stand in it."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _limit(values: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = values.get(name)
        if text:
            if not text.isdecimal():
                raise ConfigurationError(f"{name}: {text!r} is not a whole number from 0 on")
            return int(text)
    return default


def _ratio(text: str) -> float:
    try:
        ratio = float(text or "1")
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ConfigurationError(f"OTEL_TRACES_SAMPLER_ARG: {text!r} is not a number from 0 to 1")
    return ratio
