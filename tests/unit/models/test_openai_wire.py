import json
from typing import Any

import pytest

from agentflow.definition.conversation import Message, ToolCall
from agentflow.models import ModelRequest
from agentflow.models.function_names import FunctionNames
from agentflow.models.openai_wire import encode_request
from agentflow.models.output_schemas import strict_schema

from .helpers import ask, tool


def written(request: ModelRequest, **options: Any) -> dict[str, Any]:
    return json.loads(encode_request(request, FunctionNames(request.tools), **options))


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def test_parameters_go_along_but_never_replace_the_request() -> None:
    body = written(ask(parameters={"temperature": 0, "stream": False, "model": "x", "logit_bias": {"1": 2}}))
    assert body == {
        "temperature": 0,
        "logit_bias": {"1": 2},
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hello"}],
    }


@pytest.mark.parametrize("value", [None, "x", 3, [1]])
def test_usage_is_asked_for_whatever_extra_says(value: Any) -> None:
    for options in (value, {"include_usage": False}):
        body = written(ask(extra={"stream_options": options}))
        assert body["stream_options"] == {"include_usage": True}


def test_the_official_service_gets_its_own_name_for_the_output_limit() -> None:
    body = written(ask(parameters={"max_tokens": 5}), output_limit_name="max_completion_tokens")
    assert (body.get("max_tokens"), body["max_completion_tokens"]) == (None, 5)
    assert written(ask(parameters={"max_tokens": 5}))["max_tokens"] == 5


def test_a_tool_conversation_uses_the_ids_of_the_provider() -> None:
    call = ToolCall(id="call_A", name="crm.lookup", arguments='{"id":7}', provider_id="p-1")
    other = ToolCall(id="call_B", name="crm.lookup", arguments="{}")
    request = ModelRequest(
        model="m",
        messages=(
            Message(role="user", content="go"),
            Message(role="assistant", tool_calls=(call, other)),
            Message(role="tool", content="found", tool_call_id="call_A"),
            Message(role="tool", content="none", tool_call_id="call_B"),
        ),
        tools=(tool("crm.lookup"),),
        parallel_tool_calls=False,
    )
    body = written(request)
    assert body["parallel_tool_calls"] is False
    assert body["tools"][0]["function"]["name"] == "crm__lookup"
    assistant, first, second = body["messages"][1:]
    assert assistant == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "p-1", "type": "function", "function": {"name": "crm__lookup", "arguments": '{"id":7}'}},
            {"id": "call_B", "type": "function", "function": {"name": "crm__lookup", "arguments": "{}"}},
        ],
    }
    assert (first["tool_call_id"], second["tool_call_id"]) == ("p-1", "call_B")


def test_function_names_come_back_and_never_collide() -> None:
    declared = ["a.b", "a__b", "plain", "x" * 64, "y." + "z" * 70]
    names = FunctionNames([tool(name) for name in declared])
    wire = [names.write(name) for name in declared]
    assert len(set(wire)) == len(declared)
    assert all(len(w) <= 64 and "." not in w for w in wire)
    assert names.write("a__b") == "a__b"
    assert [names.read(w) for w in wire] == declared
    assert names.read("invented") == "invented"


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (closed(a={"type": "string"}), True),
        (closed(a=closed(b={"type": "integer"}), c={"type": "array", "items": {"enum": [1]}}), True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        (closed(a={"type": "object", "properties": {}}), False),
        ({**closed(a={"type": "string"}), "required": []}, False),
        (closed(a={"type": "string", "minLength": 1}), False),
        ({**closed(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"type": "object"}}}, False),
        (closed(a={"anyOf": [{"type": "string"}, closed()]}), True),
        (closed(a=True), False),
    ],
)
def test_strict_only_where_the_schema_allows_it(schema: dict[str, Any], strict: bool) -> None:
    assert strict_schema(schema) is strict
    asked = written(ask(output_schema={"$schema": "s", **schema}))["response_format"]
    assert asked == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": strict},
    }
