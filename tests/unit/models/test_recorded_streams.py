"""Streams as kinds of servers send them, each named after the kind (agents-models-tools D7)."""

from typing import Any

import pytest

from agentflow.models import ModelError, ModelReply
from agentflow.models.openai import OpenAIProvider

from .helpers import ask, ids, tool
from .wire_server import Answer, Exchange, WireServer, cut_after, delta, event, plain, stream

TOOLS = (tool("lookup"), tool("search"))


async def complete(answer: Answer) -> tuple[ModelReply, list[tuple[str, str]]]:
    deltas: list[tuple[str, str]] = []
    async with WireServer(answer) as server:
        provider = OpenAIProvider(base_url=server.url)
        try:
            reply = await provider.complete(
                ask(tools=TOOLS), new_call_id=ids(), on_delta=lambda kind, text: deltas.append((kind, text))
            )
        finally:
            await provider.aclose()
    shown = "".join(text for kind, text in deltas if kind == "output")
    assert shown == reply.message.content.removesuffix("\ufffd") or shown == reply.message.content
    return reply, deltas


def piece(index: int | float | None, id: str | None, name: str | None, arguments: str | None) -> Any:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    members = {k: v for k, v in (("index", index), ("id", id)) if v is not None}
    return delta(tool_calls=[{**members, "function": function}])


def typed(content_type: str, *payloads: object) -> Answer:
    async def answer(exchange: Exchange) -> None:
        headers = {"Content-Type": content_type} if content_type else {}
        await exchange.head(200, {**headers, "Transfer-Encoding": "chunked"})
        for payload in payloads:
            data = payload if isinstance(payload, bytes) else event(payload)
            for i in range(0, len(data), 3):
                await exchange.chunk(data[i : i + 3])
        await exchange.send(b"0\r\n\r\n")

    return answer


P1, P2 = ("lookup", '{"p":1}'), ("lookup", '{"p":2}')


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(
            [piece(0, "a", *P1), piece(0, "b", *P2)], [("a", *P1), ("b", *P2)], id="ollama-every-index-0"
        ),
        pytest.param(
            [
                piece(0, "a", "lookup", '{"p"'),
                piece(0, "a", None, ":1}"),
                piece(0, "b", "lookup", '{"p"'),
                piece(0, "b", None, ":2}"),
            ],
            [("a", *P1), ("b", *P2)],
            id="gateway-index-0-in-pieces",
        ),
        pytest.param(
            [piece(0, None, *P1), piece(0, None, "search", '{"q":2}')],
            [(None, *P1), (None, "search", '{"q":2}')],
            id="gateway-index-0-without-ids-other-name",
        ),
        pytest.param(
            [piece(0, None, *P1), piece(0, None, *P2)],
            [(None, *P1), (None, *P2)],
            id="gateway-index-0-without-ids-same-name",
        ),
        pytest.param(
            [piece(0, "a", *P1), piece(0, "b", "lookup", ""), piece(0, None, None, '{"p":2}')],
            [("a", *P1), ("b", *P2)],
            id="gateway-index-0-rest-without-id",
        ),
        pytest.param(
            [piece(None, "a", "lookup", '{"p"'), piece(None, "a", None, ":1}"), piece(None, "b", *P2)],
            [("a", *P1), ("b", *P2)],
            id="mistral-repeated-id-without-index",
        ),
        pytest.param(
            [piece(None, "a", "lookup", '{"p"'), piece(None, "a", "lookup", ":1}")],
            [("a", *P1)],
            id="gateway-id-and-name-repeated-without-index",
        ),
        pytest.param(
            [piece(None, "a", "lookup", '{"p"'), piece(None, "b", *P2), piece(None, "a", None, ":1}")],
            [("a", *P1), ("b", *P2)],
            id="gateway-interleaved-ids-without-index",
        ),
        pytest.param(
            [piece(0, "x1", "lookup", '{"p"'), piece(0, "x2", None, ":1}"), piece(1, "x3", *P2)],
            [("x1", *P1), ("x3", *P2)],
            id="old-vllm-new-id-in-every-piece",
        ),
        pytest.param(
            [piece(0.0, "a", "lookup", '{"p":'), piece(1.0, "b", *P2), piece(0.0, None, None, "1}")],
            [("a", *P1), ("b", *P2)],
            id="gateway-float-index",
        ),
        pytest.param(
            [piece(0, "", *P1), piece(0, "", "search", "{}")],
            [(None, *P1), (None, "search", "{}")],
            id="gateway-empty-ids",
        ),
    ],
)
async def test_parallel_calls_are_told_apart(pieces: list[Any], expected: list[Any]) -> None:
    reply, _ = await complete(stream(*pieces, delta("tool_calls")))
    assert [(c.provider_id, c.name, c.arguments) for c in reply.message.tool_calls] == expected
    assert len({c.id for c in reply.message.tool_calls}) == len(expected)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([r"a\ud83d", r"\ude00b"], "a😀b", id="java-gateway-split-surrogates"),
        pytest.param([r"\ud83d", "", r"\ude00"], "😀", id="empty-piece-between"),
        pytest.param([r"\ud83d\ude00"], "😀", id="whole-pair"),
        pytest.param([r"a\ud83d", "b"], "a\ufffdb", id="half-a-pair"),
        pytest.param([r"\ude00b"], "\ufffdb", id="other-half-alone"),
        pytest.param([r"b\ud83d"], "b\ufffd", id="half-at-the-end"),
    ],
)
@pytest.mark.parametrize("where", ["content", "arguments"])
async def test_a_pair_of_surrogates_in_two_chunks_is_one_character(
    pieces: list[str], expected: str, where: str
) -> None:
    raw = [_raw_event(where, text) for text in pieces]
    reply, deltas = await complete(stream(*raw, delta("stop")))
    if where == "content":
        assert reply.message.content == expected
    else:
        assert [c.arguments for c in reply.message.tool_calls] == [expected]
    assert all(text.encode() for _, text in deltas)


