"""Typed results are part of the interface: pyright and mypy infer the output's type (daily-use, missed)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("typed_results.py")
ROOT = SAMPLE.parents[2]


def check(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    return done.stdout


def pyright(_: Path) -> dict[int, str]:
    report = json.loads(check("pyright", "--outputjson", str(SAMPLE)))
    return {each["range"]["start"]["line"] + 1: each["message"] for each in report["generalDiagnostics"]}


def mypy(folder: Path) -> dict[int, str]:
    output = check("mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(folder), str(SAMPLE))
    errors = re.findall(r"^\S*typed_results\.py:(\d+): error: (.*)$", output, re.MULTILINE)
    assert errors, output
    return {int(line): message for line, message in errors}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("checker", [pyright, mypy])
def test_the_type_of_the_output_is_inferred(checker, tmp_path: Path):
    lines = SAMPLE.read_text().splitlines()
    rejected = {number for number, line in enumerate(lines, 1) if line.endswith("# rejected")}
    found = checker(tmp_path)
    assert {line: found.get(line) for line in found.keys() ^ rejected} == {}
    assert len(rejected) == 2
