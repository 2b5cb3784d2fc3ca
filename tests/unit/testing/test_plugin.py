"""The pytest plugin, used by a suite of its own as a user's suite would use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUITE = """
from agentflow.testing import ScriptedModel, assert_run

AGENT = {"systemPrompt": "p", "input": "${{ inputs.x }}", "attachedFunctions": "none"}
STEP = {"type": "run", "id": "a", "agent": AGENT}
DOCUMENT = {"version": "1.0", "inputs": {"x": {"type": "string"}}, "workflow": {"steps": [STEP]}}


def test_a_run(run_workflow):
    result = run_workflow(DOCUMENT, {"x": "hi"}, models=[ScriptedModel(["fine"])])
    assert_run(result).completed().output({"a": {"text": "fine"}})
    assert result.events[0].type == "workflow.started"


def test_a_failed_run_is_a_result(run_workflow):
    result = run_workflow(DOCUMENT, {"x": "hi"}, models=[ScriptedModel([])])
    assert_run(result).failed("script_exhausted")


def test_a_snapshot(run_workflow, agentflow_snapshot):
    agentflow_snapshot(run_workflow(DOCUMENT, {"x": "hi"}, models=[ScriptedModel([ANSWER])]).events)


def test_models_are_offline(run_workflow, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing-to-see")
    agent = {**STEP["agent"], "model": "openai:gpt"}
    result = run_workflow({**DOCUMENT, "workflow": {"steps": [{**STEP, "agent": agent}]}}, {"x": "hi"})
    assert_run(result).failed("model_requests_forbidden")
"""


QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "agentflow.testing.plugin"}
"""Loading the other plugins of this environment takes seconds."""


def run_suite(folder: Path, answer: str, *options: str) -> str:
    (folder / "test_flow.py").write_text(SUITE.replace("ANSWER", repr(answer)), encoding="utf-8")
    plugin = ["-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, *options, "test_flow.py"],
        cwd=folder,
        env={**os.environ, **QUICK},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_a_users_suite(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    first = run_suite(tmp_path, "fine")
    assert "1 failed, 3 passed" in first, first
    assert "test_flow.test_a_snapshot.json was written" in first
    assert "4 passed" in run_suite(tmp_path, "fine")
    other = run_suite(tmp_path, "another")
    assert "1 failed, 3 passed" in other, other
    assert "another" in other
    assert "fine" in other
    assert "4 passed" in run_suite(tmp_path, "another", "--agentflow-update")
    assert "4 passed" in run_suite(tmp_path, "another")
