"""The README with a scripted model: its workflow gives the expected output, its program prints what it says.

`tests/docs/test_pages.py` executes its blocks; what it used to list is in the pages of `agentflow help`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import Runtime
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.docs.blocks import README, read_blocks, read_source

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the README and the page about approvals tell the reader to write."""
    for block in [*read_blocks(README), *read_blocks("approvals")]:
        if block.file:
            (tmp_path / block.file).write_text(block.body, encoding="utf-8")
    return tmp_path


def test_there_is_something_to_execute(folder):
    assert {"triage.yaml", "crm.py", "careful.yaml", "bank.py"} <= {path.name for path in folder.iterdir()}


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


async def test_work_that_needs_care_is_asked_about_and_done_once(folder, monkeypatch):
    from agentflow import check_file

    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    assert check_file(folder / "careful.yaml") == []
    model = ScriptedModel()
    model.add([{"amount": 120}], when="Assess the claim")
    model.add([call("bank__pay", amount=120), {"paid": 120}], when="Pay the amount")
    async with Runtime(models=[model]) as runtime:
        handle = await runtime.submit(folder / "careful.yaml", {"claim": "Broken window, 120 EUR"})
        assert (await handle.result()).state == "waiting"
        (request,) = await runtime.requests()
        assert (request.step_id, request.subject["parameters"]) == ("pay", {"amount": 120})
        await runtime.decide(handle.workflow_id, step_id="pay", granted=True)
        result = await handle.result()
    assert (result.state, result.output) == ("completed", {"pay": {"paid": 120}})
    model.assert_complete()


def test_every_command_of_the_tool_stands_in_the_table():
    from agentflow.cli import app

    names = {word.split()[0] for word in re.findall(r"`([a-z][a-z -]*)`", read_source("commands"))}
    assert set(app.list_commands(None)) <= names


def test_the_declared_services_are_known():
    from agentflow.definition.loader import load_text

    steps = "workflow: {steps: [{type: run, id: a, agent: {systemPrompt: p}}]}\n"
    declared: set[str] = set()
    for page in (README, "mcp", "openapi"):
        for block in read_blocks(page):
            if block.language == "yaml" and block.body.startswith("services:"):
                definition = load_text('version: "1.0"\n' + block.body + steps, media="yaml")
                declared |= set(definition.workflow.services)
    assert {"files", "hook", "search", "shop"} <= declared


def test_the_program_runs():
    (body,) = [b.body for b in read_blocks(README) if b.language == "python" and not b.file]
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "0 workflow.started"
    assert lines[-2].endswith("workflow.completed")
    assert lines[-1] == "Max"
    assert not done.stderr
