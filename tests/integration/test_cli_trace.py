"""`trace` and `timeline` on the command line, of runs and of exported files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow.records.trace_check import replay_trace
from tests.unit.cli.support import ECHO, ModelServer, Sandbox


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("echo.yaml", ECHO)
    with ModelServer(lambda body: "hello") as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        for run_id in ("wf_a", "wf_b"):
            made.invoke("run", "echo.yaml", "-i", "name=Ann", "--id", run_id)
        yield made


def test_equal_runs_have_equal_logical_traces(sandbox: Sandbox):
    one, other = (sandbox.invoke("trace", run, "--clock", "logical", "--json") for run in ("wf_a", "wf_b"))
    assert one.exit_code == 0
    assert one.stdout == other.stdout
    assert replay_trace(one.stdout).terminal_status == "completed"


def test_a_wall_trace_names_its_run_also_from_a_file(sandbox: Sandbox):
    found = json.loads(sandbox.invoke("trace", "wf_a").stdout)
    assert (found["metadata"]["workflow_id"], found["metadata"]["clock"]) == ("wf_a", "wall")
    sandbox.write("a.ndjson", sandbox.invoke("log", "wf_a").stdout)
    assert json.loads(sandbox.invoke("trace", "a.ndjson").stdout) == found
    assert sandbox.invoke("trace", "wf_none").exit_code == 4


def test_a_timeline_lists_what_happened(sandbox: Sandbox):
    lines = sandbox.invoke("timeline", "wf_a").stdout.splitlines()
    assert [line.split()[2:4] for line in lines] == [["greet", "started"], ["greet", "completed"]]
    found = json.loads(sandbox.invoke("timeline", "wf_a", "--json").stdout)
    assert [item["event"] for item in found["items"]] == ["node_started", "node_completed"]
    assert found["retries"] == []
