"""Graph documents (`ir/v0`) and node-graph YAML at every entry: commands, Runtime and daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentflow import Runtime
from tests.unit.cli.support import Sandbox
from tests.unit.server.kit import serving

GRAPH = """\
name: parts
nodes:
  - {id: start, type: start, next: cut, input_schema: {type: object, required: [items]}}
  - {id: cut, type: batch, items_path: input.items, size: 2, next: end}
  - {id: end, type: end, output: {parts: "{{ nodes.cut.output }}"}}
"""
NODES = """\
id: parts
entry_node: cut
nodes:
  - {id: cut, node_type: {batch: {items_path: input.items, size: 2}}}
  - {id: end, node_type: {end: {parts: "{{ nodes.cut.output }}"}}}
edges: [{from: cut, to: end}]
"""
DOCUMENTS = {"ir/v0": GRAPH, "yaml": NODES}
OUTPUT = {"parts": [[1, 2], [3]]}


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.chdir(tmp_path)
    return Sandbox(tmp_path)


@pytest.mark.parametrize("format", DOCUMENTS)
def test_commands_check_draw_and_run_a_document(sandbox: Sandbox, format: str):
    path = sandbox.write("flow.yaml", DOCUMENTS[format])
    checked = sandbox.invoke("check", path)
    assert (checked.exit_code, "valid" in checked.stdout) == (0, True)
    drawn = sandbox.invoke("graph", path)
    assert drawn.stdout.startswith("flowchart TD\n")
    assert "cut --> n_end" in drawn.stdout
    done = sandbox.invoke("run", path, "--input", "items=[1, 2, 3]", "--json")
    assert (done.exit_code, json.loads(done.stdout)["output"]) == (0, OUTPUT), done.stderr


@pytest.mark.parametrize("format", DOCUMENTS)
def test_a_wrong_document_is_refused_with_its_places(sandbox: Sandbox, format: str):
    path = sandbox.write("flow.yaml", DOCUMENTS[format].replace("nodes.cut", "nodes.cat"))
    for command in (("check", path), ("run", path, "--input", "items=[]")):
        done = sandbox.invoke(*command)
        assert done.exit_code == 3
        assert "flow.yaml:5:" in done.stderr
        assert "E_UNKNOWN_REFERENCE" in done.stderr


def test_strict_refuses_the_warnings_of_a_graph(sandbox: Sandbox):
    more = "  - {id: odd, type: batch, items_path: nodes.odd.output, next: end}\n"
    more += "edges: [{source: start, target: odd}]\n"
    path = sandbox.write("flow.yaml", GRAPH + more)
    assert sandbox.invoke("check", path).exit_code == 0
    strict = sandbox.invoke("check", path, "--strict")
    assert (strict.exit_code, "W_MAYBE_UNSET" in strict.stderr) == (3, True)


async def test_a_runtime_refuses_an_input_that_breaks_the_schema_of_the_start(tmp_path: Path):
    path = tmp_path / "flow.yaml"
    path.write_text(GRAPH)
    async with Runtime() as runtime:
        assert (await runtime.run(path, {"items": [1, 2, 3]})).output == OUTPUT
        with pytest.raises(Exception, match="E_INPUT_INVALID"):
            await runtime.run(path, {"item": 1})


@pytest.mark.parametrize("format", DOCUMENTS)
async def test_a_daemon_takes_a_document(tmp_path: Path, format: str):
    async with serving(tmp_path) as served, served.http() as http:
        body = {"definition": DOCUMENTS[format], "input": {"items": [1, 2, 3]}, "format": format}
        answer = await http.post("/workflows", params={"wait": 10}, json=body)
        assert (answer.status_code, answer.json()["output"]) in ((200, OUTPUT), (201, OUTPUT)), answer.text
        broken = {**body, "definition": DOCUMENTS[format].replace("nodes.cut", "nodes.cat")}
        refused = await http.post("/workflows", json=broken)
        assert refused.status_code == 422
        assert [d["code"] for d in refused.json()["diagnostics"]] == ["E_UNKNOWN_REFERENCE"]
