"""Connections of a provider: stale ones, the first byte, silence between two bytes (page 000 §9)."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from agentflow import http, public_transport
from agentflow.http import HttpClient, HttpFailure
from agentflow.models import ModelError, ModelProfile, ModelReply
from agentflow.models.openai import OpenAIProvider
from agentflow.tools import mcp_transports

from .helpers import ask, ids
from .wire_server import DONE, Answer, Exchange, WireServer, delta, event, stream

GOOD = stream(delta("stop", content="ok"))


async def hang_up(exchange: Exchange) -> None:
    """Closes the connection without a byte."""
    exchange.writer.close()
    raise ConnectionResetError


async def complete(provider: OpenAIProvider) -> ModelReply:
    return await provider.complete(ask(), new_call_id=ids())


async def test_a_reused_connection_that_the_server_closed_is_replaced_once() -> None:
    async with WireServer(GOOD, hang_up, GOOD) as server:
        provider = OpenAIProvider(base_url=server.url)
        await complete(provider)
        assert (await complete(provider)).message.content == "ok"
        await provider.aclose()
        assert (server.connections, len(server.requests)) == (2, 3)


async def test_the_new_connection_is_not_replaced_again() -> None:
    async with WireServer(GOOD, hang_up, hang_up, GOOD) as server:
        provider = OpenAIProvider(base_url=server.url)
        await complete(provider)
        with pytest.raises(ModelError) as caught:
            await complete(provider)
        await provider.aclose()
        assert (caught.value.info.code, len(server.requests)) == ("network_error", 3)


async def test_a_new_connection_that_the_server_closes_is_a_failure() -> None:
    async with WireServer(hang_up, GOOD) as server:
        provider = OpenAIProvider(base_url=server.url)
        with pytest.raises(ModelError):
            await complete(provider)
        await provider.aclose()
        assert len(server.requests) == 1


async def test_an_answer_that_has_begun_is_never_asked_for_again() -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.start_stream()
        await hang_up(exchange)

    async with WireServer(GOOD, cut, GOOD) as server:
        provider = OpenAIProvider(base_url=server.url)
        await complete(provider)
        with pytest.raises(ModelError):
            await complete(provider)
        await provider.aclose()
        assert len(server.requests) == 2


async def test_a_request_of_a_tool_is_never_sent_twice() -> None:
    async with WireServer(GOOD, hang_up, GOOD) as server:
        client = HttpClient()
        async with client.post(server.url, headers={}, body=b"{}") as response:
            await response.read(10_000)
        with pytest.raises(HttpFailure):
            async with client.post(server.url, headers={}, body=b"{}"):
                pass
        await client.aclose()
        assert len(server.requests) == 2


async def test_forty_requests_one_after_another_on_a_server_that_closes_connections() -> None:
    """llama.cpp's server: 3 of 24 calls failed on connections that it had closed."""
    answers: list[Answer] = [GOOD]
    for _ in range(20):
        answers += [hang_up, GOOD, GOOD]
    async with WireServer(*answers) as server:
        provider = OpenAIProvider(base_url=server.url)
        for _ in range(40):
            assert (await complete(provider)).message.content == "ok"
        await provider.aclose()


async def test_silence_between_two_bytes_is_a_timeout_that_keeps_what_came() -> None:
    async def stalls(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.chunk(event(delta(content="half")))
        await exchange.client_gone()

    async with WireServer(stalls) as server:
        provider = OpenAIProvider(base_url=server.url, byte_timeout=0.2)
        with pytest.raises(ModelError) as caught:
            await complete(provider)
        await provider.aclose()
    info = caught.value.info
    assert (info.category, info.code, caught.value.partial) == ("timeout", "response_timeout", "half")
    assert "no byte came for 0.2 s" in info.message


@pytest.mark.parametrize("sign", [b": ping\n\n", b"\n"])
async def test_any_byte_is_a_sign_of_life(sign: bytes) -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.start_stream()
        for _ in range(8):
            await exchange.chunk(sign)
            await asyncio.sleep(0.1)
        await exchange.chunk(event(delta("stop", content="late")) + DONE)
        await exchange.send(b"0\r\n\r\n")

    async with WireServer(slow) as server:
        provider = OpenAIProvider(base_url=server.url, first_byte_timeout=0.5, byte_timeout=0.5)
        assert (await complete(provider)).message.content == "late"
        await provider.aclose()


def limit_of(provider: OpenAIProvider) -> float | None:
    return provider._wait("m")


def test_the_first_byte_has_the_limit_of_the_profile_and_none_on_this_machine() -> None:
    assert limit_of(OpenAIProvider(api_key="k")) == 120.0
    assert limit_of(OpenAIProvider(base_url="https://models.example/v1")) == 120.0
    for host in ("localhost:11434", "127.0.0.1:8000", "[::1]:8000"):
        assert limit_of(OpenAIProvider(base_url=f"http://{host}/v1")) is None
    assert limit_of(OpenAIProvider(first_byte_timeout=5.0)) == 5.0
    assert limit_of(OpenAIProvider(first_byte_timeout=None)) is None


def test_a_profile_can_set_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = ModelProfile(first_byte_timeout=600.0)
    monkeypatch.setattr("agentflow.models.streamed.known_profile", lambda *_, **__: slow)
    assert limit_of(OpenAIProvider(api_key="k")) == 600.0


@pytest.mark.parametrize("module", [http, public_transport, mcp_transports])
def test_no_private_part_of_the_http_library_is_used(module: Any) -> None:
    source = inspect.getsource(module)
    assert "._pool" not in source
