"""The soak script runs; how long it is let run decides what it can find."""

import json
import subprocess
import sys
from pathlib import Path


def test_two_seconds_of_soak():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.faults.soak_actors", "--seconds", "2", "--seed", "1"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["actors"] > 100
    assert "Traceback" not in done.stderr
