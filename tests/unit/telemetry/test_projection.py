"""From events to spans: trees, names, attributes, links, and logs that are not as they should be."""

from __future__ import annotations

import msgspec
import pytest

from agentflow.definition.conversation import Message, ToolCall, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.events.envelope import StoredEvent
from agentflow.events.tracing import SpanContext, span_id_of, trace_id_of
from agentflow.telemetry import conventions as c
from agentflow.telemetry.projection import RunSpans, project, take_or_skip
from agentflow.telemetry.span import Limits
from tests.unit.engine.small_runs import CASES
from tests.unit.telemetry.support import (
    GOLDEN,
    LIMITS,
    STARTED,
    completed,
    golden,
    outline,
    scope,
    step,
    step_completed,
    step_started,
    stored,
    tree,
)

ERROR = ErrorInfo(category="tool", code="tool_execution_failed", message="it said s3cr3t")
RESERVED = ev.Reserved(tokens=1, cost_usd=None)
AGENT = {"agent_name": "writer", "context_id": "ctx_1"}


def initialized(**more):
    fields = {
        **AGENT,
        "system_prompt": "s3cr3t prompt",
        "model": "gemini:flash",
        "input": ev.AgentInput(
            data="s3cr3t", metadata=ev.AgentInputMetadata(step_index=0, previous_agent=None)
        ),
        "tools": (),
    }
    return ev.AgentInitialized(**scope(), **{**fields, **more})


def asked(call="mcl_1", **more):
    fields = {
        "provider": "gemini",
        "model": "flash",
        "turn": 1,
        "parameters": {"temperature": 0.5, "max_tokens": 64, "stop": "END", "top_k": "odd", "n": True},
        "messages_from": 0,
        "messages": (Message(role="system", content="s3cr3t"), Message(role="user", content="s3cr3t")),
        "request_hash": "h",
        "reserved": RESERVED,
    }
    return ev.ModelCallStarted(**scope(), model_call_id=call, agent_name="writer", **{**fields, **more})


def answered(call="mcl_1", **more):
    wanted = ToolCall(id="call_1", name="look", arguments='{"q": "s3cr3t"}')
    fields = {
        "duration_ms": 12,
        "first_token_ms": 4,
        "message": Message(role="assistant", content="s3cr3t", tool_calls=(wanted,)),
        "finish_reason": "tool_calls",
        "response_model": "flash-001",
        "response_id": "r1",
        "usage": Usage(
            input_tokens=10, output_tokens=4, cache_read_input_tokens=8, model_calls=1, cost_usd=0.5
        ),
    }
    return ev.ModelCallCompleted(**scope(), model_call_id=call, agent_name="writer", **{**fields, **more})


def model_failed(call="mcl_1", **more):
    error = ErrorInfo(category="transient", code="server_error", message="503")
    fields = {"duration_ms": 3, "error": error, "will_retry": True}
    return ev.ModelCallFailed(**scope(), model_call_id=call, agent_name="writer", **{**fields, **more})


def tool_started(call="call_1"):
    return ev.ToolCallStarted(
        **scope(),
        tool_call_id=call,
        tool_name="look",
        service="crm",
        parameters={"q": "s3cr3t"},
        agent_name="writer",
        side_effect="read",
        idempotency_key="k",
    )


def tool_failed(call="call_1", **more):
    fields = {"duration_ms": 2, "error": ERROR, "executed": True, "outcome": "failed", "will_retry": True}
    return ev.ToolCallFailed(**scope(), tool_call_id=call, tool_name="look", **{**fields, **more})


def tool_completed(call="call_1"):
    return ev.ToolCallCompleted(
        **scope(),
        tool_call_id=call,
        tool_name="look",
        duration_ms=2,
        status="success",
        output="s3cr3t",
        output_size=8,
    )


def agent_completed():
    made = ev.AgentOutputMetadata(agent_name="writer", execution_time_ms=9, tool_calls_count=1)
    return ev.AgentCompleted(
        **scope(),
        **AGENT,
        duration_ms=9,
        output_size=8,
        output=ev.AgentOutput(data="s3cr3t", metadata=made),
        turns=2,
        usage=Usage(input_tokens=10, output_tokens=4),
    )


