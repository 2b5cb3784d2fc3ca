"""An answer is bounded in bytes; reading it takes linear time and bounded memory (agents-models-tools D8)."""

import gzip
import json
import time
import tracemalloc
import zlib
from typing import Any

import pytest

from agentflow.content_encoding import BadEncoding, Decompressor
from agentflow.models import ModelError, ModelReply
from agentflow.models.openai import OpenAIProvider
from agentflow.models.openai_answer import Answer as Kept
from agentflow.models.openai_wire import decode_chunk
from agentflow.models.sse import EventDecoder

from .helpers import ask, ids
from .wire_server import Answer, Exchange, WireServer, delta, event, plain, stream

MIB = 1 << 20


def compressed(body: bytes, content_type: str = "text/event-stream", encoding: str = "gzip") -> Answer:
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    if encoding == "deflate-raw":
        packed, encoding = packed[2:-4], "deflate"

    async def answer(exchange: Exchange) -> None:
        length = {"Content-Length": str(len(packed)), "Content-Encoding": encoding}
        await exchange.head(200, {"Content-Type": content_type, **length})
        await exchange.send(packed)

    return answer


async def complete(answer: Answer, **options: Any) -> ModelReply:
    async with WireServer(answer) as server:
        provider = OpenAIProvider(base_url=server.url, **options)
        try:
            return await provider.complete(ask(), new_call_id=ids())
        finally:
            await provider.aclose()


async def refused(answer: Answer, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await complete(answer, **options)
    assert (caught.value.info.category, caught.value.info.code) == ("invalid_output", "invalid_response")
    assert "more than" in caught.value.info.message or "longer than" in caught.value.info.message
    return caught.value


BOMBS = {
    "one-json-body": (b'{"choices":[{"message":{"content":"' + b"a" * (60 * MIB), "application/json"),
    "one-event": (b'data: {"choices":[{"delta":{"content":"' + b"a" * (60 * MIB), "text/event-stream"),
    "many-events": (event(delta(content="a" * 100_000)) * 600, "text/event-stream"),
    "many-lines": (b"data: " + b"a\ndata: " * (10 * MIB), "text/event-stream"),
    "comments": (b": ping\n\n" * (12 * MIB), "text/event-stream"),
}


@pytest.mark.parametrize("kind", BOMBS)
async def test_a_small_compressed_answer_does_not_become_a_large_one(kind: str) -> None:
    body, content_type = BOMBS[kind]
    answer = compressed(body, content_type)
    began = time.process_time()
    await refused(answer)
    assert time.process_time() - began < 5


async def test_memory_does_not_grow_with_what_a_bomb_stands_for() -> None:
    body, content_type = BOMBS["one-event"]
    answer = compressed(body, content_type)
    tracemalloc.start()
    try:
        await refused(answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * MIB


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "deflate-raw"])
async def test_a_compressed_answer_is_read(encoding: str) -> None:
    body = event(delta("stop", content="packed")) + b"data: [DONE]\n\n"
    assert (await complete(compressed(body, encoding=encoding))).message.content == "packed"


async def test_the_bound_of_an_answer_can_be_set() -> None:
    long = stream(delta(content="a" * 600), delta("stop", content="b" * 600))
    await refused(long, max_answer_bytes=1_000)
    assert len((await complete(long, max_answer_bytes=2_000)).message.content) == 1_200
    await refused(plain(200, {"choices": [{"message": {"content": "x" * 1_200}}]}), max_answer_bytes=1_000)


async def test_a_compressed_refusal_is_bounded() -> None:
    packed = gzip.compress(b'{"error":"' + b"a" * (50 * MIB))
    answer = plain(500, packed, {"Content-Encoding": "gzip"})
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            await complete(answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.info.http_status == 500
    assert peak < 5 * MIB


def cpu(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_an_event_of_16_mib_in_pieces_of_1_kib_costs_under_half_a_second() -> None:
    data = b"data: " + b"x" * (16 * MIB - 16) + b"\n\n"
    decoder = EventDecoder()
    events: list[bytes] = []

    def read() -> None:
        for i in range(0, len(data), 1024):
            events.extend(decoder.feed(data[i : i + 1024]))

    assert cpu(read) < 0.5
    assert [len(e) for e in events] == [16 * MIB - 16]


def test_many_pieces_of_one_call_are_joined_in_linear_time() -> None:
    function = {"name": "f", "arguments": "x" * 1024}
    piece = json.dumps(delta(tool_calls=[{"index": 0, "id": "a", "function": function}])).encode()
    answer = Kept(None)

    def read() -> None:
        for _ in range(16 * 1024 - 64):
            answer.take(decode_chunk(piece))

    assert cpu(read) < 2.0
    assert len(answer.calls[0].arguments) == (16 * 1024 - 64) * 1024


def test_a_decompressor_makes_bounded_pieces() -> None:
    body = bytes(30 * MIB)
    decompressor = Decompressor("gzip")
    pieces = list(decompressor.pieces(gzip.compress(body)))
    assert max(len(p) for p in pieces) <= 64 << 10
    assert b"".join(pieces) == body
    decompressor.check_end()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_members_of_gzip_and_cuts_do_not_matter(size: int) -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0"
    decompressor = Decompressor(" GZip ")
    pieces = [p for i in range(0, len(packed), size) for p in decompressor.pieces(packed[i : i + size])]
    assert b"".join(pieces) == b"one two"
    decompressor.check_end()


def test_what_is_not_compressed_as_it_says_is_refused() -> None:
    with pytest.raises(BadEncoding, match="not asked for"):
        Decompressor("br")
    with pytest.raises(BadEncoding, match="not compressed as it says"):
        list(Decompressor("gzip").pieces(b"plain text"))
    cut = Decompressor("gzip")
    list(cut.pieces(gzip.compress(bytes(1000))[:-4]))
    with pytest.raises(BadEncoding, match="cut short"):
        cut.check_end()
