"""Typing is part of the interface: pyright and mypy accept what is right and refuse what is wrong.

A line of a sample that both must refuse ends with `# rejected`. Each checker runs once, over all samples.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ACTORS = ROOT / "tests/unit/actors/typed_sample.py"
RESULTS = ROOT / "tests/unit/typed_results.py"
HANDLERS = ROOT / "tests/unit/executors/typed_handlers.py"
CLAIMS = ROOT / "tests/integration/graphs/claims.py"
TEXT_ANNOTATIONS = "from __future__ import annotations\n"

Found = dict[str, dict[int, str]]
"""Messages by line by the name of the file."""


def check(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False).stdout


def pyright(samples: list[Path], _: Path) -> Found:
    arguments = ("--outputjson", "--pythonpath", sys.executable, "--pythonversion", "3.11")
    report: dict[str, Any] = json.loads(check("pyright", *arguments, *map(str, samples)))
    assert report["summary"]["filesAnalyzed"] == len(samples), report
    found: Found = defaultdict(dict)
    for each in report["generalDiagnostics"]:
        found[Path(each["file"]).name][each["range"]["start"]["line"] + 1] = each["message"]
    return found


def mypy(samples: list[Path], folder: Path) -> Found:
    arguments = ("--strict", "--follow-imports=silent", "--cache-dir", str(folder))
    output = check("mypy", *arguments, *map(str, samples))
    errors = re.findall(r"^(\S+?)([^/\s]+\.py):(\d+): error: (.*)$", output, re.MULTILINE)
    assert f"(checked {len(samples)} source files)" in output, output
    found: Found = defaultdict(dict)
    for _, name, line, message in errors:
        found[name][int(line)] = message
    return found


def rejected(sample: Path, checker: Callable[..., Found]) -> set[int]:
    """Return the lines that the checker must refuse."""
    lines = sample.read_text().splitlines()
    wrong = {i for i, line in enumerate(lines, 1) if line.endswith("# rejected")}
    wrong |= {i - 1 for i, line in enumerate(lines, 1) if "the decorator's line" in line}
    if checker is pyright:
        wrong |= {i for i, line in enumerate(lines, 1) if line.endswith("# rejected by pyright")}
    return wrong


@pytest.mark.timeout(120)
@pytest.mark.parametrize("checker", [pyright, mypy])
def test_each_line_is_accepted_or_rejected_as_it_says(checker: Callable[..., Found], tmp_path: Path):
    evaluated = tmp_path / "evaluated_handlers.py"  # handlers whose annotations are no texts
    text = HANDLERS.read_text()
    assert TEXT_ANNOTATIONS in text
    evaluated.write_text(text.replace(TEXT_ANNOTATIONS, "\n"))
    samples = [ACTORS, RESULTS, HANDLERS, evaluated]
    if checker is pyright:
        samples.append(CLAIMS)
    expected = {sample.name: rejected(sample, checker) for sample in samples}
    assert len(expected[ACTORS.name]) > 10
    assert [len(expected[each.name]) for each in (RESULTS, HANDLERS, evaluated)] == [2, 11, 11]

    found = checker(samples, tmp_path)

    for name, lines in expected.items():
        wrong = {line: found[name].get(line) for line in found[name].keys() ^ lines}
        assert wrong == {}, name