def agent_run():
    """A step whose agent calls a model, a tool that fails once, and the model again."""
    return [
        STARTED,
        step_started(),
        initialized(),
        asked(),
        answered(),
        tool_started(),
        tool_failed(),
        tool_started(),
        tool_completed(),
        asked("mcl_2", turn=2, messages=(Message(role="tool", content="s3cr3t", tool_call_id="call_1"),)),
        model_failed("mcl_2"),
        asked("mcl_3", turn=2, messages=()),
        answered("mcl_3"),
        agent_completed(),
        step_completed(),
        completed(),
    ]


def spans_of(events, *, step_us=1_000, capture=False, limits=LIMITS, **more):
    timed = [(data, 1_000_000 + i * step_us) for i, data in enumerate(events)]
    return project("wf_1", stored("wf_1", timed), limits, capture=capture, **more)


def named(spans, name):
    return next(span for span in spans if span.name == name)


# -- well-formed trees


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
@pytest.mark.parametrize("capture", [False, True])
def test_every_golden_log_is_a_well_formed_tree(path, capture):
    log = golden(path)
    spans, fold = project("wf_1", log, LIMITS, capture=capture)
    assert fold.open == 0
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    [root] = tree(spans)[None]
    assert root.name.startswith("invoke_workflow ")
    assert {span.trace_id for span in spans} == {trace_id_of("wf_1")}
    opened = [row for row in log if b'"trace":' in row.body]
    assert len(opened) == len(spans)
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        assert span.end >= span.start
        assert span.attributes[c.WORKFLOW_ID] == "wf_1"
        for value in span.attributes.values():
            assert isinstance(value, str | int | float | bool | list), value
        if span is not root:
            parent = by_id[span.parent_id]
            assert parent.start <= span.start
            assert span.end <= parent.end
        for relation in span.relations:
            assert relation.span_id in ids


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_the_same_log_gives_the_same_spans(path):
    first, second = (project("wf_1", golden(path), LIMITS)[0] for _ in range(2))
    assert [span.key() for span in first] == [span.key() for span in second]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_a_fold_that_begins_anew_at_any_event_gives_the_rest(path):
    log = golden(path)
    whole = [span.key() for span in project("wf_1", log, LIMITS)[0]]
    for cut in range(len(log)):
        before, _ = project("wf_1", log[:cut], LIMITS)
        _, fold = project("wf_1", log[:cut], LIMITS)
        after = [span for row in log[cut:] for span in fold.take(row)]
        assert [span.key() for span in before + after] == whole


def test_what_an_agent_did_lies_below_it():
    spans, fold = spans_of(agent_run())
    assert fold.open == 0
    assert outline(spans) == [
        [
            "invoke_workflow flow",
            [
                [
                    "process a",
                    [
                        [
                            "invoke_agent writer",
                            [
                                ["chat flash", []],
                                ["execute_tool look", []],
                                ["execute_tool look", []],
                                ["chat flash", []],
                                ["chat flash", []],
                            ],
                        ]
                    ],
                ]
            ],
        ]
    ]


def test_supersteps_and_nested_steps_have_their_place():
    spans, _ = spans_of(
        [
            STARTED,
            ev.SuperstepStarted(superstep=0, activations=("/a#0",)),
            step_started(superstep=0),
            step_started("b", activation="/a#0/b#0", path="/a#0"),
            step_completed("b", activation="/a#0/b#0", path="/a#0"),
            step_completed(superstep=0),
            ev.SuperstepCompleted(superstep=0, state_version=1, queued=2),
            completed(),
        ]
    )
    assert outline(spans) == [
        ["invoke_workflow flow", [["superstep 0", [["process a", [["process b", []]]]]]]]
    ]


# -- what spans say


