"""The graph signature (page 002 §9): what changes it, and what does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition.compare import compare
from agentflow.definition.ir import (
    Edge,
    EndNode,
    ExecutorNode,
    Options,
    Policy,
    SharedKey,
    StartNode,
    SubgraphNode,
    Workflow,
)
from agentflow.definition.policy import RetryPolicy
from agentflow.definition.signature import SignatureChange, signature, signature_change


def executor(id: str, **more: Any) -> ExecutorNode:
    return ExecutorNode(id=id, executor=f"m:{id}", **more)


NODES = (
    StartNode(id="__start", next="a"),
    executor("a", accepts=("str",), emits=("int",)),
    executor("b"),
    executor("c"),
    executor("d"),
    EndNode(id="__end", drain=True),
)
FAN = tuple(Edge(source="a", target=t, kind="multi", selection="m:pick") for t in "bc")
JOIN = tuple(Edge(source=s, target="d", kind="fan_in") for s in "bc")
LOOP = Edge(source="d", target="a", predicate="m:again")
GRAPH = Workflow(
    name="w",
    nodes=NODES,
    edges=(*FAN, *JOIN, LOOP),
    shared={"seen": SharedKey(reducer="append", default=[])},
    options=Options(policy="superstep", max_iterations=10),
)


def node(index: int, **fields: Any) -> Workflow:
    nodes = list(NODES)
    nodes[index] = msgspec.structs.replace(nodes[index], **fields)
    return msgspec.structs.replace(GRAPH, nodes=tuple(nodes))


def edges(*found: Edge) -> Workflow:
    return msgspec.structs.replace(GRAPH, edges=found)


def whole(**fields: Any) -> Workflow:
    return msgspec.structs.replace(GRAPH, **fields)


def edge(which: Edge, **fields: Any) -> Edge:
    return msgspec.structs.replace(which, **fields)


KEPT = {
    "import path": node(2, executor="other.module:b"),
    "name": node(2, name="The second"),
    "policy": node(2, policy=Policy(retry=RetryPolicy(max_attempts=9), timeout=3)),
    "limits": whole(options=Options(policy="eager", max_steps=5)),
    "descriptions": whole(metadata={"description": "another"}, name="v"),
    "default of a shared key": whole(shared={"seen": SharedKey(reducer="append", default=[1])}),
    "key without reducer": whole(shared={**GRAPH.shared, "free": SharedKey()}),
    "order of nodes": whole(nodes=(*NODES[:2], NODES[3], NODES[2], *NODES[4:])),
    "order of edges of two sources": edges(LOOP, *FAN, *JOIN),
    "order of accepted types": node(1, accepts=("str",)),
    "time-out of a join": edges(*FAN, *(edge(e, timeout=5.0) for e in JOIN), LOOP),
}

CHANGED: dict[str, tuple[Workflow, SignatureChange]] = {
    "start": (node(0, next="b"), SignatureChange(changed=("__start",))),
    "id": (
        whole(
            nodes=(*NODES[:3], executor("x"), *NODES[4:]),
            edges=(FAN[0], edge(FAN[1], target="x"), JOIN[0], edge(JOIN[1], source="x"), LOOP),
        ),
        SignatureChange(added=("x",), removed=("c",), changed=("a",)),
    ),
    "kind": (
        whole(nodes=(*NODES[:2], SubgraphNode(id="b", next="d"), *NODES[3:])),
        SignatureChange(changed=("b",)),
    ),
    "accepted type": (node(1, accepts=("bytes",)), SignatureChange(changed=("a",))),
    "emitted type": (node(1, emits=("int", "str")), SignatureChange(changed=("a",))),
    "predicate": (edges(*FAN, *JOIN, edge(LOOP, predicate="m:other")), SignatureChange(changed=("d",))),
    "no predicate": (edges(*FAN, *JOIN, edge(LOOP, predicate=None)), SignatureChange(changed=("d",))),
    "name of an edge": (edges(*FAN, *JOIN, edge(LOOP, name="back")), SignatureChange(changed=("d",))),
    "expression": (
        edges(*FAN, *JOIN, edge(LOOP, predicate=None, when="message")),
        SignatureChange(changed=("d",)),
    ),
    "selection": (
        edges(*(edge(e, selection="m:other") for e in FAN), *JOIN, LOOP),
        SignatureChange(changed=("a",)),
    ),
    "kind of edges": (
        edges(*(edge(e, kind="fan_out", selection=None) for e in FAN), *JOIN, LOOP),
        SignatureChange(changed=("a",)),
    ),
    "order of targets": (edges(FAN[1], FAN[0], *JOIN, LOOP), SignatureChange(changed=("a",))),
    "order of sources": (edges(*FAN, JOIN[1], JOIN[0], LOOP), SignatureChange(changed=("b", "c"))),
    "rule of a join": (
        edges(*FAN, *(edge(e, on_missing="wait") for e in JOIN), LOOP),
        SignatureChange(changed=("b", "c")),
    ),
    "quorum": (edges(*FAN, *(edge(e, quorum=1) for e in JOIN), LOOP), SignatureChange(changed=("b", "c"))),
    "missing edge": (edges(*FAN, *JOIN), SignatureChange(changed=("d",))),
    "reducer": (
        whole(shared={"seen": SharedKey(reducer="union")}),
        SignatureChange(changed=("shared.seen",)),
    ),
    "no reducer": (whole(shared={}), SignatureChange(changed=("shared.seen",))),
}


@pytest.mark.parametrize("other", KEPT.values(), ids=KEPT)
def test_what_does_not_join_nodes_keeps_the_signature(other: Workflow):
    assert signature(other) == signature(GRAPH)
    assert not signature_change(GRAPH, other)
    assert not any(d.structural for d in compare(GRAPH, other))


@pytest.mark.parametrize(("other", "change"), CHANGED.values(), ids=CHANGED)
def test_what_joins_nodes_changes_the_signature(other: Workflow, change: SignatureChange):
    assert signature(other) != signature(GRAPH)
    assert signature_change(GRAPH, other) == change
    assert any(d.structural for d in compare(GRAPH, other))


def test_the_signature_of_an_inner_graph_counts():
    inner = Workflow(name="i", nodes=(StartNode(id="s", next="e"), EndNode(id="e")))
    other = Workflow(name="i", nodes=(StartNode(id="s", next="f"), EndNode(id="f")))
    graphs = [whole(nodes=(*NODES[:2], SubgraphNode(id="b", inline=i), *NODES[3:])) for i in (inner, other)]
    assert signature(graphs[0]) != signature(graphs[1])
    assert signature_change(*graphs) == SignatureChange(changed=("b",))


def test_the_signature_of_a_graph_stays_what_it_is():
    assert signature(GRAPH) == "sha256:8c09f86cd79f82cdf59c38438b540543f18c8a0e4cfe630ecda5e749e6a4f9ee"
