"""Trace context: the W3C header, ids that follow from the log, and parents."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.events import catalogue as ev
from agentflow.events.envelope import decode
from agentflow.events.tracing import (
    RunTracer,
    SpanContext,
    active,
    current,
    outgoing_headers,
    parse_traceparent,
    span_id_of,
    trace_id_of,
    traceparent_of,
)
from tests.unit.telemetry.support import GOLDEN, STARTED, golden, step_completed, step_started

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read():
    parsed = parse_traceparent(GIVEN)
    assert parsed == (TRACE, SPAN, True)
    assert str(parsed) == GIVEN


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"  {GIVEN} ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
    ],
)
def test_flags_and_later_versions_are_read(text, sampled):
    parsed = parse_traceparent(text)
    assert parsed is not None
    assert parsed.sampled is sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        None,
        7,
        b"00",
        GIVEN.upper(),
        GIVEN + "-more",
        GIVEN + "\n-x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-zz",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{TRACE}-{SPAN}-٠١",
    ],
)
def test_what_is_no_traceparent_is_none(text):
    assert parse_traceparent(text) is None
    assert traceparent_of({"traceparent": text}) is None


def test_ids_follow_from_names_and_have_the_right_form():
    assert trace_id_of("wf_1") == trace_id_of("wf_1") != trace_id_of("wf_2")
    assert span_id_of("wf_1", "run") == span_id_of("wf_1", "run")
    assert len({span_id_of(f"wf_{i}", f"step {j}") for i in range(50) for j in range(50)}) == 2500
    assert span_id_of("wf_1", "step a") != span_id_of("wf_1\x1fstep", "a")
    assert parse_traceparent(SpanContext("wf_1", trace_id_of("wf_1"), span_id_of("wf_1", "run")).traceparent)


def test_ids_are_those_of_every_release():
    # What is stored in logs and in trace stores must be found again.
    assert trace_id_of("wf_1") == "6ab5c3093854a016168a4a64cff3a73e"
    assert span_id_of("wf_1", "run") == "b9f6ccbab20f0fd0"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_another_process_gives_the_same_spans(path):
    events = [decode(row.body) for row in golden(path)]
    opened = [event.trace.span_id for event in events if event.trace]
    assert len(opened) == len(set(opened)), "two spans have one id"
    again = RunTracer("wf_1")
    assert [again.take(event.data) for event in events] == [event.trace for event in events]


def test_a_submitted_trace_is_continued():
    tracer = RunTracer("wf_1")
    import msgspec

    trace = tracer.take(msgspec.structs.replace(STARTED, options={"traceparent": GIVEN}))
    assert (trace.trace_id, trace.parent_span_id) == (TRACE, SPAN)
    assert tracer.take(step_started()).trace_id == TRACE
    assert tracer.root.sampled


def test_a_trace_that_nobody_records_is_carried_on_as_such():
    import msgspec

    tracer = RunTracer("wf_1")
    tracer.take(msgspec.structs.replace(STARTED, options={"traceparent": f"00-{TRACE}-{SPAN}-00"}))
    assert tracer.root.traceparent.endswith("-00")


def test_steps_have_their_parents():
    tracer = RunTracer("wf_1")
    root = tracer.take(STARTED)
    outer = tracer.take(step_started("each"))
    item = tracer.take(step_started("each", iteration=3))
    assert (outer.parent_span_id, item.parent_span_id) == (root.span_id, outer.span_id)
    tracer.take(ev.SuperstepStarted(superstep=2, activations=("/b#0",)))
    inside = tracer.take(step_started("b", superstep=2))
    assert inside.parent_span_id == span_id_of("wf_1", "superstep 2")
    nested = tracer.take(step_started("b/c", activation="/b#0/c#0", path="/b#0"))
    assert nested.parent_span_id == inside.span_id
    tracer.take(step_completed("b"))
    assert tracer.take(step_started("z")).parent_span_id == root.span_id


def test_attempts_are_spans_of_their_own():
    tracer = RunTracer("wf_1")
    tracer.take(STARTED)
    first, second = tracer.take(step_started()), tracer.take(step_started(attempt=2))
    assert first.span_id != second.span_id


def test_a_call_that_is_not_open_belongs_to_the_run():
    tracer = RunTracer("wf_1")
    tracer.take(STARTED)
    assert tracer.call("call_unknown") == tracer.root


async def test_requests_made_inside_a_call_carry_its_header():
    assert (current(), outgoing_headers()) == (None, {})
    span = SpanContext("wf_1", TRACE, SPAN)
    with active(span):
        assert outgoing_headers() == {"traceparent": GIVEN}
        assert await asyncio.to_thread(outgoing_headers) == {"traceparent": GIVEN}
        assert await asyncio.create_task(_later()) == {"traceparent": GIVEN}
        with active("what another application puts into its messages"):
            assert outgoing_headers() == {}
    assert outgoing_headers() == {}


async def _later():
    await asyncio.sleep(0)
    return outgoing_headers()
