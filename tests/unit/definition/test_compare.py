"""What differs between two versions of a graph, in words, and what that means for runs of the old one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentflow.definition import load_value
from agentflow.definition.compare import compare, unfit_results
from agentflow.definition.ir import (
    ConditionNode,
    Edge,
    EndNode,
    StartNode,
    ToolNode,
    Workflow,
    canonical_json,
    decode_ir,
)
from agentflow.definition.signature import signature

AGENT = {"systemPrompt": "p", "input": 1, "resultSchema": {"type": "object"}, "attachedFunctions": "none"}
BASE = {
    "version": "1.0",
    "name": "base",
    "workflow": {
        "steps": [
            {"type": "run", "id": "a", "agent": AGENT},
            {"type": "run", "id": "b", "agent": AGENT, "depends_on": ["a"], "if": "always()"},
            {"type": "run", "id": "c", "agent": AGENT, "depends_on": ["a"], "for_each": "${{ inputs.list }}"},
        ]
    },
}


def changed(change: Any) -> Workflow:
    document = json.loads(json.dumps(BASE))  # no part stands in it twice
    change(document, document["workflow"]["steps"])
    return load_value(document).workflow


def words(change: Any) -> list[tuple[str, bool]]:
    return [(d.message, d.structural) for d in compare(load_value(BASE).workflow, changed(change))]


def test_a_graph_does_not_differ_from_itself_as_it_is_stored():
    workflow = load_value(BASE).workflow
    assert compare(decode_ir(canonical_json(workflow)), workflow) == []
    assert signature(decode_ir(canonical_json(workflow))) == signature(workflow)


def add(document: Any, steps: Any) -> None:
    steps.append({"type": "run", "id": "d", "agent": AGENT, "depends_on": ["b", "c"]})


def update(index: int, **keys: Any) -> Any:
    return lambda document, steps: steps[index].update(keys)


def agent(index: int, **keys: Any) -> Any:
    return lambda document, steps: steps[index]["agent"].update(keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add, 'step "d" is new'),
        (lambda d, s: s.pop(1), 'step "b" is gone'),
        (update(2, depends_on=["a", "b"]), '"c" depends on "b" as well'),
        (update(2, depends_on=[]), '"c" no longer depends on "a"'),
        (lambda d, s: s[1].pop("if"), '"b" no longer has if: always()'),
        (update(0, **{"if": "inputs.x"}), '"a" has if now: inputs.x'),
        (update(1, **{"if": "failure()"}), 'if of "b" is failure(), it was always()'),
        (
            update(2, for_each="${{ inputs.rows }}"),
            'for_each of "c" is ${{ inputs.rows }}, it was ${{ inputs.list }}',
        ),
    ],
)
def test_another_structure(change: Any, message: str):
    assert words(change) == [(message, True)]
    assert signature(changed(change)) != signature(load_value(BASE).workflow)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (agent(0, systemPrompt="q"), 'the system prompt of "a" changed'),
        (agent(0, input=2), 'input of "a" changed'),
        (agent(0, resultSchema={"type": "array"}), 'the result schema of "a" changed'),
        (agent(0, attachedFunctions=[]), 'the functions of "a" changed'),
        (agent(0, model="openai:m"), 'the model of "a" changed'),
        (agent(0, fallback=["openai:m"]), 'the fallback models of "a" changed'),
        (agent(0, tags={"t": 1}), 'tags of "a" changed'),
        (agent(0, context={"t": 1}), 'context of "a" changed'),
        (agent(0, max_turns=3), 'max_turns of "a" changed'),
        (agent(0, max_tool_calls=3), 'max_tool_calls of "a" changed'),
        (update(0, timeout=3), 'retry or timeout of "a" changed'),
        (update(0, required=False), 'required of "a" changed'),
        (update(0, approval=True), 'approval of "a" changed'),
        (update(0, cache={"ttl": 1}), 'cache of "a" changed'),
        (update(0, budget={"max_tokens": 1}), 'budget of "a" changed'),
        (update(2, max_parallel=1), 'max_parallel of "c" changed'),
        (lambda d, s: d.update(inputs={"list": {}}), "the declared inputs changed"),
        (lambda d, s: d.update(outputs={"o": 1}), "the outputs changed"),
        (lambda d, s: d.update(services={"s": {"type": "python", "module": "m"}}), "the services changed"),
        (lambda d, s: d["workflow"].update(timeout=9), "the limits of the run changed"),
    ],
)
def test_the_same_structure(change: Any, message: str):
    assert words(change) == [(message, False)]
    assert signature(changed(change)) == signature(load_value(BASE).workflow)


@pytest.mark.parametrize(
    "change",
    [
        lambda d, s: d.update(name="other"),
        lambda d, s: d.update(description="text"),
        lambda d, s: d["workflow"].update(max_parallel=8, fail_fast=False),
        update(1, depends_on=["a", "a"]),
    ],
)
def test_what_does_not_differ(change: Any):
    assert words(change) == []


def test_structure_is_told_first():
    found = words(lambda d, s: (agent(0, systemPrompt="q")(d, s), update(2, depends_on=[])(d, s)))
    assert [structural for _, structural in found] == [True, False]


def graph(*nodes: Any, edges: tuple[Edge, ...] = ()) -> Workflow:
    return Workflow(name="g", nodes=(StartNode(id="s", next="t"), *nodes, EndNode(id="e")), edges=edges)


def test_other_kinds_targets_and_edges():
    tool = ToolNode(id="t", tool="x.y", next="e")
    condition = ConditionNode(id="t", expression="input.x", on_true="e", on_false="t")
    assert [d.message for d in compare(graph(tool), graph(condition))] == [
        '"t" is a condition node now, it was a tool node'
    ]
    other = ConditionNode(id="t", expression="input.y", on_true="t", on_false="t")
    assert [d.message for d in compare(graph(condition), graph(other))] == [
        'condition of "t" is input.y, it was input.x',
        '"t" leads to "t", it led to "e"',
    ]
    edge = Edge(source="t", target="t")
    assert [d.message for d in compare(graph(tool), graph(tool, edges=(edge,)))] == [
        'the edge from "t" to "t" is new'
    ]
    assert [d.message for d in compare(graph(tool, edges=(edge,)), graph(tool))] == [
        'the edge from "t" to "t" is gone'
    ]


def test_every_structural_difference_changes_the_signature_and_no_other_does():
    """Random edits: whoever says "structural" and whoever counts the signature agree."""
    import random

    texts = ["always()", "inputs.x", "failure()"]
    for seed in range(300):
        chance = random.Random(seed)
        documents = []
        for _ in range(2):
            names = [n for n in "abcd" if chance.random() < 0.8] or ["a"]
            steps = []
            for i, name in enumerate(names):
                step: dict[str, Any] = {"type": "run", "id": name, "agent": dict(AGENT)}
                step["depends_on"] = [n for n in names[:i] if chance.random() < 0.5]
                if chance.random() < 0.3:
                    step["if"] = chance.choice(texts)
                if chance.random() < 0.3:
                    step["for_each"] = chance.choice(["${{ inputs.l }}", "${{ inputs.m }}"])
                if chance.random() < 0.3:
                    step["agent"]["systemPrompt"] = chance.choice("pq")
                steps.append(step)
            documents.append({"version": "1.0", "workflow": {"steps": steps}})
        old, new = (load_value(json.loads(json.dumps(d))).workflow for d in documents)
        found = compare(old, new)
        assert any(d.structural for d in found) == (signature(old) != signature(new)), seed
        assert len({d.message for d in found}) == len(found)


def test_recorded_results_that_the_new_schemas_refuse():
    workflow = load_value(BASE).workflow
    assert unfit_results(workflow, {"a": {}, "c": [{}, None], "other": 1}) == []
    found = unfit_results(workflow, {"a": [], "c": [{}, "x", 3]})
    assert [(d.node, d.structural) for d in found] == [("a", True), ("c", True)]
    assert found[0].message == ('the recorded result of "a" breaks its new schema: [] is not an object')
