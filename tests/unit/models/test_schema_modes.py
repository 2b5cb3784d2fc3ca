"""How a model is asked to answer by a schema: by the provider's own means, by a call, or in the prompt; and
what is sent in the place of what a server refuses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agentflow.definition.conversation import Message
from agentflow.models import ModelError, ModelProfile, ModelReply, ModelRequest, Models
from agentflow.models.table import known_profile

from .helpers import ask, ids, tool
from .wire_formats import CHAT, GEMINI, MESSAGES, RESPONSES, WIRES, Wire
from .wire_server import Answer, Seen, WireServer, plain, sending

KEY = "sk-of-the-tests-0123456789"
LOOKUP = tool("crm.lookup", id={"type": "integer"})
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
BY_SCHEMA = ask(output_schema=SCHEMA)
BOTH = ask(output_schema=SCHEMA, tools=(LOOKUP,))
ANSWER = ("p1", "answer", ['{"n":', " 3}"])

each_wire = pytest.mark.parametrize("wire", [pytest.param(w, id=name) for name, w in WIRES.items()])


async def exchange(
    wire: Wire, requests: list[ModelRequest], *answers: Answer, **profile: Any
) -> tuple[list[ModelReply], list[Seen]]:
    """Make the calls on one provider; return the replies and what the server got."""
    made = ModelProfile(**profile)
    async with WireServer(*answers) as server:
        provider = wire.provider(base_url=server.url, api_key=KEY, profiles=lambda model: made)
        try:
            return [await provider.complete(r, new_call_id=ids()) for r in requests], server.requests
        finally:
            await provider.aclose()


def refused(message: str, status: int = 400, **error: Any) -> Answer:
    return plain(status, {"error": {"message": message, "type": "invalid_request_error", **error}})


def ok(wire: Wire, text: str = '{"n": 3}') -> Answer:
    return sending(wire.stream([text]))


def forced(wire: Wire, name: str) -> Any:
    return {
        "openai": {"type": "function", "function": {"name": name}},
        "openai-responses": {"type": "function", "name": name},
        "anthropic": {"type": "tool", "name": name},
        "gemini": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}},
    }[wire.name]


def any_function(wire: Wire) -> Any:
    return {"anthropic": {"type": "any"}, "gemini": {"functionCallingConfig": {"mode": "ANY"}}}.get(
        wire.name, "required"
    )


def choice_in(body: dict[str, Any]) -> Any:
    return body.get("tool_choice", body.get("toolConfig"))


@each_wire
async def test_an_answer_by_a_call(wire: Wire) -> None:
    called = sending(wire.stream([], [ANSWER]))
    [reply], [seen] = await exchange(wire, [BY_SCHEMA], called, schema_mode="tool")
    assert (json.loads(reply.message.content), reply.message.tool_calls) == ({"n": 3}, ())
    assert (reply.end, reply.finish_reason) == ("complete", "stop")
    assert (wire.tools_in(seen.body), wire.schema_in(seen.body)) == (["answer"], None)
    assert choice_in(seen.body) == forced(wire, "answer")


@each_wire
async def test_an_answer_by_a_call_beside_functions(wire: Wire) -> None:
    """The model must call one in each turn, also when results are there."""
    call = ("p1", "crm__lookup", ['{"id": 1}'])
    [first], [seen] = await exchange(
        wire, [BOTH], sending(wire.stream([], [call])), schema_mode_with_functions="tool"
    )
    assert [c.name for c in first.message.tool_calls] == ["crm.lookup"]
    assert sorted(wire.tools_in(seen.body)) == ["answer", "crm__lookup"]
    assert choice_in(seen.body) == any_function(wire)
    result = Message(role="tool", tool_call_id=first.message.tool_calls[0].id, content="{}")
    later = msgspec.structs.replace(BOTH, messages=(*BOTH.messages, first.message, result))
    [last], [seen] = await exchange(
        wire, [later], sending(wire.stream([], [ANSWER])), schema_mode_with_functions="tool"
    )
    assert choice_in(seen.body) == any_function(wire)
    assert json.loads(last.message.content) == {"n": 3}


@each_wire
async def test_an_answer_beside_calls_waits_for_their_results(wire: Wire) -> None:
    calls = [ANSWER, ("p2", "crm__lookup", ['{"id": 2}'])]
    [reply], _ = await exchange(wire, [BOTH], sending(wire.stream([], calls)), schema_mode="tool")
    assert reply.message.content == ""
    assert [(c.name, c.provider_id) for c in reply.message.tool_calls] == [("crm.lookup", "p2")]


@each_wire
async def test_a_call_that_the_document_forces_comes_before_the_answer(wire: Wire) -> None:
    parameters = {"tool_choice": {"type": "function", "function": {"name": "crm.lookup"}}}
    request = msgspec.structs.replace(BOTH, parameters=parameters)
    _, [seen] = await exchange(wire, [request], ok(wire), schema_mode="tool")
    assert choice_in(seen.body) == forced(wire, "crm__lookup")
    request = msgspec.structs.replace(BOTH, parameters={"tool_choice": "none"})
    _, [seen] = await exchange(wire, [request], ok(wire), schema_mode="tool")
    assert choice_in(seen.body) == forced(wire, "answer")


@each_wire
async def test_a_function_called_answer_stays_a_function(wire: Wire) -> None:
    request = msgspec.structs.replace(BOTH, tools=(tool("answer"),))
    called = sending(wire.stream([], [("p1", "answer", ['{"id": 1}'])]))
    [reply], [seen] = await exchange(wire, [request], called, schema_mode="tool")
    assert sorted(wire.tools_in(seen.body)) == ["answer", "final_answer"]
    assert [c.name for c in reply.message.tool_calls] == ["answer"]


@each_wire
@pytest.mark.parametrize("request_", [BY_SCHEMA, BOTH], ids=["alone", "beside functions"])
async def test_an_answer_asked_for_in_the_prompt(wire: Wire, request_: ModelRequest) -> None:
    [reply], [seen] = await exchange(wire, [request_], ok(wire), schema_mode="prompt")
    assert reply.message.content == '{"n": 3}'
    assert "answer" not in wire.tools_in(seen.body)
    assert wire.schema_in(seen.body) is None
    assert choice_in(seen.body) is None
    assert any('"integer"' in text for text in wire.texts_in(seen.body))


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, MESSAGES], ids=lambda w: w.name)
@pytest.mark.parametrize("schema", [True, {}, {"type": "array", "items": {"type": "integer"}}], ids=str)
async def test_a_schema_of_no_object_is_asked_for_in_the_prompt(wire: Wire, schema: Any) -> None:
    _, [seen] = await exchange(wire, [ask(output_schema=schema)], ok(wire), schema_mode="tool")
    assert wire.schema_in(seen.body) is None
    texts = wire.texts_in(seen.body)
    assert [text for text in texts if text in ("You help.", "Hello")] == [texts[0], texts[-1]]
    assert "JSON" in texts[1]
    assert ("array" in texts[1]) is (isinstance(schema, dict) and bool(schema))


async def test_what_belongs_to_a_call_goes_with_it() -> None:
    """Signatures of calls, which Gemini wants back, keep their call when the answer is taken out."""
    call = {"name": "crm__lookup", "args": {"id": 1}, "id": "p2"}
    parts = [
        {"functionCall": {"name": "answer", "args": {"n": 3}, "id": "p1"}, "thoughtSignature": "YQ=="},
        {"functionCall": call, "thoughtSignature": "Yg=="},
    ]
    for number, kept in ((2, [{"call": 0, "thoughtSignature": "Yg=="}]), (1, [])):
        candidate = {"index": 0, "content": {"parts": parts[:number]}, "finishReason": "STOP"}
        body = b"data: " + json.dumps({"candidates": [candidate]}).encode() + b"\n\n"
        [reply], _ = await exchange(GEMINI, [BOTH], sending(body), schema_mode="tool")
        assert [part.data for part in reply.message.reasoning] == kept


# -- What servers refuse ------------------------------------------------------------------------------

NO_FORMAT = [
    pytest.param(CHAT, "This response_format type is unavailable now", {}, id="DeepSeek"),
    pytest.param(
        CHAT, "json_schema is not supported by this model", {"param": "response_format"}, id="gateway"
    ),
    pytest.param(
        CHAT,
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        {"param": "response_format"},
        id="OpenAI",
    ),
    pytest.param(
        RESPONSES,
        "Invalid parameter: 'text.format' of type 'json_schema' is not supported with model version `m`.",
        {"param": "text.format"},
        id="Azure",
    ),
    pytest.param(MESSAGES, "output_config: Extra inputs are not permitted", {}, id="Anthropic"),
    pytest.param(
        GEMINI,
        "Invalid JSON payload received. Unknown name \"responseJsonSchema\" at 'generation_config'",
        {},
        id="Gemini",
    ),
]


@pytest.mark.parametrize(("wire", "message", "error"), NO_FORMAT)
async def test_a_schema_that_is_refused_is_sent_in_the_next_way(
    wire: Wire, message: str, error: dict[str, Any]
) -> None:
    """A forced function comes first, then the prompt; a later call begins where the last one ended."""
    no_choice = refused("deepseek-reasoner does not support this tool_choice")
    answers = (refused(message, **error), no_choice, ok(wire))
    replies, seen = await exchange(wire, [BY_SCHEMA, BY_SCHEMA], *answers)
    ways = [(wire.schema_in(s.body) is not None, "answer" in wire.tools_in(s.body)) for s in seen]
    assert ways == [(True, False), (False, True), (False, False), (False, False)]
    for reply in replies:
        [warning] = reply.warnings
        assert warning.endswith("does not take the schema of the answer: sent in the prompt")


async def test_a_schema_refused_beside_functions_alone_is_native_without_them() -> None:
    refusal = refused("response_format json_schema cannot be combined with tools")
    [both, alone], seen = await exchange(CHAT, [BOTH, BY_SCHEMA], refusal, ok(CHAT))
    assert [CHAT.schema_in(s.body) is not None for s in seen] == [True, False, True]
    assert both.warnings == ("openai:m does not take the schema of the answer: sent as a function",)
    assert alone.warnings == ()


async def test_a_schema_that_is_refused_in_every_way_changes_nothing_for_others() -> None:
    """The schema was wrong, not the way: the next request, by another schema, is native."""
    refusals = [
        refused("Invalid schema for response_format 'answer'"),
        refused("Invalid schema for function"),
    ]
    async with WireServer(*refusals, ok(CHAT)) as server:
        provider = CHAT.provider(base_url=server.url, api_key=KEY, profiles=lambda model: ModelProfile())
        with pytest.raises(ModelError):
            await provider.complete(BY_SCHEMA, new_call_id=ids())
        reply = await provider.complete(BY_SCHEMA, new_call_id=ids())
        await provider.aclose()
    assert [CHAT.schema_in(seen.body) is None for seen in server.requests] == [False, True, False]
    assert reply.warnings == ()


async def test_a_refusal_that_is_about_something_else_is_told() -> None:
    with pytest.raises(ModelError) as caught:
        await exchange(CHAT, [BY_SCHEMA], refused("messages: at least one message is required"))
    assert caught.value.info.code == "invalid_request"
    with pytest.raises(ModelError):  # nothing is left to try
        await exchange(CHAT, [BY_SCHEMA], refused("response_format"), schema_mode="prompt")


MAX_TOKENS = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead."
)


def limits_in(seen: list[Seen]) -> list[dict[str, Any]]:
    return [{k: v for k, v in s.body.items() if k.startswith("max_")} for s in seen]


async def test_a_limit_that_is_refused_goes_out_under_its_other_name_azure() -> None:
    refusal = refused(MAX_TOKENS, param="max_tokens", code="unsupported_parameter")
    request = ask(parameters={"max_tokens": 7})
    replies, seen = await exchange(CHAT, [request, request], refusal, ok(CHAT))
    assert limits_in(seen) == [{"max_tokens": 7}, {"max_completion_tokens": 7}, {"max_completion_tokens": 7}]
    [warning] = replies[0].warnings
    assert warning == "openai:m does not take max_tokens: sent as max_completion_tokens"


async def test_a_limit_that_is_refused_under_both_names_is_never_left_out() -> None:
    refusals = [
        refused("no", param=name, code="unsupported_parameter")
        for name in ("max_tokens", "max_completion_tokens")
    ]
    with pytest.raises(ModelError) as caught:
        await exchange(CHAT, [ask(parameters={"max_tokens": 7})], *refusals)
    assert caught.value.info.code == "invalid_request"


@each_wire
async def test_a_limit_that_is_refused_whatever_its_name_is_tried_twice_at_most(wire: Wire) -> None:
    """A proxy names the parameter as its own upstream does."""
    refusals = [refused("no", param="max_tokens", code="unsupported_parameter")] * 3
    with pytest.raises(ModelError) as caught:
        await exchange(wire, [ask(parameters={"max_tokens": 7})], *refusals, ok(wire))
    assert caught.value.info.code == "invalid_request"


async def test_stream_options_that_are_refused_are_left_out_mistral() -> None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]
    replies, seen = await exchange(CHAT, [ask(), ask()], plain(422, {"detail": detail}), ok(CHAT))
    assert ["stream_options" in s.body for s in seen] == [True, False, False]
    assert replies[0].warnings == ("openai:m does not take stream_options: left out",)


@pytest.mark.parametrize(
    ("wire", "answer", "parameter"),
    [
        pytest.param(CHAT, refused("Unrecognized request argument supplied: seed"), "seed", id="Azure"),
        pytest.param(CHAT, refused("property 'logprobs' is unsupported"), "logprobs", id="Groq"),
        pytest.param(
            CHAT,
            plain(
                400, {"object": "error", "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'store')"}
            ),
            "store",
            id="vLLM",
        ),
        pytest.param(
            CHAT,
            plain(422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]}),
            "seed",
            id="Mistral",
        ),
        pytest.param(
            GEMINI,
            refused("Invalid JSON payload received. Unknown name \"topP\" at 'generation_config': Cannot"),
            "top_p",
            id="Gemini",
        ),
        pytest.param(
            CHAT,
            refused(
                "Only the default (1) value is supported.", param="temperature", code="unsupported_value"
            ),
            "temperature",
            id="OpenAI",
        ),
    ],
)
async def test_a_parameter_that_is_refused_is_left_out(wire: Wire, answer: Answer, parameter: str) -> None:
    [reply], seen = await exchange(wire, [ask(parameters={parameter: 1})], answer, ok(wire))
    assert len(seen) == 2
    assert reply.warnings == (f"{wire.name}:m does not take {parameter}: left out",)
    assert parameter.replace("_", "") not in json.dumps(seen[1].body).lower()


async def test_a_model_that_does_not_know_parallel_calls_is_not_told_of_them_openai() -> None:
    refusal = refused("no", param="parallel_tool_calls", code="unsupported_parameter")
    request = ask(tools=(LOOKUP,), parallel_tool_calls=False)
    replies, seen = await exchange(CHAT, [request, request], refusal, ok(CHAT))
    assert ["parallel_tool_calls" in s.body for s in seen] == [True, False, False]
    assert replies[1].warnings == ("openai:m does not take parallel_tool_calls: left out",)


# -- The table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "alone", "beside"),
    [
        ("openai", "native", None),
        ("azure", "native", None),
        ("deepseek", "tool", None),
        ("gemini", "native", "prompt"),
        ("llamacpp", "native", "tool"),
        ("vllm", "native", "tool"),
        ("lmstudio", "native", "tool"),
        ("ollama", "native", "prompt"),
    ],
)
def test_the_modes_of_the_table(server: str, alone: str, beside: str | None) -> None:
    profile = known_profile(server, "any")
    assert (profile.schema_mode, profile.schema_mode_with_functions) == (alone, beside)


async def test_a_configured_provider_states_what_its_server_takes() -> None:
    stated = {
        "schema_mode": "prompt",
        "stream_options": False,
        "output_limit_name": "max_completion_tokens",
    }
    async with WireServer(ok(CHAT)) as server:
        mine = {"kind": "openai", "base_url": server.url, "defaults": stated}
        models = Models(env={}, config={"providers": {"mine": mine}})
        request = msgspec.structs.replace(BY_SCHEMA, parameters={"max_tokens": 7})
        await models.provider(models.resolve("mine:m")).complete(request, new_call_id=ids())
        await models.aclose()
        [seen] = server.requests
    assert limits_in([seen]) == [{"max_completion_tokens": 7}]
    assert seen.body.keys().isdisjoint({"stream_options", "response_format"})
