"""Agents that nodes name: `agent: NAME` (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Agent, Runtime, validate_and_normalize
from agentflow.definition.ir import canonical_json
from agentflow.errors import DefinitionError
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import Desk


def document(agent: Any = "helper", **more: Any) -> dict[str, Any]:
    node = {"id": "a", "type": "agent", "agent": agent, "next": "end", **more}
    ends = [{"id": "start", "type": "start", "next": "a"}, {"id": "end", "type": "end"}]
    return {"name": "w", "nodes": [*ends, node]}


def prompt_and_tools(request: Any) -> str:
    return f"{request.messages[0].content} {sorted(tool.name for tool in request.tools)}"


def opened(log: Any = "memory:") -> Runtime:
    return Runtime(log, models=[ScriptedModel(prompt_and_tools)], services=[Desk().service()])


HELPER = Agent("helper", "Help {{ us }}.", model="scripted:m", tools=["desk.look"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "Help {{ us }}. ['desk__look']"),
        ({"tools": ["desk.pay"]}, "Help {{ us }}. ['desk__pay']"),
    ],
    ids=["as it is", "with tools of the node"],
)
async def test_a_node_names_an_agent(more: dict[str, Any], said: str):
    async with opened() as runtime:
        runtime.register(HELPER)
        assert (await runtime.run(document(**more), {})).output == said


async def test_graphs_inside_and_values_of_the_run_name_agents_too():
    async with opened() as runtime:
        runtime.register(HELPER)
        for fields in ({"inline": document()}, {"graph_path": "input.plan"}, {"graph": "inner"}):
            sub = {"id": "sub", "type": "subgraph", "next": "end", **fields}
            ends = [{"id": "start", "type": "start", "next": "sub"}, {"id": "end", "type": "end"}]
            outer = {"name": "w", "nodes": [*ends, sub], "graphs": {"inner": document()}}
            result = await runtime.run(outer, {"plan": document()})
            assert result.output["output"] == "Help {{ us }}. ['desk__look']", fields


async def test_a_run_keeps_the_agent_that_it_began_with():
    log = MemoryLog()
    approved = document(approval={"before": "step"})
    async with opened(log) as runtime:
        runtime.register(HELPER)
        handle = await runtime.submit(approved, {})
        assert (await handle.result()).state == "waiting"
        runtime.register(Agent("helper", "Another.", model="scripted:m"))
    async with opened(log) as runtime:
        await runtime.recover()
        result = await (await runtime.decide(handle.workflow_id, granted=True, step_id="a")).result()
    assert result.output == "Help {{ us }}. ['desk__look']"


async def test_a_name_that_no_agent_has_is_refused():
    async with opened() as runtime:
        with pytest.raises(DefinitionError) as refused:
            await runtime.run(document("helpr"), {})
    (found,) = refused.value.diagnostics
    assert (found.code, found.path) == ("E_UNREGISTERED_CALLABLE", "/nodes/2/agent")


def test_the_normal_form_of_a_name_is_read_again():
    normal = canonical_json(validate_and_normalize(document(output_schema={"type": "object"})))
    import json

    assert canonical_json(validate_and_normalize(json.loads(normal))) == normal


def test_a_blank_name_is_refused():
    with pytest.raises(DefinitionError) as refused:
        validate_and_normalize(document(" "))
    assert [(d.code, d.path) for d in refused.value.diagnostics] == [("E_EMPTY_FIELD", "/nodes/2/agent")]
