"""Contexts are checked by pyright and mypy: what a handler does not declare it may not send (page 002 §3)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("typed_handlers.py")
ROOT = SAMPLE.parents[3]


def check(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False).stdout


def pyright(_: Path) -> set[int]:
    report = json.loads(check("pyright", "--outputjson", str(SAMPLE)))
    return {each["range"]["start"]["line"] + 1 for each in report["generalDiagnostics"]}


def mypy(folder: Path) -> set[int]:
    output = check("mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(folder), str(SAMPLE))
    errors = re.findall(r"^\S*typed_handlers\.py:(\d+): error: ", output, re.MULTILINE)
    assert errors, output
    return {int(line) for line in errors}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("checker", [pyright, mypy])
def test_each_line_is_accepted_or_rejected_as_it_says(checker, tmp_path: Path):
    lines = SAMPLE.read_text().splitlines()
    expected = {i for i, line in enumerate(lines, 1) if line.endswith("# rejected")}
    assert len(expected) == 11
    assert checker(tmp_path) == expected
