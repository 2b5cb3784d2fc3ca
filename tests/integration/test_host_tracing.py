"""Runs inside an application that is traced: one trace from its request to the queries of its functions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import baggage, context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation import dbapi
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from agentflow import Runtime, function
from agentflow.client import Client
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.errors import ConfigurationError
from agentflow.telemetry import TelemetrySettings
from agentflow.telemetry.telemetry import Telemetry
from agentflow.testing import ScriptedModel
from agentflow.tools import Service
from tests.integration.support.runs import chain, document, log_of, step
from tests.unit.server.kit import agents, serving
from tests.unit.telemetry.collector import Collector


class Traces:
    """A provider of the application, and what it exported."""

    def __init__(self, **more: Any) -> None:
        self.exported = InMemorySpanExporter()
        self.provider = TracerProvider(**more)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exported))
        self.tracer = self.provider.get_tracer("application")

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The spans by name; no two may have one."""
        found: dict[str, ReadableSpan] = {}
        for span in self.exported.get_finished_spans():
            assert span.name not in found, span.name
            found[span.name] = span
        return found

    def names_above(self, span: ReadableSpan, among: Any = None) -> list[str]:
        """The names of a span's ancestors, the nearest first."""
        by_id = {s.context.span_id: s for s in among or self.exported.get_finished_spans()}
        names: list[str] = []
        while span.parent is not None and span.parent.span_id in by_id:
            span = by_id[span.parent.span_id]
            names.append(span.name)
        return names


@pytest.fixture
def traces() -> Traces:
    return Traces()


def working(traces: Traces, *, in_thread: bool = False) -> Service:
    """The service `desk`, whose function opens a span of the application."""

    def opened() -> str:
        with traces.tracer.start_as_current_span("query"):
            return str(baggage.get_baggage("tenant"))

    @function(name="work", side_effect="none")
    def plain() -> str:
        return opened()

    @function(name="work", side_effect="none")
    async def asynchronous() -> str:
        await asyncio.sleep(0)
        return opened()

    return Service.of("desk", plain if in_thread else asynchronous)


async def outputs(runtime: Runtime, workflow_id: str) -> list[Any]:
    """What the calls of a run returned."""
    events = await log_of(runtime, workflow_id)
    return [e.data.output for e in events if e.type == "tool.call_completed"]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("exported", [False, True])
async def test_a_run_and_what_its_functions_open_are_part_of_the_trace(
    traces: Traces, in_thread: bool, exported: bool
):
    provider = traces.provider if exported else None
    async with Runtime(services=[working(traces, in_thread=in_thread)], tracer_provider=provider) as runtime:
        with traces.tracer.start_as_current_span("request") as request:
            handle = await runtime.submit(chain("work"), {})
        assert (await handle.result()).state == "completed"
        events = await log_of(runtime, handle.workflow_id)
    call = next(e for e in events if e.type == "tool.call_started")
    spans = traces.spans
    query = spans["query"]
    assert query.parent is not None
    assert f"{query.parent.span_id:016x}" == call.trace.span_id
    assert {s.context.trace_id for s in spans.values()} == {request.get_span_context().trace_id}
    if not exported:
        assert set(spans) == {"request", "query"}
        return
    assert traces.names_above(query) == [
        "execute_tool desk__work",
        "process t0",
        "invoke_workflow chain",
        "request",
    ]


async def test_a_run_may_begin_a_trace_of_its_own(traces: Traces):
    async with Runtime(services=[working(traces)]) as runtime:
        with traces.tracer.start_as_current_span("request") as request:
            handle = await runtime.submit(chain("work"), {}, options={"traceparent": None})
        await handle.result()
        first = (await log_of(runtime, handle.workflow_id))[0]
    assert first.trace.trace_id != f"{request.get_span_context().trace_id:032x}"
    assert first.trace.parent_span_id is None
    assert "traceparent" not in first.data.options


async def test_baggage_goes_along_also_to_another_process(traces: Traces, tmp_path):
    store = f"sqlite:{tmp_path / 'runs.db'}"
    token = context.attach(baggage.set_baggage("tenant", "Ann & Söhne"))
    try:
        async with Runtime(store, services=[working(traces)]) as runtime:
            with traces.tracer.start_as_current_span("request"):
                handle = await runtime.submit(chain("work"), {})
                held = await runtime.submit(chain("work", "work"), {}, workflow_id="wf_held")
                await held.pause()
            await handle.result()
            assert await outputs(runtime, handle.workflow_id) == ["Ann & Söhne"]
    finally:
        context.detach(token)
    async with Runtime(store, services=[working(traces)]) as runtime:
        await (await runtime.resume("wf_held")).result()
        assert await outputs(runtime, "wf_held") == ["Ann & Söhne"] * 2


async def test_what_was_active_when_the_runtime_began_is_not_the_parent(traces: Traces):
    with traces.tracer.start_as_current_span("startup"):
        runtime = await Runtime(services=[working(traces)]).__aenter__()
    try:
        handle = await runtime.submit(chain("work"), {})
        await handle.result()
    finally:
        await runtime.__aexit__(None, None, None)
    startup, query = traces.spans["startup"], traces.spans["query"]
    assert query.context.trace_id != startup.context.trace_id


async def test_the_span_of_the_application_is_current_again_after_a_call(traces: Traces):
    """Of the loop's own context, in which a later call begins."""
    async with Runtime(services=[working(traces)]) as runtime:
        await (await runtime.submit(chain("work", "work"), {})).result()
        assert not trace.get_current_span().get_span_context().is_valid


