"""Graph documents (`ir/v0`): detection, normal form, places of diagnostics, and what they lower to."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import agentflow
from agentflow.definition import check_inputs, check_text, load_text, load_value
from agentflow.definition.diagnostics import Diagnostic, DiagnosticCode
from agentflow.definition.ir import (
    AgentNode,
    ConditionNode,
    ToolNode,
    Workflow,
    canonical_json,
    ir_hash,
)
from agentflow.errors import DefinitionError, WorkflowValidationError
from tests.unit.engine.kinds.random_graphs import random_graph


def document(*nodes: dict[str, Any], start: str = "", **more: Any) -> dict[str, Any]:
    first = start or nodes[0]["id"]
    ends = [] if any(n.get("type") == "end" for n in nodes) else [{"id": "end", "type": "end"}]
    return {"name": "w", "nodes": [{"id": "start", "type": "start", "next": first}, *nodes, *ends], **more}


def tool(id: str, next: str | None = "end", **more: Any) -> dict[str, Any]:
    found = {"id": id, "type": "tool", "tool": "s.call", **more}
    return found | ({"next": next} if next else {})


def codes(value: Any) -> list[str]:
    return [d.code for d in found_in(value)]


def found_in(value: Any) -> list[Diagnostic]:
    try:
        return load_value(value).warnings
    except DefinitionError as error:
        return error.diagnostics


# -- detection ----------------------------------------------------------------------------------

NODE = {"id": "a", "type": "start"}
FORMATS = {
    "steps": ({"workflow": {"steps": []}}, "E_NO_STEPS"),
    "agents": ({"agents": []}, "E_NO_AGENTS"),
    "graph": ({"nodes": []}, "E_EMPTY_WORKFLOW"),
    "graph declared": ({"format": "ir/v0", "nodes": []}, "E_EMPTY_WORKFLOW"),
    "entry": ({"entry_node": "a"}, "E_EMPTY_WORKFLOW"),
    "entry beside nodes": ({"entry_node": "a", "nodes": [NODE]}, "E_UNKNOWN_KEY"),
    "node types": ({"nodes": [{"id": "a", "node_type": {"end": {}}}]}, "E_MISSING_ENTRY"),
    "types and node types": ({"nodes": [NODE, {"id": "b", "node_type": {}}]}, "E_EMPTY_FIELD"),
    "yaml declared": ({"format": "yaml", "nodes": []}, "E_MISSING_ENTRY"),
    "steps and nodes": ({"workflow": {}, "nodes": []}, "E_FORMAT"),
    "all": ({"workflow": {}, "nodes": [], "agents": []}, "E_FORMAT"),
    "declared as another": ({"format": "linear", "nodes": []}, "E_FORMAT"),
    "declared as steps": ({"format": "ir/v0", "workflow": {}}, "E_FORMAT"),
    "unknown": ({"format": "ir/v1", "nodes": []}, "E_FORMAT"),
    "later": ({"format": "pipeline", "nodes": []}, "E_FORMAT"),
    "nothing": ({"name": "w"}, "E_FORMAT"),
    "misspelt": ({"node": []}, "E_FORMAT"),
    "nodes of no array": ({"nodes": 1}, "E_TYPE"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_of_a_document_follows_from_its_keys(name: str):
    value, code = FORMATS[name]
    assert code in codes(value)


def test_a_misspelt_key_of_a_format_is_named():
    (problem,) = found_in({"nods": []})
    assert (problem.code, problem.path, problem.hint) == ("E_FORMAT", "/nods", 'did you mean "nodes"?')


def test_a_submitted_format_must_agree():
    text = json.dumps({"format": "ir/v0", "nodes": []})
    assert [d.code for d in check_text(text, format="linear")] == ["E_FORMAT"]
    assert "E_FORMAT" not in [d.code for d in check_text(text, format="ir/v0")]


# -- normal form --------------------------------------------------------------------------------


def test_the_normal_form_is_that_of_page_003():
    value = document(
        {
            "id": " pick ",
            "type": " if ",
            "expression": " ${{ $.input.n > 1 }} ",
            "on_true": "w ",
            "on_false": "end",
        },
        {"id": "w", "type": "wait", "duration": "1.5m", "next": " a\t"},
        tool("a", input={"text": "  {{ $.input.n }}  "}, metadata={"keep": "  as it is "}),
        name=" w ",
        version=" v0 ",
        start="pick",
    )
    graph = load_value(value).workflow
    assert [node.id for node in graph.nodes] == ["a", "end", "pick", "start", "w"]
    assert [node.index for node in graph.nodes] == [0, 1, 2, 3, 4]
    by_id = {node.id: node for node in graph.nodes}
    pick, call = by_id["pick"], by_id["a"]
    assert isinstance(pick, ConditionNode)
    assert isinstance(call, ToolNode)
    assert (pick.expression, pick.on_true) == ("input.n > 1", "w")
    assert by_id["w"].duration == 90.0  # type: ignore[attr-defined]
    assert (call.input, call.metadata) == ({"text": "  {{ $.input.n }}  "}, {"keep": "  as it is "})
    assert graph.name == "w"


def test_declared_positions_stay():
    value = document(tool("b", next="a", index=7), tool("a", index=2))
    assert {n.id: n.index for n in load_value(value).workflow.nodes} == {"a": 2, "b": 7, "end": 0, "start": 0}


def test_policies_are_merged_key_by_key():
    retry = {"max_retries": 2, "backoff": {"initial": "100ms"}}
    value = document(
        tool("a", next="b", policy={"retry": {"jitter": 0}, "budget": {"max_tool_calls": 3}}),
        tool("b", policy={"retry": {"max_attempts": 9}, "timeout": 1}),
        defaults={"tool": {"retry": retry, "timeout": "7s"}},
    )
    a, b = (node for node in load_value(value).workflow.nodes if isinstance(node, ToolNode))
    assert a.policy is not None
    assert a.policy.retry is not None
    assert a.budget is not None
    assert (a.policy.timeout, a.policy.retry.max_attempts, a.policy.retry.jitter) == (7, 3, 0)
    assert (a.policy.retry.backoff.initial, a.budget.max_tool_calls) == (0.1, 3)
    assert b.policy is not None
    assert b.policy.retry is not None
    assert (b.policy.timeout, b.policy.retry.max_attempts, b.policy.retry.jitter) == (1, 9, 0.1)


def test_an_agent_node_is_written_like_an_agent_of_a_list():
    agent = {"system_prompt": "Say {{ input }}.", "tools": ["crm.find", "search"], "model": "openai:x"}
    value = document(
        {"id": "a", "type": "agent", "agent": agent, "output_schema": {"type": "object"}, "next": "end"}
    )
    node = next(n for n in load_value(value).workflow.nodes if isinstance(n, AgentNode))
    assert [(f.service, f.function) for f in node.agent.functions or ()] == [("crm", "find"), ("", "search")]
    assert (node.agent.name, node.agent.output_schema) == ("a", {"type": "object"})


def test_extension_keys_are_ignored():
    value = document(tool("a", **{"x-note": 1}), **{"x-top": {"y": "${{"}})
    assert load_value(value).ir_hash == load_value(document(tool("a"))).ir_hash


def shuffled(value: Any, rng: random.Random, top: bool = True) -> Any:
    """Return the same value with its keys, and the nodes of graphs, in another order."""
    if isinstance(value, list):
        return [shuffled(item, rng, False) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    made = {key: shuffled(value[key], rng, False) for key in keys}
    if isinstance(made.get("nodes"), list) and "name" in made:
        rng.shuffle(made["nodes"])
    return made


def generated(seed: int) -> dict[str, Any]:
    wire = msgspec.json.decode(canonical_json(random_graph(random.Random(seed))))
    return without_index(wire)


def without_index(value: Any) -> Any:
    if isinstance(value, list):
        return [without_index(item) for item in value]
    if isinstance(value, dict):
        return {k: without_index(v) for k, v in value.items() if k != "index" or not isinstance(v, int)}
    return value


@pytest.mark.parametrize("seed", range(60))
def test_normalisation_is_idempotent_and_its_hash_independent_of_layout(seed: int):
    value, rng = generated(seed), random.Random(seed)
    first = agentflow.validate_and_normalize(value)
    again = agentflow.validate_and_normalize(first)
    assert again == first
    assert agentflow.validate_and_normalize(json.loads(canonical_json(first))) == first
    other = shuffled(value, rng)
    texts = [json.dumps(other, indent=3), yaml.safe_dump(other, sort_keys=False), json.dumps(value)]
    assert {load_text(text).ir_hash for text in texts} == {ir_hash(first)}


def test_the_hash_of_a_known_document_is_the_same_on_every_platform():
    text = 'name: w\nnodes:\n- {id: s, type: start, next: "é"}\n- {id: e, type: end, output: {"é": 1.50}}\n'
    text = text.replace('next: "é"', "next: e")
    graph = load_text(text).workflow
    assert (
        canonical_json(graph)
        == (
            '{"name":"w","nodes":[{"id":"e","output":{"é":1.5},"type":"end"},'
            '{"id":"s","index":1,"next":"e","type":"start"}],'
            '"options":{"max_expression_scope_bytes":131072}}'
        ).encode()
    )


# -- diagnostics --------------------------------------------------------------------------------

BROKEN = """\
name: " "
version: v1
bogus: 1
nodes:
  - {id: start, type: start, nxt: pick}
  - {id: pick, type: conditio, expression: "$.input.n > 1", on_true: w, on_false: end}
  - {id: l, type: loop, condition: "${{ nodes.m.output > }}", body: w, next: end, max_iterations: 0}
  - {id: w, type: wait, duration: -10ms, next: " "}
  - {id: m, type: condition, expression: "{{ $.nodes.q }}", on_true: w}
  - id: end
    type: end
    output: {n: "abc {{ $.inpu.n }}"}
