"""What spans cost: to make, to send, and to the runs beside which they are made.

    python -m tests.benchmarks.spans [PATTERN]

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr; PATTERN chooses cases by a part
of their name. `make`: CPU time of one thread for an event or a span. `send`: spans that arrive in a second
when nothing else is done. `steps`: steps per second of runs with telemetry off, with spans, with metrics, and
with both, in turn, sent to a collector in a process of its own; beside them the delay of the loop (99th
percentile) and the CPU time of the whole process for a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentflow import Runtime, Service
from agentflow.events.envelope import StoredEvent, decode
from agentflow.telemetry import TelemetrySettings, read_settings
from agentflow.telemetry.projection import project
from agentflow.telemetry.readable import Readables
from agentflow.telemetry.span import Limits
from agentflow.telemetry.telemetry import Telemetry
from agentflow.testing import ScriptedModel
from tests.benchmarks.workflows.product import add, answer, asking, chain

LIMITS = Limits(8_192, 128, 128)
LENGTH = 20
WINDOW = 1.0
ROUNDS = 5


class Report:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def wants(self, case: str) -> bool:
        return self.pattern in case

    def add(self, case: str, subject: str, value: float, unit: str) -> None:
        line = {"suite": "spans", "case": case, "subject": subject, "value": round(value, 3), "unit": unit}
        print(json.dumps(line), flush=True)
        print(f"{case:<24} {subject:<28} {value:>12,.2f} {unit}", file=sys.stderr, flush=True)


def best_us(call: Callable[[], object], per: int, count: int = 30) -> float:
    """Microseconds of CPU for each of the `per` things that a call does; the best of some."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        for _ in range(count):
            call()
        best = min(best, time.thread_time() - began)
    return best / count / per * 1e6


def opened(telemetry: Telemetry | None) -> Runtime:
    none = Telemetry(TelemetrySettings())  # whatever the environment says
    return Runtime(
        services=[Service.of("bench", add)], models=[ScriptedModel(answer)], telemetry=telemetry or none
    )


async def log_of_a_run() -> list[StoredEvent]:
    async with opened(None) as runtime:
        result = await runtime.run(chain(LENGTH, asking), {"x": 0})
        return await runtime.log.read(result.workflow_id, 0, 10_000)


def bench_making(report: Report, events: list[StoredEvent]) -> None:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    spans, _ = project("wf_1", events, LIMITS)
    readables = Readables()
    ready = readables.of(spans)
    cases: dict[str, tuple[Callable[[], Any], int, str]] = {
        "decode the event": (lambda: [decode(event.body) for event in events], len(events), "us/event"),
        "decode and fold": (lambda: project("wf_1", events, LIMITS), len(events), "us/event"),
        "ReadableSpan": (lambda: readables.of(spans), len(spans), "us/span"),
        "OTLP encoding (SDK)": (lambda: encode_spans(ready).SerializeToString(), len(spans), "us/span"),
    }
    for name, (call, per, unit) in cases.items():
        report.add("make", name, best_us(call, per), unit)
    report.add("make", "spans per event", len(spans) / len(events), "")


class Sent:
    """A collector in a process of its own that answers and forgets; and the environment that names it."""

    def __enter__(self) -> Sent:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "collector.py")], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def telemetry(self, traces: bool, metrics: bool) -> Telemetry | None:
        if not traces and not metrics:
            return None
        env = {"OTEL_TRACES_EXPORTER": "otlp" if traces else "none"}
        env["OTEL_METRICS_EXPORTER"] = "otlp" if metrics else "none"
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = self.url
        return Telemetry(read_settings({**env, "OTEL_EXPORTER_OTLP_ENDPOINT": self.url}))


async def steps_a_second(telemetry: Telemetry | None) -> tuple[float, float, float]:
    """Of one run after another: steps per second, the loop's delay (99th percentile, ms), CPU per step (us).

    The CPU time includes the sending of what is left when the runs have ended.
    """
    delays: list[float] = []

    async def probe() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            delays.append(time.perf_counter() - began - 0.001)

    async with opened(telemetry) as runtime:
        definition = runtime.load(chain(LENGTH, asking))
        await runtime.run(definition, {"x": 0})
        watching = asyncio.create_task(probe())
        steps, began, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < WINDOW:
            await runtime.run(definition, {"x": 0})
            steps += LENGTH
        passed = time.perf_counter() - began
        watching.cancel()
    cpu = time.process_time() - cpu
    return steps / passed, statistics.quantiles(delays, n=100)[98] * 1e3, cpu / steps * 1e6


async def bench_running(report: Report, sent: Sent) -> None:
    subjects = {
        "off": (False, False),
        "spans": (True, False),
        "metrics": (False, True),
        "both": (True, True),
    }
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    delays: dict[str, list[float]] = {name: [] for name in subjects}
    costs: dict[str, list[float]] = {name: [] for name in subjects}
    names = list(subjects)
    for turn in range(ROUNDS):
        for name in names[turn % 4 :] + names[: turn % 4]:
            rate, delay, cost = await steps_a_second(sent.telemetry(*subjects[name]))
            rates[name].append(rate)
            delays[name].append(delay)
            costs[name].append(cost)
    for name in subjects:
        report.add("steps", name, statistics.median(rates[name]), "steps/s")
        report.add("steps", f"{name}: loop delay p99", statistics.median(delays[name]), "ms")
        report.add("steps", f"{name}: CPU per step", statistics.median(costs[name]), "us")
    for name in names[1:]:
        ratio = statistics.median(on / off for on, off in zip(rates[name], rates["off"], strict=True))
        report.add("steps", f"{name} / off", ratio, "x")


async def bench_sending(report: Report, sent: Sent, events: list[StoredEvent]) -> None:
    """From a log on the disk to the collector, with nothing else to do."""
    from agentflow.events.log import Append, RunMeta
    from agentflow.events.sqlite import SqliteLog
    from agentflow.telemetry.projector import Projector
    from agentflow.telemetry.sender import open_sender

    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = sent.url
    sender = open_sender(read_settings())
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = SqliteLog(Path(folder) / "runs.db")
        projector = Projector(log, sender, LIMITS)
        await projector.start()
        for run in range(50):
            meta = RunMeta(name="bench", definition_hash="d", created_at=1)
            await log.append(Append(f"wf_{run}", 1, 0, events, None, meta))
        began = time.perf_counter()
        await projector.aclose(120)
        passed = time.perf_counter() - began
        await log.close()
    report.add("send", "log to collector", projector.counts.exported / passed, "spans/s")


async def run(report: Report) -> None:
    events = await log_of_a_run()
    if report.wants("make"):
        bench_making(report, events)
    if report.wants("send") or report.wants("steps"):
        with Sent() as sent:
            if report.wants("send"):
                await bench_sending(report, sent, events)
            if report.wants("steps"):
                await bench_running(report, sent)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spans")
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--peers-python", help="ignored: there is no peer")
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    asyncio.run(run(Report(parser.parse_args().pattern)))


if __name__ == "__main__":
    main()
