"""Graphs built in Python get the same care as documents: every problem at once, each at its path."""

from __future__ import annotations

import datetime
import math
from typing import Any

import msgspec
import pytest

from agentflow.definition import check_inputs, load_text
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Approval,
    Budget,
    Cache,
    ConditionNode,
    Edge,
    EndNode,
    InputSpec,
    Options,
    Policy,
    ServiceSpec,
    StartNode,
    ToolNode,
    Workflow,
    canonical_json,
    decode_ir,
)
from agentflow.definition.loader import definition_of
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.graph import compile_graph
from agentflow.errors import DefinitionError
from tests.conformance.cases import read_cases

START, END = StartNode(id="__start", next="t"), EndNode(id="__end")


def tool(id: str = "t", next: str | None = "__end", **more: Any) -> ToolNode:
    return ToolNode(id=id, tool="s.f", next=next, **more)


def waiting(id: str, *depends_on: str, **more: Any) -> AgentNode:
    spec = AgentSpec(name=id, **{"system_prompt": "p", **more.pop("spec", {})})
    more.setdefault("join", "all_succeeded")
    return AgentNode(id=id, agent=spec, depends_on=depends_on, **more)


def chain(*nodes: Any, **more: Any) -> Workflow:
    return Workflow(name="w", nodes=(START, *nodes, END), **more)


def steps(*nodes: Any, **more: Any) -> Workflow:
    return Workflow(name="w", nodes=(StartNode(id="__start"), *nodes, END), **more)


def problems(workflow: Workflow) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as caught:
        definition_of(workflow)
    found = caught.value.diagnostics
    assert all(d.line is None and d.column is None and d.message for d in found)
    return [(d.code, d.path or "") for d in found]


def test_a_sound_graph_is_what_its_bytes_say():
    graph = chain(tool(input={"b": 1, "a": "${{ input.x }}"}, depends_on=[]))  # type: ignore[arg-type]
    definition = definition_of(graph)
    assert definition.warnings == []
    assert definition.workflow == decode_ir(definition.source.encode())
    assert definition.workflow.nodes[1].depends_on == ()
    assert definition.format == "ir/v0"
    assert definition_of(definition.workflow).ir_hash == definition.ir_hash
    assert compile_graph(definition.workflow).step_ids == ["t"]