def _raw_event(where: str, text: str) -> bytes:
    function = f'{{"name":"lookup","arguments":"{text}"}}'
    member = f'"tool_calls":[{{"index":0,"id":"a","function":{function}}}]'
    if where == "content":
        member = f'"content":"{text}"'
    return f'data: {{"choices":[{{"index":0,"delta":{{{member}}}}}]}}\n\n'.encode()


async def test_content_as_parts_mistral() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    reply, deltas = await complete(
        stream(
            delta(content=[thinking]),
            delta(content=[{"type": "text", "text": "Grü"}, {"type": "text", "text": "ße"}]),
            delta("stop", content="!"),
        )
    )
    assert reply.message.content == "Grüße!"
    assert deltas == [("thinking", "hm"), ("output", "Grüße"), ("output", "!")]


async def test_counts_as_floats_gateway() -> None:
    usage = {
        "prompt_tokens": 100.0,
        "completion_tokens": 2e1,
        "prompt_tokens_details": {"cached_tokens": 40.0},
    }
    reply, _ = await complete(stream(delta("stop", content="a"), {"choices": [], "usage": usage}))
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 20)
    assert reply.usage.cache_read_input_tokens == 40
    assert all(isinstance(n, int) for n in (reply.usage.input_tokens, reply.usage.output_tokens))


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        pytest.param(
            {
                "prompt_tokens": 32,
                "completion_tokens": 9,
                "total_tokens": 135,
                "completion_tokens_details": {"reasoning_tokens": 94},
            },
            (32, 103, 94, 0),
            id="xai-reasoning-beside-completion",
        ),
        pytest.param(
            {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 160},
            (8, 152, 147, 0),
            id="gemini-compatible-reasoning-in-the-total-alone",
        ),
        pytest.param(
            {
                "prompt_tokens": 10,
                "completion_tokens": 7,
                "total_tokens": 17,
                "completion_tokens_details": {"reasoning_tokens": 5},
            },
            (10, 7, 5, 0),
            id="openai-reasoning-within-completion",
        ),
        pytest.param(
            {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 57, "cached_tokens": 40},
            (10, 7, 0, 40),
            id="gateway-cache-beside-the-prompt",
        ),
        pytest.param(
            {
                "prompt_tokens": 10,
                "completion_tokens": 7,
                "total_tokens": 62,
                "prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 5},
            },
            (10, 7, 0, 40),
            id="gateway-read-and-written-cache-beside-the-prompt",
        ),
        pytest.param(
            {"prompt_tokens": 50, "completion_tokens": 7, "total_tokens": 57, "cached_tokens": 40},
            (50, 7, 0, 40),
            id="moonshot-cached-tokens",
        ),
    ],
)
async def test_tokens_that_a_server_counts_in_its_own_way(usage: Any, counted: tuple[int, ...]) -> None:
    """What was written is charged whole, so that a budget counts what the provider charges."""
    reply, _ = await complete(stream(delta("stop", content="a"), {"choices": [], "usage": usage}))
    found = reply.usage
    assert (
        found.input_tokens,
        found.output_tokens,
        found.reasoning_output_tokens,
        found.cache_read_input_tokens,
    ) == counted


