"""People on the command line: `approve --response`, `answer` for choices, texts and forms of node graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.support import Sandbox

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    yield made
    made.close()


def flow(sandbox: Sandbox, kind: str, **fields: Any) -> None:
    nodes = [{"id": "ask", "node_type": {kind: {"prompt": "Well?", **fields}}}]
    document: dict[str, Any] = {"id": "w", "entry_node": "ask", "nodes": nodes}
    if kind == "human_in_the_loop":
        ways = [
            {"id": way, "node_type": {"end": {"way": way, "out": "{{ nodes.ask.output }}"}}}
            for way in ("yes", "no")
        ]
        document["nodes"] = [*nodes, *ways]
        fields |= {"on_approve": "yes", "on_reject": "no"}
        nodes[0]["node_type"] = {kind: {"prompt": "Well?", **fields}}
    sandbox.write("flow.yaml", json.dumps(document))
    begun = sandbox.invoke("run", "flow.yaml", "--id", "wf_a")
    assert begun.exit_code == 9, begun.stderr


def output(result: Any) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["output"]


@pytest.mark.parametrize(("verb", "way", "approved"), [("approve", "yes", True), ("deny", "no", False)])
def test_a_decision_has_a_response(sandbox: Sandbox, verb: str, way: str, approved: bool):
    flow(sandbox, "human_in_the_loop")
    bad = sandbox.invoke(verb, "wf_a", "ask", "--response", "{no json")
    assert (bad.exit_code, "--response" in bad.stderr) == (2, True)
    found = output(sandbox.invoke(verb, "wf_a", "ask", "--response", '{"limit": 5}', "--json"))
    assert found["way"] == way
    assert (found["out"]["approved"], found["out"]["response"]) == (approved, {"limit": 5})


def test_a_response_comes_from_a_file(sandbox: Sandbox):
    sandbox.write("said.json", '{"limit": 7}')
    flow(sandbox, "human_in_the_loop")
    found = output(sandbox.invoke("approve", "wf_a", "ask", "--response", "@said.json", "--json"))
    assert found["out"]["response"] == {"limit": 7}


def test_a_text_is_taken_as_it_is(sandbox: Sandbox):
    flow(sandbox, "human_input", input_type="text")
    assert output(sandbox.invoke("answer", "wf_a", "ask", "42", "--json")) == "42"


@pytest.mark.parametrize(
    ("options", "text", "value"), [(["a", "b"], "b", "b"), ([1, 2], "2", 2), (["1"], "1", "1")]
)
def test_a_choice_is_one_of_the_options(sandbox: Sandbox, options: list[Any], text: str, value: Any):
    flow(sandbox, "human_input", input_type="choice", options=options)
    refused = sandbox.invoke("answer", "wf_a", "ask", "other")
    assert (refused.exit_code, "invalid_response" in refused.stderr) == (2, True), refused.stderr
    assert output(sandbox.invoke("answer", "wf_a", "ask", text, "--json")) == value


def test_a_form_must_fit_its_schema(sandbox: Sandbox):
    flow(sandbox, "human_input", input_type="form", form_schema=FORM)
    refused = sandbox.invoke("answer", "wf_a", "ask", '{"age": "x"}')
    assert refused.exit_code == 2
    assert "invalid_response" in refused.stderr
    assert sandbox.invoke("show", "wf_a", "--json").stdout.count("waiting") >= 1
    sandbox.write("form.json", '{"name": "Ann", "age": 7}')
    assert output(sandbox.invoke("answer", "wf_a", "ask", "@form.json", "--json")) == {
        "name": "Ann",
        "age": 7,
    }


def test_an_unknown_question_is_not_found(sandbox: Sandbox):
    flow(sandbox, "human_input", input_type="text")
    refused = sandbox.invoke("answer", "wf_a", "nobody", "x")
    assert (refused.exit_code, "no open request nobody" in refused.stderr) == (4, True)
