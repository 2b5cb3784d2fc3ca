"""AGENTFLOW_ALLOW_MODEL_REQUESTS=0: no model is asked, whatever asks for one, and the run says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_cli_daemon import serving
from tests.unit.cli.support import ECHO, ModelServer, Sandbox

NODES = """\
id: w
entry_node: a
nodes:
  - id: a
    node_type: {llm_call: {model: test, provider: openai}}
    config: {user_input_prompt: Hello}
edges: []
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ModelServer) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("flow.yaml", ECHO)
    made.write("nodes.yaml", NODES)
    made.write("agentflow.toml", f'[pipeline]\nworkspace_roots = ["{tmp_path}"]\n')
    made.env |= {
        "OPENAI_BASE_URL": server.url,
        "AGENTFLOW_MODEL": "openai:test",
        "AGENTFLOW_ALLOW_MODEL_REQUESTS": "0",
    }
    yield made
    made.close()


WAYS = {
    "agent": ("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a"),
    "node": ("run", "nodes.yaml", "--id", "wf_a"),
    "stage of a request": ("request", "plan a workflow that mails a digest", "--workspace", "work"),
}


def log_of_the_run(sandbox: Sandbox) -> str:
    found = sandbox.invoke("list", "--json")
    [run] = json.loads(found.stdout)["items"]
    return sandbox.invoke("log", run["workflow_id"]).stdout


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("place", ["in process", "daemon"])
def test_no_request_leaves(sandbox: Sandbox, server: ModelServer, words: tuple[str, ...], place: str) -> None:
    if place == "daemon":
        with serving(sandbox):
            result = sandbox.invoke(*words)
            log = log_of_the_run(sandbox)
    else:
        result = sandbox.invoke(*words)
        log = log_of_the_run(sandbox)
    assert server.arrived.empty()
    assert result.exit_code != 0, result.stdout
    assert "requests to models are forbidden here (AGENTFLOW_ALLOW_MODEL_REQUESTS=0)" in log, result.stderr
    assert "model_requests_forbidden" in log
    assert '"will_retry":true' not in log
