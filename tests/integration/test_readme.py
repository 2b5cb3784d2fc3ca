"""The README is executed: its documents load and run, its program prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import Runtime
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+) (file=(?P<file>\S+)|run)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = list(BLOCK.finditer((ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in BLOCKS:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["body"], encoding="utf-8")
    return tmp_path


def test_there_is_something_to_execute():
    assert {b["file"] for b in BLOCKS} == {"triage.yaml", "crm.py", None}


async def test_the_workflow_checks_without_a_word_and_runs(folder, monkeypatch):
    from agentflow import check_file

    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    assert check_file(folder / "triage.yaml") == []
    model = ScriptedModel()
    model.add([{"urgency": "high"}], when="how urgent")
    model.add([call("crm__find_manager", email="ann@example.com"), {"manager": "Max"}], when="looks after")
    async with Runtime(models=[model]) as runtime:
        result = await runtime.run(folder / "triage.yaml", {"ticket": "The shop is down! ann@example.com"})
    assert result.output == {"escalate": {"manager": "Max"}}
    model.assert_complete()


def test_the_program_runs():
    (body,) = [b["body"] for b in BLOCKS if not b["file"]]
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "0 workflow.started"
    assert lines[-2].endswith("workflow.completed")
    assert lines[-1] == "Max will call you back."
    assert not done.stderr
