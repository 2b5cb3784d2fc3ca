"""Traces end to end: real runs, real processes, real OTLP requests to a receiver on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.events.sqlite import SqliteLog
from agentflow.events.tracing import parse_traceparent, span_id_of, trace_id_of
from agentflow.telemetry import read_settings
from agentflow.telemetry.projector import CONSUMER
from agentflow.telemetry.telemetry import Telemetry
from agentflow.testing import ScriptedModel
from tests.faults.test_kill import finish, kill_after
from tests.integration.support.traced import FLOW, TRACEPARENT, answer, work
from tests.unit.cli.support import Sandbox
from tests.unit.telemetry.collector import Collector, attributes

ROOT = Path(__file__).parents[2]
GIVEN = parse_traceparent(TRACEPARENT)


def environment(url: str, **more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    return {**own, "OTEL_EXPORTER_OTLP_ENDPOINT": url, "PYTHONPATH": str(ROOT), **more}


def start(store: Path, url: str, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.support.traced", str(store), "wf_traced", mode],
        cwd=ROOT,
        env=environment(url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until_settled(store: Path, collector: Collector) -> None:
    """Until the cursor stands behind all that is committed: what was sent is known to be sent."""

    async def look() -> None:
        log = SqliteLog(store)
        try:
            async with asyncio.timeout(30):
                while not collector.spans or await log.load_cursor(CONSUMER) != await log.latest_cursor():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            await log.close()

    asyncio.run(look())


@pytest.fixture
def killed_and_resumed(tmp_path):
    """Runs until the second step is at work, kills the process, resumes in another one to the end."""

    def go(url: str, ready) -> list[str]:
        store = tmp_path / "runs.db"
        first = start(store, url, "run")
        assert first.stdout is not None
        with first:
            lines = [first.stdout.readline()]
            ready(store)
            first.send_signal(signal.SIGKILL)
        second = start(store, url, "resume")
        output, _ = second.communicate("\n", timeout=50)
        assert second.returncode == 0, output
        return [*lines, *output.splitlines()]

    return go


def test_a_run_that_is_killed_and_resumed_is_one_trace(killed_and_resumed):
    with Collector() as collector:
        lines = killed_and_resumed(collector.url, lambda store: wait_until_settled(store, collector))
    assert lines[-1] == "result completed"
    assert collector.requests >= 2
    check_tree(collector.spans)
    headers = [line.split()[1] for line in lines if line.startswith("working")]
    assert len(headers) == 2
    tools = {span.span_id.hex(): span for span in collector.spans if span.name.startswith("execute_tool")}
    assert [parse_traceparent(h).span_id for h in headers] == [
        s.span_id.hex() for s in sorted(tools.values(), key=lambda s: s.start_time_unix_nano)
    ]


def check_tree(spans: list[Any]) -> None:
    """One trace below the submitter's span, with right parents, and no span twice."""
    assert {span.trace_id.hex() for span in spans} == {GIVEN.trace_id}
    by_id = {span.span_id.hex(): span for span in spans}
    assert len(by_id) == len(spans), "a span was sent twice"
    names = Counter(span.name.split()[0] for span in spans)
    assert names == {"invoke_workflow": 1, "process": 5, "invoke_agent": 3, "chat": 4, "execute_tool": 2}
    kinds = {"process": "invoke_workflow", "invoke_agent": "process", "chat": "invoke_agent"}
    kinds["execute_tool"] = "invoke_agent"
    for span in spans:
        kind, parent = span.name.split()[0], span.parent_span_id.hex()
        if kind == "invoke_workflow":
            assert parent == GIVEN.span_id
            assert span.flags & 0x200, "the parent is elsewhere"
        else:
            above = by_id[parent]
            assert above.name.split()[0] == kinds[kind]
            assert above.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= above.end_time_unix_nano
            mine, its = attributes(span.attributes), attributes(above.attributes)
            assert its.get("agentflow.step.id", mine["agentflow.step.id"]) == mine["agentflow.step.id"]
    interrupted, again = sorted(
        (s for s in spans if s.name.startswith("execute_tool")), key=lambda s: s.start_time_unix_nano
    )
    assert attributes(interrupted.attributes)["error.type"] == "interrupted"
    assert [link.span_id for link in again.links] == [interrupted.span_id]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the receiver oteltap is built for x86-64 only")
def test_another_receiver_sees_the_same_trace(killed_and_resumed):
    from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def main() -> list[Any]:
        spans: list[Any] = []
        settings = OtelTapHttpProtobufReceiverSettings(http_port=port, listen_on_all_interfaces=False)
        async with OtelTapHttpProtobufReceiver(settings) as receiver:
            ended = asyncio.create_task(
                receiver.await_trace(lambda s: s.name == "invoke_workflow traced", 40)
            )

            async def keep() -> None:
                spans.extend([span async for span in receiver.stream_traces()])

            keeping = asyncio.create_task(keep())
            loop = asyncio.get_running_loop()
            first = asyncio.Event()

            def ready(store: Path) -> None:
                asyncio.run_coroutine_threadsafe(first.wait(), loop).result(30)

            async def wait_for_first() -> None:
                await receiver.await_trace(lambda s: s.name == "process n0", 30)
                await asyncio.sleep(0.5)  # until the cursor has been stored, which nothing here can see
                first.set()

            waiting = asyncio.create_task(wait_for_first())
            await asyncio.to_thread(killed_and_resumed, f"http://127.0.0.1:{port}", ready)
            await waiting
            await ended
        await keeping
        return spans

    check_tree(asyncio.run(main()))


