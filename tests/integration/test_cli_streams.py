"""stdout has the result of `run` alone, for every example; progress is on stderr (daily-use 9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.support import ModelServer, Sandbox

EXAMPLES = Path(__file__).parents[2] / "examples"
TICKET = {"id": "t1", "from": "ann@example.org", "subject": "x", "text": "y"}
INPUTS: dict[str, dict[str, Any]] = {
    "judge_loop/judge.yaml": {"task": "x", "attempt": {"text": "y"}},
    "judge_loop/write.yaml": {"task": "x"},
    "patterns/conditional.yaml": {"application": "x"},
    "patterns/iterative.yaml": {"text": "Lima"},
    "patterns/parallel.yaml": {"question": "q"},
    "refinement/draft.yaml": {"topic": "x"},
    "refinement/refine.yaml": {"draft": {"text": "WE"}},
    "ticket_triage/triage.yaml": {"tickets": [TICKET]},
}


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.chdir(tmp_path)
    return Sandbox(tmp_path)


def sample(schema: Any) -> Any:
    """Return a value that a result schema of the examples takes."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: sample(inner) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [sample(schema.get("items", {}))] * schema.get("minItems", 1)
    return {"string": "word", "integer": 1, "number": 1, "boolean": True}.get(kind)


def obliging(body: dict[str, Any]) -> str:
    """Answer by the schema of the request; with text if it has none."""
    wanted = body.get("response_format", {}).get("json_schema", {}).get("schema")
    value = "words" if wanted is None else sample(wanted)
    return value if isinstance(value, str) else json.dumps(value)


def test_every_example_is_listed():
    found = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.yaml")}
    apart = {
        "web_app/ticket.yaml",
        "ticket_triage/evals/suite.yaml",
    }  # a part of an application, and no document
    with_program = {
        name for name in found if name.startswith("node_graphs/")
    }  # functions of a program of theirs
    assert set(INPUTS) == found - apart - with_program


@pytest.mark.parametrize("example", sorted(INPUTS))
def test_the_output_of_an_example_is_one_json_value(sandbox: Sandbox, example: str):
    with ModelServer(obliging) as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        given = json.dumps(INPUTS[example])
        result = sandbox.invoke("run", str(EXAMPLES / example), "--input", given, "--id", "wf_a")
    assert result.exit_code == 0, result.stderr
    output = json.loads(result.stdout)
    assert output == json.loads(sandbox.invoke("show", "wf_a", "--json").stdout)["output"]
    assert "wf_a completed in " in result.stderr


GRAPHS: dict[str, Any] = {"readings": 3, "claims": {"id": "c-8", "amount": 20}, "draft_loop": "owls"}


def test_every_graph_of_the_examples_is_run():
    """The teams are built in a program of their own."""
    built = {f.stem for f in (EXAMPLES / "graphs").glob("*.py") if "\nworkflow = " in f.read_text()}
    assert built == GRAPHS.keys()


@pytest.mark.parametrize("name", GRAPHS)
def test_the_output_of_a_workflow_in_python_is_one_json_value(
    sandbox: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Also where a person answers first: until then stdout stays empty."""
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    workflow, given = f"examples.graphs.{name}:workflow", json.dumps(GRAPHS[name])
    done = sandbox.invoke("run", workflow, "--input", given, "--id", "wf_a")
    for answer in ("They hear well.", ""):
        if done.exit_code == 9:
            assert done.stdout == ""
            (asked,) = json.loads(sandbox.invoke("inbox", "--json").stdout)["items"]
            words = ("answer", "wf_a", asked["request_id"], answer, "--load", workflow)
            done = sandbox.invoke(*words)
    assert done.exit_code == 0, done.stderr
    output = json.loads(sandbox.invoke("show", "wf_a", "--json").stdout)["output"]
    assert json.loads(done.stdout) == output
    assert output
