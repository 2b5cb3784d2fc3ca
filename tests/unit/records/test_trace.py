"""Traces and their checks (page 003 §8), timeline and retries (§11), on the logs of every mechanism."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import decode_ir
from agentflow.errors import LogCorrupt
from agentflow.events.envelope import Event, decode
from agentflow.records.timeline import TimelineFold
from agentflow.records.trace import (
    AlreadyFinalized,
    TraceEvent,
    TraceRecorder,
    WorkflowTrace,
    encode_trace,
    trace_of,
)
from agentflow.records.trace_check import ReplayError, inspect_replay_trace, replay_trace
from tests.golden.files import FOLDER as LOGS

NAMES = sorted(path.stem for path in LOGS.glob("*.ndjson"))


def events_of(name: str) -> list[Event[Any]]:
    lines = (LOGS / f"{name}.ndjson").read_bytes().splitlines()
    return [decode(line) for line in lines if b'"attachment"' not in line[:20]]


def recorded(*lines: tuple[str, ...], status: str | None = "completed") -> WorkflowTrace:
    recorder = TraceRecorder("n")
    for event, node_id, *path in lines:
        recorder.append(event, node_id=node_id, path=path[0] if path else "")  # type: ignore[arg-type]
    if status is not None:
        recorder.append("terminal", status=status)  # type: ignore[arg-type]
    return recorder.finalize()


def codes(trace: WorkflowTrace, definition: Any = None) -> list[tuple[str, int | None]]:
    return [(v.code, v.event_index) for v in inspect_replay_trace(trace, definition).violations]


def changed(trace: WorkflowTrace, index: int, **fields: Any) -> WorkflowTrace:
    events = list(trace.events)
    events[index] = msgspec.structs.replace(events[index], **fields)
    return msgspec.structs.replace(trace, events=tuple(events))


CHAIN = (
    *(("node_enter", "a"), ("node_exit", "a")),
    *(("node_enter", "b"), ("node_exit", "b")),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_log_has_a_valid_trace(name: str):
    events = events_of(name)
    for clock in ("wall", "logical"):
        trace = trace_of(events, clock)
        assert [e.seq for e in trace.events] == list(range(len(trace.events)))
        report = replay_trace(encode_trace(trace))
        assert f"workflow.{report.terminal_status}" == events[-1].type
        assert report.total_events == len(trace.events)


def test_a_logical_trace_has_nothing_that_differs_between_equal_runs():
    one = events_of("failed_step")
    other = [
        msgspec.structs.replace(e, workflow_id="wf_other", timestamp="2026-01-01T00:00:00.000000Z")
        for e in one
    ]
    assert encode_trace(trace_of(one, "logical")) == encode_trace(trace_of(other, "logical"))
    assert encode_trace(trace_of(one)) != encode_trace(trace_of(other))
    metadata = trace_of(one, "logical").metadata
    assert (metadata.trace_id, metadata.started_at_unix_ms) == (f"{metadata.workflow_name}-v0-trace", 0)
    assert metadata.finished_at_unix_ms == len(trace_of(one, "logical").events)


def test_a_wall_trace_names_run_offsets_and_attempts_and_never_steps_back():
    events = events_of("clock_back")
    assert any(b.timestamp < a.timestamp for a, b in pairwise(events))
    trace = trace_of(events)
    times = [e.timestamp_unix_ms for e in trace.events]
    assert times == sorted(times)
    assert trace.metadata.workflow_id == "wf_golden"
    by_offset = {e.offset: e for e in events}
    for line in trace.events:
        assert isinstance(line.offset, int)
        assert line.offset in by_offset
        if line.event in ("node_exit", "node_error"):
            assert line.attempts == by_offset[line.offset].data.attempt


def test_items_of_a_for_each_have_paths_of_their_own():
    trace = trace_of(events_of("for_each"), "logical")
    paths = [e.path for e in trace.events if e.event == "node_enter" and e.node_id == "each"]
    assert paths == ["", *(f"/each#0.{i}" for i in range(5))]
    assert trace.events[0].visit == 1


def test_a_log_that_begins_otherwise_is_refused():
    with pytest.raises(LogCorrupt):
        trace_of(events_of("chain")[1:])
    with pytest.raises(LogCorrupt):
        trace_of([])


def test_the_trace_of_a_chain():
    assert replay_trace(recorded(*CHAIN)).total_events == 5
    data = msgspec.to_builtins(recorded(*CHAIN))
    assert data["events"][0] == {
        "seq": 0,
        "timestamp_unix_ms": 0,
        "event": "node_enter",
        "node_id": "a",
        "path": "",
        "visit": 1,
    }
    assert data["events"][-1] == {
        "seq": 4,
        "timestamp_unix_ms": 4,
        "event": "terminal",
        "status": "completed",
    }


def test_a_finalized_recorder_takes_nothing_more():
    recorder = TraceRecorder("n")
    recorder.append("node_enter", node_id="a")
    before = recorder.snapshot()
    recorder.append("node_exit", node_id="a")
    assert (len(before.events), len(recorder.snapshot().events)) == (1, 2)
    recorder.finalize()
    with pytest.raises(AlreadyFinalized) as caught:
        recorder.append("terminal", status="completed")
    assert caught.value.code == "already_finalized"


GOOD = recorded(*CHAIN)
BROKEN: dict[str, tuple[WorkflowTrace, list[tuple[str, int | None]]]] = {
    "gap, then in step again": (
        msgspec.structs.replace(
            GOOD,
            events=tuple(
                msgspec.structs.replace(e, seq=e.seq + (3 if i >= 2 else 0))
                for i, e in enumerate(GOOD.events)
            ),
        ),
        [("E_NON_MONOTONIC_SEQUENCE", 2)],
    ),
    "time steps back": (changed(GOOD, 3, timestamp_unix_ms=1), [("E_TIMESTAMP_REGRESSION", 3)]),
    "left without entering": (recorded(("node_exit", "a")), [("E_MISMATCHED_NODE_LIFECYCLE", 0)]),
    "entered twice": (
        recorded(("node_enter", "a"), ("node_enter", "a"), ("node_exit", "a")),
        [("E_MISMATCHED_NODE_LIFECYCLE", 1)],
    ),
    "left on another path": (
        recorded(("node_enter", "a", "/p#0.0"), ("node_exit", "a", "/p#0.1")),
        [("E_MISMATCHED_NODE_LIFECYCLE", 1), ("E_UNCLOSED_NODE_LIFECYCLE", 2)],
    ),
    "no end": (recorded(*CHAIN, status=None), [("E_MISSING_TERMINAL_EVENT", None)]),
    "two ends": (
        msgspec.structs.replace(
            GOOD, events=(*GOOD.events, TraceEvent(seq=5, timestamp_unix_ms=5, event="terminal"))
        ),
        [("E_MULTIPLE_TERMINAL_EVENTS", 5)],
    ),
    "something after the end": (
        msgspec.structs.replace(
            GOOD,
            events=(
                *GOOD.events,
                TraceEvent(seq=5, timestamp_unix_ms=5, event="node_enter", node_id="a"),
            ),
        ),
        [("E_EVENT_AFTER_TERMINAL", 5)],
    ),
    "never left": (recorded(("node_enter", "a")), [("E_UNCLOSED_NODE_LIFECYCLE", 1)]),
    "completed after an error": (
        recorded(("node_enter", "a"), ("node_error", "a")),
        [("E_TERMINAL_STATUS_MISMATCH", 2)],
    ),
    "no status": (changed(GOOD, 4, status=msgspec.UNSET), [("E_TERMINAL_STATUS_MISMATCH", 4)]),
    "blank name": (
        msgspec.structs.replace(GOOD, metadata=msgspec.structs.replace(GOOD.metadata, workflow_name=" ")),
        [("E_EMPTY_METADATA", None)],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_with_a_trace_is_named_with_its_place(case: str):
    trace, expected = BROKEN[case]
    assert codes(trace) == expected
    with pytest.raises(ReplayError) as caught:
        replay_trace(trace)
    assert [v.code for v in caught.value.violations] == [code for code, _ in expected]


RIGHT = {
    "entered again after an error": recorded(
        *(("node_enter", "a"), ("node_error", "a"), ("node_enter", "a"), ("node_exit", "a"))
    ),
    "failed after an error": recorded(("node_enter", "a"), ("node_error", "a"), status="failed"),
    "overlapping paths": recorded(
        *(("node_enter", "a", "/p#0.0"), ("node_enter", "a", "/p#0.1")),
        *(("node_exit", "a", "/p#0.0"), ("node_exit", "a", "/p#0.1")),
    ),
    "an error that was handled": changed(recorded(("node_enter", "a"), ("node_error", "a")), 1, handled=True),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_not_complained_of(case: str):
    assert codes(RIGHT[case]) == []


NODES = (
    b'{"name":"n","version":"v0","nodes":[{"type":"start","id":"s","next":"a"},'
    b'{"type":"condition","id":"a","expression":"true","on_true":"b","on_false":"e"},'
    b'{"type":"wait","id":"b","duration":1,"next":"e"},{"type":"end","id":"e"}]}'
)


def walk(*nodes: str) -> WorkflowTrace:
    return recorded(*((event, node) for node in nodes for event in ("node_enter", "node_exit")))


def test_with_the_definition_nodes_and_ways_are_checked():
    graph = decode_ir(NODES)
    assert codes(walk("s", "a", "b", "e"), graph) == []
    assert codes(walk("s", "a", "e"), graph) == []
    assert codes(walk("s", "b", "a", "e"), graph) == [("E_ILLEGAL_TRANSITION", 2)]
    assert codes(walk("s", "a", "x"), graph) == [("E_UNKNOWN_NODE", 4)]


@pytest.mark.parametrize("value", [b"{", b"[]", {"events": 1}, None, 7, {"metadata": {}, "events": []}])
def test_an_inspection_never_raises(value: Any):
    found = inspect_replay_trace(value)
    assert not found.valid
    assert [v.code for v in found.violations] == ["E_SCHEMA"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"{", "it is not whole JSON"),
        (None, "the value must be an object, not null"),
        ({"metadata": {}}, 'metadata has no "'),
    ],
)
def test_what_is_no_trace_is_told_in_our_words(value: Any, message: str):
    [violation] = inspect_replay_trace(value).violations
    assert violation.message.startswith(f"this is no trace: {message}")


def timeline(name: str):
    fold = TimelineFold()
    for event in events_of(name):
        fold.take(event)
    return fold.timeline()


def test_a_timeline_tells_each_start_retry_and_end_with_its_offset():
    found = timeline("tool_retry")
    assert [entry.event for entry in found.items] == [
        *("node_started", "node_retrying", "node_retrying", "node_completed")
    ]
    assert [entry.index for entry in found.items] == [0, 1, 2, 3]
    assert found.items[1].details["code"] == "tool_execution_failed"
    assert [(r.node_id, r.operation, r.retries) for r in found.retries] == [
        (found.items[0].node_id, "tool", 2)
    ]
    assert found.retries[0].reasons == {"tool_execution_failed": 2}


def test_a_timeline_has_waits_failures_and_skips():
    assert "node_waiting" in {e.event for e in timeline("approval_for_each").items}
    assert "node_skipped" in {e.event for e in timeline("skipped_dependencies").items}
    failed = next(e for e in timeline("failed_step").items if e.event == "node_failed")
    assert failed.details["code"]
    assert {r.operation for r in timeline("fallback_model").retries} == {"model", "fallback"}


def test_logs_lie_where_this_test_looks():
    assert Path(LOGS).is_dir()
    assert len(NAMES) > 80
