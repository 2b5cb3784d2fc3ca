"""Replays of golden logs: `Always` gives the logical trace of the record and sends nothing (page 003 §9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.events.envelope import decode
from agentflow.records.trace import encode_trace, trace_of
from tests.golden.files import log_names, read_lines
from tests.golden.stage import RUN, SCENES, Stage

NAMES = log_names()
_CANCEL = "a command cancelled the run"
_RETRY = "a command decided about a step that was held"
EXEMPT = {
    "cancel_hard": _CANCEL,
    "cancel_soft": _CANCEL,
    "fork_cancelled": _CANCEL,
    "for_each_held": _RETRY,
    "held_done": _RETRY,
    "held_fail": _RETRY,
    "held_retry": _RETRY,
    "held_skip": _RETRY,
}
"""Logs that a command ended or changed: a replay repeats no command of an operator."""
REPLAYED = [name for name in NAMES if name not in EXEMPT]


class _Played(Stage):
    """A scene that has been played. What a replay sends is counted."""

    sent: int = 0

    def replay(self, run: str) -> list[bytes]:
        """Replay a run of the scene; return the events of the replay."""

        async def life(runtime: Runtime) -> None:
            handle = await runtime.replay(run, "Always", as_id="wf_replay")
            await asyncio.wait_for(handle.rest(), 1e7)

        self.count()
        self.process(life)
        self.runs = ["wf_replay"]
        return self.logs()["wf_replay"]

    def count(self) -> None:
        """Count what models and functions are asked from now on."""
        self.sent = 0

    def _next(self, key: str, default: Any) -> Any:
        self.sent += 1
        return super()._next(key, default)


def logical(lines: list[bytes]) -> bytes:
    return encode_trace(trace_of([decode(line) for line in lines], "logical"))


@pytest.mark.parametrize("name", EXEMPT)
def test_a_log_that_is_not_replayed_holds_a_command(name: str):
    types = {decode(line).type for line in read_lines(name)}
    if EXEMPT[name] == _CANCEL:
        assert "workflow.cancel_requested" in types
    else:
        assert any(b'"by":"ann"' in line or b'"operator"' in line for line in read_lines(name)), types


@pytest.mark.parametrize("name", REPLAYED)
def test_always_gives_the_trace_of_the_record_and_sends_nothing(name: str):
    scene, _, suffix = name.partition(".")
    stage = _Played()
    SCENES[scene][1](stage)
    run = f"wf_{suffix}" if suffix else RUN
    recorded = stage.logs()[run]
    replayed = stage.replay(run)
    assert logical(replayed) == logical(recorded)
    assert stage.sent == 0
    usage = decode(replayed[-1]).data.usage
    assert (usage.model_calls, usage.tool_calls, usage.cost_usd) == (0, 0, 0.0)
