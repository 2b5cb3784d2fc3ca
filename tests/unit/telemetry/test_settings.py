"""What the OTEL variables say, and that nothing of OpenTelemetry is loaded until they say something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from agentflow.events.tracing import TraceParent
from agentflow.telemetry import read_settings
from agentflow.telemetry.sampling import is_sampled

ROOT = Path(__file__).parents[3]
EVERYTHING = "OTEL_EXPORTER_OTLP_ENDPOINT"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.mark.parametrize(
    ("env", "traces", "metrics"),
    [
        ({}, "none", "none"),
        ({EVERYTHING: ""}, "none", "none"),
        ({EVERYTHING: "http://c:4318"}, "otlp", "none"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, "otlp", "none"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, "none", "otlp"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp", "none"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "console"}, "console", "console"),
        ({EVERYTHING: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, "none", "none"),
        ({EVERYTHING: "http://c:4318", "OTEL_METRICS_EXPORTER": "otlp"}, "otlp", "otlp"),
        ({EVERYTHING: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, "none", "none"),
        ({EVERYTHING: "http://c:4318", "OTEL_SDK_DISABLED": "no"}, "otlp", "none"),
    ],
)
def test_what_is_exported(env, traces, metrics):
    settings = read_settings(env)
    assert (settings.traces, settings.metrics) == (traces, metrics)
    assert settings.active is (traces != "none" or metrics != "none")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: 'zipkin'"),
        ({"OTEL_TRACES_EXPORTER": "otlp,console"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, "OTEL_METRICS_EXPORTER"),
        ({EVERYTHING: "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp-proto-grpc"),
        ({EVERYTHING: "x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/json"),
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "much"}, "SAMPLER_ARG"),
        ({"OTEL_SPAN_EVENT_COUNT_LIMIT": "-1"}, "OTEL_SPAN_EVENT_COUNT_LIMIT"),
        ({"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "long"}, "VALUE_LENGTH_LIMIT"),
        ({CONTENT: "event_only"}, "spans only"),
        ({CONTENT: "perhaps"}, CONTENT),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(env, message):
    with pytest.raises(ConfigurationError, match=message):
        read_settings(env)


def test_a_protocol_that_nobody_uses_does_not_matter():
    assert not read_settings({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}).active


@pytest.mark.parametrize(
    ("value", "captured"),
    [("", False), ("false", False), ("NO_CONTENT", False), ("true", True), ("SPAN_ONLY", True)],
)
def test_content(value, captured):
    assert read_settings({CONTENT: value}).capture_content is captured


def test_limits():
    settings = read_settings(
        {
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "50",
            "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "60",
            "OTEL_SPAN_EVENT_COUNT_LIMIT": "7",
            "OTEL_SPAN_LINK_COUNT_LIMIT": "8",
        }
    )
    assert (settings.value_length, settings.event_count, settings.link_count) == (60, 7, 8)
    assert read_settings({"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "999999999"}).value_length <= 1 << 17


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:s3cr3t@c:4318/x?key=s3cr3t", "http://c:4318/x"),
        ("http://c:4318", "http://c:4318"),
        ("c:4318", "c:4318"),
    ],
)
def test_credentials_in_the_address_are_not_shown(url, shown):
    assert read_settings({EVERYTHING: url}).endpoint == shown


PARENT = TraceParent("0" * 31 + "1", "1" * 16, True)
UNSAMPLED = PARENT._replace(sampled=False)
LOW, HIGH = "f" * 16 + "0" * 15 + "1", "f" * 32


@pytest.mark.parametrize(
    ("sampler", "trace_id", "parent", "sampled"),
    [
        ("parentbased_always_on", HIGH, None, True),
        ("parentbased_always_on", HIGH, UNSAMPLED, False),
        ("parentbased_always_off", HIGH, PARENT, True),
        ("parentbased_always_off", HIGH, None, False),
        ("always_on", HIGH, UNSAMPLED, True),
        ("always_off", HIGH, PARENT, False),
        ("traceidratio", LOW, UNSAMPLED, True),
        ("traceidratio", HIGH, PARENT, False),
        ("parentbased_traceidratio", HIGH, PARENT, True),
        ("parentbased_traceidratio", HIGH, None, False),
    ],
)
def test_samplers(sampler, trace_id, parent, sampled):
    settings = read_settings({"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "0.25"})
    assert is_sampled(settings, trace_id, parent) is sampled


def test_the_ratio_decides_as_the_sdk_does():
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    from agentflow.events.tracing import trace_id_of

    settings = read_settings({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.3"})
    theirs = TraceIdRatioBased(0.3)
    kept = 0
    for i in range(1_000):
        trace_id = trace_id_of(f"wf_{i}")
        ours = is_sampled(settings, trace_id, None)
        decision = theirs.should_sample(None, int(trace_id, 16), "x").decision
        assert ours is (decision is Decision.RECORD_AND_SAMPLE)
        kept += ours
    assert 200 < kept < 400


@pytest.mark.parametrize("enter", ["", "async with Runtime() as r: await r.log.latest_cursor()"])
def test_nothing_of_opentelemetry_is_loaded_unless_it_is_configured(enter):
    code = (
        "import asyncio, os, sys\n"
        "for name in [n for n in os.environ if n.startswith('OTEL_')]: del os.environ[name]\n"
        "from agentflow import Runtime\nimport agentflow.telemetry\n"
        f"async def main():\n    {enter or 'pass'}\n"
        "asyncio.run(main())\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry') or m == 'requests'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=50)
    assert done.stdout.strip() == "[]", done.stderr
