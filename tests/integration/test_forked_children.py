"""A forked child that comes back into the parent's code ends at once; the parent goes on (durability 4)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from agentflow.server.daemon import _Signals
from tests.unit.events.support import ROOT

MODES = {
    "exit": "3",
    "raise": "1",
    "leave": "1",
    "multiprocessing": "3",
    "tool here": "3",
    "tool aside": "3",
}


@pytest.mark.parametrize("mode", list(MODES))
def test_a_child_ends_with_its_code_and_its_parent_goes_on(tmp_path, mode):
    words = [
        sys.executable,
        "-m",
        "tests.integration.support.forking",
        f"sqlite:{tmp_path}/log.db",
        mode,
        "5",
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"children": [MODES[mode]], "count": 5, "states": ["completed"]}
    if mode == "raise":
        assert done.stderr.count("RuntimeError: of the child") == 5
    elif mode == "leave":
        assert done.stderr.count("was opened before this process was forked") == 5
    else:
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        ("None", 0, ""),
        ("SystemExit()", 0, ""),
        ("SystemExit(7)", 7, ""),
        ("SystemExit('no')", 1, "no\n"),
        ("ValueError('v')", 1, "ValueError: v\n"),
    ],
)
def test_the_exit_code_of_a_child_is_that_of_its_exception(raised, code, told):
    program = f"from agentflow.forked_child import end_forked_child as e; print('out', end=''); e({raised})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "out", told)


async def test_a_signal_to_a_forked_child_of_the_daemon_ends_the_child_alone():
    class Drained:
        def stop(self) -> None:
            os._exit(9)

    with _Signals(Drained()):  # type: ignore[arg-type]
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)  # noqa: ASYNC251 — the child has no loop
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGTERM  # noqa: ASYNC222