def test_names_and_attributes_are_those_of_the_conventions():
    spans, _ = spans_of(agent_run())
    root, agent, chat = spans[-1], named(spans, "invoke_agent writer"), spans[0]
    assert root.attributes[c.OPERATION] == "invoke_workflow"
    assert root.attributes["gen_ai.workflow.name"] == "flow"
    assert root.attributes["agentflow.label.team"] == "a"
    assert root.attributes["agentflow.state"] == "completed"
    assert root.attributes["agentflow.usage.input_tokens"] == 3
    assert not [name for name in root.attributes if name.startswith("gen_ai.usage")]
    assert agent.attributes[c.OPERATION] == "invoke_agent"
    assert agent.attributes["gen_ai.agent.name"] == "writer"
    assert agent.attributes["gen_ai.provider.name"] == "gcp.gemini"
    assert agent.attributes["gen_ai.conversation.id"] == "ctx_1"
    assert chat.kind == "client"
    assert {k: v for k, v in chat.attributes.items() if k.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "flash",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.agent.name": "writer",
        "gen_ai.conversation.id": "ctx_1",
        "gen_ai.response.model": "flash-001",
        "gen_ai.response.id": "r1",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.response.time_to_first_chunk": 0.004,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 8,
    }
    assert chat.attributes["agentflow.offset"] == 3
    first, second = (span for span in spans if span.name == "execute_tool look")
    assert first.attributes["gen_ai.tool.call.id"] == "call_1"
    assert first.attributes["gen_ai.tool.type"] == "function"
    assert first.attributes["error.type"] == "tool_execution_failed"
    assert (first.attributes["agentflow.attempt"], second.attributes["agentflow.attempt"]) == (1, 2)
    assert second.error is None


def test_content_is_off_by_default():
    spans, _ = spans_of(agent_run())
    text = repr([span.key() for span in spans])
    assert "s3cr3t" not in text


def test_content_is_captured_on_demand():
    spans, _ = spans_of(agent_run(), capture=True)
    agent = named(spans, "invoke_agent writer")
    chats = [span for span in spans if span.name == "chat flash"]
    tool = next(span for span in spans if span.name == "execute_tool look")
    assert "s3cr3t prompt" in agent.attributes[c.SYSTEM_INSTRUCTIONS]
    said = msgspec.json.decode(chats[1].attributes[c.INPUT_MESSAGES])
    assert [message["role"] for message in said] == ["user", "assistant", "tool"]
    assert said[1]["parts"][1] == {
        "type": "tool_call",
        "id": "call_1",
        "name": "look",
        "arguments": {"q": "s3cr3t"},
    }
    assert said[2]["parts"][0]["type"] == "tool_call_response"
    [out] = msgspec.json.decode(chats[0].attributes[c.OUTPUT_MESSAGES])
    assert out["finish_reason"] == "tool_calls"
    assert tool.attributes[c.TOOL_ARGUMENTS] == '{"q":"s3cr3t"}'
    assert "s3cr3t" in tool.error
    assert spans[-1].attributes[c.INPUT] == '{"secret":"s3cr3t"}'


def test_what_failed_has_status_and_type():
    error = ErrorInfo(category="agent", code="agent_failed", message="s3cr3t")
    failed = ev.WorkflowStepFailed(**step(), duration_ms=1, error=error, attempts=1, outcome="failed")
    end = ev.WorkflowFailed(
        error=error, failed_steps=("a",), duration_ms=2, steps=ev.StepCounts(failed=1), usage=Usage()
    )
    spans, _ = spans_of([STARTED, step_started(), failed, end])
    assert [(span.name, span.error) for span in spans] == [
        ("process a", "agent_failed"),
        ("invoke_workflow flow", "agent_failed"),
    ]
    assert {span.attributes["error.type"] for span in spans} == {"agent_failed"}


def test_a_cancelled_run_says_so():
    end = ev.WorkflowCancelled(
        mode="soft",
        forced=False,
        reason=None,
        by="local",
        cancelled_steps=("a",),
        unknown_calls=(),
        duration_ms=2,
        usage=Usage(),
    )
    spans, fold = spans_of([STARTED, step_started(), initialized(), tool_started(), end])
    assert fold.open == 0
    assert [span.name for span in spans][-1] == "invoke_workflow flow"
    assert spans[-1].error == "cancelled"
    assert all(span.attributes[c.UNFINISHED] for span in spans[:-1])


def test_an_attempt_links_to_the_one_before():
    spans, _ = spans_of(agent_run())
    by_id = {span.span_id: span for span in spans}
    links = [(span.name, by_id[r.span_id].error, r.attributes) for span in spans for r in span.relations]
    retry = {"agentflow.link": "retry"}
    assert links == [
        ("execute_tool look", "tool_execution_failed", retry),
        ("chat flash", "server_error: 503", retry),
    ]


