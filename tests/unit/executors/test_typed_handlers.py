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
TEXT_ANNOTATIONS = "from __future__ import annotations\n"


def check(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False).stdout


def pyright(sample: Path, _: Path) -> set[int]:
    settings = [] if sample == SAMPLE else ["--pythonpath", sys.executable]
    report = json.loads(check("pyright", "--outputjson", *settings, str(sample)))
    return {each["range"]["start"]["line"] + 1 for each in report["generalDiagnostics"]}


def mypy(sample: Path, folder: Path) -> set[int]:
    output = check("mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(folder), str(sample))
    errors = re.findall(r"^\S*typed_handlers\.py:(\d+): error: ", output, re.MULTILINE)
    assert errors, output
    return {int(line) for line in errors}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("checker", [pyright, mypy])
@pytest.mark.parametrize("kind", ["annotations as text", "annotations as types"])
def test_each_line_is_accepted_or_rejected_as_it_says(checker, kind: str, tmp_path: Path):
    text, sample = SAMPLE.read_text(), SAMPLE
    assert TEXT_ANNOTATIONS in text
    if kind == "annotations as types":
        sample = tmp_path / SAMPLE.name
        sample.write_text(text.replace(TEXT_ANNOTATIONS, "\n"))
    lines = text.splitlines()
    expected = {i for i, line in enumerate(lines, 1) if line.endswith("# rejected")}
    assert len(expected) == 11
    assert checker(sample, tmp_path) == expected
