"""Node-graph YAML (page 003 §12): lowering, aliases, the ways that are meant, and every diagnostic."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition import check_text, load_text, load_value
from agentflow.definition.ir import NodeBase, ToolNode, canonical_json
from agentflow.errors import DefinitionError
from tests.unit.engine.driver import Driver


def document(
    *nodes: dict[str, Any], edges: list[tuple[str, str]] | None = None, **more: Any
) -> dict[str, Any]:
    ways = [{"from": source, "to": target} for source, target in edges or []]
    return {"id": "w", "entry_node": nodes[0]["id"], "nodes": list(nodes), "edges": ways, **more}


def node(id: str, kind: str, fields: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": id, "node_type": {kind: {} if fields is None else fields}, **more}


def wait(id: str, **more: Any) -> dict[str, Any]:
    return node(id, "wait", {"duration": 1}, **more)


def array(id: str, **more: Any) -> dict[str, Any]:
    return node(id, "batch", {"items_path": "input.items"}, **more)


def codes(value: dict[str, Any]) -> list[str]:
    try:
        return [d.code for d in load_value(value).warnings]
    except DefinitionError as error:
        return [d.code for d in error.diagnostics]


def lowered(value: dict[str, Any]) -> dict[str, Any]:
    """Return the nodes of the graph by id, as they stand in its JSON."""
    graph = msgspec.json.decode(canonical_json(load_value(value).workflow))
    return {node.pop("id"): node for node in graph["nodes"]}


ORDER = """\
id: order
version: "7"
entry_node: pick
nodes:
  - id: pick
    node_type:
      switch:
        branches: [{condition: "input.n > 1", target: fork}]
        default: bye
  - {id: fork, node_type: {parallel: {nodes: [a, b]}}}
  - {id: a, node_type: {batch: {items_path: input.items}}, config: {set_globals: {k: nodes.a.output}}}
  - {id: b, node_type: {wait: {duration: 10ms}}}
  - {id: join, node_type: {merge: {policy: {type: all}}}}
  - {id: lo, node_type: {loop: {condition: "nodes.lo.count < 2", body: t, max_iterations: 5}}}
  - {id: t, node_type: {batch: {items_path: input.items}}}
  - {id: bye, node_type: {end: {said: "{{ input.n }}"}}}
edges:
  - {from: a, to: join}
  - {from: b, to: join}
  - {from: join, to: lo}
