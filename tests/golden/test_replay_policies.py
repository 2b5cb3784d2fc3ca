"""Replays of golden logs with `Mixed` and `Refresh` (table of page 003 §9); every kind has a golden log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.definition.kinds import KINDS
from agentflow.events.envelope import decode
from tests.golden.files import log_names, read_lines
from tests.golden.stage import RUN, SCENES
from tests.golden.test_replayed_logs import REPLAYED, _Played, logical

TERMINAL = ("workflow.completed", "workflow.failed", "workflow.cancelled")
_CALLS = ("model.call_started", "tool.call_started")
_COMPLETED = ("model.call_completed", "tool.call_completed")
_CLOCK = "recorded waits pass at once, and real time decides the rest"
_FREE = "served results cost nothing, so that the budget lasts and the run goes beyond its record"
_STORE = "a store that runs share has by now what the recorded run left there"
_MIXED_OTHERWISE = {
    "approval_expired": _CLOCK,
    "cache_read": _CLOCK,
    "fan_in_timeout": _CLOCK,
    "debounce_definition": f"{_CLOCK}, so that the gate is asked with another input",
    "budget_ask_fail": _FREE,
    "budget_fail": _FREE,
    "handler_budget": "handlers run again, and make their calls",
}
_REFRESH_OTHERWISE = {"cache_hit": _STORE, "cache_write": _STORE, "debounce_definition": _STORE}
"""Logs whose replays with real time go another way, and why."""
ENDED = [name for name in REPLAYED if decode(read_lines(name)[-1]).type in TERMINAL]


class _Replayed(_Played):
    """A scene that has been played, and is played again by a policy."""

    def again(self, run: str, policy: Any) -> list[bytes]:
        """Replay a run until it rests; return the events of the replay."""

        async def life(runtime: Runtime) -> None:
            handle = await runtime.replay(run, policy, as_id="wf_replay")
            for _ in range(200):  # it rests wherever only a timer moves it on
                await asyncio.wait_for(handle.rest(), 1e7)
                if (await runtime.log.run("wf_replay")).state != "waiting":
                    break
                await asyncio.sleep(1)

        self.count()
        self._used.clear()  # the world answers as it did at first
        self.process(life)
        self.runs = ["wf_replay"]
        return self.logs()["wf_replay"]


def played(name: str) -> tuple[_Replayed, str, list[bytes]]:
    scene, _, suffix = name.partition(".")
    stage = _Replayed()
    SCENES[scene][1](stage)
    run = f"wf_{suffix}" if suffix else RUN
    return stage, run, stage.logs()[run]


def count(lines: list[bytes], *types: str) -> int:
    return sum(decode(line).type in types for line in lines)


@pytest.mark.parametrize("name", [name for name in ENDED if name not in _MIXED_OTHERWISE])
def test_mixed_serves_all_that_the_record_has(name: str):
    """Each request is that of the record: what it has whole is served, and only a call that failed or was cut
    off goes out again."""
    stage, run, recorded = played(name)
    replayed = stage.again(run, "Mixed")
    if count(recorded, *_CALLS) == count(recorded, *_COMPLETED):
        assert stage.sent == 0, "what the record has whole was asked again"
        assert decode(replayed[-1]).type == decode(recorded[-1]).type
        assert logical(replayed) == logical(recorded)


REFRESHED = [
    name
    for name in ENDED
    if decode(read_lines(name)[-1]).type == "workflow.completed"
    and name not in _REFRESH_OTHERWISE
    and not {decode(line).type for line in read_lines(name)}
    & {"workflow.paused", "approval.requested", "input.requested", "signal.received", "system.state_saved"}
    and b'"interrupted"' not in b"".join(read_lines(name))
]
"""Logs of runs that no person, signal or fault takes part in: executed anew they end by themselves."""


@pytest.mark.parametrize("name", REFRESHED)
def test_refresh_executes_all_anew(name: str):
    stage, run, recorded = played(name)
    replayed = stage.again(run, "Refresh")
    assert decode(replayed[-1]).type == "workflow.completed"
    asked = count(replayed, *_CALLS)
    assert stage.sent <= asked  # calls of `desk.add` are not counted
    assert not any(b'"replayed"' in line for line in replayed)
    if count(recorded, "model.call_failed", "tool.call_failed") == 0:
        assert asked == count(recorded, *_CALLS)
        assert logical(replayed) == logical(recorded)


def test_every_kind_has_a_golden_log():
    seen = {
        json.loads(line)["data"].get("kind")
        for name in log_names()
        for line in read_lines(name)
        if decode(line).type == "workflow.step_started"
    }
    assert set(KINDS) - seen == set()