@pytest.mark.parametrize(
    "case", [c for c in read_cases("documents/diagnostics") if "graph" in c.raw], ids=str
)
def test_the_graph_of_every_document_is_sound(case):
    workflow = load_text(case.document, media=case.raw.get("media", "yaml")).workflow
    assert definition_of(workflow).workflow == workflow


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (Workflow(name=" ", nodes=()), [("E_EMPTY_WORKFLOW", "/nodes"), ("E_EMPTY_WORKFLOW_NAME", "/name")]),
        (
            Workflow(name="w", nodes=(tool(next="t"),)),
            [("E_MISSING_END", "/nodes"), ("E_MISSING_START", "/nodes")],
        ),
        (
            Workflow(name="w", nodes=(START, StartNode(id="s", next="t"), tool(), END)),
            [("E_MULTIPLE_START", "/nodes/1")],
        ),
        (chain(tool(), tool()), [("E_DUPLICATE_NODE_ID", "/nodes/2/id")]),
        (chain(tool(), tool("")), [("E_EMPTY_NODE_ID", "/nodes/2/id")]),
        (chain(tool("t"), tool("a b")), [("E_INVALID_NODE_ID", "/nodes/2/id")]),
        (chain(tool("t", "__x"), tool("__x")), [("E_INVALID_NODE_ID", "/nodes/2/id")]),
        (chain(tool("t", "gone")), [("E_UNKNOWN_TARGET", "/nodes/1/next")]),
        (chain(tool("t", None)), [("E_MISSING_NEXT", "/nodes/1")]),
        (
            chain(ConditionNode(id="t", expression="true", on_true="x", on_false="y")),
            [("E_UNKNOWN_TARGET", "/nodes/1/on_false"), ("E_UNKNOWN_TARGET", "/nodes/1/on_true")],
        ),
        (
            Workflow(name="w", nodes=(StartNode(id="s"), END)),
            [("E_NO_PATH_TO_END", "/nodes/0"), ("E_UNREACHABLE_NODE", "/nodes/1")],
        ),
        (chain(tool(), tool("alone")), [("E_UNREACHABLE_NODE", "/nodes/2")]),
        (
            chain(
                ConditionNode(id="t", expression="true", on_true="a", on_false="__end"),
                tool("a", "b"),
                tool("b", "a"),
            ),
            [("E_DEAD_END", "/nodes/2"), ("E_DEAD_END", "/nodes/3")],
        ),
        (
            chain(tool(), edges=(Edge(source="t", target="__end"), Edge(source="x", target="y"))),
            [
                ("E_DUPLICATE_EDGE", "/edges/0"),
                ("E_UNKNOWN_TARGET", "/edges/1/source"),
                ("E_UNKNOWN_TARGET", "/edges/1/target"),
            ],
        ),
        (
            chain(tool(), edges=(Edge(source="__end", target="t"), Edge(source="t", target="__start"))),
            [("E_CONFLICTING_FIELDS", "/edges/0"), ("E_CONFLICTING_FIELDS", "/edges/1")],
        ),
        (
            chain(
                ConditionNode(id="t", expression="true", on_true="__end", on_false="a"),
                tool("a"),
                edges=(Edge(source="t", target="t"),),
            ),
            [("E_CONFLICTING_FIELDS", "/edges/0")],
        ),
    ],
)
def test_structure(graph: Workflow, expected: list[tuple[str, str]]):
    assert problems(graph) == expected


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (steps(waiting("a", "gone")), [("E_UNKNOWN_DEPENDENCY", "/nodes/1/depends_on/0")]),
        (steps(waiting("a", "a")), [("E_CYCLE", "/nodes/1")]),
        (steps(waiting("a", "b"), waiting("b", "a")), [("E_CYCLE", "/nodes/1")]),
        (steps(waiting("a"), waiting("b", "__end")), [("E_VALUE", "/nodes/2/depends_on/0")]),
        (
            steps(waiting("a"), waiting("b", "a", join="any", next="__end")),
            [("E_CONFLICTING_FIELDS", "/nodes/2/depends_on")],
        ),
        (
            chain(tool(guard="true", for_each="${{ input }}")),
            [("E_CONFLICTING_FIELDS", "/nodes/1/for_each"), ("E_CONFLICTING_FIELDS", "/nodes/1/guard")],
        ),
        (steps(waiting("a", next="b"), waiting("b", "a")), [("E_CONFLICTING_FIELDS", "/nodes/1/next")]),
        (
            steps(waiting("a"), waiting("b"), edges=(Edge(source="a", target="b"),)),
            [("E_CONFLICTING_FIELDS", "/edges/0")],
        ),
        (
            Workflow(
                name="w", nodes=(START, tool(), waiting("b"), END), edges=(Edge(source="t", target="b"),)
            ),
            [("E_CONFLICTING_FIELDS", "/edges/0")],
        ),
        (
            Workflow(
                name="w",
                nodes=(
                    START,
                    ConditionNode(
                        id="t", expression="true", on_true="__end", on_false="__end", join="all_terminal"
                    ),
                    END,
                ),
            ),
            [("E_CONFLICTING_FIELDS", "/nodes/1/join")],
        ),
    ],
)
def test_dependencies(graph: Workflow, expected: list[tuple[str, str]]):
    assert problems(graph) == expected


def test_targets_that_no_token_enters():
    mixed = Workflow(name="w", nodes=(START, tool(next="a"), waiting("a"), END))
    assert problems(mixed) == [("E_CONFLICTING_FIELDS", "/nodes/1/next")]
    back = chain(tool(next="__start"))
    assert problems(back) == [("E_CONFLICTING_FIELDS", "/nodes/1/next")]
    begun = Workflow(name="w", nodes=(StartNode(id="s", next="a"), waiting("a"), END))
    assert definition_of(begun).warnings == []
    late = Workflow(name="w", nodes=(StartNode(id="s", next="b"), waiting("a"), waiting("b", "a"), END))
    assert problems(late) == [("E_CONFLICTING_FIELDS", "/nodes/0/next")]


