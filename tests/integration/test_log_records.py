"""Log records over OTLP: with the ids of their trace and span, without secrets; collectors that are dead."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow import Runtime, Service, ToolContext, function, known_secrets
from agentflow.telemetry.settings import read_settings
from agentflow.telemetry.telemetry import Telemetry
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import document, log_of, step
from tests.unit.telemetry.collector import Collector, attributes

ROOT = Path(__file__).parents[2]


@function(side_effect="read")
def look(ctx: ToolContext) -> str:
    """Looks, and writes two records: one through ctx, one of its own."""
    ctx.logger.warning("looked", found=3, key="hunter2-secret")
    logging.getLogger("agentflow.mine").error("broke with %s", "hunter2-secret")
    return "seen"


async def test_a_record_has_the_span_of_the_call_that_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known_secrets.add("hunter2-secret")
    model = ScriptedModel([call("desk__look"), "{}"])
    one = step("a", functions=["look"])
    one["agent"]["model"] = "scripted:m"
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        telemetry = Telemetry(read_settings({"OTEL_LOGS_EXPORTER": "otlp"}))
        async with Runtime(
            models=[model], services=[Service.of("desk", look)], telemetry=telemetry
        ) as runtime:
            await runtime.run(document(one), {}, workflow_id="wf_a")
            (started,) = [e for e in await log_of(runtime, "wf_a") if e.type == "tool.call_started"]
        records = {record.body.string_value: record for record in collector.logs}
    assert started.trace is not None
    for body, level in (("looked", "WARNING"), ("broke with ***", "ERROR")):
        record = next(r for text, r in records.items() if text.startswith(body.partition(" with")[0]))
        assert record.trace_id.hex() == started.trace.trace_id
        assert record.span_id.hex() == started.trace.span_id
        assert record.severity_text == level
        assert "hunter2-secret" not in str(record)
    assert attributes(records["looked"].attributes)["found"] == 3


def test_records_are_sent_only_where_it_is_asked_for() -> None:
    assert read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}).logs == "none"
    assert read_settings({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://localhost:4318/v1/logs"}).logs == "otlp"
    assert read_settings({"OTEL_LOGS_EXPORTER": "console"}).logs == "console"


@pytest.fixture
def silent() -> Iterator[str]:
    """A collector that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def gone() -> str:
    """A collector that is not there."""
    with socket.socket() as once:
        once.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{once.getsockname()[1]}"


PROGRAM = """
import asyncio, logging, time
from agentflow import Runtime
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import document, step

one = step("a")
one["agent"]["model"] = "scripted:m"

async def main():
    async with Runtime({store!r}, models=[ScriptedModel(["{{}}"])]) as runtime:
        await runtime.run(document(one), {{}})
        logging.getLogger("agentflow.mine").warning("done")
        print("run", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory:", "sqlite"])
@pytest.mark.parametrize("how", ["gone", "silent"])
def test_a_process_whose_collector_is_dead_ends_within_two_seconds(
    request: pytest.FixtureRequest, how: str, store: str, tmp_path: Path
) -> None:
    url = request.getfixturevalue(how)
    path = store if store == "memory:" else f"sqlite:{tmp_path / 'runs.db'}"
    exporters = {f"OTEL_{signal}_EXPORTER": "otlp" for signal in ("TRACES", "METRICS", "LOGS")}
    environment = {**os.environ, **exporters, "OTEL_EXPORTER_OTLP_ENDPOINT": url}
    command = [sys.executable, "-c", PROGRAM.format(store=path)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "run\n"
        ended = time.monotonic()
        process.wait(30)
    assert process.returncode == 0
    assert time.monotonic() - ended < 5.0  # less than the time limits of exporters; 1.6 s without other load