async def test_spans_below_a_model_call(traces: Traces):
    class Provider(ScriptedModel):
        async def complete(self, request: Any, **more: Any) -> Any:
            with traces.tracer.start_as_current_span("http"):
                return await super().complete(request, **more)

    model = Provider()
    model.add([{"said": 1}], when="say")
    async with Runtime(models=[model], tracer_provider=traces.provider) as runtime:
        await (await runtime.submit(document(step("say")), {}, options={"model": "scripted:m"})).result()
    assert [name.split()[0] for name in traces.names_above(traces.spans["http"])] == [
        "chat",
        "invoke_agent",
        "process",
        "invoke_workflow",
    ]


async def test_spans_that_a_provider_does_not_sample_are_not_made():
    traces = Traces(sampler=ParentBased(TraceIdRatioBased(0.0)))
    async with Runtime(services=[working(traces)], tracer_provider=traces.provider) as runtime:
        with traces.tracer.start_as_current_span("request"):
            handle = await runtime.submit(chain("work"), {})
        await handle.result()
    assert traces.spans == {}


async def test_the_tracer_of_others_keeps_its_ids(traces: Traces):
    async with Runtime(services=[working(traces)], tracer_provider=traces.provider) as runtime:
        await (await runtime.submit(chain("work"), {})).result()
    with traces.provider.get_tracer("later").start_as_current_span("later"):
        pass
    assert len({s.context.span_id for s in traces.exported.get_finished_spans()}) == len(traces.spans)


def test_a_provider_that_exports_nothing_is_refused():
    async def enter(provider: object) -> None:
        async with Runtime(tracer_provider=provider):
            raise AssertionError

    with pytest.raises(ConfigurationError, match="NoOpTracerProvider, which exports nothing"):
        asyncio.run(enter(trace.NoOpTracerProvider()))
    with pytest.raises(ConfigurationError, match="exclude each other"):
        Runtime(telemetry=Telemetry(TelemetrySettings()), tracer_provider=TracerProvider())


async def test_a_client_hands_the_trace_to_the_daemon(traces: Traces, tmp_path):
    async with serving(tmp_path) as served, Client(f"unix:{served.socket}") as client:
        with traces.tracer.start_as_current_span("request") as request:
            token = context.attach(baggage.set_baggage("tenant", "Ann"))
            run = await client.submit(agents("a"), "x")
            context.detach(token)
        events = [event async for event in client.events(run.workflow_id, follow=False)]
    span = request.get_span_context()
    assert events[0].trace.trace_id == f"{span.trace_id:032x}"
    assert events[0].trace.parent_span_id == f"{span.span_id:016x}"
    assert events[0].data.options["baggage"] == "tenant=Ann"


@pytest.fixture
def instrumented(traces: Traces) -> Iterator[None]:
    dbapi.wrap_connect("shop", sqlite3, "connect", "sqlite", tracer_provider=traces.provider)
    yield
    dbapi.unwrap_connect(sqlite3, "connect")


@pytest.fixture
def collector(traces: Traces) -> Iterator[Collector]:
    """A second receiver of what the provider of the application sends."""
    with Collector() as found:
        exporter = OTLPSpanExporter(endpoint=f"{found.url}/v1/traces")
        traces.provider.add_span_processor(SimpleSpanProcessor(exporter))
        yield found


async def test_a_web_application_with_its_instrumentations(
    traces: Traces, instrumented, collector: Collector, tmp_path
):
    """One trace from each request through run, step and call to the database query inside it. A collector
    that is sent the same spans over OTLP sees the same."""
    database = str(tmp_path / "shop.db")

    @function(side_effect="read")
    def look(n: int) -> int:
        with sqlite3.connect(database) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT ? + 1", (n,))
            return cursor.fetchone()[0]

    def graph(n: int) -> Workflow:
        look_up = ToolNode(id="look", tool="desk.look", input={"n": n}, next="end", index=0)
        begin, end = StartNode(id="begin", next="look"), EndNode(id="end", index=1, drain=True)
        return Workflow(name="look", nodes=(begin, look_up, end))

    app = FastAPI()
    async with Runtime(services=[Service.of("desk", look)], tracer_provider=traces.provider) as runtime:

        @app.get("/look/{n}")
        async def shop(n: int) -> Any:
            handle = await runtime.submit(graph(n), {}, workflow_id=f"wf_{n}")
            await handle.result()
            return {"found": await outputs(runtime, handle.workflow_id)}

        FastAPIInstrumentor.instrument_app(app, tracer_provider=traces.provider)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            answers = await asyncio.gather(*(http.get(f"/look/{n}") for n in range(4)))
        assert [answer.json() for answer in answers] == [{"found": [n + 1]} for n in range(4)]
    spans = traces.exported.get_finished_spans()
    by_trace: dict[int, list[ReadableSpan]] = {}
    for span in spans:
        by_trace.setdefault(span.context.trace_id, []).append(span)
    assert len(by_trace) == 4
    for some in by_trace.values():
        (query,) = [s for s in some if s.name.startswith("SELECT")]
        above = traces.names_above(query, some)
        assert above == ["execute_tool desk__look", "process look", "invoke_workflow look", "GET /look/{n}"]
        runs = {s.attributes.get("agentflow.run.id") for s in some if s.attributes} - {None}
        assert len(runs) == 1

    def seen(trace_id: int, span_id: int, parent: int | None) -> tuple[str, str, str]:
        return f"{trace_id:032x}", f"{span_id:016x}", "" if parent is None else f"{parent:016x}"

    sent = {(s.trace_id.hex(), s.span_id.hex(), s.parent_span_id.hex()) for s in collector.spans}
    ours = [(s.context, None if s.parent is None else s.parent.span_id) for s in spans]
    assert sent == {seen(context.trace_id, context.span_id, parent) for context, parent in ours}