def test_a_restarted_agent_links_to_its_last_attempt():
    again = ev.AgentRetrying(
        **scope(),
        **AGENT,
        kind="restart",
        next_attempt=2,
        delay_ms=10,
        due_at="2026-01-01T00:00:00Z",
        category="invalid_output",
        error=ErrorInfo(category="invalid_output", code="schema_mismatch", message="s3cr3t"),
    )
    events = [
        STARTED,
        step_started(),
        initialized(),
        again,
        initialized(context_id="ctx_2"),
        agent_completed(),
    ]
    spans, _ = spans_of([*events, step_completed(), completed()])
    first, second = (span for span in spans if span.name == "invoke_agent writer")
    assert first.error == "schema_mismatch"
    assert [note.name for note in first.notes] == ["agentflow.retry"]
    assert [relation.span_id for relation in second.relations] == [first.span_id]


def test_a_step_links_to_what_it_waited_for():
    sources = (ev.MessageRef(activation="/a#0", edge="a->c", index=0),)
    events = [
        STARTED,
        step_started("a"),
        step_completed("a"),
        step_started("b"),
        step_completed("b"),
        step_started("c", depends_on=("a", "b", "never"), sources=sources),
        step_completed("c"),
        completed(),
    ]
    spans, _ = spans_of(events)
    a, b, last = spans[0], spans[1], spans[2]
    assert [(r.span_id, r.attributes["agentflow.link"]) for r in last.relations] == [
        (a.span_id, "message"),
        (a.span_id, "dependency"),
        (b.span_id, "dependency"),
    ]


def test_a_fork_links_to_the_run_it_came_from():
    started = msgspec.structs.replace(STARTED, forked_from=ev.ForkOrigin(workflow_id="wf_0", offset=7))
    origin = SpanContext("wf_0", trace_id_of("wf_0"), span_id_of("wf_0", "run"))
    spans, _ = spans_of([started, completed()], origin=origin)
    assert spans[0].attributes["agentflow.forked_from"] == "wf_0@7"
    assert spans[0].relations[0][:2] == (trace_id_of("wf_0"), span_id_of("wf_0", "run"))


def test_the_calls_of_a_fork_that_began_elsewhere_are_spans_all_the_same():
    started = msgspec.structs.replace(STARTED, forked_from=ev.ForkOrigin(workflow_id="wf_0", offset=7))
    spans, fold = spans_of(
        [started, model_failed(), tool_failed(), agent_completed(), step_completed(), completed()]
    )
    assert fold.open == 0
    assert [span.attributes.get(c.START_UNKNOWN) for span in spans] == [True, True, True, True, None]
    assert {span.parent_id for span in spans[:-1]} == {spans[-1].span_id}
    assert [span.end - span.start for span in spans[:-1]] == [3_000, 2_000, 9_000, 5_000]


def test_waits_and_approvals_are_span_events():
    requested = ev.ApprovalRequested(
        **scope(), request_id="req_1", kind="tool", subject={"to": "s3cr3t"}, digest="d", side_effect="write"
    )
    granted = ev.ApprovalGranted(
        **scope(), request_id="req_1", digest="d", by="uid:7", via="cli", reason="s3cr3t"
    )
    spans, _ = spans_of(
        [
            STARTED,
            ev.WorkflowStepWaiting(**step(), for_="approval", ref="req_0"),
            step_started(),
            initialized(),
            requested,
            ev.WorkflowWaiting(requests=("req_1",), timers=(), signals=()),
            ev.WorkflowPaused(reason="operator", detail="s3cr3t"),
            ev.WorkflowResumed(reason=None),
            granted,
            ev.TimerFired(timer_id="t", purpose="retry", due_at="2026-01-01T00:00:00Z"),
            ev.SystemError(error=ERROR, severity="warning", component="log", fatal=False),
            step_completed(),
            completed(),
        ]
    )
    root, agent = spans[-1], named(spans, "invoke_agent writer")
    assert [note.name for note in root.notes] == [
        "agentflow.step_waiting",
        "agentflow.waiting",
        "agentflow.paused",
        "agentflow.resumed",
        "agentflow.timer_fired",
        "agentflow.system_error",
    ]
    assert root.notes[0].attributes == {
        "agentflow.step.id": "a",
        "agentflow.for": "approval",
        "agentflow.ref": "req_0",
        "agentflow.offset": 1,
    }
    assert [(note.name, note.attributes.get("agentflow.by")) for note in agent.notes] == [
        ("agentflow.approval_requested", None),
        ("agentflow.approval_granted", "uid:7"),
    ]
    assert "s3cr3t" not in repr([span.key() for span in spans])


