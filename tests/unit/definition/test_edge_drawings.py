"""Drawings of message edges (page 002 §14): conditions, switches, joins, inner graphs; golden texts."""

from __future__ import annotations

from agentflow.definition.dot import to_dot
from agentflow.definition.ir import Edge, EndNode, ExecutorNode, StartNode, SubgraphNode, Workflow
from agentflow.definition.mermaid import to_mermaid

INNER = Workflow(
    name="inner",
    nodes=(StartNode(id="__start", next="x"), ExecutorNode(id="x", executor="x"), EndNode(id="__end")),
)
GRAPH = Workflow(
    name='claims "v4"',
    nodes=(
        StartNode(id="__start", next="intake"),
        *(ExecutorNode(id=i, executor=i) for i in ("intake", "rules", "registry", "assess", "block", "desk")),
        ExecutorNode(id="join_assess", executor="j"),
        SubgraphNode(id="audit", inline=INNER),
        EndNode(id="__end", drain=True),
    ),
    edges=(
        Edge(source="intake", target="rules", kind="multi", selection="m:by_amount"),
        Edge(source="intake", target="registry", kind="multi", selection="m:by_amount"),
        Edge(source="rules", target="assess", kind="fan_in"),
        Edge(source="registry", target="assess", kind="fan_in"),
        Edge(source="assess", target="block", kind="switch", predicate="m:too_risky"),
        Edge(source="assess", target="desk", kind="switch"),
        Edge(source="desk", target="audit", predicate="m:Checks.is_odd"),
        Edge(source="desk", target="join_assess", when='message == "x"'),
        Edge(source="desk", target="intake", name="again"),
        Edge(source="desk", target="block", kind="error"),
        Edge(source="rules", target="join_assess", kind="fan_in", group="2"),
        Edge(source="registry", target="join_assess", kind="fan_in", group="2"),
    ),
)

MERMAID = r"""flowchart TD
  __end["__end\n(end)"]
  __start["__start\n(start)"]
  assess["assess\n(executor)"]
  subgraph audit["audit\n(subgraph)"]
    audit___end["__end\n(end)"]
    audit___start["__start\n(start)"]
    audit_x["x\n(executor)"]
  end
  block["block\n(executor)"]
  desk["desk\n(executor)"]
  intake["intake\n(executor)"]
  join_assess["join_assess\n(executor)"]
  registry["registry\n(executor)"]
  rules["rules\n(executor)"]
  join_assess_2(("join"))
  join_join_assess_2(("join"))
  __start --> intake
  intake -- "by_amount" --> rules
  intake -- "by_amount" --> registry
  rules --> join_assess_2
  registry --> join_assess_2
  assess -- "too_risky" --> block
  assess -- "default" --> desk
  desk -. "Checks.is_odd" .-> audit
  desk -. "message == \"x\"" .-> join_assess
  desk -- "again" --> intake
  desk -- "error" --> block
  rules --> join_join_assess_2
  registry --> join_join_assess_2
  join_assess_2 --> assess
  join_join_assess_2 --> join_assess
  audit___start --> audit_x
"""

DOT = r"""digraph "claims \"v4\"" {
  rankdir=TB;
  node [fontname="Helvetica,Arial,sans-serif", fontsize=11];
  edge [fontname="Helvetica,Arial,sans-serif", fontsize=9];
  n0 [label="__end\n(end)", shape=oval];
  n1 [label="__start\n(start)", shape=oval];
  n2 [label="assess\n(executor)", shape=box];
  subgraph cluster_n3 {
    label="audit";
    n3 [label="audit\n(subgraph)", shape=box];
    n4 [label="__end\n(end)", shape=oval];
    n5 [label="__start\n(start)", shape=oval];
    n6 [label="x\n(executor)", shape=box];
  }
  n7 [label="block\n(executor)", shape=box];
  n8 [label="desk\n(executor)", shape=box];
  n9 [label="intake\n(executor)", shape=box];
  n10 [label="join_assess\n(executor)", shape=box];
  n11 [label="registry\n(executor)", shape=box];
  n12 [label="rules\n(executor)", shape=box];
  n13 [label="join", shape=circle];
  n14 [label="join", shape=circle];
  n1 -> n9;
  n9 -> n12 [label="by_amount"];
  n9 -> n11 [label="by_amount"];
  n12 -> n13;
  n11 -> n13;
  n2 -> n7 [label="too_risky"];
  n2 -> n8 [label="default"];
  n8 -> n3 [label="Checks.is_odd", style=dashed];
  n8 -> n10 [label="message == \"x\"", style=dashed];
  n8 -> n9 [label="again"];
  n8 -> n7 [label="error"];
  n12 -> n14;
  n11 -> n14;
  n13 -> n2;
  n14 -> n10;
  n5 -> n6;
}
"""


def test_message_edges_as_mermaid():
    assert to_mermaid(GRAPH) == MERMAID


def test_message_edges_as_dot():
    assert to_dot(GRAPH) == DOT


def test_the_step_of_an_inner_graph_has_its_state():
    lines = to_mermaid(GRAPH, {"audit/x": "failed", "audit": "running"}).splitlines()
    assert r'    audit_x["x\n(executor)\nfailed"]' in lines
    assert r'  subgraph audit["audit\n(subgraph)\nrunning"]' in lines
    assert "  class audit_x failed" in lines


def test_the_same_graph_gives_the_same_text():
    again = Workflow(name=GRAPH.name, nodes=GRAPH.nodes[::-1], edges=GRAPH.edges)
    assert (to_mermaid(again), to_dot(again)) == (MERMAID, DOT)
