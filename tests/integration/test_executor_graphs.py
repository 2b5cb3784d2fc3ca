"""Graphs of executors: refused before anything happens, since no code is registered."""

from __future__ import annotations

import pytest

from agentflow import Runtime
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Edge,
    EndNode,
    ExecutorNode,
    FunctionRef,
    NodeBase,
    StartNode,
    SubgraphNode,
    ToolNode,
    Workflow,
)
from agentflow.errors import DefinitionError


async def test_a_graph_with_an_executor_is_refused_at_submission_and_leaves_no_run():
    graph = Workflow(
        name="claims",
        nodes=(
            StartNode(id="__start", next="intake"),
            ExecutorNode(id="intake", executor="claims:Intake"),
            EndNode(id="__end", drain=True),
        ),
    )
    async with Runtime() as runtime:
        with pytest.raises(DefinitionError) as refused:
            await runtime.submit(graph, {})
        (problem,) = [d for d in refused.value.diagnostics if d.severity == "error"]
        assert (problem.code, problem.path) == ("E_UNREGISTERED_CALLABLE", "/nodes/1/executor")
        assert "claims:Intake" in problem.message
        assert await runtime.rows() == []


async def problems_of(*nodes: NodeBase, edges: tuple[Edge, ...] = ()) -> list[tuple[str, str | None]]:
    """Return code and pointer of each error of a graph whose inner graph has the nodes."""
    ends = (StartNode(id="__start", next=nodes[0].id), EndNode(id="__end", drain=True))
    inner = Workflow(name="inner", nodes=(*nodes, *ends), edges=edges)
    outer = (StartNode(id="__start", next="sub"), SubgraphNode(id="sub", inline=inner, next="__end"), ends[1])
    async with Runtime() as runtime:
        with pytest.raises(DefinitionError) as refused:
            await runtime.submit(Workflow(name="outer", nodes=outer), {})
        assert await runtime.rows() == []
    return [(d.code, d.path) for d in refused.value.diagnostics if d.severity == "error"]


async def test_what_is_missing_in_an_inline_graph_is_named_by_its_pointer():
    """An executor there raised StopIteration; a function was named at a pointer of the outer graph."""
    found = await problems_of(
        ExecutorNode(id="intake", executor="claims:Intake"),
        ToolNode(id="pay", tool="bank.pay", next="__end"),
        edges=(Edge(source="intake", target="pay"),),
    )
    assert sorted(found) == [
        ("E_UNKNOWN_SERVICE", "/nodes/1/inline/nodes/1/tool"),
        ("E_UNREGISTERED_CALLABLE", "/nodes/1/inline/nodes/0/executor"),
    ]


async def test_what_an_agent_of_a_graph_lacks_is_named_by_the_pointer_of_the_graph():
    """It was named as a step of a document, `/workflow/steps/0/agent`."""
    spec = AgentSpec(
        name="a", system_prompt="do", model="nobody:nothing", functions=(FunctionRef("bank", "pay"),)
    )
    found = await problems_of(AgentNode(id="a", agent=spec, next="__end"))
    assert sorted(found) == [
        ("E_UNKNOWN_MODEL", "/nodes/1/inline/nodes/0/agent/model"),
        ("E_UNKNOWN_SERVICE", "/nodes/1/inline/nodes/0/agent/functions/0/service"),
    ]