"""


def test_a_document_is_lowered_to_the_graph_that_it_means():
    definition = load_text(ORDER)
    assert (definition.format, definition.version, definition.name) == ("yaml", "7", "order")
    nodes = {n.id: n for n in definition.workflow.nodes}
    wire = msgspec.json.decode(canonical_json(definition.workflow))
    by_id: dict[str, dict[str, Any]] = {n["id"]: n for n in wire["nodes"]}
    assert by_id["__start"]["next"] == "pick"
    assert by_id["pick"]["routes"] == [{"when": "input.n > 1", "next": "fork"}]
    assert by_id["fork"]["branches"] == ["a", "b"]
    assert by_id["fork"]["next"] == by_id["a"]["next"] == by_id["b"]["next"] == "join"
    assert (by_id["join"]["sources"], by_id["join"]["policy"]) == (["a", "b"], "all")
    assert (by_id["join"]["next"], by_id["t"]["next"], by_id["lo"]["next"]) == ("lo", "lo", "__end")
    assert by_id["a"]["set_globals"] == {"k": "nodes.a.output"}
    assert by_id["bye"]["output"] == {"said": "{{ input.n }}"}
    assert sorted(nodes) == [n.id for n in definition.workflow.nodes]


@pytest.mark.parametrize(("n", "output"), [(1, {"said": 1}), (2, [1, 2, 3])])
def test_the_graph_that_is_meant_runs(n: int, output: Any):
    state = Driver(load_text(ORDER).workflow, {"n": n, "items": [1, 2, 3]}).run()
    assert (state.status, state.output) == ("completed", output)


def test_a_node_without_a_way_leads_to_the_end_and_gives_its_output():
    value = document(array("a"))
    assert lowered(value)["a"]["next"] == "__end"
    state = Driver(load_value(value).workflow, {"items": [4]}).run()
    assert state.output == [4]


def test_the_last_node_of_a_branch_leads_nowhere():
    value = document(node("p", "parallel", {"nodes": ["a", "b"]}), array("a"), wait("b"))
    nodes = lowered(value)
    assert "next" not in nodes["a"]
    assert "next" not in nodes["b"]
    assert nodes["p"]["next"] == "__end"


def test_aliases_of_fields():
    value = document(
        node("m", "merge", {"sources": ["a"], "policy": {"type": "quorum", "minimum": 1, "timeout": "2s"}}),
        node("map", "map", {"source": "input.items", "worker": "score"}),
        node("w", "custom_worker", {"handler": "rate", "handler_file": "h.py", "language": "python"}),
        array("a"),
        edges=[("m", "map"), ("map", "w"), ("w", "a")],
    )
    value["nodes"][2]["config"] = {"payload": {"x": "{{ input.n }}"}}
    nodes = lowered(value)
    assert (nodes["m"]["policy"], nodes["m"]["quorum"], nodes["m"]["timeout"]) == ("quorum", 1, 2.0)
    assert (nodes["map"]["items_path"], nodes["map"]["tool"]) == ("input.items", "worker:score")
    assert (nodes["w"]["tool"], nodes["w"]["input"]) == ("worker:rate", {"x": "{{ input.n }}"})


def test_policies_of_nodes_win_over_the_defaults():
    retry = {"max_attempts": 3, "backoff": {"type": "fixed", "initial": "2s"}}
    value = document(
        node("a", "custom_worker", {"handler": "h"}, timeout="5s", retry={"max_retries": 6}),
        node("b", "custom_worker", {"handler": "h"}),
        edges=[("a", "b")],
        defaults={"retry": retry, "timeout": 9, "max_concurrency": 2},
    )
    graph = load_value(value).workflow
    a, b = (n for n in graph.nodes if isinstance(n, ToolNode))
    assert graph.options.max_parallel == 2
    for found, timeout, attempts in ((a, 5, 7), (b, 9, 3)):
        assert found.policy is not None
        assert found.policy.retry is not None
        assert (found.policy.timeout, found.policy.retry.max_attempts) == (timeout, attempts)
        backoff = found.policy.retry.backoff
        assert (backoff.initial, backoff.multiplier, backoff.max) == (2, 1, 2)


def test_diagnostics_point_into_the_document_that_was_written():
    text = ORDER.replace("nodes.lo.count", "nodes.la.count").replace("default: bye", "default: by")
    found = [(d.line, d.column, d.code, d.path) for d in check_text(text)]
    assert found == [
        (9, 18, "E_UNKNOWN_TARGET", "/nodes/0/node_type/switch/default"),
        (14, 51, "E_UNKNOWN_REFERENCE", "/nodes/5/node_type/loop/condition"),
    ]


FUNCTION = {"name": "f", "input_schema": {"type": "object"}}


def llm(**fields: Any) -> dict[str, Any]:
    return document(node("a", "llm_call", {"model": "m", "prompt": "p", **fields}))


def human(**fields: Any) -> dict[str, Any]:
    return document(node("a", "human_input", fields))


def globals_of(**config: Any) -> dict[str, Any]:
    return document(array("a", config=config))


def two(*edges: tuple[str, str]) -> dict[str, Any]:
    end = node("end", "end")
    fork = node("s", "switch", {"branches": [{"condition": "true", "target": "a"}], "default": "b"})
    return document(fork, wait("a"), wait("b"), end, edges=list(edges))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "E_MISSING_ENTRY": ({"id": "w", "nodes": [wait("a")]}, document(wait("a"))),
    "E_UNKNOWN_EDGE_FROM": (two(("x", "end"), ("a", "end")), two(("a", "end"))),
    "E_UNKNOWN_EDGE_TO": (two(("a", "x")), two(("a", "end"))),
    "E_DUPLICATE_EDGE_FROM": (two(("a", "end"), ("a", "b")), two(("a", "end"), ("b", "end"))),
    "E_EDGE_FROM_SWITCH": (two(("s", "end")), two(("a", "end"))),
    "E_EDGE_FROM_END": (two(("a", "end"), ("end", "b")), two(("a", "end"))),
    "E_MISSING_NODE_TYPE": (document({"id": "a"}), document(wait("a"))),
    "E_MULTIPLE_NODE_TYPES": (
        document({"id": "a", "node_type": {"wait": {"duration": 1}, "end": {}}}),
        document(wait("a")),
    ),
    "E_UNKNOWN_KIND": (document(node("a", "waitt")), document(wait("a"))),
    "E_UNKNOWN_KEY": (document(wait("a"), node_type=1), document(wait("a"), metadata=1)),
    "E_VALUE": (
        document(node("a", "custom_worker", {"handler": "h"}, retry={"backoff": {"type": "linear"}})),
        document(node("a", "custom_worker", {"handler": "h"}, retry={"backoff": {"type": "fixed"}})),
    ),
    "E_INVALID_TOOL_ROUNDTRIPS": (llm(max_tool_roundtrips=0), llm(max_tool_roundtrips=1)),
    "E_EMPTY_TOOL_NAME": (llm(tools=[{**FUNCTION, "name": " "}]), llm(tools=[FUNCTION])),
    "E_DUPLICATE_TOOL_NAME": (
        llm(tools=[FUNCTION, FUNCTION]),
        llm(tools=[FUNCTION, {**FUNCTION, "name": "g"}]),
    ),
    "E_MISSING_TOOL_SCHEMA": (llm(tools=[{"name": "f"}]), llm(tools=[FUNCTION])),
    "E_INVALID_TOOL_SCHEMA": (
        llm(tools=[{"name": "f", "input_schema": {"type": "nonsense"}}]),
        llm(tools=[{"name": "f", "input_schema": {"type": "string"}}]),
    ),
    "E_INVALID_TOOL_CHOICE": (
        llm(tools=[FUNCTION], tool_choice="any"),
        llm(tools=[FUNCTION], tool_choice="required"),
    ),
    "E_UNKNOWN_TOOL_CHOICE": (
        llm(tools=[FUNCTION], tool_choice={"type": "function", "function": {"name": "g"}}),
        llm(tools=[FUNCTION], tool_choice={"type": "function", "function": {"name": "f"}}),
    ),
    "E_INVALID_TOOLS_FORMAT": (
        llm(tools=[FUNCTION], tools_format="mcp"),
        llm(tools=[FUNCTION], tools_format="simplified"),
    ),
    "E_MISSING_CHOICE_OPTIONS": (
        human(input_type="choice", options=[]),
        human(input_type="choice", options=["a"]),
    ),
    "E_MISSING_FORM_SCHEMA": (
        human(input_type="form"),
        human(input_type="form", form_schema={"type": "object"}),
    ),
    "E_INVALID_FORM_SCHEMA": (
        human(input_type="form", form_schema={"type": "objct"}),
        human(input_type="form", form_schema={"type": "object"}),
    ),
    "W_FORM_SCHEMA_NOT_OBJECT": (
        human(input_type="form", form_schema={"type": "string"}),
        human(input_type="form", form_schema={"type": "object"}),
    ),
    "W_TEXT_OPTIONS_IGNORED": (
        human(input_type="text", options=["a"]),
        human(input_type="choice", options=["a"]),
    ),
    "E_MISSING_UPDATE_FROM": (
        globals_of(update_globals={"g": {"op": "append"}}),
        globals_of(update_globals={"g": {"op": "increment"}}),
    ),
    "E_UNKNOWN_GLOBAL_OP": (
        globals_of(update_globals={"g": {"op": "add", "from": "input"}}),
        globals_of(update_globals={"g": {"op": "append", "from": "input"}}),
    ),
    "E_EMPTY_GLOBAL_KEY": (
        globals_of(set_globals={" ": "input"}),
        globals_of(set_globals={"g": "input"}),
    ),
    "W_STREAM_HEAL_CONFLICT": (llm(stream=True, heal=True), llm(stream=True, heal=False)),
    "W_IGNORED_FIELD": (globals_of(prompt="x"), globals_of(set_globals={"g": "input"})),
}


@pytest.mark.parametrize("code", CASES)
def test_each_diagnostic_has_its_document_and_not_the_one_beside_it(code: str):
    wrong, right = CASES[code]
    assert codes(wrong).count(code) == 1
    assert code not in codes(right)


@pytest.mark.parametrize(
    "code", [c for c in CASES if c.startswith("E_") and "TOOL" not in c and c not in ("E_UNKNOWN_EDGE_FROM",)]
)
def test_one_cause_has_one_diagnostic(code: str):
    found = [c for c in codes(CASES[code][0]) if c.startswith("E_")]
    assert found == [code] or code in (
        "E_MISSING_CHOICE_OPTIONS",
        "E_MISSING_FORM_SCHEMA",
        "E_INVALID_FORM_SCHEMA",
    )


@pytest.mark.parametrize(
    ("fields", "code", "message", "hint"),
    [
        ({"input_type": "chioce", "options": ["a"]}, "E_VALUE", '"chioce" is not', 'did you mean "choice"?'),
        ({"input_type": "fomr", "form_schema": {"type": "object"}}, "E_VALUE", '"fomr" is not', '"form"?'),
        ({"input_type": "approval"}, "E_VALUE", '"approval" is not allowed', "human_in_the_loop asks"),
        ({"input_type": 5}, "E_VALUE", "input_type 5 is not allowed", "choice, text or form"),
        ({"options": ["a"]}, "E_EMPTY_FIELD", "has no input_type", "choice, text or form"),
        (
            {"input_type": "text", "timeout": 6, "timeout_seconds": 5},
            "E_CONFLICTING_FIELDS",
            "has a timeout already",
            "keep one",
        ),
    ],
)
def test_a_wrong_question_has_one_diagnostic(fields: Any, code: str, message: str, hint: str):
    with pytest.raises(DefinitionError) as refused:
        load_value(human(**fields))
    (found,) = refused.value.diagnostics
    assert found.code == code
    assert message in found.message
    assert hint in (found.hint or "")


def test_a_question_with_two_answers_has_a_way_for_each_and_no_other():
    ask = node("ask", "human_in_the_loop", {"on_approve": "t", "on_reject": "t"})
    nodes = lowered(document(ask, node("t", "transform", {"value": 1})))
    assert "next" not in nodes["ask"]
    assert nodes["t"]["next"] == "__end"
    assert codes(document(ask, wait("t"), wait("u"), edges=[("ask", "u")]))[0] == "E_EDGE_FROM_SWITCH"


def test_every_kind_of_the_graph_can_be_written():
    value = document(
        node("c", "if", {"expression": "input.n", "on_true": "s", "on_false": "t"}),
        node(
            "s",
            "subgraph",
            {
                "inline": {
                    "name": "i",
                    "nodes": [{"id": "start", "type": "start", "next": "end"}, {"id": "end", "type": "end"}],
                }
            },
        ),
        node("t", "tool", {"tool": "s.call"}),
    )
    nodes = load_value(value).workflow.nodes
    assert all(isinstance(n, NodeBase) for n in nodes)
    assert Driver(load_value(value).workflow, {"n": 1}).run().status == "completed"


@pytest.mark.parametrize(
    ("form", "tool"),
    [
        ("openai", {"name": "f", "input_schema": {}}),
        ("simplified", {"type": "function", "function": {"name": "f", "parameters": {}}}),
    ],
)
def test_functions_are_written_in_the_form_that_the_node_says(form: str, tool: dict[str, Any]):
    found = codes(llm(tools=[tool], tools_format=form))
    assert [code for code in found if code.startswith("E_")] == ["E_INVALID_TOOLS_FORMAT"]
    other = "simplified" if form == "openai" else "openai"
    assert "E_INVALID_TOOLS_FORMAT" not in codes(llm(tools=[tool], tools_format=other))
