"""Agent lists as chains: ids, tools, policies, and what the format refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition import check_inputs, load_value
from agentflow.definition.expressions import compile_template
from agentflow.definition.ir import (
    AgentNode,
    Budget,
    EndNode,
    FunctionRef,
    ModelRef,
    Options,
    Policy,
    StartNode,
)
from agentflow.definition.policy import RetryPolicy
from agentflow.errors import DefinitionError


def agent(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "system_prompt": "p", **more}


def load(*agents: dict[str, Any], **top: Any):
    return load_value({"agents": list(agents), **top})


def nodes(*agents: dict[str, Any], **top: Any) -> list[AgentNode]:
    return [n for n in load(*agents, **top).workflow.nodes if isinstance(n, AgentNode)]


def refusals(*agents: dict[str, Any], **top: Any):
    with pytest.raises(DefinitionError) as caught:
        load(*agents, **top)
    return [(d.code, d.path) for d in caught.value.diagnostics]


def test_agents_form_a_chain():
    definition = load(agent("one"), agent("two"), agent("three"), name="n", version="7.1", description="d")
    workflow = definition.workflow
    start, one, two, three, end = workflow.nodes
    assert start == StartNode(id="__start", next="one")
    assert end == EndNode(id="__end", index=3)
    chain = [n for n in (one, two, three) if isinstance(n, AgentNode)]
    assert [(n.id, n.next, n.index, n.join, n.depends_on) for n in chain] == [
        ("one", "two", 0, "any", ()),
        ("two", "three", 1, "any", ()),
        ("three", "__end", 2, "any", ()),
    ]
    assert all(n.input is msgspec.UNSET for n in chain)
    assert all(n.agent.plain_result == "text" for n in chain)
    assert workflow.options == Options(on_failure="halt")
    assert (definition.name, definition.version, definition.format) == ("n", "7.1", "linear")
    assert (workflow.edges, workflow.inputs, workflow.metadata) == ((), None, {"description": "d"})


@pytest.mark.parametrize(
    ("agents", "ids"),
    [
        ([agent("a"), agent("a"), agent("a")], ["a", "a_2", "a_3"]),
        ([agent("a"), agent("b", id="a")], ["a_2", "a"]),
        ([agent("the first"), agent("b", id="x"), agent("é")], ["step_0", "x", "step_2"]),
        ([agent("9"), agent("step_0")], ["step_0", "step_0_2"]),
        ([agent("__start")], ["step_0"]),
        ([agent("a" * 128), agent("a" * 128)], ["a" * 128, "a" * 126 + "_2"]),
        ([agent("a", id="b"), agent("b"), agent("b_2", id="b_2")], ["b", "b_3", "b_2"]),
    ],
)
def test_step_ids(agents, ids):
    made = nodes(*agents)
    assert [n.id for n in made] == ids
    assert [n.agent.name for n in made] == [a["name"] for a in agents]


def test_agent_keys():
    schema = {"type": "array"}
    (made,) = nodes(
        agent(
            "a",
            tools=["search", "web.get", "web.get.more", "-x.y"],
            model={"model": "openai:m", "temperature": 0},
            output_schema=schema,
            max_turns=3,
            max_tool_calls=4,
            parallel_tool_calls=False,
            timeout="1m",
            retry={"max_attempts": 2},
            fallback=["local:x"],
        )
    )
    spec = made.agent
    assert spec.functions == (
        FunctionRef("", "search"),
        FunctionRef("web", "get"),
        FunctionRef("web", "get.more"),
        FunctionRef("", "-x.y"),
    )
    assert spec.model == ModelRef(provider="openai", model="m", parameters={"temperature": 0})
    assert spec.fallback == (ModelRef(provider="local", model="x"),)
    assert spec.output_schema == schema
    assert (spec.max_turns, spec.max_tool_calls, spec.parallel_tool_calls) == (3, 4, False)
    assert made.policy == Policy(retry=RetryPolicy(max_attempts=2), timeout=60.0)


@pytest.mark.parametrize("more", [{}, {"tools": []}])
def test_no_tools_are_no_functions(more):
    (made,) = nodes(agent(**more))
    assert made.agent.functions == ()


def test_levels_of_retry_and_the_run_s_own_options():
    definition = load(
        agent("a", retry={"max_attempts": 9}),
        agent("b"),
        retry={"max_attempts": 2, "jitter": 0.5, "max_elapsed": 5},
        defaults={"retry": {"max_attempts": 3, "jitter": 0.25}, "timeout": 8, "max_turns": 2},
        on_failure="continue",
        timeout="1h",
    )
    assert definition.workflow.options == Options(on_failure="continue", timeout=3600.0)
    one, two = [n for n in definition.workflow.nodes if isinstance(n, AgentNode)]
    assert one.policy == Policy(retry=RetryPolicy(max_attempts=9, jitter=0.25, max_elapsed=5.0), timeout=8.0)
    assert two.policy is not None
    assert two.policy.retry == RetryPolicy(max_attempts=3, jitter=0.25, max_elapsed=5.0)
    assert (one.agent.max_turns, two.agent.max_turns) == (2, 2)


def test_budgets_of_the_list_and_of_its_agents():
    one = agent(budget={"max_model_calls": 1})
    made = load(one, agent(), budget={"max_tokens": 9}, on_failure="hold").workflow
    assert made.options == Options(on_failure="hold", budget=Budget(max_tokens=9))
    assert [n.budget for n in made.nodes[1:-1]] == [Budget(max_model_calls=1), None]


def test_prompts_are_text():
    (made,) = nodes(agent(system_prompt="Say {{ hello }}"))
    template = compile_template(made.agent.system_prompt, braces=("${{", "{{"), text=True)
    assert template.evaluate({}) == "Say {{ hello }}"


@pytest.mark.parametrize(
    ("top", "agents", "expected"),
    [
        ({"on_failure": "explode"}, [agent()], [("E_VALUE", "/on_failure")]),
        ({}, [agent(systemPrompt="x")], [("E_UNKNOWN_KEY", "/agents/0/systemPrompt")]),
        ({}, [agent(), {"name": "b"}], [("E_AGENT_FIELD", "/agents/1")]),
        ({}, [{}], [("E_AGENT_FIELD", "/agents/0"), ("E_AGENT_FIELD", "/agents/0")]),
        ({}, [agent(id="1")], [("E_VALUE", "/agents/0/id")]),
        ({}, [agent(id="__end")], [("E_VALUE", "/agents/0/id")]),
        ({}, [agent(model="openai:")], [("E_VALUE", "/agents/0/model")]),
        ({}, [agent(model={"provider": "openai"})], [("E_REQUIRED", "/agents/0/model")]),
        ({}, [agent(tools="search")], [("E_TYPE", "/agents/0/tools")]),
        ({}, [agent(output_schema={"type": "objekt"})], [("E_SCHEMA", "/agents/0/output_schema/type")]),
        ({"inputs": {}}, [agent()], [("E_UNKNOWN_KEY", "/inputs")]),
        ({"retry": {"max_attempts": 0}}, [agent()], [("E_RETRY_POLICY", "/retry/max_attempts")]),
    ],
)
def test_refusals(top, agents, expected):
    assert refusals(*agents, **top) == expected


def test_the_message_counts_agents_from_one():
    with pytest.raises(DefinitionError, match='agent 2 has no "system_prompt"'):
        load(agent(), {"name": "b"})


@pytest.mark.parametrize("value", [None, "text", [1], {"a": 1}, 0, False])
def test_any_json_is_input_and_stays_as_it_is(value):
    definition = load(agent())
    assert definition.required_inputs == ()
    assert check_inputs(definition, value) == (value, [])


def test_what_is_no_json_is_refused_as_input():
    _, found = check_inputs(load(agent()), {"a": float("inf")})
    assert [d.code for d in found] == ["E_INPUT_INVALID"]