def test_edges_that_say_what_follows_anyway_are_no_problem():
    edges = (Edge(source="__start", target="a"), Edge(source="b", target="__end"))
    assert definition_of(steps(waiting("a"), waiting("b", "a", "__start"), edges=edges)).warnings == []


def retry(**more: Any) -> ToolNode:
    return tool(policy=Policy(retry=RetryPolicy(**more)))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (chain(tool(policy=Policy(timeout=0))), ("E_VALUE", "/nodes/1/policy/timeout")),
        (chain(retry(max_attempts=0)), ("E_RETRY_POLICY", "/nodes/1/policy/retry/max_attempts")),
        (chain(retry(jitter=2)), ("E_RETRY_POLICY", "/nodes/1/policy/retry/jitter")),
        (chain(retry(timeout=-1)), ("E_RETRY_POLICY", "/nodes/1/policy/retry/timeout")),
        (chain(retry(max_elapsed=0)), ("E_RETRY_POLICY", "/nodes/1/policy/retry/max_elapsed")),
        (
            chain(retry(backoff=Backoff(multiplier=0.5))),
            ("E_RETRY_POLICY", "/nodes/1/policy/retry/backoff/multiplier"),
        ),
        (chain(tool(max_parallel=0)), ("E_VALUE", "/nodes/1/max_parallel")),
        (chain(tool(cache=Cache(ttl=0, key="k"))), ("E_VALUE", "/nodes/1/cache/ttl")),
        (chain(tool(approval=Approval(timeout=0))), ("E_VALUE", "/nodes/1/approval/timeout")),
        (chain(tool(budget=Budget(max_tokens=0))), ("E_VALUE", "/nodes/1/budget/max_tokens")),
        (
            chain(tool(), options=Options(budget=Budget(max_cost_usd=-1))),
            ("E_VALUE", "/options/budget/max_cost_usd"),
        ),
        (chain(tool(), options=Options(max_parallel=0)), ("E_VALUE", "/options/max_parallel")),
        (chain(tool(), options=Options(timeout=0)), ("E_VALUE", "/options/timeout")),
        (chain(ToolNode(id="t", tool="f", next="__end")), ("E_VALUE", "/nodes/1/tool")),
        (steps(waiting("a", spec={"max_turns": 0})), ("E_VALUE", "/nodes/1/agent/max_turns")),
        (steps(waiting("a", spec={"system_prompt": " "})), ("E_EMPTY_FIELD", "/nodes/1/agent/system_prompt")),
        (
            steps(waiting("a", spec={"output_schema": {"type": "strng"}})),
            ("E_SCHEMA", "/nodes/1/agent/output_schema/type"),
        ),
        (
            steps(waiting("a", spec={"output_schema": {"$ref": "urn:x"}})),
            ("E_REF", "/nodes/1/agent/output_schema/$ref"),
        ),
        (
            chain(tool(), inputs={"a/b": InputSpec(schema={"type": 1})}),
            ("E_INPUT_SCHEMA", "/inputs/a~1b/schema/type"),
        ),
        (
            chain(tool(), inputs={"a": InputSpec(schema={"type": "string"}, has_default=True, default=1)}),
            ("E_INPUT_INVALID", "/inputs/a/default"),
        ),
        (chain(tool(), services={"s": ServiceSpec(type="java")}), ("E_VALUE", "/services/s/type")),
        (
            chain(tool(), services={"s": ServiceSpec(type="python", timeout=0)}),
            ("E_VALUE", "/services/s/timeout"),
        ),
    ],
)
def test_values(graph: Workflow, expected: tuple[str, str]):
    assert problems(graph) == [expected]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (steps(waiting("a", guard="1 +")), ("E_EXPR_SYNTAX", "/nodes/1/guard")),
        (steps(waiting("a", for_each="inputs.x")), ("E_EXPR_WHOLE", "/nodes/1/for_each")),
        (
            chain(ConditionNode(id="t", expression="${{ true }}", on_true="__end", on_false="__end")),
            ("E_EXPR_SYNTAX", "/nodes/1/expression"),
        ),
        (chain(tool(input={"a": ["{{ nope }}"]})), ("E_EXPR_NAME", "/nodes/1/input/a/0")),
        (chain(tool(input="{{ success() }}")), ("E_EXPR_SCOPE", "/nodes/1/input")),
        (chain(tool(input="{{ item }}")), ("E_EXPR_SCOPE", "/nodes/1/input")),
        (steps(waiting("a", for_each="${{ item }}")), ("E_EXPR_SCOPE", "/nodes/1/for_each")),
        (
            steps(waiting("a", for_each="${{ inputs }}", approval=Approval(message="{{ item }}"))),
            ("E_EXPR_SCOPE", "/nodes/1/approval/message"),
        ),
        (chain(tool(input="{{ nodes.gone.output }}")), ("E_UNKNOWN_REFERENCE", "/nodes/1/input")),
        (chain(tool(input="{{ steps.t.outputs }}")), ("E_UNKNOWN_REFERENCE", "/nodes/1/input")),
        (
            steps(waiting("a"), waiting("b", guard="steps.a.status")),
            ("E_REF_NOT_DEPENDENCY", "/nodes/2/guard"),
        ),
        (steps(waiting("a", input="{{ steps }}")), ("E_REF_NOT_DEPENDENCY", "/nodes/1/input")),
        (
            steps(waiting("a", spec={"context": {"k": "{{ size() }}"}})),
            ("E_EXPR_FUNCTION", "/nodes/1/agent/context/k"),
        ),
        (steps(waiting("a", spec={"tags": {"k": "${{"}})), ("E_EXPR_UNCLOSED", "/nodes/1/agent/tags/k")),
        (chain(tool(), outputs={"o": "{{ steps.gone }}"}), ("E_UNKNOWN_REFERENCE", "/outputs/o")),
        (chain(tool(cache=Cache(ttl=1, key="{{ 1"))), ("E_EXPR_UNCLOSED", "/nodes/1/cache/key")),
        (
            Workflow(name="w", nodes=(START, tool(), EndNode(id="__end", output={"x": "{{ x }}"}))),
            ("E_EXPR_NAME", "/nodes/2/output/x"),
        ),
    ],
)
def test_expressions(graph: Workflow, expected: tuple[str, str]):
    assert problems(graph) == [expected]


