"""Drawings of graphs as Mermaid text (page 003 §11)."""

from __future__ import annotations

from agentflow.definition import load_value, to_mermaid
from agentflow.definition.ir import ConditionNode, EndNode, StartNode, ToolNode, Workflow

AGENT = {"systemPrompt": "p"}


def test_a_step_document():
    steps = [
        {"type": "run", "id": "fetch", "agent": AGENT},
        {"type": "run", "id": "b-2", "depends_on": ["fetch"], "agent": AGENT},
    ]
    assert to_mermaid(load_value({"workflow": {"steps": steps}}).workflow) == (
        "flowchart TD\n"
        '  __end["__end\\n(end)"]\n'
        '  __start["__start\\n(start)"]\n'
        '  b_2["b-2\\n(agent)"]\n'
        '  fetch["fetch\\n(agent)"]\n'
        "  fetch --> b_2\n"
        "  __start --> fetch\n"
        "  b_2 --> __end\n"
    )


def test_labels_escapes_and_collisions():
    workflow = Workflow(
        name="w",
        nodes=(
            StartNode(id="s", next="9"),
            ConditionNode(id="9", expression="true", on_true="a.b", on_false="a-b"),
            ToolNode(id="a.b", tool="s.f", next='e"'),
            ToolNode(id="a-b", tool="s.f"),
            EndNode(id='e"'),
        ),
    )
    assert to_mermaid(workflow) == (
        "flowchart TD\n"
        '  n_9["9\\n(condition)"]\n'
        '  a_b["a-b\\n(tool)"]\n'
        '  a_b_2["a.b\\n(tool)"]\n'
        '  e_["e\\"\\n(end)"]\n'
        '  s["s\\n(start)"]\n'
        '  n_9 -- "true" --> a_b_2\n'
        '  n_9 -- "false" --> a_b\n'
        "  a_b_2 --> e_\n"
        "  s --> n_9\n"
    )


def test_words_of_mermaid_are_no_names():
    workflow = Workflow(name="w", nodes=(StartNode(id="graph", next="end"), EndNode(id="end")))
    assert to_mermaid(workflow) == (
        'flowchart TD\n  n_end["end\\n(end)"]\n  n_graph["graph\\n(start)"]\n  n_graph --> n_end\n'
    )


def test_the_states_of_a_run():
    workflow = Workflow(name="w", nodes=(StartNode(id="s", next="t"), ToolNode(id="t", tool="a.b")))
    assert to_mermaid(workflow, {"t": "failed"}) == (
        "flowchart TD\n"
        '  s["s\\n(start)"]\n'
        '  t["t\\n(tool)\\nfailed"]\n'
        "  s --> t\n"
        "  classDef failed fill:#ffe3e3,stroke:#c92a2a,color:#000000\n"
        "  class t failed\n"
    )
