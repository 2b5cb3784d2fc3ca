"""Metrics: what is measured of events, commits, mailboxes and spans, pushed or read."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import msgspec
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agentflow import Runtime, Service, function
from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.models import ModelError
from agentflow.runtime.gauges import mailbox_depths
from agentflow.server.metrics import Metrics as Page
from agentflow.server.metrics import _Measured
from agentflow.telemetry import TelemetrySettings, read_settings
from agentflow.telemetry import conventions as c
from agentflow.telemetry.conventions import usage_attributes
from agentflow.telemetry.instruments import Instrument, Tally
from agentflow.telemetry.metrics import Metrics
from agentflow.telemetry.projector import Counts
from agentflow.telemetry.telemetry import Telemetry
from agentflow.testing import ScriptedModel
from tests.benchmarks.workflows.product import asking, chain
from tests.unit.telemetry.collector import Collector, attributes
from tests.unit.telemetry.support import step, step_started
from tests.unit.telemetry.test_projection import agent_run


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in [n for n in os.environ if n.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def points(reader):
    """Name of a metric to [(attributes, value or (count, sum))]."""
    found = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = (point.count, point.sum) if hasattr(point, "count") else point.value
                    found.setdefault(metric.name, []).append((dict(point.attributes), value))
    return found


async def measured(events, **more):
    """What a pull reader sees after these events, committed one by one in 2 ms each."""
    reader = InMemoryMetricReader()
    metrics = Metrics(TelemetrySettings(), readers=[reader], **more)
    metrics.start()
    for i, data in enumerate(events):
        metrics.committed("wf_1", 1_000_000 * i, [data], 0.002)
    metrics._drain()
    await asyncio.sleep(0)
    found = points(reader)
    await metrics.aclose(5)
    return found


async def test_an_agent_run_is_measured():
    found = await measured(agent_run())
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "flash",
    }
    answered = {**chat, "gen_ai.response.model": "flash-001"}
    assert found["gen_ai.client.operation.duration"] == [
        (answered, (2, 0.024)),
        ({**chat, "error.type": "server_error"}, (1, 0.003)),
    ]
    assert found["gen_ai.client.token.usage"] == [
        ({**answered, "gen_ai.token.type": "input"}, (2, 20)),
        ({**answered, "gen_ai.token.type": "output"}, (2, 8)),
    ]
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "agentflow.service": "crm"}
    assert found["agentflow.tool.duration"] == [
        ({**tool, "error.type": "tool_execution_failed"}, (1, 0.002)),
        (tool, (1, 0.002)),
    ]
    node = {"agentflow.step_kind": "agent", "agentflow.status": "success"}
    assert found["agentflow.node.duration"] == [(node, (1, 0.005))]
    assert found["agentflow.node.executions"] == [(node, 1)]
    assert found["agentflow.run.duration"] == [({"agentflow.state": "completed"}, (1, 0.007))]
    assert found["agentflow.log.events"] == [({}, len(agent_run()))]
    [(_, (count, total))] = found["agentflow.log.commit.duration"]
    assert (count, round(total, 6)) == (len(agent_run()), round(0.002 * len(agent_run()), 6))


async def test_the_page_is_what_the_exporter_of_opentelemetry_shows():
    """The Tally and its names against the SDK and its exporter for Prometheus, on the same events."""
    registry, tally = CollectorRegistry(), Tally()
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    gauges = {
        c.MAILBOX_DEPTH: lambda: {"AgentActor": 3, "Other": 0},
        c.DEAD_LETTERS: lambda: {"stopped": 2},
        c.QUEUE_DEPTH: lambda: {"runs": 4},
        c.WORKER_HEALTH: lambda: {"model:openai": 1},
    }
    metrics = Metrics(TelemetrySettings(), readers=[reader], tally=tally, gauges=lambda: gauges)
    counts = Counts()
    counts.exported, counts.refused, counts.failures = 5, 1, 2
    metrics.show(counts)
    metrics._sample()
    error = ErrorInfo(category="transient", code="server_error", message="m")
    retrying = ev.WorkflowStepRetrying(
        **step("b"), kind="tool", error=error, next_attempt=2, delay_ms=1, due_at="2026-01-01T00:00:00Z"
    )
    supersteps = [
        ev.SuperstepStarted(superstep=0, activations=()),
        ev.SuperstepCompleted(superstep=0, state_version=1, queued=0),
    ]
    for i, data in enumerate([*agent_run(), retrying, *supersteps]):
        metrics.committed("wf_1", 1_000_000 * i, [data] * (i % 3 + 1), 0.0025 * i)
    metrics._drain()
    page = Page()
    page._registry.register(_Measured(tally))
    shown = (await page.render({}))[0].decode()
    expected = list(text_string_to_metric_families(generate_latest(registry).decode()))
    names = {family.name for family in expected}
    found = [family for family in text_string_to_metric_families(shown) if family.name in names]

    def plain(families):
        return {
            (f.name, f.type, f.documentation, s.name, *sorted(s.labels.items())): s.value
            for f in families
            for s in f.samples
        }

    assert len(names) == 18
    assert plain(found) == pytest.approx(plain(expected))
    await metrics.aclose(5)


def test_a_tally_has_an_end():
    tally = Tally()
    counter = tally.counter(Instrument("n", "", "", grows=True))
    histogram = tally.histogram(Instrument("h", "s", "", (1.0,)))
    for i in range(2_500):
        counter.add(1, {"name": str(i)})
        histogram.record(2.0, {"name": str(i)})
    counter.add(1, {"name": "7"})
    for reading, numbers in zip(tally.read(), ([500], [0, 500, 1000.0]), strict=True):
        series = {tuple(found.values()): value for found, value in reading.series}
        assert len(series) == 2_001
        assert series[(True,)] == numbers
    assert [numbers for found, numbers in tally.read()[0].series if found == {"name": "7"}] == [[2]]


async def test_failures_retries_and_supersteps_are_measured():
    error = ErrorInfo(category="transient", code="server_error", message="m")
    events = [
        ev.SuperstepStarted(superstep=0, activations=()),
        step_started("b", kind="tool"),
        ev.WorkflowStepRetrying(
            **step("b"), kind="tool", error=error, next_attempt=2, delay_ms=1, due_at="2026-01-01T00:00:00Z"
        ),
        ev.WorkflowStepFailed(**step("b"), duration_ms=4, error=error, attempts=2, outcome="failed"),
        ev.SuperstepCompleted(superstep=0, state_version=1, queued=0),
    ]
    found = await measured(events)
    assert found["agentflow.node.executions"] == [
        ({"agentflow.step_kind": "tool", "agentflow.status": "failure"}, 1)
    ]
    assert found["agentflow.node.retries"] == [
        ({"agentflow.retry_kind": "tool", "agentflow.error.category": "transient"}, 1)
    ]
    assert found["agentflow.superstep.duration"] == [({}, (1, 4.0))]


async def test_tokens_that_a_provider_did_not_report_are_not_measured():
    """An upper bound is no count: neither the metric nor the span gives it as one."""
    events = [
        msgspec.structs.replace(e, usage=msgspec.structs.replace(e.usage, estimated=True))
        if isinstance(e, ev.ModelCallCompleted)
        else e
        for e in agent_run()
    ]
    assert "gen_ai.client.token.usage" not in await measured(events)
    found = usage_attributes(Usage(input_tokens=3, output_tokens=4, estimated=True))
    assert found == {"agentflow.usage.at_most_tokens": 7}


async def test_what_began_elsewhere_is_measured_by_what_is_known():
    found = await measured([event for event in agent_run() if "started" not in event.EVENT_TYPE])
    assert found["gen_ai.client.operation.duration"][0][0]["gen_ai.provider.name"] == "_OTHER"
    assert found["agentflow.node.duration"][0][0]["agentflow.step_kind"] == "unknown"


async def test_gauges_are_read_on_the_loop():
    here = threading.get_ident()

    def depths():
        assert threading.get_ident() == here
        return {"AgentActor": 3}

    gauges = {c.MAILBOX_DEPTH: depths, c.DEAD_LETTERS: lambda: {"stopped": 2}}
    found = await measured([], gauges=lambda: gauges)
    assert found["agentflow.mailbox.depth"] == [({"agentflow.actor.type": "AgentActor"}, 3)]
    assert found["agentflow.dead_letters"] == [({"agentflow.reason": "stopped"}, 2)]


async def test_a_gauge_that_fails_does_not_end_the_measuring(caplog):
    def broken():
        raise RuntimeError("no")

    gauges = {c.MAILBOX_DEPTH: broken, c.QUEUE_DEPTH: lambda: {"runs": 1}}
    found = await measured(agent_run(), gauges=lambda: gauges)
    assert "gauge_failed" in caplog.text
    assert found["agentflow.run.duration"]
    assert found["agentflow.queue.depth"] == [({"agentflow.queue": "runs"}, 1)]


async def test_a_runtime_measures_its_mailboxes_and_commits():
    reader = InMemoryMetricReader()
    telemetry = Telemetry(TelemetrySettings(), readers=[reader])

    @function(side_effect="none")
    def add(x: int) -> int:
        return x + 1

    services, models = [Service.of("bench", add)], [ScriptedModel(lambda request: {"x": 1})]
    async with Runtime(models=models, services=services, telemetry=telemetry) as runtime:
        assert set(mailbox_depths(runtime.system)) >= {"EventBus"}
        await runtime.run(chain(3, asking), {"x": 0})
        last = (await runtime.log.runs()).items[0].last_offset
        metrics = telemetry._metrics
        await metrics._worker.call(metrics._drain)
        found = points(reader)
    assert found["agentflow.log.events"] == [({}, last + 1)]
    assert "EventBus" in {a["agentflow.actor.type"] for a, _ in found["agentflow.mailbox.depth"]}
    assert found["gen_ai.client.operation.duration"][0][1][0] == 3


async def test_a_result_that_a_record_serves_is_no_measured_call():
    reader = InMemoryMetricReader()
    telemetry = Telemetry(TelemetrySettings(), readers=[reader])

    @function(side_effect="none")
    def add(x: int) -> int:
        return x + 1

    nodes = [
        {"id": "start", "type": "start", "next": "ask"},
        {"id": "ask", "type": "llm", "model": "scripted:m", "prompt": "p", "next": "add"},
        {"id": "add", "type": "tool", "tool": "desk.add", "input": {"x": 1}, "next": "end"},
        {"id": "end", "type": "end"},
    ]
    models, services = [ScriptedModel(["hello"])], [Service.of("desk", add)]
    async with Runtime(models=models, services=services, telemetry=telemetry) as runtime:
        first = await runtime.run({"name": "w", "nodes": nodes}, None)
        again = await (await runtime.replay(first.workflow_id, "Always")).result()
        metrics = telemetry._metrics
        await metrics._worker.call(metrics._drain)
        found = points(reader)
    assert again.output == first.output
    calls = ("gen_ai.client.operation.duration", "gen_ai.client.operation.time_to_first_chunk")
    for name in (*calls, "agentflow.tool.duration"):
        assert [count for _, (count, _) in found[name]] == [1], name
    assert sum(count for _, count in found["agentflow.node.executions"]) == 8
    assert [count for _, (count, _) in found["agentflow.run.duration"]] == [2]


async def test_a_runtime_shows_what_waits_and_which_workers_are_down():
    reader = InMemoryMetricReader()
    telemetry = Telemetry(TelemetrySettings(), readers=[reader])
    begun, may_end = asyncio.Event(), asyncio.Event()

    @function(side_effect="none")
    async def hold() -> None:
        begun.set()
        await may_end.wait()

    @function(side_effect="none", timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    def nodes(*given):
        ends = [{"id": "start", "type": "start", "next": "n0"}, {"id": "end", "type": "end"}]
        found = [{"id": f"n{i}", "next": f"n{i + 1}", **node} for i, node in enumerate(given)]
        found[-1]["next"] = "end"
        return {"name": "w", "nodes": [*ends, *found]}

    def shown():
        telemetry._metrics._sample()
        found = points(reader)
        return (
            {a["agentflow.queue"]: value for a, value in found["agentflow.queue.depth"]},
            {a["agentflow.worker"]: value for a, value in found["agentflow.worker.health"]},
        )

    down = ModelError(ErrorInfo(category="transient", code="server_error", message="m"))
    once = {"retry": {"max_attempts": 1}}
    asks = {"type": "llm", "model": "scripted:m", "prompt": "p", "policy": once}
    calls = {"type": "map", "items_path": "input", "tool": "desk.hold", "input": {}}
    late = {"type": "tool", "tool": "slow.hang", "input": {}}
    services = [Service.of("desk", hold, max_concurrency=1), Service.of("slow", hang)]
    models = [ScriptedModel(["hello", *[down] * 5])]
    async with Runtime(
        models=models, services=services, telemetry=telemetry, max_concurrent_runs=1
    ) as runtime:
        await runtime.run(nodes(asks), None)
        first = await runtime.submit(nodes(calls), [1, 2, 3])
        await begun.wait()
        second = await runtime.submit(nodes(calls), [1])
        assert shown() == (
            {"runs": 1, "model_calls": 0, "tool_calls": 2},
            {"model:scripted": 2, "service:desk": 2},
        )
        may_end.set()
        await first.result()
        await second.result()
        await runtime.run(nodes(late), None, raise_on_failure=False)
        await runtime.run(nodes(asks), None, raise_on_failure=False)
        assert shown()[1] == {"model:scripted": 1, "service:desk": 2, "service:slow": 1}
        for _ in range(4):
            await runtime.run(nodes(asks), None, raise_on_failure=False)
        queues, health = shown()
    assert queues == {"runs": 0, "model_calls": 0, "tool_calls": 0}
    assert health == {"model:scripted": 0, "service:desk": 2, "service:slow": 1}


async def test_metrics_are_pushed_at_the_end(monkeypatch):
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{collector.url}/v1/metrics")
        settings = read_settings()
        assert (settings.traces, settings.metrics) == ("none", "otlp")
        metrics = Metrics(settings)
        metrics.start()
        for data in agent_run():
            metrics.committed("wf_1", 1, [data], 0.001)
        await metrics.aclose(10)
    [usage] = collector.metrics["gen_ai.client.token.usage"]
    assert {attributes(p.attributes)["gen_ai.token.type"] for p in usage.histogram.data_points} == {
        "input",
        "output",
    }
    assert list(usage.histogram.data_points[0].explicit_bounds)[:4] == [1, 4, 16, 64]


async def test_a_collector_that_never_answers_does_not_hold_up_the_end(monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/metrics"
        )
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "3")
        metrics = Metrics(read_settings())
        metrics.start()
        metrics.committed("wf_1", 1, [agent_run()[0]], 0.001)
        began = time.monotonic()
        await metrics.aclose(0.3)
        assert time.monotonic() - began < 3


async def test_who_falls_behind_loses_the_oldest_and_no_memory(monkeypatch):
    reader = InMemoryMetricReader()
    metrics = Metrics(TelemetrySettings(), readers=[reader])
    draft = [agent_run()[0]]
    for i in range(100_050):
        metrics.committed("wf_1", i, draft, 0.001)
    assert len(metrics._queue) == 100_000
    metrics._queue.clear()
    await metrics.aclose(5)