def test_what_an_expression_may_read():
    graph = steps(
        waiting("a"),
        waiting("b", "a", guard="failure() || steps.a.status == 'skipped'"),
        waiting(
            "c",
            "b",
            for_each="${{ steps.a.outputs.result }}",
            guard="item > index",
            input="{{ item }} {{ index }} {{ nodes.b.output }} {{ input }} {{ inputs.x }}",
            cache=Cache(ttl=1, key="{{ item }}"),
        ),
        outputs={"all": "{{ steps[inputs.which] }}"},
    )
    assert definition_of(graph).warnings == []


@pytest.mark.parametrize(
    ("graph", "code", "path"),
    [
        (chain(tool(input={"k": {1, 2}})), "E_TYPE", "/nodes/1/input/k"),
        (chain(tool(input=[datetime.date.today()])), "E_TYPE", "/nodes/1/input/0"),
        (chain(tool(input={1: 2})), "E_TYPE", "/nodes/1/input"),
        (chain(tool(input=b"x")), "E_TYPE", "/nodes/1/input"),
        (chain(tool(input=math.nan)), "E_TYPE", "/nodes/1/input"),
        (chain(tool(policy=Policy(timeout=math.inf))), "E_TYPE", "/nodes/1/policy/timeout"),
        (chain(tool(input="\ud800")), "E_TYPE", "/nodes/1/input"),
        (chain(tool(input=10**5000)), "E_TYPE", "/nodes/1/input"),
        (Workflow(name=None, nodes=()), "E_TYPE", "/name"),  # type: ignore[arg-type]
        (chain(tool(next=7)), "E_TYPE", "/nodes/1/next"),  # type: ignore[arg-type]
        (chain("text"), "E_TYPE", "/nodes/1"),
        (chain({"id": "t", "type": "carousel"}), "E_TYPE", "/nodes/1/type"),
        (chain(tool(join="sometimes")), "E_TYPE", "/nodes/1/join"),
        (
            chain(tool(policy=Policy(retry=RetryPolicy(max_attempts=1.5)))),
            "E_TYPE",
            "/nodes/1/policy/retry/max_attempts",
        ),  # type: ignore[arg-type]
    ],
)
def test_what_no_bytes_can_say(graph: Workflow, code: str, path: str):
    assert problems(graph) == [(code, path)]


