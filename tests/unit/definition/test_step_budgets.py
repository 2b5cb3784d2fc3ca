"""`max_steps` in the budget of a step: refused where it bounds nothing, kept for child runs."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition import check_text, load_value
from agentflow.errors import DefinitionError

STEP = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: a
      budget: {max_steps: 1}
      agent: {systemPrompt: x, input: go, attachedFunctions: none, resultSchema: {type: string}}
"""
AGENTS = """\
agents:
  - name: a
    system_prompt: x
    budget: {max_steps: 1}
"""


def graph(node: dict[str, Any]) -> dict[str, Any]:
    nodes = [
        {"id": "s", "type": "start", "next": "n"},
        {"id": "n", "next": "e", **node},
        {"id": "e", "type": "end"},
    ]
    return {"version": "v0", "name": "w", "nodes": nodes}


@pytest.mark.parametrize(("text", "line"), [(STEP, 6), (AGENTS, 4)], ids=["steps", "agents"])
def test_a_step_document_says_so_at_its_place(text: str, line: int):
    (found,) = check_text(text)
    assert (found.code, found.line) == ("E_CONFLICTING_FIELDS", line)
    assert "max_steps" in found.message


@pytest.mark.parametrize(
    "node",
    [
        {"type": "tool", "tool": "a.b", "budget": {"max_steps": 1}},
        {"type": "llm", "model": "m", "prompt": "p", "policy": {"budget": {"max_steps": 1}}},
    ],
    ids=["tool", "policy"],
)
def test_a_node_without_steps_takes_no_limit_of_steps(node: dict[str, Any]):
    with pytest.raises(DefinitionError) as refused:
        load_value(graph(node))
    assert [found.code for found in refused.value.diagnostics] == ["E_CONFLICTING_FIELDS"]


def test_a_child_run_draws_on_it():
    inner = graph({"type": "transform", "value": 1})
    node = {"type": "subgraph", "inline": inner, "isolation": "run", "budget": {"max_steps": 1}}
    assert load_value(graph(node)).workflow.nodes[1].budget.max_steps == 1
    with pytest.raises(DefinitionError):
        load_value(graph({**node, "isolation": "inline"}))
