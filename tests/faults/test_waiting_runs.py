"""100,000 runs that wait: their process keeps nothing for each, and an answer wakes one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BYTES_PER_BEGUN_RUN = 300
"""How much a process may grow by each run that it has begun and that waits: bounded indexes, and noise."""
BYTES_PER_TAKEN_UP_RUN = 1_200
"""The same for a process that takes up runs: the index of what falls due, for those that have a time-out."""


def played(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.faults.waiting_runs", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("count", [100_000])
def test_runs_that_wait_cost_no_memory_and_an_answer_wakes_one(tmp_path: Path, count: int):
    store = f"sqlite:{tmp_path / 'runs'}"
    begun = played("begin", store, str(count))
    woken = played("wake", store)
    print(begun, woken)
    assert begun["grown"] < BYTES_PER_BEGUN_RUN * count / 2
    assert woken["runs"] == count
    assert woken["held"] < BYTES_PER_TAKEN_UP_RUN * count
    assert (woken["woken"], woken["state"]) == (["wf_0000000"], "completed")
