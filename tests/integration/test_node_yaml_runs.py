"""Node-graph YAML at work: models, functions and people, with a real Runtime and a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from actors.testing import virtual
from agentflow import AgentflowError, Runtime, Service, function
from agentflow.definition import Definition, load_value
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import log_of
from tests.integration.virtual import LoopClock

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
SIMPLE = {"name": "double", "description": "Twice x.", "input_schema": SCHEMA}
OPENAI = {
    "type": "function",
    "function": {"name": "double", "description": "Twice x.", "parameters": SCHEMA},
}


def asking(config: dict[str, Any] | None = None, **fields: Any) -> Definition:
    node = {"id": "a", "node_type": {"llm_call": {"model": "m", "provider": "scripted", **fields}}}
    if config is not None:
        node["config"] = config
    return load_value({"id": "w", "entry_node": "a", "nodes": [node], "edges": []})


@function(side_effect="none")
def double(x: int) -> int:
    """Return twice x."""
    if x < 0:
        raise ValueError("x is below 0")
    return 2 * x


def numbers() -> Service:
    return Service.of("numbers", double)


async def run(definition: Definition, model: ScriptedModel, input: Any = None) -> Any:
    async with Runtime(models=[model], services=[numbers()]) as runtime:
        return await runtime.run(definition, input or {})


def first(model: ScriptedModel) -> ModelRequest:
    return model.requests[0]


async def test_model_provider_and_prompt_of_a_node_are_asked():
    model = ScriptedModel(["hello"])
    definition = asking({"user_input_prompt": "Hi {{ input.n }}", "node_system_prompt": "Be kind"})
    assert (await run(definition, model, {"n": "Ann"})).output == "hello"
    assert [(m.role, m.content) for m in first(model).messages] == [("system", "Be kind"), ("user", "Hi Ann")]


@pytest.mark.parametrize("appended", [True, False])
async def test_a_history_is_sent_with_or_without_the_prompt(appended: bool):
    model = ScriptedModel(["ok"])
    definition = asking(prompt="last", messages_path="input.h", append_prompt_as_user=appended)
    await run(definition, model, {"h": [{"role": "user", "content": "first"}]})
    said = [m.content for m in first(model).messages]
    assert said == (["first", "last"] if appended else ["first"])


@pytest.mark.parametrize(
    ("tool", "form"), [(SIMPLE, "simplified"), (OPENAI, "openai"), (SIMPLE, None), (OPENAI, None)]
)
async def test_a_declared_function_is_offered_and_called(tool: Any, form: str | None):
    model = ScriptedModel([call("double", x=4), "eight"])
    more = {} if form is None else {"tools_format": form}
    definition = asking(prompt="p", tools=[tool], tool_calls_global_key="calls", **more)
    async with Runtime(models=[model], services=[numbers()]) as runtime:
        handle = await runtime.submit(definition, {})
        assert (await handle.result()).output == "eight"
    (offered,) = first(model).tools
    assert (offered.name, offered.description, offered.input_schema) == ("double", "Twice x.", SCHEMA)
    assert model.requests[1].messages[-1].content == "8"


async def test_calls_of_functions_are_values_of_the_run():
    model = ScriptedModel([call("double", x=4), "eight"])
    document = {
        "id": "w",
        "entry_node": "a",
        "nodes": [
            {
                "id": "a",
                "node_type": {
                    "llm_call": {
                        "model": "scripted:m",
                        "prompt": "p",
                        "tools": [SIMPLE],
                        "tool_calls_global_key": "calls",
                    }
                },
            },
            {
                "id": "end",
                "node_type": {
                    "end": {"own": "{{ nodes.a.tool_calls }}", "named": "{{ globals.calls }}"},
                },
            },
        ],
        "edges": [{"from": "a", "to": "end"}],
    }
    output = (await run(load_value(document), model)).output
    assert output["own"] == output["named"]
    (made,) = output["own"]
    assert (made["name"], made["arguments"], made["output"], made["error"]) == ("double", {"x": 4}, 8, None)


async def test_arguments_that_break_the_declared_schema_are_not_executed():
    strict = {**SIMPLE, "input_schema": {**SCHEMA, "properties": {"x": {"maximum": 3}}}}
    model = ScriptedModel([call("double", x=4), "sorry"])
    assert (await run(asking(prompt="p", tools=[strict]), model)).output == "sorry"
    assert "invalid_tool_input" in model.requests[1].messages[-1].content


async def test_a_result_that_breaks_the_declared_schema_is_an_error_for_the_model():
    model = ScriptedModel([call("double", x=4), "sorry"])
    tool = {**SIMPLE, "output_schema": {"type": "string"}}
    assert (await run(asking(prompt="p", tools=[tool]), model)).output == "sorry"
    assert "invalid_tool_output" in model.requests[1].messages[-1].content


@pytest.mark.parametrize(("errors", "status"), [("return", "completed"), ("fail", "failed")])
async def test_an_error_of_a_function_goes_to_the_model_or_fails_the_node(errors: str, status: str):
    model = ScriptedModel([call("double", x=-1), "sorry"])
    definition = asking(prompt="p", tools=[SIMPLE], tool_errors=errors)
    async with Runtime(models=[model], services=[numbers()]) as runtime:
        handle = await runtime.submit(definition, {})
        result = await handle.result(raise_on_failure=False)
    assert result.state == status
    assert len(model.requests) == (2 if errors == "return" else 1)
    if errors == "fail":
        assert result.error.code == "tool_execution_failed"


async def test_rounds_of_calls_are_limited():
    model = ScriptedModel(lambda request: call("double", x=1))
    definition = asking(prompt="p", tools=[SIMPLE], max_tool_roundtrips=2)
    async with Runtime(models=[model], services=[numbers()]) as runtime:
        result = await (await runtime.submit(definition, {})).result(raise_on_failure=False)
    assert result.error.code == "tool_roundtrips_exceeded"
    assert len(model.requests) == 3


@pytest.mark.parametrize("sent", [True, False])
async def test_a_schema_is_sent_and_its_answer_is_healed(sent: bool):
    model = ScriptedModel(["```json\n{'x': 3,}\n```"])
    definition = asking({"schema": SCHEMA}, prompt="p", heal=True, send_schema=sent)
    assert (await run(definition, model)).output == {"x": 3}
    assert first(model).output_schema == (SCHEMA if sent else None)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"stream": True}, '{"x": 3, "y": "z"}'),
        ({"stream": True, "stream_json_as_text": True}, "x: 3\ny: z\n"),
        ({}, ""),
        ({"stream": True, "heal": True}, ""),
    ],
    ids=["stream", "lines", "no stream", "heal"],
)
async def test_deltas_show_what_the_node_says(fields: dict[str, Any], shown: str):
    model = ScriptedModel(['{"x": 3, "y": "z"}'])
    async with Runtime(models=[model]) as runtime:
        with runtime.delta_hub.follow("wf_shown", lambda: None) as reader:
            await runtime.run(asking(prompt="p", schema=SCHEMA, **fields), {}, workflow_id="wf_shown")
            found = "".join(delta.data.text for delta in reader.take())
    assert found == shown


def person(**fields: Any) -> Definition:
    node = {"id": "a", "node_type": {"human_input": fields}, "config": {"prompt": "Which, {{ input.n }}?"}}
    return load_value({"id": "w", "entry_node": "a", "nodes": [node], "edges": []})


FORM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("fields", "wrong", "right", "output"),
    [
        ({"input_type": "choice", "options": ["a", {"value": 2, "label": "two"}]}, "b", 2, 2),
        ({"input_type": "text"}, 1, "so", "so"),
        ({"input_type": "form", "form_schema": FORM}, {"n": "x"}, {"n": 5}, {"n": 5}),
    ],
    ids=["choice", "text", "form"],
)
async def test_a_person_answers_by_the_id_of_the_request(fields: Any, wrong: Any, right: Any, output: Any):
    async with Runtime() as runtime:
        handle = await runtime.submit(person(**fields), {"n": "Ann"})
        await handle.rest()
        (request,) = await runtime.requests(handle.workflow_id)
        assert (request.request_type, request.subject["prompt"]) == (fields["input_type"], "Which, Ann?")
        with pytest.raises(AgentflowError):
            await runtime.answer(handle.workflow_id, request.request_id, wrong)
        await runtime.answer(handle.workflow_id, request.request_id, right)
        assert (await handle.result()).output == output


async def test_people_answer_at_the_ends_of_branches():
    nodes = [
        {"id": "ask", "node_type": {"parallel": {"nodes": ["ann", "bob"]}}},
        {"id": "ann", "node_type": {"human_input": {"input_type": "text"}}},
        {"id": "bob", "node_type": {"human_input": {"input_type": "choice", "options": [1, 2]}}},
    ]
    definition = load_value({"id": "w", "entry_node": "ask", "nodes": nodes})
    async with Runtime() as runtime:
        handle = await runtime.submit(definition, {})
        await handle.rest()
        asked = {one.step_id: one.request_id for one in await runtime.requests(handle.workflow_id)}
        await runtime.answer_all(handle.workflow_id, {asked["ann"]: "yes", asked["bob"]: 2})
        assert (await handle.result()).output == {"ann": "yes", "bob": 2}


async def test_what_fills_in_a_form_keeps_its_type():
    definition = person(input_type="form", form_schema=FORM, form_prefill="{{ input.given }}")
    async with Runtime() as runtime:
        handle = await runtime.submit(definition, {"n": "Ann", "given": {"n": 3}})
        await handle.rest()
        (request,) = await runtime.requests(handle.workflow_id)
        assert request.subject["form_data"] == {"n": 3}


@virtual
async def test_a_person_has_as_long_as_timeout_seconds_says():
    async with Runtime(clock=LoopClock()) as runtime:
        handle = await runtime.submit(person(input_type="text", timeout_seconds=5), {"n": "Ann"})
        await handle.rest()
        (request,) = await runtime.requests(handle.workflow_id)
        assert request.deadline is not None
        events = [event async for event in runtime.events(handle.workflow_id)]
        error = next(e.data.error for e in events if e.type == "workflow.step_failed")
    assert (error.code, error.category) == ("input_timeout", "timeout")


def planned(plan: Any) -> tuple[Definition, dict[str, Any]]:
    node = {"id": "a", "node_type": {"subgraph": {"graph_path": "input.plan"}}}
    return load_value({"id": "w", "entry_node": "a", "nodes": [node], "edges": []}), {"plan": plan}


async def test_a_plan_may_write_what_a_document_may():
    nodes = [
        {"id": "start", "type": "start", "next": "pick"},
        {"id": "pick", "type": "if", "expression": "{{ true }}", "on_true": "end", "on_false": "end"},
        {"id": "end", "type": "end", "output": 7},
    ]
    definition, given = planned({"name": "plan", "nodes": nodes})
    async with Runtime() as runtime:
        assert (await runtime.run(definition, given)).output["output"] == 7


@pytest.mark.parametrize(
    ("plan", "code", "path"),
    [
        ("no graph", "E_TYPE", ""),
        ({"name": "p", "nodes": [{"id": "start", "type": "strat"}]}, "E_UNKNOWN_KIND", "/nodes/0/type"),
        ({"name": "p", "nodes": [], "nods": 1}, "E_UNKNOWN_KEY", "/nods"),
    ],
    ids=["text", "kind", "key"],
)
async def test_a_plan_that_is_wrong_fails_with_its_diagnostics(plan: Any, code: str, path: str):
    definition, given = planned(plan)
    async with Runtime() as runtime:
        handle = await runtime.submit(definition, given)
        await handle.result(raise_on_failure=False)
        events = await log_of(runtime.log, handle.workflow_id)
    error = next(e.data.error for e in events if e.type == "workflow.step_failed")
    assert error.code == "dynamic_graph_invalid"
    assert (code, path) in [(d["code"], d.get("path") or "") for d in error.details["diagnostics"]]
