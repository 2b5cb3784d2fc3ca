"""100,000 runs that wait: their process keeps a bounded index, and an answer wakes one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAX_BYTES = 40 << 20
"""How much a process may grow by runs that wait, however many they are: an index of the next 16,384
deadlines, caches of bounded size, and what reading rows leaves behind in the allocator."""


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
    assert begun["grown"] < MAX_BYTES
    assert woken["runs"] == count
    assert woken["held"] < MAX_BYTES
    assert (woken["woken"], woken["state"]) == (["wf_0000000"], "completed")