def test_a_value_without_end_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    ((code, _),) = problems(chain(tool(input=endless)))
    assert code == "E_LIMIT"


def test_a_circle_of_tokens_is_a_warning():
    again = ConditionNode(id="again", expression="input.more", on_true="t", on_false="__end")
    definition = definition_of(chain(tool("t", "again"), again))
    assert [(d.code, d.path) for d in definition.warnings] == [("W_UNBOUNDED_CYCLE", "/nodes/1")]
    assert "options.max_steps" in (definition.warnings[0].hint or "")
    asked = definition_of(chain(tool("t", "again", approval=Approval()), again))
    assert asked.warnings == []
    with pytest.raises(DefinitionError):
        definition_of(chain(tool("t", "again"), again), strict=True)


def test_every_problem_is_told_at_once():
    graph = chain(
        tool("t", "gone", max_parallel=0, input="{{ x }}"),
        waiting("a", "nobody", guard="1 +", spec={"max_turns": 0}),
        options=Options(max_steps=0),
    )
    assert problems(graph) == [
        ("E_EXPR_NAME", "/nodes/1/input"),
        ("E_EXPR_SYNTAX", "/nodes/2/guard"),
        ("E_UNKNOWN_DEPENDENCY", "/nodes/2/depends_on/0"),
        ("E_UNKNOWN_TARGET", "/nodes/1/next"),
        ("E_VALUE", "/nodes/1/max_parallel"),
        ("E_VALUE", "/nodes/2/agent/max_turns"),
        ("E_VALUE", "/options/max_steps"),
    ]


def test_declared_inputs_are_checked_as_those_of_a_document():
    inputs = {
        "a": InputSpec(schema={"type": "string"}),
        "b": InputSpec(required=False, has_default=True, default=2),
    }
    definition = definition_of(chain(tool(), inputs=inputs))
    assert check_inputs(definition, {"a": "x"}) == ({"a": "x", "b": 2}, [])
    _, found = check_inputs(definition, {"a": 1, "c": 1})
    assert [d.code for d in found] == ["E_INPUT_INVALID", "W_INPUT_EXTRA"]
    assert check_inputs(definition_of(chain(tool())), [1, 2]) == ([1, 2], [])


def test_a_large_graph_is_checked_quickly():
    import time

    count = 5_000
    nodes = [
        waiting(f"n{i}", *([f"n{i - 1}"] if i else []), input=f"{{{{ steps.n{max(0, i - 1)}.status }}}}")
        for i in range(1, count)
    ]
    first = waiting("n0")
    started = time.perf_counter()
    definition = definition_of(steps(first, *nodes))
    assert time.perf_counter() - started < 10
    assert len(definition.workflow.nodes) == count + 2


def test_the_canonical_bytes_are_stable():
    graph = chain(tool(policy=Policy(timeout=60.0), join="".join(["a", "ny"])))  # type: ignore[arg-type]
    once = definition_of(graph)
    assert definition_of(msgspec.structs.replace(graph)).ir_hash == once.ir_hash
    assert canonical_json(decode_ir(canonical_json(once.workflow))) == canonical_json(once.workflow)
