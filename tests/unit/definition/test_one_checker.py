"""One checker for documents and graphs: what is wrong with a graph is told at its place in the source."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition import check_text, load_value
from agentflow.definition.ir import AgentNode, Workflow
from agentflow.definition.ir_checks import check_graph
from agentflow.definition.ir_report import IrReport
from agentflow.definition.loader import definition_of
from agentflow.definition.origin import DocumentOrigin, Words
from agentflow.definition.report import Report
from agentflow.errors import DefinitionError

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}, "rows": {"type": "array"}}}


def step(id: str, *depends_on: str, **agent: Any) -> dict[str, Any]:
    inner: dict[str, Any] = {
        "systemPrompt": "p",
        "input": 1,
        "resultSchema": SCHEMA,
        "attachedFunctions": "none",
        **agent,
    }
    return {"type": "run", "id": id, "depends_on": list(depends_on), "agent": inner}


def lowered() -> Workflow:
    """The graph of a sound document with two steps, b after a."""
    document: dict[str, Any] = {
        "version": "1.0",
        "workflow": {"steps": [step("a"), step("b", "a")]},
        "inputs": {"t": {}},
    }
    return load_value(document).workflow


def changed(field: str, value: Any) -> Workflow:
    """The same graph with another value in a field of b."""
    graph = lowered()
    node = graph.nodes[2]
    assert isinstance(node, AgentNode)
    owner, _, key = field.rpartition("/")
    if owner:
        node = msgspec.structs.replace(node, agent=msgspec.structs.replace(node.agent, **{key: value}))
    else:
        node = msgspec.structs.replace(node, **{key: value})
    return msgspec.structs.replace(graph, nodes=(*graph.nodes[:2], node, graph.nodes[3]))


CASES = [
    ("guard", "steps.a.outputs.reslt == 'x'", "E_UNKNOWN_PROPERTY"),
    ("guard", "success(", "E_EXPR_SYNTAX"),
    ("guard", "steps.b.status == 'failed'", "E_REF_NOT_DEPENDENCY"),
    ("for_each", "${{ steps.a.outputs.result.x }}", "E_FOR_EACH_TYPE"),
    ("for_each", "${{ item }}", "E_EXPR_SCOPE"),
    ("input", {"k": ["${{ inputs.nope }}"]}, "E_UNKNOWN_INPUT"),
    ("input", "${{ steps.a.outputs.result.y }}", "W_UNKNOWN_RESULT_PROPERTY"),
    ("input", "${{ steps.a.status == 'sucess' }}", "W_COMPARE_VALUE"),
    ("agent/system_prompt", "${{ success() }}", "E_EXPR_SCOPE"),
    ("agent/context", {"k": "${{ nope }}"}, "E_EXPR_NAME"),
    ("agent/tags", {"k": "${{ steps.a.outputs.result.x"}, "E_EXPR_UNCLOSED"),
    ("depends_on", ("a", "b"), "E_CYCLE"),
    ("depends_on", ("gone",), "E_UNKNOWN_DEPENDENCY"),
]
KEYS = {"guard": "if", "agent/system_prompt": "agent/systemPrompt", "input": "agent/input"}


@pytest.mark.parametrize(("field", "value", "code"), CASES)
def test_a_document_and_its_graph_get_the_same_codes(field: str, value: Any, code: str):
    steps = [step("a"), step("b", "a")]
    path = KEYS.get(field, field).split("/")
    owner: Any = steps[1]
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    document: dict[str, Any] = {"version": "1.0", "workflow": {"steps": steps}, "inputs": {"t": {}}}
    of_document = diagnostics_of(lambda: load_value(document))
    of_graph = diagnostics_of(lambda: definition_of(changed(field, value)))
    told = [c for c, _ in of_document if c not in ("W_UNUSED_INPUT", "W_PROMPT_INJECTION")]
    assert told == [c for c, _ in of_graph if c != "W_PROMPT_INJECTION"] == [code]
    places = [p for c, p in of_document if c == code]
    assert places == [f"/workflow/steps/1{p}" for p in [places[0].removeprefix("/workflow/steps/1")]]
    assert field == "depends_on" or places[0].startswith(f"/workflow/steps/1/{KEYS.get(field, field)}")


def diagnostics_of(load: Any) -> list[tuple[str, str]]:
    try:
        return [(d.code, d.path or "") for d in load().warnings]
    except DefinitionError as error:
        return [(d.code, d.path or "") for d in error.diagnostics]


def test_a_problem_inside_a_field_is_told_at_its_character():
    text = (
        'version: "1.0"\n'
        "workflow:\n"
        "  steps:\n"
        "    - type: run\n"
        "      id: a\n"
        "      agent: {systemPrompt: p, resultSchema: true, attachedFunctions: none,\n"
        '        input: {k: ["one", "two {{ x }} ${{ steps.gone.status }}"]}}\n'
    )
    (found,) = check_text(text)
    assert (found.code, found.line, found.column) == ("E_UNKNOWN_STEP", 7, 51)
    assert found.path == "/workflow/steps/0/agent/input/k/1"


def test_what_the_front_end_made_itself_is_not_reported():
    """A document with errors lowers to a graph with errors of its own; only the first are reported."""
    found = check_text(
        "version: '1.0'\nworkflow: {steps: [{type: run, id: a}, {type: run, id: 7, agent: 1}]}"
    )
    assert {d.code for d in found} == {"E_REQUIRED", "E_TYPE"}


def test_a_value_without_a_place_is_dropped_and_fails_all_the_same():
    report = IrReport(Report(), DocumentOrigin(Words()))
    check_graph(changed("depends_on", ("gone",)), report)
    assert report.failed
    assert report.report.diagnostics() == []
