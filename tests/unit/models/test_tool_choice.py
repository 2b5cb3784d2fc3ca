"""`tool_choice` of a model object or node: what each adapter sends for it (page 003 §14)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentflow import LlmRequest, WorkflowRuntime
from agentflow.definition.conversation import Message, ToolCall, ToolSchema
from agentflow.graphs.homes import close_runtimes
from agentflow.models.base import ModelRequest
from agentflow.models.openai_wire import FunctionNames, encode_request

LOOKUP = ToolSchema(name="crm__lookup", description="", input_schema={"type": "object"})
DOUBLE = ToolSchema(name="math.double", description="", input_schema={"type": "object"})
ASKED = Message(role="user", content="go")
CALLED = Message(role="assistant", tool_calls=(ToolCall(id="call_1", name="crm__lookup", arguments="{}"),))
RESULT = Message(role="tool", content="1", tool_call_id="call_1")


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def sent(choice: Any, *messages: Message, tools: tuple[ToolSchema, ...] = (LOOKUP, DOUBLE)) -> Any:
    request = ModelRequest(
        model="m", messages=messages or (ASKED,), tools=tools, parameters={"tool_choice": choice}
    )
    return json.loads(encode_request(request, FunctionNames(tools))).get("tool_choice")


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_word_is_sent_as_it_is(choice: str):
    assert sent(choice) == choice


@pytest.mark.parametrize("name", ["crm__lookup", "crm.lookup", "lookup"])
def test_a_function_is_named_as_it_is_offered(name: str):
    assert sent(named(name)) == named("crm__lookup")


def test_a_name_is_written_as_the_protocol_takes_it():
    written = FunctionNames((LOOKUP, DOUBLE)).write("math.double")
    assert sent(named("math.double")) == named(written)
    assert "." not in written


@pytest.mark.parametrize("choice", ["required", named("lookup")])
def test_a_forced_call_is_made_once(choice: Any):
    assert sent(choice, ASKED, CALLED, RESULT) == "auto"
    assert sent(choice, ASKED, CALLED, RESULT, ASKED) != "auto"


def test_without_functions_nothing_is_sent():
    assert sent("required", tools=()) is None


def test_extra_is_sent_as_it_stands():
    request = ModelRequest(model="m", messages=(ASKED,), extra={"tool_choice": "any"})
    assert json.loads(encode_request(request, FunctionNames(())))["tool_choice"] == "any"


class Llm:
    def __init__(self) -> None:
        self.requests: list[LlmRequest] = []

    def execute(self, request: LlmRequest) -> Any:
        self.requests.append(request)
        if len(self.requests) == 1:
            from agentflow import LlmResponse

            return LlmResponse(tool_calls=({"name": "double", "arguments": {"x": 2}},))
        return "four"


class Tools:
    def execute_tool(self, request: Any) -> Any:
        return 2 * request.input["x"]


async def test_the_choice_of_a_node_reaches_the_model():
    tool = {"name": "double", "input_schema": {"type": "object", "required": ["x"]}}
    node = {"model": "m", "prompt": "p", "tools": [tool], "tool_choice": named("double")}
    source = {
        "id": "w",
        "entry_node": "a",
        "nodes": [{"id": "a", "node_type": {"llm_call": node}}],
        "edges": [],
    }
    llm = Llm()
    result = await WorkflowRuntime(llm_executor=llm, tool_executor=Tools()).execute(source, {})
    await close_runtimes()
    assert result.output == "four", result.error
    assert [r.parameters["tool_choice"] for r in llm.requests] == [named("double"), "auto"]