@pytest.mark.parametrize("events", [33, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 51))])
def test_killed_anywhere_nothing_is_lost(tmp_path, events, monkeypatch):
    """Between an answer of the collector and the storing of the cursor lies a moment: killed in it, a process
    leaves one request to be sent again, with the same spans."""
    import tests.faults.test_kill as kill

    with Collector() as collector:
        for name, value in environment(collector.url).items():
            monkeypatch.setenv(name, value)
        store, effects = tmp_path / "runs.db", tmp_path / "effects"
        assert kill_after(kill.start(store, effects, "run"), events)
        finish(kill.start(store, effects, "resume"))
    opened = {
        json.loads(body)["trace"]["span_id"]
        for _, _, body in kill.read_log(store)
        if "trace" in json.loads(body)
    }
    assert {span.span_id.hex() for span in collector.spans} == opened
    repeated = [i for i, n in Counter(s.span_id.hex() for s in collector.spans).items() if n > 1]
    for span_id in repeated:
        same = [s for s in collector.spans if s.span_id.hex() == span_id]
        assert same[0] == same[1]


async def test_a_runtime_exports_what_the_environment_asks_for(monkeypatch):
    with Collector() as collector:
        for name in [n for n in os.environ if n.startswith("OTEL_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
        seen = []

        @function(side_effect="none")
        def look(n: int) -> int:
            return n

        def model(request):
            from agentflow.events.tracing import outgoing_headers

            seen.append(outgoing_headers()["traceparent"])
            return {"n": 1}

        async with Runtime(
            models=[ScriptedModel(model)], services=[Service.of("shop", look, work)]
        ) as runtime:
            result = await runtime.run(FLOW, {"n": 0}, labels={"team": "a"})
    assert result.state == "completed"
    root = collector.spans[-1]
    assert root.name == "invoke_workflow traced"
    assert root.trace_id.hex() == trace_id_of(result.workflow_id)
    assert root.span_id.hex() == span_id_of(result.workflow_id, "run")
    assert attributes(root.attributes)["agentflow.label.team"] == "a"
    chats = [span.span_id.hex() for span in collector.spans if span.name.startswith("chat")]
    assert [parse_traceparent(header).span_id for header in seen] == chats
    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration", "agentflow.run.duration"} <= set(
        collector.metrics
    )


async def test_a_dead_collector_is_not_felt_by_a_run(monkeypatch, tmp_path):
    with Collector() as gone:
        url = gone.url
    settings = read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    services = [Service.of("shop", quick)]
    store, models = f"sqlite:{tmp_path / 'runs.db'}", [ScriptedModel(answer)]
    async with Runtime(store, models=models, telemetry=Telemetry(settings), services=services) as runtime:
        result = await runtime.run(FLOW, {"n": 0})
        ended = time.monotonic()
    assert result.state == "completed"
    assert time.monotonic() - ended < 4


# -- agentflow export-spans


@pytest.fixture
def shop(tmp_path):
    """A store with a run that has ended."""
    sandbox = Sandbox(tmp_path)
    sandbox.database.parent.mkdir(parents=True)

    async def main() -> None:
        async with Runtime(
            f"sqlite:{sandbox.database}", models=[ScriptedModel(answer)], services=[Service.of("shop", quick)]
        ) as runtime:
            await runtime.run(FLOW, {"n": 0}, workflow_id="wf_done")

    asyncio.run(main())
    yield sandbox
    sandbox.close()


@function(name="work", idempotent=True)
async def quick(n: int) -> int:
    return n


def test_a_past_run_is_exported_again_and_alike(shop):
    with Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        first = shop.call("export-spans", "wf_done", env=env)
        sent = len(collector.spans)
        second = shop.call("export-spans", "wf_done", "--json", env=env)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert sent > 8
    assert [s.SerializeToString() for s in collector.spans[:sent]] == [
        s.SerializeToString() for s in collector.spans[sent:]
    ]
    assert collector.resources[0] == collector.resources[-1]
    assert f"{sent} spans of wf_done sent to {collector.url}; trace {trace_id_of('wf_done')}" in first.stdout
    assert json.loads(second.stdout) == {
        "workflow_id": "wf_done",
        "trace_id": trace_id_of("wf_done"),
        "spans": sent,
        "refused": 0,
        "open": 0,
        "endpoint": collector.url,
    }


def test_without_an_exporter_it_says_what_to_set(shop):
    done = shop.call("export-spans", "wf_done")
    assert (done.returncode, done.stdout) == (78, "")
    assert "no exporter of spans is configured" in done.stderr
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in done.stderr


@pytest.mark.parametrize(
    ("env", "code", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, 78, "grpc"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, 78, "zipkin"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, 78, "no exporter"),
    ],
)
def test_a_wrong_setting_is_named(shop, env, code, said):
    done = shop.call("export-spans", "wf_done", env=env)
    assert done.returncode == code
    assert said in done.stderr


def test_an_unknown_run(shop):
    done = shop.call("export-spans", "wf_nobody", env={"OTEL_TRACES_EXPORTER": "console"})
    assert done.returncode == 4


def test_a_collector_that_is_not_there(shop):
    with Collector() as gone:
        url = gone.url
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}
    done = shop.call("export-spans", "wf_done", env=env)
    assert done.returncode == 6
    assert "did not take the spans" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_console_gets_spans_and_stdout_only_the_result(shop):
    done = shop.call("export-spans", "wf_done", "--json", env={"OTEL_TRACES_EXPORTER": "console"})
    assert done.returncode == 0
    assert json.loads(done.stdout)["endpoint"] == "the console"
    assert len([line for line in done.stderr.splitlines() if '"trace_id"' in line]) > 8
