"""What every wire format must do alike: the four ends, whole answers only, reasoning that goes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentflow.definition.conversation import Message
from agentflow.models import ModelError, ModelReply, ModelRequest
from agentflow.models.streamed import StreamedProvider
from agentflow.models.table import known_profile

from .helpers import ask, ids, tool
from .wire_formats import CHAT, GEMINI, MESSAGES, RESPONSES, WIRES, Call, Wire, encode
from .wire_server import WireServer, plain, sending

DONE = b"data: [DONE]\n\n"
KEY = "sk-of-the-tests-0123456789"
LOOKUP = tool("crm.lookup", id={"type": "integer"})
CALLS: list[Call] = [("p1", "crm__lookup", ['{"id"', ": 1}"]), ("p2", "crm__lookup", ['{"id": 2}'])]

each_wire = pytest.mark.parametrize("wire", [pytest.param(w, id=name) for name, w in WIRES.items()])


async def complete(wire: Wire, answer: Any, request: ModelRequest | None = None) -> ModelReply:
    async with WireServer(answer) as server:
        provider = wire.provider(base_url=server.url, api_key=KEY)
        try:
            return await provider.complete(request or ask(tools=(LOOKUP,)), new_call_id=ids())
        finally:
            await provider.aclose()


async def fail(wire: Wire, answer: Any, request: ModelRequest | None = None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await complete(wire, answer, request)
    assert KEY not in f"{caught.value} {caught.value.info}"
    return caught.value


async def sent(wire: Wire, request: ModelRequest) -> dict[str, Any]:
    """Return the body of the request as the server got it."""
    async with WireServer(sending(wire.stream(["ok"]))) as server:
        provider = wire.provider(base_url=server.url, api_key=KEY)
        await provider.complete(request, new_call_id=ids())
        await provider.aclose()
        return server.requests[0].body


@each_wire
@pytest.mark.parametrize("pieces", [0, 1, 7])
async def test_text_and_calls_in_pieces_of_any_size(wire: Wire, pieces: int) -> None:
    reply = await complete(wire, sending(wire.stream(["Grüße, ", "世界 🎉"], CALLS), pieces))
    assert reply.message.content == "Grüße, 世界 🎉"
    calls = [(c.id, c.provider_id, c.name, json.loads(c.arguments)) for c in reply.message.tool_calls]
    assert calls == [("call_1", "p1", "crm.lookup", {"id": 1}), ("call_2", "p2", "crm.lookup", {"id": 2})]
    assert (reply.end, reply.finish_reason) == ("complete", "tool_calls")
    assert (reply.response_id, reply.response_model) == ("resp-1", "m-2025")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (100, 20, 40)
    assert usage.reasoning_output_tokens == 5
    assert usage.model_calls == 1


def with_counts(value: Any, write: Callable[[int], Any], counted: bool = False) -> Any:
    """Return the events of a stream with the counts of tokens written another way."""
    if isinstance(value, dict):
        return {
            k: with_counts(v, write, counted or k in ("usage", "usageMetadata")) for k, v in value.items()
        }
    if isinstance(value, list):
        return [with_counts(item, write, counted) for item in value]
    return write(value) if counted and type(value) is int else value


@each_wire
@pytest.mark.parametrize("write", [str, float], ids=["text", "float"])
async def test_counts_may_be_whole_numbers_of_another_form(wire: Wire, write: Callable[[int], Any]) -> None:
    events = wire.events(["Hello"], CALLS, "complete")
    written = encode(with_counts(events, write))
    assert written != encode(events)
    reply = await complete(wire, sending(written))
    assert reply.usage == (await complete(wire, sending(encode(events)))).usage


@each_wire
@pytest.mark.parametrize("count", ["twelve", "-1", "1.5", "", "1e3", " 12", "٣", "9" * 16])
async def test_a_count_that_is_no_whole_number_is_refused(wire: Wire, count: str) -> None:
    events = wire.events(["Hello"], (), "complete")
    error = await fail(wire, sending(encode(with_counts(events, lambda _: count))))
    assert error.info.category in ("transient", "invalid_output")


@each_wire
@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_stream_cut_at_any_byte_is_whole_or_an_error(wire: Wire, step: int) -> None:
    """An answer whose calls could be executed arrives only if the server had said how it ended."""
    body = wire.stream(["Hello"], CALLS)
    whole = await complete(wire, sending(body))
    ended = late = 0
    categories: set[str] = set()
    for cut in range(0, len(body) - 2, step):
        try:
            reply = await complete(wire, sending(body[:cut]))
        except ModelError as error:
            categories.add(error.info.category)
            late += ended
        else:
            ended += 1
            assert reply.message == whole.message
            assert reply.end == "complete"
    assert categories <= {"transient", "invalid_output"}
    assert late == 0, "an error behind the end of the answer"


@each_wire
async def test_an_answer_that_is_cut_by_length_is_cut(wire: Wire) -> None:
    reply = await complete(wire, sending(wire.stream(["half"], [("p1", "crm__lookup", [])], "cut")))
    assert (reply.end, reply.finish_reason) == ("cut", "length")
    assert reply.provider_finish_reason not in (None, "length") or wire is CHAT
    assert reply.usage.output_tokens == 20


@each_wire
async def test_an_answer_that_is_withheld_is_an_error_that_was_paid_for(wire: Wire) -> None:
    error = await fail(wire, sending(wire.stream(["half"], [], "withheld")))
    assert (error.info.category, error.info.code) == ("agent", "content_filtered")
    assert error.partial == "half"
    assert error.usage is not None
    assert error.usage.output_tokens == 20


@each_wire
async def test_an_answer_that_failed_may_be_asked_for_again(wire: Wire) -> None:
    error = await fail(wire, sending(wire.stream(["half"], [], "failed")))
    assert (error.info.category, error.info.code) == ("transient", "server_error")
    assert error.info.retryable
    assert error.partial == "half"


@each_wire
async def test_an_error_inside_a_stream(wire: Wire) -> None:
    whole = wire.events(["half"], [], "complete")
    error = await fail(wire, sending(encode([*whole[:-2], wire.error])))
    assert (error.info.category, error.info.code) == ("transient", "server_error")
    assert error.partial in ("half", None, "")


@each_wire
async def test_what_follows_the_end_of_an_answer_is_no_part_of_it(wire: Wire) -> None:
    whole = wire.stream(["he", "llo"], CALLS)
    if wire is CHAT:
        whole = whole.removesuffix(DONE) + DONE
    expected = (await complete(wire, sending(whole))).message
    if wire is GEMINI:  # which has no word for the end
        follows = [b"data:\n\n", b": bye\n\n"]
    else:
        follows = [b"data:\n\n", b": bye\n\n", b"data: garbage\n\n", whole]
    for more in follows:
        reply = await complete(wire, sending(whole + more))
        assert reply.message.content == expected.content
        calls = [(call.name, call.arguments) for call in reply.message.tool_calls]
        assert calls == [(call.name, call.arguments) for call in expected.tool_calls]


@each_wire
async def test_an_event_without_data_is_none(wire: Wire) -> None:
    whole = wire.stream(["hello"])
    reply = await complete(wire, sending(b"data:\n\n" + whole.replace(b"\n\n", b"\n\ndata: \n\n", 1)))
    assert reply.message.content == "hello"


@each_wire
async def test_an_event_that_is_none_of_the_format(wire: Wire) -> None:
    error = await fail(wire, sending(b"data: {nonsense\n\n"))
    assert (error.info.category, error.info.code) == ("invalid_output", "invalid_response")
    assert "the answer is not" in error.info.message


@each_wire
async def test_arguments_that_are_missing_are_empty_only_in_a_whole_answer(wire: Wire) -> None:
    reply = await complete(wire, sending(wire.stream([], [("p1", "crm__lookup", [])])))
    assert [call.arguments for call in reply.message.tool_calls] == ["{}"]


@each_wire
async def test_functions_texts_and_schema_are_sent(wire: Wire) -> None:
    schema = {"$schema": "x", "type": "object", "properties": {}, "additionalProperties": False}
    body = await sent(wire, ask("Guten Tag", output_schema=schema))
    assert wire.schema_in(body) == {key: value for key, value in schema.items() if key != "$schema"}
    assert any("Guten Tag" in text for text in wire.texts_in(body))
    assert any("You help." in text for text in wire.texts_in(body))
    assert wire.tools_in(await sent(wire, ask(tools=(LOOKUP,)))) == ["crm__lookup"]


@each_wire
async def test_reasoning_goes_back_to_its_provider_alone_and_unchanged(wire: Wire) -> None:
    events = wire.events([], CALLS if wire in (MESSAGES, RESPONSES) else [], "complete")
    begin = 1 if wire in (MESSAGES, RESPONSES) else 0
    stream = encode([*events[:begin], *wire.reasoned(), *events[begin:]])
    reply = await complete(wire, sending(stream), ask(tools=(LOOKUP, tool("lookup"))))
    assert [part.data for part in reply.message.reasoning] == wire.reasoning
    assert {part.provider for part in reply.message.reasoning} == {wire.name}
    stored = msgspec.json.decode(msgspec.json.encode(reply.message), type=Message)
    results = [Message(role="tool", tool_call_id=c.id, content="{}") for c in stored.tool_calls]
    request = ask(tools=(LOOKUP, tool("lookup")))
    request = msgspec.structs.replace(request, messages=(*request.messages, stored, *results))
    assert wire.wanted_back(await sent(wire, request)) == wire.reasoning
    for other in WIRES.values():
        if other is not wire:
            body = json.dumps(await sent(other, request))
            assert "c2lnbmF0dXJl" not in body
            assert "b3BhcXVl" not in body


REFUSALS = [
    (
        MESSAGES,
        401,
        {"type": "error", "error": {"type": "authentication_error", "message": f"bad {KEY}"}},
        "auth",
    ),
    (MESSAGES, 403, {"type": "error", "error": {"type": "permission_error", "message": "no"}}, "auth"),
    (MESSAGES, 404, {"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}, "auth"),
    (
        MESSAGES,
        429,
        {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}},
        "rate_limited",
    ),
    (MESSAGES, 529, {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}, "transient"),
    (MESSAGES, 400, {"error": {"type": "invalid_request_error", "message": "x: bad"}}, "invalid_input"),
    (
        MESSAGES,
        400,
        {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to go on."}},
        "quota",
    ),
    (GEMINI, 429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "x"}}, "rate_limited"),
    (
        GEMINI,
        400,
        {"error": {"code": 400, "message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}},
        "auth",
    ),
    (GEMINI, 503, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "x"}}, "transient"),
    (RESPONSES, 429, {"error": {"code": "insufficient_quota", "message": "x"}}, "quota"),
    (RESPONSES, 500, {"error": {"type": "server_error", "message": "x"}}, "transient"),
]


@pytest.mark.parametrize(
    ("wire", "status", "body", "category"),
    [pytest.param(*case, id=f"{case[0].name}-{n}-{case[3]}") for n, case in enumerate(REFUSALS)],
)
async def test_refusals_have_their_category(wire: Wire, status: int, body: Any, category: str) -> None:
    error = await fail(wire, plain(status, body))
    assert error.info.category == category
    assert error.uncharged


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (MESSAGES, "prompt is too long: 205000 tokens > 200000 maximum"),
        (GEMINI, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        (CHAT, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."),
        (CHAT, "the request exceeds the available context size, try increasing it"),
        (RESPONSES, "Your input exceeds the context window of this model."),
    ],
)
async def test_a_prompt_that_is_too_long_is_recognised(wire: Wire, message: str) -> None:
    error = await fail(wire, plain(400, {"error": {"type": "invalid_request_error", "message": message}}))
    assert (error.info.category, error.info.code) == ("invalid_input", "context_length_exceeded")


@each_wire
async def test_a_quoted_status_in_a_good_answer_is_text(wire: Wire) -> None:
    reply = await complete(wire, sending(wire.stream(["HTTP 503: maximum context length is 10"])))
    assert reply.message.content == "HTTP 503: maximum context length is 10"


async def test_a_parameter_that_the_messages_api_refuses_is_dropped_once() -> None:
    refusal = plain(
        400,
        {
            "error": {
                "type": "invalid_request_error",
                "message": "temperature: Extra inputs are not permitted",
            }
        },
    )
    async with WireServer(refusal, sending(MESSAGES.stream(["ok"]))) as server:
        provider = MESSAGES.provider(base_url=server.url, api_key=KEY)
        reply = await provider.complete(ask(parameters={"temperature": 0.5}), new_call_id=ids())
        assert reply.warnings == ("anthropic:m does not take temperature: left out",)
        await provider.complete(ask(parameters={"temperature": 0.5}), new_call_id=ids())
        assert ["temperature" in request.body for request in server.requests] == [True, False, False]
        await provider.aclose()


async def test_the_key_stands_in_the_header_that_each_format_names() -> None:
    headers = [
        (CHAT, "authorization", f"Bearer {KEY}"),
        (RESPONSES, "authorization", f"Bearer {KEY}"),
        (MESSAGES, "x-api-key", KEY),
        (GEMINI, "x-goog-api-key", KEY),
    ]
    for wire, name, value in headers:
        async with WireServer(sending(wire.stream(["ok"])), sending(wire.stream(["ok"]))) as server:
            provider = wire.provider(base_url=server.url, api_key=KEY)
            await provider.complete(ask(), new_call_id=ids())
            other = wire.provider(base_url=server.url, api_key=KEY, key_header="api-key")
            await other.complete(ask(), new_call_id=ids())
            first, second = server.requests
            assert first.headers[name] == value
            assert KEY not in first.path
            assert second.headers["api-key"] == KEY
            assert name not in second.headers
            await provider.aclose()
            await other.aclose()


async def test_a_server_that_wants_its_reasoning_text_back_gets_it() -> None:
    """DeepSeek refuses a turn of functions without it; the official service knows no such field."""
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "Let me see."}}]}
    stream = sending(encode([thought, *CHAT.events([], CALLS, "complete")]))
    for profile, back in (("deepseek", "Let me see."), ("openai", None)):
        async with WireServer(stream) as server:
            provider = CHAT.provider(
                base_url=server.url,
                api_key=KEY,
                profiles=lambda model, name=profile: known_profile(name, model),
            )
            reply = await provider.complete(ask(tools=(LOOKUP,)), new_call_id=ids())
            results = [
                Message(role="tool", tool_call_id=c.id, content="{}") for c in reply.message.tool_calls
            ]
            request = ask(tools=(LOOKUP,))
            messages = (*request.messages, reply.message, *results)
            await provider.complete(msgspec.structs.replace(request, messages=messages), new_call_id=ids())
            await provider.aclose()
            assert server.requests[1].body["messages"][2].get("reasoning_content") == back


class TestMessages:
    async def test_the_prompt_is_cached_where_it_is_repeated(self) -> None:
        body = await sent(MESSAGES, ask(tools=(LOOKUP,)))
        assert body["system"][-1]["cache_control"] == {"type": "ephemeral"}
        assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
        assert "cache_control" not in json.dumps(await sent(MESSAGES, ask()))

    async def test_a_limit_is_always_sent(self) -> None:
        assert (await sent(MESSAGES, ask()))["max_tokens"] == 32_000
        assert (await sent(MESSAGES, ask(parameters={"max_tokens": 7})))["max_tokens"] == 7

    @pytest.mark.parametrize(
        ("limit", "thinking"),
        [
            (20_000, {"type": "enabled", "budget_tokens": 10_000}),
            (10_000, {"type": "enabled", "budget_tokens": 7_500}),
            (1_366, {"type": "enabled", "budget_tokens": 1_024}),
            (1_300, {"type": "disabled"}),
        ],
    )
    async def test_thoughts_stay_below_a_limit_that_a_budget_lowered(
        self, limit: int, thinking: dict[str, Any]
    ) -> None:
        asked = {"max_tokens": limit, "thinking": {"type": "enabled", "budget_tokens": 10_000}}
        assert (await sent(MESSAGES, ask(parameters=asked)))["thinking"] == thinking

    async def test_neighbours_of_one_role_are_one_turn_and_results_come_first(self) -> None:
        reply = await complete(MESSAGES, sending(MESSAGES.stream(["Look:"], CALLS)))
        request = ask(tools=(LOOKUP,))
        first, second = reply.message.tool_calls
        more = (
            reply.message,
            Message(role="tool", tool_call_id=first.id, content="1"),
            Message(role="tool", tool_call_id=second.id, content="2"),
            Message(role="user", content="Go on."),
            Message(role="system", content="Be short."),
        )
        body = await sent(MESSAGES, msgspec.structs.replace(request, messages=(*request.messages, *more)))
        assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
        last = body["messages"][-1]["content"]
        assert [block["type"] for block in last] == ["tool_result", "tool_result", "text", "text"]
        assert [block.get("tool_use_id") for block in last[:2]] == ["p1", "p2"]
        assert body["messages"][1]["content"][1]["input"] == {"id": 1}

    async def test_a_schema_that_the_api_does_not_take_is_the_argument_of_a_function(self) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
        stream = sending(MESSAGES.stream([], [("p1", "answer", ['{"n": 3}'])]))
        async with WireServer(stream) as server:
            provider = MESSAGES.provider(base_url=server.url, api_key=KEY)
            reply = await provider.complete(ask(output_schema=schema), new_call_id=ids())
            await provider.aclose()
        assert (reply.message.content, reply.message.tool_calls) == ('{"n": 3}', ())
        assert reply.finish_reason == "stop"
        body = server.requests[0].body
        assert body["tool_choice"] == {"type": "tool", "name": "answer"}
        body = await sent(MESSAGES, ask(output_schema=schema, tools=(LOOKUP,)))
        assert body["tool_choice"] == {"type": "any"}
        thinking = {"thinking": {"type": "adaptive"}}
        body = await sent(MESSAGES, ask(output_schema=schema, parameters=thinking))
        assert "tools" not in body
        assert any("minimum" in text for text in MESSAGES.texts_in(body))

    async def test_a_body_that_was_not_streamed(self) -> None:
        usage = {"input_tokens": 3, "output_tokens": 2}
        content = [
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "p", "name": "f", "input": {"a": 1}},
        ]
        body = {"type": "message", "id": "x", "model": "m", "content": content, "stop_reason": "tool_use"}
        reply = await complete(MESSAGES, plain(200, {**body, "usage": usage}))
        assert reply.message.content == "hi"
        assert [(c.name, c.arguments) for c in reply.message.tool_calls] == [("f", '{"a":1}')]
        assert reply.usage.input_tokens == 3


class TestGemini:
    async def test_a_blocked_prompt_is_withheld(self) -> None:
        blocked = {"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 9}}
        error = await fail(GEMINI, sending(encode([blocked])))
        assert error.info.code == "content_filtered"
        assert error.info.details == {"finish_reason": "OTHER"}

    async def test_a_body_that_is_an_array_of_all_events_proxy(self) -> None:
        for end in ("complete", "cut"):
            reply = await complete(GEMINI, plain(200, GEMINI.events(["Grü", "ße"], CALLS, end)))
            assert (reply.message.content, len(reply.message.tool_calls), reply.end) == ("Grüße", 2, end)
        assert (await fail(GEMINI, plain(200, GEMINI.events(["a"], [], "complete")[:1]))).info.retryable

    @pytest.mark.parametrize("reason", ["LANGUAGE", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"])
    async def test_reasons_of_its_own_to_withhold(self, reason: str) -> None:
        events = GEMINI.events(["a"], [], "complete")
        events[-1]["candidates"][0]["finishReason"] = reason
        assert (await fail(GEMINI, sending(encode(events)))).info.code == "content_filtered"

    async def test_parameters_have_their_own_names(self) -> None:
        parameters = {"max_tokens": 7, "stop": "END", "top_p": 0.5, "reasoning_effort": "low"}
        body = await sent(GEMINI, ask(parameters=parameters, extra={"cachedContent": "c"}))
        assert body["generationConfig"] == {
            "maxOutputTokens": 7,
            "stopSequences": ["END"],
            "topP": 0.5,
            "thinkingConfig": {"thinkingLevel": "LOW"},
        }
        assert body["cachedContent"] == "c"

    async def test_a_result_names_its_call(self) -> None:
        reply = await complete(GEMINI, sending(GEMINI.stream([], CALLS)))
        request = ask(tools=(LOOKUP,))
        first, second = reply.message.tool_calls
        more = (
            reply.message,
            Message(role="tool", tool_call_id=first.id, content='{"plan": "gold"}'),
            Message(role="tool", tool_call_id=second.id, content="none"),
        )
        body = await sent(GEMINI, msgspec.structs.replace(request, messages=(*request.messages, *more)))
        responses = [part["functionResponse"] for part in body["contents"][-1]["parts"]]
        assert responses == [
            {"name": "crm__lookup", "id": "p1", "response": {"plan": "gold"}},
            {"name": "crm__lookup", "id": "p2", "response": {"result": "none"}},
        ]

    async def test_a_schema_beside_functions_is_said_in_words(self) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        body = await sent(GEMINI, ask(output_schema=schema, tools=(LOOKUP,)))
        assert GEMINI.schema_in(body) is None
        assert any('"integer"' in text for text in GEMINI.texts_in(body))


class TestResponses:
    async def test_nothing_is_stored_and_reasoning_comes_encrypted(self) -> None:
        body = await sent(RESPONSES, ask(parameters={"max_tokens": 9, "reasoning_effort": "low"}))
        assert body["store"] is False
        assert body["include"] == ["reasoning.encrypted_content"]
        assert body["max_output_tokens"] == 9
        assert body["reasoning"] == {"effort": "low"}
        body = await sent(RESPONSES, ask(parameters={"store": True}))
        assert "include" not in body

    async def test_an_answer_as_long_as_its_limit_is_cut_whatever_the_server_calls_it_llamacpp(self) -> None:
        stream = sending(RESPONSES.stream(["half an ans"]))
        for limit, end in ((19, "complete"), (20, "cut"), (21, "complete")):
            reply = await complete(RESPONSES, stream, ask(parameters={"max_tokens": limit}))
            assert (reply.end, reply.provider_finish_reason) == (end, "completed")

    async def test_a_response_with_an_item_that_is_not_whole_is_cut(self) -> None:
        """Its arguments are empty, which those of a whole call may be too."""
        events = RESPONSES.events([], [("p1", "crm__lookup", [])], "complete")
        for event in events:
            if event["type"] == "response.output_item.done":
                event["item"]["status"] = "incomplete"
        reply = await complete(RESPONSES, sending(encode(events)))
        assert (reply.end, reply.message.tool_calls[0].arguments) == ("cut", "")

    async def test_a_refusal_of_the_model(self) -> None:
        events = RESPONSES.events([], [], "complete")
        refusal = {"type": "response.refusal.delta", "item_id": "msg_1", "delta": "I can't."}
        error = await fail(RESPONSES, sending(encode([*events[:-1], refusal, events[-1]])))
        assert (error.info.code, error.partial) == ("content_filtered", "I can't.")

    async def test_a_response_that_was_not_streamed_and_one_of_the_last_event_alone(self) -> None:
        last = RESPONSES.events(["hi"], CALLS, "complete")[-1]
        for answer in (plain(200, last["response"]), sending(encode([last]))):
            reply = await complete(RESPONSES, answer)
            assert reply.message.content == "hi"
            assert len(reply.message.tool_calls) == 2
            assert reply.usage.input_tokens == 100


@each_wire
async def test_a_forced_function_is_forced_until_it_was_called(wire: Wire) -> None:
    forced = ask(
        tools=(LOOKUP,), parameters={"tool_choice": {"type": "function", "function": {"name": "crm.lookup"}}}
    )
    first = await sent(wire, forced)
    chosen = {
        "openai": {"type": "function", "function": {"name": "crm__lookup"}},
        "openai-responses": {"type": "function", "name": "crm__lookup"},
        "anthropic": {"type": "tool", "name": "crm__lookup"},
        "gemini": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["crm__lookup"]}},
    }
    assert first.get("tool_choice", first.get("toolConfig")) == chosen[wire.name]
    reply = await complete(wire, sending(wire.stream([], CALLS[:1])))
    result = Message(role="tool", tool_call_id=reply.message.tool_calls[0].id, content="{}")
    messages = (*forced.messages, reply.message, result)
    later = await sent(wire, msgspec.structs.replace(forced, messages=messages))
    free = {"anthropic": {"type": "auto"}, "gemini": {"functionCallingConfig": {"mode": "AUTO"}}}
    assert later.get("tool_choice", later.get("toolConfig")) == free.get(wire.name, "auto")


@each_wire
async def test_of_several_limits_the_lowest_is_sent(wire: Wire) -> None:
    """The runtime adds what a budget leaves beside the limit that the document states."""
    names = ("max_tokens", "max_completion_tokens")
    both = [dict(zip(names, limits, strict=True)) for limits in ((7, 90), (90, 7))]
    if wire is RESPONSES or wire is GEMINI:
        both.append({"max_tokens": 7, "max_output_tokens": 90})
    for parameters in both:
        body = json.dumps(await sent(wire, ask(parameters=parameters)))
        assert ": 7" in body
        assert ": 90" not in body


def test_every_provider_is_one() -> None:
    for wire in WIRES.values():
        assert isinstance(wire.provider(api_key=KEY), StreamedProvider)
        assert KEY not in repr(wire.provider(api_key=KEY))