def test_a_skipped_step_is_an_event_of_the_run():
    skipped = ev.WorkflowStepSkipped(**step("b"), reason="condition_false", detail="s3cr3t", caused_by=())
    spans, _ = spans_of([STARTED, skipped, completed()])
    assert [(n.name, n.attributes["agentflow.reason"]) for n in spans[0].notes] == [
        ("agentflow.step_skipped", "condition_false")
    ]


# -- logs that are not as they should be


def test_events_of_unknown_types_are_passed_over():
    log = stored("wf_1", [(STARTED, 1), (step_started(), 2), (step_completed(), 3), (completed(), 4)])
    odd = StoredEvent(
        9,
        3,
        "quantum.leap",
        b'{"id":"e","offset":9,"timestamp":"2026-01-01T00:00:00Z","type":"quantum.leap",'
        b'"workflow_id":"wf_1","data":{"activation":7,"iteration":[]}}',
    )
    mine = StoredEvent(
        9,
        3,
        "custom.x",
        b'{"id":"e","offset":9,"timestamp":"2026-01-01T00:00:00Z","type":"custom.x",'
        b'"workflow_id":"wf_1","data":{"step_id":"a"}}',
    )
    spans, _ = project("wf_1", [log[0], odd, log[1], mine, log[2], log[3]], LIMITS)
    assert [span.key() for span in spans] == [span.key() for span in project("wf_1", log, LIMITS)[0]]


@pytest.mark.parametrize("body", [b"", b"{", b'{"id":1}', b"\xff\xfe", b"[]"])
def test_an_event_that_cannot_be_read_costs_only_itself(body, caplog):
    log = stored("wf_1", [(STARTED, 1), (step_started(), 2), (step_completed(), 3), (completed(), 4)])
    fold = RunSpans("wf_1", LIMITS)
    spans = []
    for row in (log[0], StoredEvent(1, 2, "workflow.step_started", body), *log[2:]):
        spans += take_or_skip(fold, row)
    assert [span.name for span in spans] == ["process a", "invoke_workflow flow"]
    assert "event_not_projected" in caplog.text


def test_a_run_without_an_end_keeps_its_open_spans():
    spans, fold = spans_of(agent_run()[:-3])
    assert {span.name for span in spans} == {"chat flash", "execute_tool look"}
    assert fold.open == 3


def test_a_log_without_its_beginning_still_has_a_tree():
    whole = stored("wf_1", [(data, 1_000_000 + i * 1_000) for i, data in enumerate(agent_run())])
    for first in range(1, len(whole)):
        spans, fold = project("wf_1", whole[first:], LIMITS)
        assert fold.open == 0
        root = spans[-1]
        assert root.name == "invoke_workflow"
        assert root.attributes[c.START_UNKNOWN] is True
        ids = {span.span_id for span in spans}
        assert len(ids) == len(spans)
        assert {span.parent_id for span in spans if span is not root} <= ids | {
            span_id_of("wf_1", "step /a#0 1"),
            span_id_of("wf_1", "agent ctx_1"),
        }
        assert {span.trace_id for span in spans} == {trace_id_of("wf_1")}


def test_a_clock_that_steps_back_gives_no_negative_span():
    spans, _ = spans_of([STARTED, step_started(), step_completed(), completed()], step_us=-10_000)
    assert [(span.end - span.start, span.attributes[c.CLOCK_STEPPED]) for span in spans] == [
        (5_000, True),
        (7_000, True),
    ]


