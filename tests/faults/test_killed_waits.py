"""Durable waits and SIGKILL: the process dies at an event, another one goes on, and each wait ends once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.killed_waits import WAITS

ROOT = Path(__file__).parents[2]
_ONCE = {
    "person": "input.received",
    "approval": "approval.granted",
    "in time": "input.cancelled",
    "signal": "signal.received",
}
"""What ends a wait, where it is no timer."""


def command(verb: str, store: str) -> list[str]:
    return [sys.executable, "-m", "tests.faults.killed_waits", verb, store]


def kill_at(line: int, store: str) -> None:
    """Begin the runs, and kill the process when it has printed so many events."""
    with subprocess.Popen(command("begin", store), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, _ in enumerate(process.stdout, 1):
            if number == line:
                process.kill()
                break
    assert process.returncode < 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "lines",
    [(66,), *(pytest.param(one, marks=pytest.mark.slow) for one in [(1,), (50,), (72,), (80,), (30, 9, 20)])],
    ids=str,
)
def test_each_wait_survives_a_kill_and_ends_once(tmp_path: Path, lines: tuple[int, ...]):
    """With several lines: killed again, while it goes on."""
    store = f"sqlite:{tmp_path / 'runs'}"
    kill_at(lines[0], store)
    for line in lines[1:]:
        with subprocess.Popen(command("end", store), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, _ in enumerate(process.stdout, 1):
                if number == line:
                    process.kill()
    done = subprocess.run(command("end", store), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    counts = json.loads(done.stdout.splitlines()[-1])
    for name in WAITS:
        found = counts[f"wf_{name.replace(' ', '_')}"]
        assert found["workflow.completed"] == 1, name
        assert found[_ONCE.get(name, "timer.fired")] == 1, name
        assert found.get("timer.scheduled", 0) == (name not in _ONCE), name
