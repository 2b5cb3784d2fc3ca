"""Drawings of graphs in the DOT language: nothing of a document is read as DOT, as an escape or as markup."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from agentflow.definition import load_value
from agentflow.definition.dot import quoted, to_dot
from agentflow.definition.ir import AgentNode, AgentSpec, ConditionNode, EndNode, StartNode, Workflow
from agentflow.definition.mermaid import STATE_COLOURS

GRAPHVIZ = Path(sys.executable).parent / "graphviz-pure"
AGENT = {"systemPrompt": "p"}
HOSTILE = [
    'a"b',
    "back\\slash",
    "ends\\",
    "\\N\\G\\L",
    "&lt;b&gt;",
    "<b>bold</b>",
    "} n9 -> n8; {",
    "new\nline",
    "// comment",
    "日本 🦊",
    "\x1b[31m",
]


def drawn(text: str) -> list[str]:
    """The texts that Graphviz shows, in its order."""
    done = subprocess.run([GRAPHVIZ, "-Tsvg", "-q"], input=text.encode(), capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    svg = ElementTree.fromstring(done.stdout)
    return [node.text or "" for node in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_a_step_document():
    steps = [
        {"type": "run", "id": "fetch", "agent": AGENT},
        {"type": "run", "id": "b-2", "depends_on": ["fetch"], "if": "true", "agent": AGENT},
    ]
    assert to_dot(load_value({"name": "two", "workflow": {"steps": steps}}).workflow).splitlines()[4:] == [
        '  n0 [label="__end\\n(end)", shape=oval];',
        '  n1 [label="__start\\n(start)", shape=oval];',
        '  n2 [label="b-2\\n(agent)", shape=box, style="rounded,dashed"];',
        '  n3 [label="fetch\\n(agent)", shape=box, style="rounded"];',
        "  n3 -> n2;",
        "  n1 -> n3;",
        "  n2 -> n0;",
        "}",
    ]


def test_conditions_and_states():
    workflow = Workflow(
        name="w",
        nodes=(
            StartNode(id="s", next="c"),
            ConditionNode(id="c", expression="true", on_true="e", on_false="c"),
            EndNode(id="e"),
        ),
    )
    text = to_dot(workflow, {"c": "running"})
    fill, line = STATE_COLOURS["running"]
    assert f'fillcolor="{fill}", color="{line}", style="filled"' in text
    assert '  n0 -> n1 [label="true"];' in text
    assert '  n0 -> n0 [label="false"];' in text
    assert "running" in drawn(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_every_name_is_shown_as_it_is(name: str):
    agent = AgentNode(id=name, agent=AgentSpec(name="a", system_prompt="p"), next="e")
    workflow = Workflow(name=name, nodes=(StartNode(id="s", next=name), agent, EndNode(id="e")))
    text = to_dot(workflow)
    assert text.count("\n") == 10
    shown = re.sub(r"\s", " ", "".join(c if c.isprintable() else " " for c in name))
    assert shown in [re.sub(r"\s", " ", t) for t in drawn(text)]


def test_a_quoted_text_is_one_line_without_control_characters():
    assert quoted('a"\\\n\x07') == '"a\\"\\\\  "'


def test_the_same_graph_gives_the_same_text():
    workflow = load_value({"workflow": {"steps": [{"type": "run", "id": "a", "agent": AGENT}]}}).workflow
    assert to_dot(workflow) == to_dot(workflow)