"""


def test_every_problem_is_told_at_its_place_and_no_other():
    found = [(d.line, d.column, d.code, d.hint) for d in check_text(BROKEN)]
    assert [row[:3] for row in found] == [
        (1, 7, "E_EMPTY_WORKFLOW_NAME"),
        (2, 10, "E_UNSUPPORTED_VERSION"),
        (3, 1, "E_UNKNOWN_KEY"),
        (5, 30, "E_UNKNOWN_KEY"),
        (6, 22, "E_UNKNOWN_KIND"),
        (7, 57, "E_EXPR_SYNTAX"),
        (7, 99, "E_VALUE"),
        (8, 35, "E_VALUE"),
        (8, 48, "E_EMPTY_FIELD"),
        (9, 5, "E_EMPTY_FIELD"),
        (9, 54, "E_UNKNOWN_REFERENCE"),
        (12, 27, "E_EXPR_NAME"),
    ]
    hints = {(row[0], row[2]): row[3] for row in found}
    assert hints[5, "E_UNKNOWN_KEY"] == 'did you mean "next"?'
    assert hints[6, "E_UNKNOWN_KIND"] == 'did you mean "condition"?'
    assert hints[12, "E_EXPR_NAME"] == 'did you mean "input"?'


def test_document_003_names_twelve_codes():
    assert len(DiagnosticCode) == 12
    assert DiagnosticCode.NoPathToEnd == "E_NO_PATH_TO_END"


def test_an_input_that_breaks_the_schema_of_the_start_is_refused():
    schema = {"type": "object", "required": ["n"]}
    for where in ({"input_schema": schema}, {}):
        value = document(tool("a"), **where)
        if not where:
            value["nodes"][0]["input_schema"] = schema
        definition = load_value(value)
        assert [d.code for d in check_inputs(definition, {"m": 1})[1]] == ["E_INPUT_INVALID"]
        assert check_inputs(definition, {"n": 1}) == ({"n": 1}, [])


# -- entry points -------------------------------------------------------------------------------


def test_the_pure_entry_points_take_files_values_and_graphs(tmp_path: Path):
    path = tmp_path / "flow.yaml"
    path.write_text(yaml.safe_dump(document(tool("a"))))
    graph = agentflow.yaml_workflow_to_ir(path)
    assert isinstance(graph, Workflow)
    assert agentflow.verify_yaml_workflow(path) == []
    assert agentflow.workflow_to_mermaid(path) == agentflow.workflow_to_mermaid(graph)
    path.write_text(BROKEN)
    assert len(agentflow.verify_yaml_workflow(path)) == 12
    with pytest.raises(WorkflowValidationError) as caught:
        agentflow.yaml_workflow_to_ir(path)
    assert len(caught.value.diagnostics) == 12


def test_strict_refuses_warnings():
    value = document(tool("a", input="{{ nodes.b.output }}", next="b"), tool("b"))
    assert agentflow.validate_and_normalize(value)
    with pytest.raises(WorkflowValidationError, match="W_MAYBE_UNSET"):
        agentflow.validate_and_normalize(value, strict=True)


EXPLICIT: dict[str, dict[str, Any]] = {
    "tool": {"on_error": "fail", "join": "any", "required": True, "metadata": {}, "depends_on": []},
    "map": {"max_in_flight": 8, "on_item_error": " fail ", "set_globals": {}},
    "parallel": {"max_in_flight": 8, "on_branch_error": "fail"},
    "merge": {"rest": "cancel"},
    "end": {"drain": False},
}


def test_defaults_that_are_written_out_leave_the_hash_as_it_is():
    value = document(
        tool("a", next="p"),
        {"id": "p", "type": "parallel", "branches": ["b", "c"], "next": "m"},
        tool("b", next="m"),
        {"id": "c", "type": "map", "items_path": "input", "tool": "s.call", "next": "m"},
        {"id": "m", "type": "merge", "policy": "all", "sources": ["b", "c"], "next": "end"},
    )
    explicit = {**value, "nodes": [{**n, **EXPLICIT.get(n["type"], {})} for n in value["nodes"]]}
    options = {"policy": "eager", "on_failure": "continue", "max_steps": 1000, "max_parallel": 8}
    explicit |= {"version": "v0", "edges": [], "globals": {}, "options": options}
    assert load_value(explicit).ir_hash == load_value(value).ir_hash


def test_a_node_with_a_kind_is_told_the_name_of_its_type():
    with pytest.raises(DefinitionError) as caught:
        load_value({"version": "v0", "name": "w", "nodes": [{"id": "s", "kind": "start", "next": "e"}]})
    assert "a node has `type`, not `kind`" in [d.hint for d in caught.value.diagnostics]


@pytest.mark.parametrize("value", [None, 3, [], b"{}"])
def test_what_is_no_definition_is_named(value: Any):
    with pytest.raises(TypeError, match=f"must be a mapping, the path .*, not {type(value).__name__}"):
        agentflow.validate_and_normalize(value)