@pytest.mark.parametrize("server", ["moonshot", "groq"])
async def test_counts_that_stand_elsewhere(server: str) -> None:
    usage = {"prompt_tokens": 19, "completion_tokens": 4, "total_tokens": 23}
    last = delta("stop", content="a")
    if server == "moonshot":
        last["choices"][0]["usage"] = usage
    else:
        last["x_groq"] = {"id": "req_1", "usage": usage}
    reply, _ = await complete(stream(last))
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (19, 4)


@pytest.mark.parametrize(
    ("said", "category"),
    [
        pytest.param({"type": "invalid_request_error", "code": None}, "invalid_input", id="mistral"),
        pytest.param({"type": "BadRequestError", "code": 400}, "invalid_input", id="sglang"),
        pytest.param({"type": "InternalServerError", "code": 500}, "transient", id="vllm"),
    ],
)
async def test_an_error_that_is_the_event_itself(said: Any, category: str) -> None:
    event = {"object": "error", "message": "it went wrong", "param": None, **said}
    with pytest.raises(ModelError) as caught:
        await complete(stream(delta(content="half"), event))
    assert (caught.value.info.category, caught.value.partial) == (category, "half")
    assert "it went wrong" in caught.value.info.message


async def test_the_word_null_is_no_finish_reason_dashscope() -> None:
    reply, _ = await complete(stream(delta("null", content="a"), delta("null", content="b"), delta("stop")))
    assert (reply.message.content, reply.end) == ("ab", "complete")
    with pytest.raises(ModelError):
        await complete(stream(delta("null", content="a"), done=False))


@pytest.mark.parametrize("count", [1e300, -3, 1e16])
async def test_a_count_that_is_none_is_not_charged(count: float) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 1}
    reply, _ = await complete(stream(delta("stop", content="a"), {"choices": [], "usage": usage}))
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (0, 1)


@pytest.mark.parametrize("content_type", ["application/json", "text/plain; charset=utf-8", ""])
@pytest.mark.parametrize("first", [b"", b": ping\n\n", b"\n\n", b"event: message\n", b"\xef\xbb\xbf"])
async def test_events_under_another_content_type_gateway(content_type: str, first: bytes) -> None:
    answer = typed(content_type, first, delta(content="a"), delta("stop", content="b"), b"data: [DONE]\n\n")
    reply, _ = await complete(answer)
    assert reply.message.content == "ab"


async def test_one_json_body_under_the_type_of_events_proxy() -> None:
    body = {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}
    answer = plain(200, body, {"Content-Type": "text/event-stream"})
    reply, _ = await complete(answer)
    assert reply.message.content == "whole"


async def test_choices_beside_the_first_are_not_mixed_in() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    reply, _ = await complete(stream(delta(content="y"), other, delta("stop", content="es")))
    assert reply.message.content == "yes"


def _call(index: int, arguments: str) -> Any:
    return delta(tool_calls=[piece(index, f"call_{index}", "lookup", arguments)])


@pytest.mark.parametrize("second", [delta(content="and"), _call(1, ""), _call(1, '{"q": 1')])
@pytest.mark.parametrize("end", ["closed", "broken off"])
async def test_an_answer_that_goes_on_behind_its_finish_reason_has_not_ended(second: Any, end: str) -> None:
    chunks = (_call(0, "{}"), delta("tool_calls"), second)
    answer = stream(*chunks, done=False) if end == "closed" else cut_after(*chunks)
    with pytest.raises(ModelError) as caught:
        await complete(answer)
    assert caught.value.info.code == "network_error"


async def test_an_answer_that_goes_on_behind_its_finish_reason_ends_with_done() -> None:
    reply, _ = await complete(stream(delta("tool_calls"), _call(0, "{}"), done=True))
    assert (reply.end, len(reply.message.tool_calls)) == ("complete", 1)


@pytest.mark.parametrize("later", ["stop", "tool_calls", "end_turn"])
async def test_a_later_finish_reason_does_not_make_a_cut_answer_complete(later: str) -> None:
    reply, _ = await complete(stream(_call(0, ""), delta("length"), delta(later)))
    assert (reply.end, reply.provider_finish_reason) == ("cut", "length")
    for first in ("content_filter", "error"):
        with pytest.raises(ModelError):
            await complete(stream(_call(0, ""), delta(first), delta(later)))


async def test_a_stream_that_ends_with_the_whole_message_once_more_calls_once() -> None:
    message = {"role": "assistant", "content": "so", "tool_calls": [piece(0, "call_0", "lookup", "{}")]}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    reply, shown = await complete(stream(delta(content="so"), _call(0, "{}"), whole))
    assert (len(reply.message.tool_calls), reply.message.content) == (1, "so")
    assert shown == [("output", "so")]
