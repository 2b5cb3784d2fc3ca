"""A process that works on a request is killed; another one goes on (page 004 §11)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from agentflow.events.open import open_log
from tests.integration.support.runs import must_be_sound


def _start(folder: Path, offset: int, *run: str) -> subprocess.CompletedProcess[bytes]:
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "tests.integration.support.killed_request", str(folder), str(offset), *run]
    env = {**os.environ, "AGENTFLOW_MODEL": "scripted:m", "XDG_DATA_HOME": str(folder / "data")}
    return subprocess.run(words, env=env, capture_output=True, timeout=60, check=False)


def _events(folder: Path) -> list[Any]:
    async def read() -> list[Any]:
        log = open_log(f"sqlite:{folder}/runs.db", read_only=True)
        try:
            return await must_be_sound(log, "wf_killed", ended=False)
        finally:
            await log.close()

    return asyncio.run(read())


def _done(events: list[Any]) -> list[str]:
    ends = [e.data.step_id for e in events if e.type == "workflow.step_completed"]
    return [name.removeprefix("execute/") for name in ends if name.startswith("execute/")]


def whole(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the request comes to if nothing is killed, and the types of its events."""
    ended = _start(folder, -1)
    assert ended.returncode == 0, ended.stderr.decode()
    return msgspec.json.decode(ended.stdout), [e.type for e in _events(folder)]


def kill_and_go_on(folder: Path, offset: int, wanted: dict[str, Any]) -> None:
    """Kill the process behind an event; what follows repeats nothing that is recorded."""
    killed = _start(folder, offset)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    before = _events(folder)
    assert before[-1].offset >= offset
    calls = (folder / "calls").read_text().split() if (folder / "calls").exists() else []
    went_on = _start(folder, -1, "wf_killed")
    assert went_on.returncode == 0, went_on.stderr.decode()
    found = msgspec.json.decode(went_on.stdout)
    assert found["final"] == wanted["final"], f"killed behind {before[-1].type} at {offset}"
    after = (folder / "calls").read_text().split()
    for step in _done(before):
        assert after.count(step) == calls.count(step) == 1
    recorded = {e.data.tool_call_id for e in before if e.type == "tool.call_completed"}
    again = [e.data.tool_call_id for e in _events(folder)[len(before) :] if e.type == "tool.call_started"]
    assert not recorded & set(again)
    types = [e.type for e in before]
    for stage, event in enumerate(("plan.normalized", "plan.proposed")):
        if event in types:
            assert found["asked"][stage] == 0
    assert found["asked"][2] <= 2 * (3 - len(_done(before)))


def test_a_killed_process_repeats_no_step_that_is_done(tmp_path: Path):
    wanted, types = whole(tmp_path / "whole")
    assert [s["status"] for s in wanted["final"]["steps"]] == ["done"] * 3
    events = _events(tmp_path / "whole")
    first = next(e.offset for e in events if e.type == "workflow.step_completed" and e.step == "execute/a")
    for name, offset in (("step", first), ("executed", types.index("plan.executed"))):
        kill_and_go_on(tmp_path / name, offset, wanted)
