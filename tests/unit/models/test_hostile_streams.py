"""Streams that keep to the standard of events and to no server's habits, and some that keep to nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agentflow.models import ModelError, ModelReply
from agentflow.models.openai import OpenAIProvider

from .helpers import ask, ids, tool
from .test_recorded_streams import piece
from .wire_formats import WIRES, Call, Wire, encode
from .wire_server import Answer, WireServer, delta, sending, stream

LOOKUP = tool("lookup", id={"type": "integer"})
CALLS: list[Call] = [("p1", "lookup", ['{"id"', ": 1}"]), ("p2", "lookup", ['{"id": 2}'])]
USAGE = {"prompt_tokens": 100, "completion_tokens": 20}

FORMS = {
    "byte-order-mark": lambda body: b"\xef\xbb\xbf" + body,
    "crlf": lambda body: body.replace(b"\n", b"\r\n"),
    "cr": lambda body: body.replace(b"\n", b"\r"),
    "mixed-ends": lambda body: body.replace(b"\n\n", b"\r\n\n"),
    "comments": lambda body: body.replace(b"\n\n", b"\n: ping\n\n:\n:data: no\n\n"),
    "no-blank-behind-the-colon": lambda body: body.replace(b"data: ", b"data:"),
    "two-blanks": lambda body: body.replace(b"data: ", b"data:  "),
    "ids-and-retries": lambda body: body.replace(b"data: ", b"id: 7\nretry: 10\ndata: "),
    "unknown-fields": lambda body: body.replace(b"data: ", b"x: y\ndatax: {}\nnothing\ndata: "),
    "data-of-two-lines": lambda body: re.sub(rb"data: \{", b"data: {\ndata: ", body),
    "empty-events": lambda body: b"\n\n" + body.replace(b"\n\n", b"\n\n\n\n\n"),
    "no-last-blank-line": lambda body: body + b"data: [DONE]",
    "escaped": lambda body: b"".join(_escaped(event) for event in body.split(b"\n\n") if event),
}


def _escaped(event: bytes) -> bytes:
    head, _, data = event.partition(b"data: ")
    return head + b"data: " + json.dumps(json.loads(data)).encode() + b"\n\n"


async def complete(wire: Wire, answer: Answer) -> ModelReply:
    async with WireServer(answer) as server:
        provider = wire.provider(base_url=server.url)
        try:
            return await provider.complete(ask(tools=(LOOKUP,)), new_call_id=ids())
        finally:
            await provider.aclose()


@pytest.mark.parametrize("wire", [pytest.param(w, id=name) for name, w in WIRES.items()])
@pytest.mark.parametrize("form", FORMS)
async def test_a_stream_of_another_form_is_the_same_answer(wire: Wire, form: str) -> None:
    body = FORMS[form](wire.stream(["Grüße, ", "世界 🎉"], CALLS))
    reply = await complete(wire, sending(body, 5))
    assert reply.message.content == "Grüße, 世界 🎉"
    calls = [(c.provider_id, json.loads(c.arguments)) for c in reply.message.tool_calls]
    assert calls == [("p1", {"id": 1}), ("p2", {"id": 2})]
    assert (reply.end, reply.usage.input_tokens) == ("complete", 100)


async def chat(*payloads: Any) -> ModelReply:
    async with WireServer(stream(*payloads)) as server:
        provider = OpenAIProvider(base_url=server.url)
        try:
            return await provider.complete(ask(tools=(LOOKUP,)), new_call_id=ids())
        finally:
            await provider.aclose()


@pytest.mark.parametrize("index", [-1, 2**31, 10**18, -(10**18), 1e6, 1e300])
async def test_an_index_of_any_size_is_no_place(index: float) -> None:
    pieces = [piece(index, "a", "lookup", '{"id"'), piece(index, None, None, ": 1}")]
    reply = await chat(*pieces, piece(0, "b", "lookup", '{"id": 2}'), delta("tool_calls"))
    assert [(c.provider_id, c.arguments) for c in reply.message.tool_calls] == [
        ("a", '{"id": 1}'),
        ("b", '{"id": 2}'),
    ]


async def test_null_members_and_roles_that_change_are_passed_over() -> None:
    nulls = {"content": None, "tool_calls": None, "refusal": None, "reasoning_content": None}
    reply = await chat(
        delta(role="assistant", **nulls),
        delta(role="user", content="a"),
        delta(role=None, content="b"),
        {"id": "x", "choices": None},
        {"id": "x", "choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        delta("stop", role="tool", content=""),
    )
    assert (reply.message.role, reply.message.content) == ("assistant", "ab")


async def test_calls_without_ids_and_with_one_id_get_ids_of_their_own() -> None:
    reply = await chat(
        piece(0, None, "lookup", '{"id": 1}'), piece(1, None, "lookup", '{"id": 2}'), delta("tool_calls")
    )
    assert [c.id for c in reply.message.tool_calls] == ["call_1", "call_2"]
    reply = await chat(
        piece(0, "same", "lookup", '{"id": 1}'), piece(1, "same", "lookup", '{"id": 2}'), delta("tool_calls")
    )
    assert [(c.id, c.arguments) for c in reply.message.tool_calls] == [
        ("call_1", '{"id": 1}'),
        ("call_2", '{"id": 2}'),
    ]


async def test_counts_in_the_middle_are_those_of_the_answer() -> None:
    counted = delta(content="a") | {"usage": {"prompt_tokens": 100, "completion_tokens": 1}}
    reply = await chat(
        counted, delta(content="b") | {"usage": None}, delta("stop", content="c") | {"usage": USAGE}
    )
    assert reply.message.content == "abc"
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 20)
    reply = await chat(delta(content="a") | {"usage": USAGE}, delta("stop", content="b"))
    assert reply.usage.output_tokens == 20


async def test_of_two_choices_in_one_chunk_the_first_is_read() -> None:
    def both(first: str, second: str, finish: str | None = None) -> dict[str, Any]:
        choices = [
            {"index": 1, "delta": {"content": second}, "finish_reason": "length"},
            {"index": 0, "delta": {"content": first}, "finish_reason": finish},
        ]
        return {"id": "x", "choices": choices}

    reply = await chat(both("a", "x"), both("b", "y", "stop"))
    assert (reply.message.content, reply.end) == ("ab", "complete")


@pytest.mark.parametrize(
    "payload",
    [[], "text", 7, None, {"choices": {}}, {"choices": [7]}, {"choices": [{"delta": []}]}],
    ids=str,
)
async def test_an_event_of_another_shape_is_an_error_with_a_category(payload: Any) -> None:
    with pytest.raises(ModelError) as caught:
        await chat(delta(content="a"), payload, delta("stop"))
    assert caught.value.info.category in ("invalid_output", "transient")


@pytest.mark.parametrize("wire", [pytest.param(w, id=name) for name, w in WIRES.items()])
async def test_bytes_that_are_no_text_are_an_error(wire: Wire) -> None:
    body = encode(wire.events(["ab"], [], "complete")).replace(b"ab", b"a\xffb")
    with pytest.raises(ModelError) as caught:
        await complete(wire, sending(body))
    assert (caught.value.info.category, caught.value.info.code) == ("invalid_output", "invalid_response")
