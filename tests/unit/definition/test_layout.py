"""The layout of drawn graphs: nothing overlaps, edges go down, and the same graph gives the same places."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentflow import Never, WorkflowBuilder, WorkflowContext, executor
from agentflow.definition.layout import GraphLayout, lay_out
from agentflow.definition.loader import load_text, load_value
from agentflow.definition.svg import to_svg

EXAMPLES = Path(__file__).parents[3] / "examples"
DOCUMENTS = [
    "ticket_triage/triage.yaml",
    "patterns/parallel.yaml",
    "patterns/iterative.yaml",
    "node_graphs/order.yaml",
    "node_graphs/planner.yaml",
]


@executor(id="split")
def split(text: str) -> list[str]:
    return text.split()


@executor(id="count")
async def count(words: list[str], ctx: WorkflowContext[Never, int]) -> None:
    await ctx.yield_output(len(words))


def layout_of(document: str) -> GraphLayout:
    return lay_out(load_text((EXAMPLES / document).read_text()).workflow)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_boxes_of_one_graph_do_not_overlap(document: str):
    found = layout_of(document)
    for a, b in combinations(found.nodes, 2):
        if a.parent == b.parent:
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x
            assert apart or a.y + a.height <= b.y or b.y + b.height <= a.y, (a.id, b.id)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_inner_graphs_stand_in_their_node_and_all_in_the_drawing(document: str):
    found = layout_of(document)
    nodes = {node.id: node for node in found.nodes}
    for node in found.nodes:
        outer = nodes[node.parent] if node.parent else None
        left, top = (outer.x, outer.y) if outer else (0, 0)
        right, bottom = (
            (outer.x + outer.width, outer.y + outer.height) if outer else (found.width, found.height)
        )
        assert left <= node.x
        assert top <= node.y
        assert node.x + node.width <= right
        assert node.y + node.height <= bottom


def test_edges_go_down_and_the_same_graph_gives_the_same_layout():
    found = layout_of("ticket_triage/triage.yaml")
    for edge in found.edges:
        heights = [point.y for point in edge.points]
        assert heights == sorted(heights), edge
    assert found == layout_of("ticket_triage/triage.yaml")


def test_a_box_has_room_for_its_name_and_its_kind():
    document = """\
version: "v0"
name: rooms
nodes:
  - {id: start, type: start, next: a}
  - {id: a, type: human_in_the_loop, input_type: text, prompt: x, next: end}
  - {id: end, type: end}
"""
    width = {node.id: node.width for node in lay_out(load_text(document).workflow).nodes}
    assert width["a"] > len("human in the loop") * 6


def test_an_end_that_no_way_leads_to_is_not_drawn():
    graph = WorkflowBuilder("lengths").set_start_executor(split).add_edge(split, count).build()
    drawn = lay_out(graph.to_ir())
    assert sorted(node.kind for node in drawn.nodes) == ["executor", "executor", "start"]


def test_an_edge_that_closes_a_cycle_goes_up():
    agents = [{"name": f"agent_{i}", "system_prompt": "x", "model": "scripted:m"} for i in range(3)]
    assert len(lay_out(load_value({"agents": agents}).workflow).nodes) == 5
    cycle = """\
version: "v0"
name: cycle
nodes:
  - {id: start, type: start, next: draft}
  - {id: draft, type: wait, duration: 1, next: check}
  - {id: check, type: human_in_the_loop, input_type: approval, on_approve: end, on_reject: draft}
  - {id: end, type: end}
"""
    workflow = load_text(cycle).workflow
    found = lay_out(workflow)
    back = next(edge for edge in found.edges if (edge.source, edge.target) == ("check", "draft"))
    assert back.points[0].y > back.points[-1].y


def test_names_of_documents_are_only_text_in_a_picture():
    document = {"agents": [{"name": "a", "system_prompt": "x", "model": "scripted:m"}], "name": "<script>&"}
    picture = to_svg(load_value(document).workflow, {"a": "failed"})
    tree = ElementTree.fromstring(picture)
    assert "<script" not in picture
    assert {element.tag.rpartition("}")[2] for element in tree.iter()} <= {
        *("svg", "title", "defs", "marker", "path", "rect", "g", "text", "circle")
    }
    assert "✕ a" in picture
