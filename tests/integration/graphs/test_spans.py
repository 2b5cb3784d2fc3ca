"""Spans of graphs (page 002 §14), through exporters of the SDK: parents, links, child runs, kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentflow import (
    Case,
    Default,
    NodeFailure,
    RetryPolicy,
    Runtime,
    Service,
    ToolContext,
    Workflow,
    WorkflowContext,
    WorkflowValidationError,
    executor,
    function,
)
from agentflow.events.memory import MemoryLog
from agentflow.events.tracing import outgoing_headers, parse_traceparent
from agentflow.telemetry.sender import Sender
from agentflow.telemetry.telemetry import Telemetry
from tests.conformance.graphs.rows import built, emits, fails, gathers, gives, node, relays
from tests.integration.graphs import traced

ROOT = Path(__file__).parents[3]


class Spans:
    """Spans by name; `of("process a")` are those of the node a, in the order of their ends."""

    def __init__(self, spans: list[dict[str, Any]]) -> None:
        self.all = spans
        self.by_id = {span["context"]["span_id"]: span for span in spans}
        assert len(self.by_id) == len(spans), "a span was sent twice"

    def of(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.all if span["name"] == name]

    def one(self, name: str) -> dict[str, Any]:
        (span,) = self.of(name)
        return span

    def parent(self, span: dict[str, Any]) -> str | None:
        above = self.by_id.get(span["parent_id"])
        return None if above is None else above["name"]

    def links(self, span: dict[str, Any]) -> list[str]:
        """Return the activations that a span links to as their message."""
        found = [link for link in span["links"] if link["attributes"]["agentflow.link"] == "message"]
        senders = [self.by_id[link["context"]["span_id"]] for link in found]
        return [sender["attributes"]["agentflow.activation"] for sender in senders]


async def spans_of(
    workflow: Workflow, message: Any, *, services: Any = (), options: dict[str, Any] | None = None
) -> Spans:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry(sink=Sender(exporter))
    async with Runtime(MemoryLog(), services=list(services), telemetry=telemetry) as runtime:
        handle = await runtime.submit(workflow, message, options=options)
        await handle.result(raise_on_failure=False)
    return Spans([json.loads(span.to_json()) for span in exporter.get_finished_spans()])


async def test_handlers_work_in_spans_below_supersteps_that_link_to_their_senders():
    found = await spans_of(traced.workflow(), 1)
    assert {span["context"]["trace_id"] for span in found.all} == {found.all[0]["context"]["trace_id"]}
    root = found.one("invoke_workflow outer")
    assert root["parent_id"] is None
    above = sorted(str(found.parent(span)) for span in found.of("superstep 1"))
    assert above == ["invoke_workflow child", "invoke_workflow outer"]
    assert found.parent(found.one("process left")) == "superstep 1"
    gather = found.one("process gather")
    assert found.parent(gather) == "superstep 2"
    assert found.links(gather) == ["/left#0", "/late#0", "/late#0"]
    assert found.links(found.one("process sub")) == ["/gather#0"]
    assert found.parent(found.one("invoke_workflow child")) == "process sub"
    assert found.parent(found.one("process inner")) == "superstep 1"
    asked = gather["attributes"]
    assert (asked["agentflow.step.id"], asked["agentflow.attempt"]) == ("gather", 1)


async def test_without_supersteps_handlers_work_below_the_run():
    found = await spans_of(traced.workflow(policy="eager"), 1)
    assert found.parent(found.one("process gather")) == "invoke_workflow outer"
    assert found.links(found.one("process gather")) == ["/left#0", "/late#0", "/late#0"]


@pytest.mark.parametrize("policy", ["superstep", "eager"])
async def test_each_message_links_to_the_activation_that_sent_it(policy: Any):
    """The sender has gone on to other messages meanwhile."""
    flow = built(policy, emits("s", 1, 2, 3)).add_chain(["s", relays("a"), relays("b"), gives("c")])
    found = await spans_of(flow.build(), 0)
    assert [found.links(span) for span in found.of("process b")] == [["/a#0"], ["/a#1"], ["/a#2"]]
    assert [found.links(span) for span in found.of("process c")] == [["/b#0"], ["/b#1"], ["/b#2"]]


async def test_a_fan_in_has_one_link_for_each_message():
    flow = built("superstep", emits("a", 1, 2), emits("b", 3)).add_fan_in_edges(["a", "b"], gathers("j"))
    found = await spans_of(flow.build(), 0)
    assert found.links(found.one("process j")) == ["/a#0", "/a#0", "/b#0"]


async def test_edges_have_spans_below_their_sender_if_a_run_asks_for_them():
    flow = (
        built("superstep", emits("s", 1, "x"))
        .add_fan_out_edges("s", [relays("a"), relays("b")])
        .add_fan_in_edges(["a", "b"], gathers("j"))
        .add_switch_case_edge_group("s", [Case(_is_big, gives("big", int)), Default(gives("d", int))])
        .build()
    )
    found = await spans_of(flow, 0, options={"telemetry": {"edge_spans": True}})
    shown: list[tuple[str, ...]] = []
    for span in found.of("edge_group.process"):
        said = {key.removeprefix("agentflow."): value for key, value in span["attributes"].items()}
        sender = found.parent(span)
        assert said["edge.target"] in said["edge"] or said["edge.kind"] == "switch"
        shown.append(
            (sender, said["edge.kind"], said["edge.target"], said["message.type"], said["delivery_status"])
        )
        assert span["start_time"] == span["end_time"]
    assert sorted(shown) == [
        ("process a", "fan_in", "j", "int", "buffered"),
        ("process b", "fan_in", "j", "int", "buffered"),
        ("process s", "fan_out", "a", "int", "delivered"),
        ("process s", "fan_out", "a", "str", "type_mismatch"),
        ("process s", "fan_out", "b", "int", "delivered"),
        ("process s", "fan_out", "b", "str", "type_mismatch"),
        ("process s", "switch", "big", "int", "condition_false"),
        ("process s", "switch", "big", "str", "type_mismatch"),
        ("process s", "switch", "d", "int", "delivered"),
        ("process s", "switch", "d", "str", "type_mismatch"),
    ]
    assert (await spans_of(flow, 0)).of("edge_group.process") == []


def _is_big(value: int) -> bool:
    return value > 5


async def test_each_attempt_has_a_span_of_its_own_that_links_to_the_one_before():
    seen: list[str] = []

    @executor(id="a", retry=RetryPolicy(max_attempts=3, backoff="1ms", jitter=0))
    async def work(value: int, ctx: WorkflowContext[int]) -> None:
        seen.append(outgoing_headers()["traceparent"])
        if ctx.attempt < 3:
            raise ValueError("not yet")
        await ctx.send_message(value)

    found = await spans_of(built("superstep", work).add_edge("a", gives("b")).build(), 1)
    spans = found.of("process a")
    assert [span["attributes"]["agentflow.attempt"] for span in spans] == [1, 2, 3]
    assert [span["status"]["status_code"] for span in spans] == ["ERROR", "ERROR", "UNSET"]
    assert [[note["name"] for note in span["events"]] for span in spans] == [
        ["agentflow.retry"],
        ["agentflow.retry"],
        [],
    ]
    ids = [span["context"]["span_id"] for span in spans]
    assert [p.span_id for given in seen if (p := parse_traceparent(given)) is not None] == [
        given.removeprefix("0x") for given in ids
    ]
    assert [[link["context"]["span_id"] for link in span["links"]] for span in spans] == [
        [],
        ids[:1],
        ids[1:2],
    ]
    assert {found.parent(span) for span in spans} == {"superstep 1"}
    assert {span["attributes"]["agentflow.message.type"] for span in spans} == {"int"}
    assert [note["name"] for note in found.one("invoke_workflow w")["events"]] == []
    (link,) = found.one("process b")["links"]
    assert link["context"]["span_id"] == ids[2]


async def test_what_an_error_edge_delivers_links_to_the_failure():
    flow = (
        built("superstep", fails("a")).add_edge("a", gives("b")).add_error_edge("a", gives("e", NodeFailure))
    )
    found = await spans_of(flow.build(), 1)
    assert found.links(found.one("process e")) == ["/a#0"]
    assert found.one("invoke_workflow w")["status"]["status_code"] == "UNSET"


async def test_a_failed_run_and_its_step_have_the_code_as_error_type():
    found = await spans_of(built("superstep", fails("a")).build(), 1)
    for name in ("process a", "invoke_workflow w"):
        span = found.one(name)
        assert span["status"]["status_code"] == "ERROR"
        assert span["attributes"]["error.type"] == "executor_failed"


async def test_a_handler_and_its_recorded_calls_know_their_spans():
    seen: dict[str, Any] = {}

    @function(side_effect="read")
    async def look(ctx: ToolContext) -> int:
        """Looks."""
        seen["tool"] = outgoing_headers()["traceparent"]
        return 1

    async def fetch() -> int:
        seen["once"] = outgoing_headers()["traceparent"]
        return 1

    def plainly() -> int:
        seen["plain"] = outgoing_headers()["traceparent"]
        return 1

    async def work(value: int, ctx: Any) -> None:
        seen["ctx"], seen["headers"] = ctx.traceparent, outgoing_headers()["traceparent"]
        await ctx.run_once("a", fetch)
        await ctx.run_once("b", plainly)
        await ctx.call_tool("shop.look")

    flow = built("superstep", node("a", work, takes=(int,))).build()
    found = await spans_of(flow, 1, services=[Service.of("shop", look)])
    own = found.one("process a")["context"]["span_id"].removeprefix("0x")
    parsed = {name: parse_traceparent(text) for name, text in seen.items()}
    traces = {span["context"]["trace_id"].removeprefix("0x") for span in found.all}
    assert {p.trace_id for p in parsed.values() if p} == traces
    assert parsed["ctx"] is not None
    assert parsed["ctx"].span_id == own
    assert seen["headers"] == seen["ctx"]
    tools = [span for span in found.all if span["name"].startswith("execute_tool")]
    assert [found.parent(span) for span in tools] == ["process a"] * 3
    calls = {span["context"]["span_id"].removeprefix("0x") for span in tools}
    assert {parsed[name].span_id for name in ("once", "plain", "tool")} == calls  # type: ignore[union-attr]


def test_a_run_that_is_killed_and_goes_on_is_one_trace_with_all_links(tmp_path: Path):
    spans, store = tmp_path / "spans.jsonl", f"sqlite:{tmp_path}/runs.db"
    command = [sys.executable, "-m", "tests.integration.graphs.traced", store, str(spans)]
    with subprocess.Popen([*command, "stop"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        begun = parse_traceparent(first.stdout.readline())
        first.send_signal(signal.SIGKILL)
    second = subprocess.run([*command, "go"], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (second.stdout.strip(), second.stderr) == ("completed 90", "")
    found = Spans([json.loads(line) for line in spans.read_text().splitlines()])
    assert begun is not None
    assert {span["context"]["trace_id"].removeprefix("0x") for span in found.all} == {begun.trace_id}
    assert found.one("process late")["context"]["span_id"].removeprefix("0x") == begun.span_id
    gather = found.one("process gather")
    assert found.links(gather) == ["/left#0", "/late#0", "/late#0"]
    assert found.links(found.one("process sub")) == ["/gather#0"]
    assert found.parent(found.one("invoke_workflow child")) == "process sub"
    assert found.one("process left")["attributes"]["agentflow.superstep"] == 1


def test_a_build_has_a_span_below_that_of_its_caller(monkeypatch: pytest.MonkeyPatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with provider.get_tracer("program").start_as_current_span("program") as caller:
        workflow = built("superstep", gives("a")).build()
    span, _ = exporter.get_finished_spans()
    assert span.name == "workflow.build"
    assert span.parent == caller.get_span_context()
    assert span.attributes == {
        "gen_ai.workflow.name": workflow.name,
        "agentflow.graph.signature": workflow.signature,
    }
    assert span.status.is_unset


def test_the_span_of_a_build_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with pytest.raises(WorkflowValidationError) as refused:
        built("superstep", gives("a")).add_edge("a", "nobody").build()
    (span,) = exporter.get_finished_spans()
    (code,) = [d.code for d in refused.value.diagnostics if d.severity == "error"]
    assert not span.status.is_ok
    assert span.status.status_code.name == "ERROR"
    assert span.attributes is not None
    assert span.attributes["error.type"] == code


async def test_a_step_says_of_which_types_its_messages_are():
    flow = built("superstep", emits("a", 1, 2), emits("b", 3)).add_fan_in_edges(["a", "b"], gathers("j"))
    found = await spans_of(flow.build(), 0)
    assert {s["attributes"]["agentflow.message.type"] for s in found.of("process a")} == {"int"}
    assert found.one("process j")["attributes"]["agentflow.message.type"] == "int"
    assert found.one("process a")["attributes"]["agentflow.run.id"].startswith("wf_")
