"""Graphs of executors: refused before anything happens, since no code is registered."""

from __future__ import annotations

import pytest

from agentflow import Runtime
from agentflow.definition.ir import EndNode, ExecutorNode, StartNode, Workflow
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
