"""SIGKILL at many points of a run, then resume: it completes, nothing recorded is done again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentflow.events.rows import LoggedEvent
from agentflow.events.sqlite import ReadOnlySqliteLog
from tests.faults.tally import TALLIES

ROOT = Path(__file__).parents[2]
EXPECTED = [{"n": n + 1} for n in (1, 2, 3, 4, 5)]
RUN = "wf_killed"


def start(store: Path, effects: Path, mode: str) -> subprocess.Popen[str]:
    env = {**os.environ, "EFFECTS": str(effects), "AGENTFLOW_MODEL": "scripted:m", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.killed.child", str(store), RUN, mode],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_after(process: subprocess.Popen[str], events: int) -> bool:
    """SIGKILL once so many events were seen; false when the run had ended before."""
    assert process.stdout is not None
    seen = 0
    with process:
        for line in process.stdout:
            if line.startswith("result"):
                return False
            seen += 1
            if seen == events:
                process.send_signal(signal.SIGKILL)
                TALLIES["sqlite"].kills += 1
                return True
    raise AssertionError("the process ended without a result")


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 0, output
    return output.splitlines()[-1]


def read_log(store: Path) -> list[tuple[int, str, str]]:
    async def read() -> list[LoggedEvent]:
        log = ReadOnlySqliteLog(store)
        try:
            return (await log.query(limit=100_000)).items
        finally:
            await log.close()

    return [(event.offset, event.type, event.body.decode()) for _, event in asyncio.run(read())]


def check(store: Path, effects: Path, result: str) -> None:
    assert result.split(" ", 2)[1] == "completed", result
    assert json.loads(result.split(" ", 2)[2]) == {"never": None, "last": EXPECTED}
    log = read_log(store)
    assert [offset for offset, _, _ in log] == list(range(len(log))), "offsets are not gapless"
    terminal = [t for _, t, _ in log if t in ("workflow.completed", "workflow.failed", "workflow.cancelled")]
    assert terminal == ["workflow.completed"]
    assert log[-1][1] == "workflow.completed"

    done = Counter(
        line.split(" ", 1)[1] for line in effects.read_text().splitlines() if line.startswith("done")
    )
    recorded: Counter[str] = Counter()
    finished_before: set[str] = set()
    keys: dict[str, str] = {}
    for _, kind, body in log:
        data = json.loads(body)["data"]
        if kind == "tool.call_started":
            keys[data["tool_call_id"]] = data["idempotency_key"]
            assert data["tool_call_id"] not in finished_before, "a finished tool call was begun again"
        elif kind == "tool.call_completed":
            recorded[keys[data["tool_call_id"]]] += 1
            finished_before.add(data["tool_call_id"])
    assert set(recorded) == set(done)
    assert all(n == 1 for n in recorded.values())
    models = [json.loads(b)["data"] for _, t, b in log if t == "model.call_completed"]
    assert len(models) == 2 * 6 + 1, "a recorded model call was made again"


QUICK = [1, 9, 35, 68]
SLOW = [pytest.param(events, marks=pytest.mark.slow) for events in (2, 5, 7, 13, 20, 27, 44, 55)]


@pytest.mark.parametrize("events", [*QUICK, *SLOW])
def test_killed_once(tmp_path, events):
    store, effects = tmp_path / "runs.db", tmp_path / "effects"
    killed = kill_after(start(store, effects, "run"), events)
    result = finish(start(store, effects, "resume")) if killed else None
    assert result is not None, "the run was over before it was killed: choose fewer events"
    check(store, effects, result)


def test_killed_again_and_again(tmp_path):
    store, effects = tmp_path / "runs.db", tmp_path / "effects"
    assert kill_after(start(store, effects, "run"), 4)
    kills = 1
    while kill_after(start(store, effects, "resume"), 18 * kills):
        kills += 1
    assert kills >= 3
    result = finish(start(store, effects, "resume"))
    check(store, effects, result)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_behind_every_event(tmp_path):
    events = 0
    while True:
        events += 1
        store, effects = tmp_path / f"runs{events}.db", tmp_path / f"effects{events}"
        if not kill_after(start(store, effects, "run"), events):
            break
        check(store, effects, finish(start(store, effects, "resume")))
    assert events > 60
