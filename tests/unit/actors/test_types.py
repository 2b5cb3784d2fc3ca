"""Typing is part of the interface: pyright and mypy accept what is right and refuse what is wrong, line by
line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("typed_sample.py")
ROOT = SAMPLE.parents[3]


def pyright(_):
    result = check("pyright", "--outputjson", str(SAMPLE))
    report = json.loads(result.stdout)
    return {each["range"]["start"]["line"] + 1: each["message"] for each in report["generalDiagnostics"]}


def mypy(folder):
    result = check("mypy", "--strict", "--cache-dir", str(folder), str(SAMPLE))
    errors = re.findall(r"^\S*typed_sample\.py:(\d+): error: (.*)$", result.stdout, re.MULTILINE)
    assert errors, result.stdout + result.stderr
    return {int(line): message for line, message in errors}


def check(*arguments):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)


@pytest.mark.parametrize("checker", [pyright, mypy])
def test_each_line_is_accepted_or_rejected_as_it_says(checker, tmp_path):
    lines = SAMPLE.read_text().splitlines()
    expected = {i for i, line in enumerate(lines, 1) if line.endswith("# rejected")}
    expected |= {i - 1 for i, line in enumerate(lines, 1) if "the decorator's line" in line}
    if checker is pyright:
        expected |= {i for i, line in enumerate(lines, 1) if line.endswith("# rejected by pyright")}
    found = checker(tmp_path)
    assert {line: found.get(line) for line in found.keys() ^ expected} == {}
    assert len(expected) > 10