@pytest.mark.parametrize("ts", [-5_000_000, 0, 1 << 50])
@pytest.mark.parametrize("duration_ms", [-7, 0, 1 << 62])
def test_times_beyond_all_reason_can_be_sent(ts, duration_ms):
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    from agentflow.telemetry.readable import Readables

    late = [
        (STARTED, ts),
        (step_started(), ts),
        (step_completed(duration_ms=duration_ms), ts - 1),
        (completed(), ts),
    ]
    lost = [(step_completed(duration_ms=duration_ms), ts), (completed(duration_ms=duration_ms), ts - 1)]
    for log in (stored("wf_1", late), stored("wf_1", lost, first=9)):
        spans, _ = project("wf_1", log, LIMITS)
        assert len(spans) == 2
        assert encode_spans(Readables().of(spans)).SerializeToString()


def test_huge_values_are_cut():
    long = "x" * 1_000_000
    limits = Limits(100, 3, 2)
    started = msgspec.structs.replace(STARTED, labels={"big": long}, input=long)
    asked_big = asked(parameters={"stop": [long] * 50, "seed": 1 << 70})
    waits = [ev.WorkflowPaused(reason=long, detail=None) for _ in range(50)]
    links = tuple(f"s{i}" for i in range(50))
    many = [move for i in range(50) for move in (step_started(f"s{i}"), step_completed(f"s{i}"))]
    spans, _ = spans_of(
        [
            started,
            *many,
            step_started(depends_on=links, tags={long: long}),
            asked_big,
            *waits,
            completed(output=long),
        ],
        capture=True,
        limits=limits,
    )
    root, last, chat = spans[-1], spans[-2], spans[-3]
    assert (len(root.notes), root.dropped_notes) == (3, 47)
    assert (len(last.relations), last.dropped_relations) == (2, 48)
    assert chat.attributes["gen_ai.request.seed"] == str(1 << 70)
    assert len(chat.attributes["gen_ai.request.stop_sequences"]) == 3
    for span in spans:
        for value in span.attributes.values():
            assert not isinstance(value, str) or len(value) <= 100
        assert all(len(str(v)) <= 100 for note in span.notes for v in note.attributes.values())
    assert root.attributes[c.INPUT].endswith("…")


def test_values_of_odd_types_become_text():
    spans, _ = spans_of(
        [
            STARTED,
            step_started(tags={"a": {"b": [1]}, "c": None, "d": True, "e": 1.5}),
            step_completed(),
            completed(),
        ]
    )
    found = {k: v for k, v in spans[0].attributes.items() if k.startswith("agentflow.tag.")}
    assert found == {
        "agentflow.tag.a": '{"b":[1]}',
        "agentflow.tag.c": "null",
        "agentflow.tag.d": True,
        "agentflow.tag.e": 1.5,
    }


def test_a_fold_keeps_nothing_of_what_has_ended():
    fold = RunSpans("wf_1", LIMITS)
    events = [STARTED]
    for visit in range(500):
        events += [
            step_started(visit=visit, activation=f"/a#{visit}"),
            step_completed(visit=visit, activation=f"/a#{visit}"),
        ]
    for row in stored("wf_1", [(data, i) for i, data in enumerate(events)]):
        fold.take(row)
    assert fold.open == 1
    held = sum(len(getattr(fold, name)) for name in fold.__slots__ if isinstance(getattr(fold, name), dict))
    assert held <= 2


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_cut_off_anywhere_and_goes_on_is_one_tree(name):
    """The engine closes what was interrupted and makes it anew: other spans, other ids, one trace."""
    whole = CASES[name]()
    whole.run()
    for cut in range(1, len(whole.log)):
        driver = CASES[name]()
        driver.run()
        driver.crash(cut)
        driver.run()
        log = stored("wf_1", [(data, ts) for data, _, ts in driver.log])
        spans, fold = project("wf_1", log, LIMITS)
        ids = {span.span_id for span in spans}
        assert (fold.open, len(ids)) == (0, len(spans))
        [root] = tree(spans)[None]
        assert {span.parent_id for span in spans if span is not root} <= ids
        interrupted = [span for span in spans if span.attributes.get("error.type") == "interrupted"]
        linked = {relation.span_id for span in spans for relation in span.relations}
        assert {span.span_id for span in interrupted} <= linked
