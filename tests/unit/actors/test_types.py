"""Typing is part of the interface: pyright accepts what is right and refuses what is wrong, line by line."""

import json
import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).with_name("typed_sample.py")
ROOT = SAMPLE.parents[3]


def test_pyright_accepts_and_rejects_line_by_line():
    lines = SAMPLE.read_text().splitlines()
    expected = {i for i, line in enumerate(lines, 1) if line.endswith("# rejected")}
    expected |= {i - 1 for i, line in enumerate(lines, 1) if "the decorator's line" in line}
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", str(SAMPLE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    report = json.loads(result.stdout)
    found = {each["range"]["start"]["line"] + 1: each["message"] for each in report["generalDiagnostics"]}
    assert {line: found.get(line) for line in found.keys() ^ expected} == {}
    assert len(expected) > 10
