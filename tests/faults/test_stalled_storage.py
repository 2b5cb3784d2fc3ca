"""A disk that is really full for a while: runs stand still, and go on with all that they did meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_payments_made_while_the_disk_is_full_are_recorded(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.stalled.child", str(tmp_path / "runs.db")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = Counter(done.stdout.splitlines())
    assert said["refused 3"] == 1
    assert said["stuck 20"] == 1
    assert said["run completed False storage"] == 20, said
    assert said["twice 0 60"] == 1
