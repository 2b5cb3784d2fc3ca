"""Step documents as graphs: every key arrives where page 001 §4 puts it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agentflow.definition import load_text, load_value
from agentflow.definition.expressions import compile_template
from agentflow.definition.ir import (
    AgentNode,
    Approval,
    Budget,
    Cache,
    Edge,
    EndNode,
    FunctionRef,
    InputSpec,
    ModelRef,
    Options,
    Policy,
    ServiceSpec,
    StartNode,
    canonical_json,
    decode_ir,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.errors import DefinitionError


def agent(**more: Any) -> dict[str, Any]:
    base = {"systemPrompt": "p", "input": "x", "resultSchema": True, "attachedFunctions": "none"}
    return {**base, **more}


def step(id: str = "a", agent_: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "run", "id": id, "agent": agent_ or agent(), **more}


def load(*steps: dict[str, Any], workflow: dict[str, Any] | None = None, **top: Any):
    return load_value({"version": "1.0", "workflow": {"steps": list(steps), **(workflow or {})}, **top})


def node(*steps: dict[str, Any], **top: Any) -> AgentNode:
    return nodes(*steps, **top)[0]


def nodes(*steps: dict[str, Any], **top: Any) -> list[AgentNode]:
    return [n for n in load(*steps, **top).workflow.nodes if isinstance(n, AgentNode)]


def test_the_graph_has_a_start_an_end_and_a_node_for_each_step():
    workflow = load(step("a"), step("b", depends_on=["a"]), step("c"), name="triage").workflow
    assert workflow.name == "triage"
    first, *_, last = workflow.nodes
    assert first == StartNode(id="__start")
    assert last == EndNode(id="__end", index=3, drain=True)
    assert [(n.id, n.index) for n in workflow.nodes[1:-1]] == [("a", 0), ("b", 1), ("c", 2)]
    assert workflow.edges == (
        Edge(source="__start", target="a"),
        Edge(source="__start", target="c"),
        Edge(source="b", target="__end"),
        Edge(source="c", target="__end"),
    )


def test_the_graph_survives_its_canonical_json():
    workflow = load(
        step("a", agent(tags={"n": 1, "t": "${{ inputs.x }}"}, context={"k": None}), timeout="5m"),
        step("b", depends_on=["a"], **{"if": "steps.a.status == 'success'"}, retry={"jitter": 0}),
        inputs={"x": {"type": "string"}},
        outputs={"o": "${{ steps.b.outputs.result }}"},
        models={"default": "openai:m"},
        services={"s": {"type": "python", "module": "m"}},
    ).workflow
    assert decode_ir(canonical_json(workflow)) == workflow


def test_defaults():
    made = node(step())
    assert made.join == "all_succeeded"
    assert made.required
    assert (made.guard, made.for_each, made.max_parallel, made.policy) == (None, None, None, None)
    assert made.agent.plain_result == "object"
    assert (made.agent.max_turns, made.agent.max_tool_calls, made.agent.parallel_tool_calls) == (10, 50, True)
    assert (made.agent.name, made.agent.model, made.agent.fallback) == ("a", None, ())
    workflow = load(step()).workflow
    assert workflow.options == Options(on_failure="continue", max_parallel=8)
    assert (workflow.inputs, workflow.outputs, workflow.models, workflow.services) == (None, None, {}, {})


def test_options():
    workflow = load(step(), workflow={"fail_fast": True, "max_parallel": 3, "timeout": "1h"}).workflow
    assert workflow.options == Options(on_failure="halt", max_parallel=3, timeout=3600.0)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("250ms", 0.25),
        ("1001ms", 1.001),
        ("1.5s", 1.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        (7, 7.0),
        (0.5, 0.5),
    ],
)
def test_durations_are_seconds(duration: str | float, expected: float):
    assert node(step(timeout=duration)).policy == Policy(timeout=expected)


@pytest.mark.parametrize(
    "duration", ["5", "5 s", "-1s", "1e3s", "s", ".5s", "5S", 0, -1, "0s", "9" * 400 + "d"]
)
def test_what_is_no_duration(duration: str | float):
    with pytest.raises(DefinitionError, match="E_VALUE: timeout"):
        load(step(timeout=duration))


def test_a_duration_beyond_the_floats_is_none():
    with pytest.raises(DefinitionError, match="E_VALUE: timeout"):
        load(step(timeout="9" * 400 + "d"))


def test_step_keys():
    made = node(
        step(
            "a",
            required=False,
            for_each=" ${{ inputs.list }}\n",
            max_parallel=2,
            **{"if": "${{ item.ok }}"},
        )
    )
    assert (made.required, made.max_parallel) == (False, 2)
    assert made.for_each == "${{ inputs.list }}"
    assert made.guard == "${{ item.ok }}"


@pytest.mark.parametrize(
    ("condition", "guard", "join"),
    [
        (True, None, "all_succeeded"),
        (False, "false", "all_succeeded"),
        ("inputs.x", "inputs.x", "all_succeeded"),
        (" ${{ inputs.x }} ", "${{ inputs.x }}", "all_succeeded"),
        ("always()", "always()", "all_terminal"),
        ("SUCCESS() && inputs.x", "SUCCESS() && inputs.x", "all_terminal"),
        ("inputs.x && !failure()", "inputs.x && !failure()", "all_terminal"),
    ],
)
def test_a_status_function_waits_for_the_end_not_for_success(condition, guard, join):
    made = node(step(**{"if": condition}))
    assert (made.guard, made.join) == (guard, join)


def test_agent_keys():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    spec = node(
        step(
            "a",
            agent(
                name="Planner",
                systemPrompt="Plan ${{ inputs.x }}",
                resultSchema=schema,
                max_turns=3,
                max_tool_calls=4,
                tags={"team": "t", "n": 1, "none": None},
                context={"tenant": "${{ inputs.x }}"},
                attachedFunctions=[
                    {"service": "s", "function": "f"},
                    {"service": "t", "function": "*"},
                ],
            ),
        )
    ).agent
    assert (spec.name, spec.system_prompt) == ("Planner", "Plan ${{ inputs.x }}")
    assert spec.output_schema == schema
    assert (spec.max_turns, spec.max_tool_calls) == (3, 4)
    assert spec.tags == {"team": "t", "n": 1, "none": None}
    assert spec.context == {"tenant": "${{ inputs.x }}"}
    assert spec.functions == (FunctionRef("s", "f"), FunctionRef("t", "*"))


@pytest.mark.parametrize(
    ("attached", "functions"),
    [("none", ()), ([], None), (..., None), ([{"service": "s", "function": "f"}], (FunctionRef("s", "f"),))],
)
def test_none_is_no_function_and_nothing_is_all(attached, functions):
    spec = agent(attachedFunctions=attached)
    if attached is ...:
        del spec["attachedFunctions"]
    assert node(step("a", spec)).agent.functions == functions


def test_a_missing_input_is_null_and_not_the_payload():
    spec = agent()
    del spec["input"]
    assert node(step("a", spec)).input is None
    assert node(step("a", agent(input=None))).input is None


def test_braces_that_are_text_stay_text():
    value = {"a": "{{ x }}", "b": ["${{ inputs.n }} {{"], "{{ key }}": 1}
    made = node(step("a", agent(input=value, systemPrompt="{{ y }}", context={"c": "{{"}, tags={"t": "{{"})))
    scope = {"inputs": {"n": 5}}
    both = ("${{", "{{")
    assert compile_template(made.input, braces=both).evaluate(scope) == {
        "a": "{{ x }}",
        "b": ["5 {{"],
        "{{ key }}": 1,
    }
    assert compile_template(made.agent.system_prompt, braces=both, text=True).evaluate(scope) == "{{ y }}"
    assert compile_template(made.agent.context, braces=both).evaluate(scope) == {"c": "{{"}
    assert compile_template(made.agent.tags, braces=both).evaluate(scope) == {"t": "{{"}
    outputs = load(step(), outputs={"o": "{{"}).workflow.outputs
    assert outputs is not None
    assert compile_template(outputs["o"], braces=both).evaluate(scope) == "{{"


def test_retry_merges_key_by_key_over_the_defaults():
    defaults = {"retry": {"max_attempts": 2, "backoff": {"initial": "2s", "max": 10}, "jitter": 0.5}}
    one, two, three = nodes(
        step("a", retry={"backoff": {"max": "1m"}, "retry_on": ["timeout", "x", "timeout"], "timeout": 9}),
        step("b", retry=False),
        step("c", retry={"backoff": "5s", "max_elapsed": "2m"}),
        defaults=defaults,
    )
    assert one.policy == Policy(
        retry=RetryPolicy(
            max_attempts=2,
            backoff=Backoff(initial=2.0, multiplier=2.0, max=60.0),
            jitter=0.5,
            timeout=9.0,
            retry_on=("timeout", "x"),
        )
    )
    assert two.policy is not None
    assert two.policy.retry is not None
    assert (two.policy.retry.max_attempts, two.policy.retry.jitter) == (1, 0.5)
    assert three.policy is not None
    assert three.policy.retry is not None
    assert three.policy.retry.backoff == Backoff(initial=5.0, multiplier=1.0, max=5.0)
    assert three.policy.retry.backoff.delay(4) == 5.0
    assert three.policy.retry.max_elapsed == 120.0


def test_defaults_serve_steps_that_omit_the_key():
    one, two = nodes(
        step("a"),
        step("b", agent(max_turns=2), timeout=5),
        defaults={"timeout": "1m", "max_turns": 7, "retry": False},
    )
    assert (one.agent.max_turns, two.agent.max_turns) == (7, 2)
    assert one.policy is not None
    assert two.policy is not None
    assert (one.policy.timeout, two.policy.timeout) == (60.0, 5.0)
    assert one.policy.retry == RetryPolicy(max_attempts=1)


def gpt(**parameters: Any) -> ModelRef:
    return ModelRef(provider="openai", model="gpt", parameters=parameters)


def claude(**parameters: Any) -> ModelRef:
    return ModelRef(provider="anthropic", model="claude:small", parameters=parameters)


MODELS = {
    "default": {"model": "openai:gpt", "temperature": 0.5, "seed": 1},
    "fast": {"provider": "anthropic", "model": "claude:small", "temperature": 0},
    "again": "fast",
    "hot": {"use": "fast", "temperature": 1.0},
}


@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        (..., gpt(temperature=0.5, seed=1)),
        ("local:a:b", ModelRef(provider="local", model="a:b", parameters={"temperature": 0.5, "seed": 1})),
        (
            "fast",
            claude(temperature=0, seed=1),
        ),
        (
            "again",
            claude(temperature=0, seed=1),
        ),
        (
            {"use": "hot", "seed": 2},
            claude(temperature=1.0, seed=2),
        ),
        (
            {"max_tokens": 9},
            ModelRef(
                provider="openai", model="gpt", parameters={"temperature": 0.5, "seed": 1, "max_tokens": 9}
            ),
        ),
        (
            {"model": "other:m", "temperature": 2},
            ModelRef(provider="other", model="m", parameters={"temperature": 2, "seed": 1}),
        ),
        (
            {"provider": "p", "model": "a:b"},
            ModelRef(provider="p", model="a:b", parameters={"temperature": 0.5, "seed": 1}),
        ),
    ],
)
def test_agent_keys_win_over_use_and_use_over_the_default(model, chosen):
    spec = agent() if model is ... else agent(model=model)
    assert node(step("a", spec), models=MODELS).agent.model == chosen


def test_the_table_of_models_holds_every_alias():
    table = load(step(), models=MODELS).workflow.models
    assert {name: ref.name for name, ref in table.items()} == {
        "default": "openai:gpt",
        "fast": "anthropic:claude:small",
        "again": "anthropic:claude:small",
        "hot": "anthropic:claude:small",
    }
    assert table["hot"].parameters["temperature"] == 1.0


def test_a_model_that_the_document_does_not_know_is_left_to_the_binding():
    assert node(step("a", agent(model="house"))).agent.model == "house"
    assert node(step("a", agent(model={"use": "house"}))).agent.model == "house"
    assert node(step("a", agent(model={"use": "house", "seed": 1}))).agent.model == ModelRef(
        provider="", model="house", parameters={"seed": 1}
    )
    assert node(step("a")).agent.model is None


def test_fallback_models():
    spec = node(step("a", agent(model="fast", fallback=["house", "openai:x"])), models={"fast": "a:b"}).agent
    assert spec.model == ModelRef(provider="a", model="b")
    assert spec.fallback == ("house", ModelRef(provider="openai", model="x"))


def test_inputs():
    inputs = load(
        step(),
        inputs={
            "a": {"type": "string", "description": "d"},
            "b": {"schema": {"minimum": 1}, "default": 3},
            "c": {"required": False},
            "d": {"default": None},
        },
    ).workflow.inputs
    assert inputs == {
        "a": InputSpec(schema={"type": "string"}, description="d"),
        "b": InputSpec(schema={"minimum": 1}, required=False, has_default=True, default=3),
        "c": InputSpec(required=False),
        "d": InputSpec(required=False, has_default=True),
    }


def test_services():
    services = load(
        step(),
        services={
            "s": {
                "type": "python",
                "module": "tools.crm",
                "timeout": "2m",
                "max_concurrency": 3,
                "include": ["f"],
                "functions": {"f": {"side_effect": "write", "idempotent": True, "timeout": "1s"}},
                "send_context": False,
            }
        },
    ).workflow.services
    assert services == {
        "s": ServiceSpec(
            type="python",
            timeout=120.0,
            max_concurrency=3,
            include=("f",),
            functions={"f": {"side_effect": "write", "idempotent": True, "timeout": 1.0}},
            send_context=False,
            options={"module": "tools.crm"},
        )
    }


@pytest.mark.parametrize(
    "service",
    [
        {
            "type": "mcp",
            "transport": "stdio",
            "command": "c",
            "args": ["-x"],
            "env": {"K": {"$secret": "N"}},
        },
        {
            "type": "mcp",
            "transport": "streamable_http",
            "url": "https://h/mcp",
            "headers": {"x-key": "v"},
        },
        {"type": "openapi", "document": "api.json", "base_url": "http://[::1]:8080/v1"},
        {"type": "http", "base_url": "http://h", "functions": {}},
    ],
)
def test_the_options_of_a_service_are_kept_as_they_are(service):
    compiled = load(step(), services={"s": service}).workflow.services["s"]
    assert compiled.type == service.pop("type")
    service.pop("functions", None)
    assert compiled.options == service


def test_http_functions_are_kept_with_durations_in_seconds():
    function = {
        "method": "GET",
        "path": "/a/{b}/{c-d}.json",
        "query": ["q", "r"],
        "timeout": "5s",
        "input_schema": {"type": "object"},
    }
    service = {"type": "http", "base_url": "http://h", "functions": {"f": function}}
    compiled = load(step(), services={"s": service}).workflow.services["s"]
    assert compiled.functions == {"f": {**function, "timeout": 5.0}}


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ({"type": "http", "base_url": "h", "functions": {}}, "base_url"),
        ({"type": "http", "base_url": "ftp://h", "functions": {}}, "base_url"),
        ({"type": "http", "base_url": "http://", "functions": {}}, "base_url"),
        ({"type": "http", "base_url": "http://h:port", "functions": {}}, "base_url"),
        ({"type": "http", "base_url": "http://h/a b", "functions": {}}, "base_url"),
        ({"type": "openapi", "document": "d", "base_url": "http://ann:hunter22@h"}, "base_url"),
        ({"type": "mcp", "transport": "streamable_http", "url": "//h"}, "url"),
        *(
            (
                {"type": "http", "base_url": "http://h", "functions": {"f": {"method": "GET", "path": path}}},
                "functions/f/path",
            )
            for path in ("a", "/a?b=c", "/a#b", "/a b", "/a/../b", "/./a", "/{}", "/{a", "/a}", "/{a/b}")
        ),
    ],
)
def test_addresses_and_paths_of_services(service, path):
    with pytest.raises(DefinitionError) as caught:
        load(step(), services={"s": service})
    (found,) = caught.value.diagnostics
    assert (found.code, found.path) == ("E_VALUE", f"/services/s/{path}")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("service", "code", "path"),
    [
        ({"module": "m"}, "E_REQUIRED", ""),
        ({"type": "python"}, "E_REQUIRED", ""),
        ({"type": "python", "module": "m", "url": "u"}, "E_UNKNOWN_KEY", "/url"),
        ({"type": "java", "module": "m"}, "E_VALUE", "/type"),
        (
            {"type": "python", "module": "m", "functions": {"f": {"side_effect": "maybe"}}},
            "E_VALUE",
            "/functions/f/side_effect",
        ),
    ],
)
def test_services_are_checked(service, code, path):
    with pytest.raises(DefinitionError) as caught:
        load(step(), services={"s": service})
    assert (code, f"/services/s{path}") in [(d.code, d.path) for d in caught.value.diagnostics]
    assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize(
    ("written", "compiled"),
    [
        (True, Approval()),
        ({}, Approval()),
        ({"before": "never"}, Approval(before="never")),
        (
            {"before": "calls", "message": "{{ ${{ inputs.x }}", "timeout": "2h", "on_denied": "skip"},
            Approval(before="calls", message="${{ '{{' }} ${{ inputs.x }}", timeout=7200.0, on_denied="skip"),
        ),
    ],
)
def test_an_approval_arrives_at_its_node(written, compiled):
    assert node(step(approval=written)).approval == compiled


@pytest.mark.parametrize(
    ("written", "compiled"),
    [
        ({"ttl": 60}, Cache(ttl=60.0)),
        (
            {"ttl": "1d", "key": "k-${{ inputs.x }}{{", "scope": "global"},
            Cache(ttl=86400.0, key="k-${{ inputs.x }}${{ '{{' }}", scope="global"),
        ),
    ],
)
def test_a_cache_arrives_at_its_node(written, compiled):
    assert node(step(cache=written)).cache == compiled


def test_budgets_arrive_at_the_node_and_at_the_run():
    amounts = {"max_tokens": 9, "max_model_calls": 8, "max_tool_calls": 7, "max_steps": 6, "max_depth": 5}
    whole = {**amounts, "max_cost_usd": 1, "max_duration_s": 2, "on_exceeded": "fail"}
    workflow = load(step(budget={}), workflow={"budget": whole}).workflow
    assert workflow.options.budget == Budget(
        **amounts, max_cost_usd=1.0, max_duration_s=2.0, on_exceeded="fail"
    )
    assert isinstance(workflow.options.budget.max_cost_usd, float)
    assert workflow.nodes[1].budget == Budget(max_depth=8, on_exceeded="pause")
    assert decode_ir(canonical_json(workflow)) == workflow


def test_the_graph_does_not_depend_on_where_its_words_came_from():
    value = {
        "version": "1.0",
        "workflow": {
            "budget": {"on_exceeded": "pause"},
            "steps": [
                step(
                    approval={"before": "step", "on_denied": "fail"},
                    cache={"ttl": 1, "scope": "definition"},
                )
            ],
        },
    }
    assert load_text(json.dumps(value)).ir_hash == load_value(value).ir_hash


def test_a_step_without_approval_cache_and_budget_has_none():
    made = node(step())
    assert (made.approval, made.cache, made.budget) == (None, None, None)


@pytest.mark.parametrize("key", ["max_cost_usd", "max_tokens"])
def test_amounts_beyond_every_float_are_refused(key):
    with pytest.raises(DefinitionError, match="too large") as caught:
        load(step(budget={key: 10**400}))
    assert [(d.code, d.path) for d in caught.value.diagnostics] == [
        ("E_VALUE", f"/workflow/steps/0/budget/{key}")
    ]


def test_all_problems_are_told_at_once_in_their_order():
    with pytest.raises(DefinitionError) as caught:
        load_value(
            {
                "workflow": {
                    "steps": [
                        step("a", agent(max_turns=0, colour="red"), depends_on=["b", "zz"]),
                        step("b", depends_on=["a"], **{"if": "steps.q.status == 1"}),
                        {"type": "run"},
                    ]
                }
            }
        )
    found = [d.code for d in caught.value.diagnostics]
    assert sorted(found) == [
        "E_CYCLE",
        "E_REQUIRED",
        "E_REQUIRED",
        "E_UNKNOWN_DEPENDENCY",
        "E_UNKNOWN_KEY",
        "E_UNKNOWN_STEP",
        "E_VALUE",
        "W_VERSION_MISSING",
    ]


def test_a_long_cycle_is_told_shortly():
    ring = [step(f"s{i}", depends_on=[f"s{(i + 1) % 40}"]) for i in range(40)]
    with pytest.raises(DefinitionError) as caught:
        load(*ring)
    (found,) = caught.value.diagnostics
    assert found.message.startswith("steps form a cycle: s0 → s1 → ")
    assert found.message.endswith(" → … → s0")


def test_the_shortest_way_round_is_printed():
    with pytest.raises(DefinitionError, match="a → c → a"):
        load(step("a", depends_on=["b", "c"]), step("b", depends_on=["c"]), step("c", depends_on=["a"]))


def test_the_input_of_a_node_is_set_for_every_step():
    assert all(n.input is not msgspec.UNSET for n in nodes(step("a"), step("b")))


def test_outputs():
    workflow = load(step(), outputs={"o": {"r": "${{ steps.a.outputs.result }}"}, "x-note": 1}).workflow
    assert workflow.outputs == {"o": {"r": "${{ steps.a.outputs.result }}"}}
    assert load(step(), outputs={}).workflow.outputs == {}
