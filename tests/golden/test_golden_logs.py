"""Golden logs: every later version decides what this one decided, and writes the same bytes.

A file changes only when a decision changes on purpose; write it anew then with `python -m tests.golden NAME`.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from agentflow.events.envelope import decode, micros
from tests.golden import adapter
from tests.golden.files import FOLDER, log_names, play, read_facts, read_lines
from tests.golden.stage import SCENES

NAMES = log_names()
SCENE_OF = {name: name.partition(".")[0] for name in NAMES}
TERMINAL = {"workflow.completed", "workflow.failed", "workflow.cancelled"}


def plain(data: Any) -> tuple[str, Any]:
    """Return the type and the JSON value of an event's data."""
    return data.event_type, msgspec.json.decode(msgspec.json.encode(data))


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_gives_the_stored_bytes(name: str):
    assert play(SCENE_OF[name])[name] == read_lines(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_gives_the_stored_events_whatever_their_ids(name: str):
    """As the test of the bytes, without ids of events and spans, so that a change of those alone shows."""

    def events(lines: list[bytes]) -> list[Any]:
        found = [msgspec.json.decode(line) for line in lines]
        return [{k: v for k, v in event.items() if k not in ("id", "trace")} for event in found]

    assert events(play(SCENE_OF[name])[name]) == events(read_lines(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_prefix_decides_the_next_events(name: str):
    """Fold each prefix that ends before a decision anew, and let the engine go on until it rests: the events
    are those of the log up to the next one from outside."""
    facts, lines = read_facts(name), read_lines(name)
    run, events = decode(lines[0]).workflow_id, [decode(line) for line in lines]
    at = {offset: (count, now) for offset, count, now in facts.decided}
    for first, (_, now) in at.items():
        expected: list[Any] = []
        offset = first
        while offset in at and at[offset][1] == now:
            count = at[offset][0]
            expected += [plain(event.data) for event in events[offset : offset + count]]
            offset += count
        state = adapter.fold(run, facts, lines[:first])
        found: list[Any] = []
        while moves := adapter.decisions(state, now, facts):
            for data in moves:
                adapter.take(state, data, first + len(found), now)
                found.append(plain(data))
        assert found == expected, f"after offset {first - 1}"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_decided_where_the_log_waits_for_the_world(name: str):
    facts, lines = read_facts(name), read_lines(name)
    run = decode(lines[0]).workflow_id
    for offset, now in facts.rests:
        state = adapter.fold(run, facts, lines[:offset])
        assert adapter.decisions(state, now, facts) == [], f"after offset {offset - 1}"


@pytest.mark.parametrize("name", NAMES)
def test_a_state_asked_twice_decides_the_same(name: str):
    facts, lines = read_facts(name), read_lines(name)
    run = decode(lines[0]).workflow_id
    for offset, _, now in facts.decided:
        states = [adapter.fold(run, facts, lines[:offset]) for _ in range(2)]
        first, second = (adapter.decisions(state, now, facts) for state in states)
        assert [plain(data) for data in first] == [plain(data) for data in second]


@pytest.mark.parametrize("name", NAMES)
def test_the_fold_agrees_with_the_last_event(name: str):
    facts, lines = read_facts(name), read_lines(name)
    last = decode(lines[-1])
    assert last.type in TERMINAL
    end = adapter.summary(adapter.fold(last.workflow_id, facts, lines))
    assert f"workflow.{end['status']}" == last.type
    assert end["offset"] == len(lines)
    assert (end["requests"], end["calls"]) == ([], [])
    if last.type != "workflow.cancelled":  # which leaves out what the calls closed with it may have used
        assert end["usage"] == msgspec.to_builtins(last.data.usage)
    if last.type == "workflow.completed":
        assert end["output"] == last.data.output
        assert end["steps"] == msgspec.to_builtins(last.data.steps)


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_log_is_well_formed(name: str):
    """Offsets have no gap, ids are unique, and decisions do not overlap."""
    facts, events = read_facts(name), [decode(line) for line in read_lines(name)]
    assert [event.offset for event in events] == list(range(len(events)))
    assert len({event.id for event in events}) == len(events)
    assert all(a[0] + a[1] <= b[0] for a, b in pairwise(facts.decided))
    assert all(micros(events[o].timestamp) == now for o, _, now in facts.decided)


def test_every_scene_has_its_logs_and_every_log_its_scene():
    assert set(SCENE_OF.values()) == set(SCENES)
    assert sorted(NAMES) == sorted(path.stem for path in FOLDER.glob("*.json"))


def test_the_logs_hold_what_an_engine_decides():
    """Beside outside events there are decided ones of every type that a run without judges can have."""
    decided: Counter[str] = Counter()
    for name in NAMES:
        lines = read_lines(name)
        for offset, count, _ in read_facts(name).decided:
            decided.update(decode(line).type for line in lines[offset : offset + count])
    assert decided.keys() >= {
        "workflow.step_started", "workflow.step_completed", "workflow.step_failed", "workflow.step_skipped",
        "workflow.step_waiting", "workflow.waiting", "workflow.paused", "workflow.completed",
        "workflow.failed", "agent.initialized", "agent.processing", "agent.retrying", "agent.completed",
        "agent.failed", "model.call_started", "model.call_failed", "tool.call_started", "tool.call_failed",
        "approval.requested", "approval.denied", "input.requested", "system.state_saved",
    }  # fmt: skip


def test_no_log_has_a_path_of_this_machine():
    for name in NAMES:
        assert not re.search(rb'"/(root|home|tmp|work)/', b"\n".join(read_lines(name)))
