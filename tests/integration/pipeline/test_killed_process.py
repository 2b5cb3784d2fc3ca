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


class Launcher:
    """Starts processes that work on the request, each with the exit code it ended by."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "tests.integration.support.killed_request"]
        env = {**os.environ, "AGENTFLOW_MODEL": "scripted:m"}
        self._server = subprocess.Popen(
            words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, folder: Path, offset: int, run: str | None = None) -> int:
        """Work in a folder until the run ends, or the process is killed behind an event."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {"folder": str(folder), "offset": offset, "run": run}
        self._server.stdin.write(msgspec.json.encode(order).decode() + "\n")
        return int(self._server.stdout.readline())

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()


def _answer(folder: Path) -> dict[str, Any]:
    return msgspec.json.decode((folder / "answer").read_bytes())


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


def whole(launcher: Launcher, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the request comes to if nothing is killed, and the types of its events."""
    assert launcher.start(folder, -1) == 0
    return _answer(folder), [e.type for e in _events(folder)]


def kill_and_go_on(launcher: Launcher, folder: Path, offset: int, wanted: dict[str, Any]) -> None:
    """Kill the process behind an event; what follows repeats nothing that is recorded."""
    assert launcher.start(folder, offset) == -signal.SIGKILL
    before = _events(folder)
    assert before[-1].offset >= offset
    calls = (folder / "calls").read_text().split() if (folder / "calls").exists() else []
    assert launcher.start(folder, -1, "wf_killed") == 0
    found = _answer(folder)
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
    with Launcher() as launcher:
        wanted, types = whole(launcher, tmp_path / "whole")
        assert [s["status"] for s in wanted["final"]["steps"]] == ["done"] * 3
        events = _events(tmp_path / "whole")
        ends = [e.offset for e in events if e.type == "workflow.step_completed" and e.step == "execute/a"]
        for name, offset in (("step", ends[0]), ("executed", types.index("plan.executed"))):
            kill_and_go_on(launcher, tmp_path / name, offset, wanted)
