"""`diff`, `tools FILE`, and `run` with --model, --quiet and --dry-run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.support import ECHO, ModelServer, Sandbox

TWO = ECHO + ECHO.partition("steps:\n")[2].replace(
    "id: greet", "id: again\n      depends_on: [greet]"
).replace("inputs.name", "steps.greet.outputs.result")
TOOLS = """\
import agentflow
@agentflow.function(side_effect="write")
def send(text: str) -> str:
    "Send a text."
    return text
"""
CALLS = """\
version: "1.0"
services: {post: {type: python, module: tools}}
workflow:
  steps:
    - type: run
      id: send
      approval: {before: calls}
      agent:
        systemPrompt: Send.
        input: x
        attachedFunctions: [{service: post, function: send}]
        resultSchema: {type: string}
"""


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("two.yaml", TWO)
    with ModelServer(lambda body: f"hello {body['model']} {body['messages'][-1]['content']}") as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        yield made


def test_diff_names_the_first_activation_that_differs(sandbox: Sandbox):
    for run_id, name in (("wf_a", "Ann"), ("wf_b", "Ann"), ("wf_c", "Bob")):
        sandbox.invoke("run", "two.yaml", "-i", f"name={name}", "--id", run_id)
    same = sandbox.invoke("diff", "wf_a", "b")
    assert (same.exit_code, same.stdout) == (0, "wf_a and wf_b are equal\n")
    other = sandbox.invoke("diff", "wf_a", "wf_c")
    assert other.exit_code == 1
    assert "first difference: greet\n  input\n" in other.stdout
    assert '  - "Ann"\n  + "Bob"\n' in other.stdout
    found = json.loads(sandbox.invoke("diff", "wf_a", "wf_c", "--json").stdout)
    assert found["activation"]["step_id"] == "greet"
    assert set(found["activation"]["differs"]) == {"input", "output"}
    assert found["input"] == [{"name": "Ann"}, {"name": "Bob"}]
    assert (found["equal"], found["usage"]) == (False, None)
    sandbox.write("a.ndjson", sandbox.invoke("log", "wf_a").stdout)
    assert sandbox.invoke("diff", "a.ndjson", "wf_b").exit_code == 0
    assert sandbox.invoke("diff", "wf_a", "wf_none").exit_code == 4


def test_quiet_says_nothing_of_a_run_that_ends_well(sandbox: Sandbox):
    done = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"again": "hello test hello test A"}
    short = sandbox.invoke("run", "two.yaml", "-i", "name=A", "-q", "--budget", "max_steps=1")
    assert (short.exit_code, "STEP" in short.stderr) == (9, False)
    assert "larger budget: `agentflow resume" in short.stderr


def test_model_is_the_one_of_steps_that_name_none(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "restored afterwards")
    done = sandbox.invoke("run", "two.yaml", "-i", "name=A", "-q", "--model", "openai:other")
    assert json.loads(done.stdout) == {"again": "hello other hello other A"}
    refused = sandbox.invoke("run", "two.yaml", "--model", "m", "--url", "unix:x")
    assert (refused.exit_code, "add --local" in refused.stderr) == (2, True)


def test_a_dry_run_checks_and_writes_nothing(sandbox: Sandbox):
    good = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--dry-run")
    assert (good.exit_code, good.stdout) == (0, "two would run\n")
    missing = sandbox.invoke("run", "two.yaml", "--dry-run")
    assert (missing.exit_code, "E_INPUT_MISSING" in missing.stderr) == (3, True)
    unbound = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--dry-run", "--json", "--model", "nosuch:m")
    assert unbound.exit_code == 78
    assert json.loads(unbound.stdout)["valid"] is False
    assert not sandbox.database.exists()


def test_tools_of_a_file(sandbox: Sandbox):
    sandbox.write("tools.py", TOOLS)
    sandbox.write("calls.yaml", CALLS)
    header, row = sandbox.invoke("tools", "calls.yaml").stdout.splitlines()
    assert header.split() == ["STEP", "SERVICE", "FUNCTION", "SIDE", "EFFECT", "APPROVAL", "DESCRIPTION"]
    assert row.split()[:4] == ["send", "post", "send", "write"]
    items = json.loads(sandbox.invoke("tools", "calls.yaml", "--json").stdout)["items"]
    assert items[0]["tool"]["input_schema"]["required"] == ["text"]
    sandbox.write("calls.yaml", CALLS.replace("function: send", "function: sned"))
    assert sandbox.invoke("tools", "calls.yaml").exit_code == 3
    assert not sandbox.database.exists()
