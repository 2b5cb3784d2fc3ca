import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from agentflow.errors import ConfigurationError
from agentflow.events.tracing import SpanContext, active
from agentflow.models import ModelError, ModelProfile, ModelReply
from agentflow.models.openai import OpenAIProvider

from .helpers import ask, ids, tool
from .wire_server import (
    DONE,
    USAGE,
    Exchange,
    WireServer,
    cut_after,
    delta,
    event,
    plain,
    refusal,
    stream,
)

KEY = "sk-verysecret0123456789"


class Client:
    """A provider on a scripted server."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.server = WireServer(*answers)
        self.options = {"api_key": KEY, "first_byte_timeout": 5.0, **options}
        self.deltas: list[tuple[str, str]] = []

    async def __aenter__(self) -> "Client":
        await self.server.__aenter__()
        self.provider = OpenAIProvider(base_url=self.server.url, **self.options)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.provider.aclose()
        await self.server.__aexit__(*exc)

    async def ask(self, **more: Any) -> ModelReply:
        return await self.provider.complete(
            ask(**more), new_call_id=ids(), on_delta=lambda k, t: self.deltas.append((k, t))
        )

    async def fails(self, **more: Any) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.ask(**more)
        error = caught.value
        assert (
            KEY not in f"{error} {error.info} {error.partial} {error.__cause__} {vars(self.provider)['name']}"
        )
        assert error.info.provider == "openai"
        return error


async def test_a_streamed_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    priced = ModelProfile(input_price=0.40, output_price=1.60, cached_input_price=0.10)
    monkeypatch.setattr("agentflow.models.streamed.known_profile", lambda *_, official: priced)
    answer = stream(
        b": hello\n\n",
        delta(role="assistant", content=""),
        delta(reasoning_content="hmm"),
        delta(content="Grüße, "),
        delta(content="\u2028 world"),
        delta("stop"),
        USAGE,
    )
    async with Client(answer) as client:
        reply = await client.ask(model="gpt-4.1-mini")
        [seen] = client.server.requests
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert reply.message.content == "Grüße, \u2028 world"
    assert client.deltas == [("thinking", "hmm"), ("output", "Grüße, "), ("output", "\u2028 world")]
    assert (reply.finish_reason, reply.response_model, reply.response_id) == ("stop", "m-2025", "chatcmpl-1")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens, usage.model_calls, usage.tool_calls) == (100, 20, 1, 0)
    assert (usage.cache_read_input_tokens, usage.reasoning_output_tokens) == (40, 5)
    assert usage.cost_usd == pytest.approx((60 * 0.40 + 40 * 0.10 + 20 * 1.60) / 1e6)
    assert reply.first_token_ms is not None
    assert 0 < reply.first_token_ms < 5000


async def test_no_key_no_usage_no_done() -> None:
    async with Client(stream(delta(content="ok"), delta("length"), done=False), api_key=None) as client:
        reply = await client.ask()
        assert "authorization" not in client.server.requests[0].headers
    assert (reply.message.content, reply.finish_reason) == ("ok", "length")
    assert (reply.usage.model_calls, reply.usage.input_tokens, reply.usage.cost_usd) == (1, 0, None)


async def test_a_server_that_does_not_stream() -> None:
    body = {
        "id": "x",
        "model": "m",
        "choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    async with Client(plain(200, body)) as client:
        reply = await client.ask()
    assert (reply.message.content, reply.usage.input_tokens) == ("whole", 3)


@pytest.mark.parametrize("with_index", [True, False])
async def test_tool_calls_come_in_pieces(with_index: bool) -> None:
    def piece(index: int, **members: Any) -> dict[str, Any]:
        return delta(tool_calls=[{**({"index": index} if with_index else {}), **members}])

    answer = stream(
        piece(0, id="p0", function={"name": "crm__lookup", "arguments": ""}),
        piece(0, function={"arguments": '{"id"'}),
        piece(0, function={"arguments": ":7}"}),
        piece(1, id="p1", function={"name": "crm__lookup", "arguments": {"id": 8}}),
        delta("stop"),
    )
    async with Client(answer) as client:
        reply = await client.ask(tools=(tool("crm.lookup"),))
    assert reply.finish_reason == "tool_calls"
    assert [(c.id, c.provider_id, c.name, c.arguments) for c in reply.message.tool_calls] == [
        ("call_1", "p0", "crm.lookup", '{"id":7}'),
        ("call_2", "p1", "crm.lookup", '{"id":8}'),
    ]


async def test_connections_are_reused_and_a_lingering_server_is_left() -> None:
    linger = asyncio.Event()

    async def lingering(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.chunk(event(delta("stop", content="done")) + DONE)
        await exchange.client_gone()
        linger.set()

    async with Client(stream(delta("stop", content="a")), stream(delta("stop")), lingering) as client:
        await client.ask()
        await client.ask()
        assert client.server.connections == 1
        reply = await client.ask()
        assert reply.message.content == "done"
        await linger.wait()


@pytest.mark.parametrize(
    ("status", "error", "category", "code"),
    [
        (400, {"message": "bad", "code": "x"}, "invalid_input", "invalid_request"),
        (
            400,
            {"message": "long", "code": "context_length_exceeded"},
            "invalid_input",
            "context_length_exceeded",
        ),
        (400, {"code": 400, "type": "exceed_context_size_error"}, "invalid_input", "context_length_exceeded"),
        (400, {"message": "no", "code": "content_filter"}, "agent", "content_filtered"),
        (400, {"message": "no", "code": "model_not_found"}, "auth", "model_not_found"),
        (401, {"message": f"Incorrect API key provided: {KEY}"}, "auth", "authentication_failed"),
        (402, {"message": "pay"}, "quota", "insufficient_quota"),
        (403, {"message": "not you"}, "auth", "authentication_failed"),
        (404, {"message": "no such model", "code": "model_not_found"}, "auth", "model_not_found"),
        (408, {}, "transient", "server_error"),
        (422, {"message": "quotation 512 at HTTP 503"}, "invalid_input", "invalid_request"),
        (429, {"message": "slow down", "type": "requests"}, "rate_limited", "rate_limited"),
        (429, {"message": "no money", "code": "insufficient_quota"}, "quota", "insufficient_quota"),
        (429, {"message": "no money", "type": "insufficient_quota"}, "quota", "insufficient_quota"),
        (500, {"message": f"echo {KEY} sk-other1234567"}, "transient", "server_error"),
        (503, {"message": "over"}, "transient", "server_error"),
    ],
)
async def test_refusals_have_categories(status: int, error: dict[str, Any], category: str, code: str) -> None:
    async with Client(refusal(status, **error)) as client:
        failure = await client.fails()
    assert (failure.info.category, failure.info.code, failure.info.http_status) == (category, code, status)
    assert failure.info.retryable is (category in ("transient", "rate_limited"))
    assert "sk-" not in failure.info.message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (b"", "HTTP 502 without a message"),
        (b'{"message": "plain"}', "plain"),
        (b'{"detail": [{"loc": 1}]}', "[{'loc': 1}]"),
        (b'{"error": "text"}', "text"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 100_000, "x" * 499 + "…"),
    ],
)
async def test_any_error_body_is_understood(body: bytes, expected: str) -> None:
    async with Client(plain(502, body)) as client:
        failure = await client.fails()
        place = client.server.url.removeprefix("http://").removesuffix("/v1")
    status = "" if expected.startswith("HTTP 502") else " (HTTP 502)"
    whole = f"openai:m at {place}: {expected}{status}"
    assert (failure.info.code, failure.info.message) == ("server_error", whole)


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "7"}, 7, 7),
        ({"Retry-After": "1.5"}, 1.5, 1.5),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25, 0.25),
        ({"Retry-After": "in 90 seconds, as a date"}, 80, 91),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
    ],
)
async def test_retry_after(headers: dict[str, str], low: float, high: float) -> None:
    if "as a date" in headers["Retry-After"]:
        headers = {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)}
    async with Client(refusal(429, headers, message="slow")) as client:
        failure = await client.fails()
    assert failure.retry_after is not None
    assert low <= failure.retry_after <= high


@pytest.mark.parametrize("value", ["soon", "nan", "-3", "1e999"])
async def test_a_retry_after_that_says_nothing(value: str) -> None:
    async with Client(refusal(429, {"Retry-After": value}, message="slow")) as client:
        assert (await client.fails()).retry_after is None


@pytest.mark.parametrize(
    "answer", [cut_after(delta(content="half an ans")), stream(delta(content="half an ans"), done=False)]
)
async def test_a_broken_stream_is_transient_and_keeps_what_came(answer: Any) -> None:
    async with Client(answer) as client:
        failure = await client.fails()
    assert (failure.info.category, failure.info.code) == ("transient", "network_error")
    assert failure.partial == "half an ans"
    assert client.deltas == [("output", "half an ans")]


async def test_a_stream_that_breaks_after_its_end_is_an_answer() -> None:
    async with Client(cut_after(delta("stop", content="all"))) as client:
        assert (await client.ask()).message.content == "all"


@pytest.mark.parametrize(
    ("error", "category", "code"),
    [
        ({"message": "boom"}, "transient", "server_error"),
        ({"message": "upstream said HTTP 429"}, "rate_limited", "rate_limited"),
        ({"message": "no", "code": 400}, "invalid_input", "invalid_request"),
        ({"message": "quota", "code": "insufficient_quota", "status": 429}, "quota", "insufficient_quota"),
    ],
)
async def test_an_error_inside_the_stream(error: Any, category: str, code: str) -> None:
    async with Client(stream(delta(content="so far"), {"error": error})) as client:
        failure = await client.fails()
    assert (failure.info.category, failure.info.code) == (category, code)
    assert failure.partial == "so far"


async def test_a_withheld_answer_and_a_refused_one() -> None:
    async with Client(stream(delta(content="I"), delta("content_filter"))) as client:
        failure = await client.fails()
    assert (failure.info.category, failure.info.code, failure.partial) == ("agent", "content_filtered", "I")
    assert failure.usage is None  # the provider did not say
    async with Client(stream(delta(refusal="I can't"), delta("stop"))) as client:
        failure = await client.fails()
    assert (failure.info.code, failure.partial) == ("content_filtered", "I can't")


@pytest.mark.parametrize(
    "answer",
    [
        stream(delta(content="I"), delta("content_filter"), USAGE),
        stream(delta(refusal="no"), delta("stop"), USAGE),
        cut_after(delta(content="half"), USAGE),
        stream(delta(content="half"), USAGE, {"error": {"message": "boom"}}),
        stream(delta(content="half"), USAGE, done=False),
        stream(USAGE, b"data: {nonsense\n\n"),
    ],
)
async def test_what_a_failed_call_cost_all_the_same(answer: Any) -> None:
    async with Client(answer) as client:
        client.provider.profile = lambda model: ModelProfile(input_price=1.0, output_price=10.0)
        usage = (await client.fails()).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.model_calls) == (100, 20, 1)
    assert usage.cost_usd == pytest.approx((100 * 1 + 20 * 10) / 1e6)


@pytest.mark.parametrize(
    "answer", [stream(b"data: {nonsense\n\n"), plain(200, b"hello"), stream({"choices": 3})]
)
async def test_what_is_no_completion_is_an_invalid_response(answer: Any) -> None:
    async with Client(answer) as client:
        failure = await client.fails()
    assert (failure.info.category, failure.info.code) == ("invalid_output", "invalid_response")


@pytest.mark.parametrize("with_headers", [False, True])
async def test_a_slow_first_byte_is_a_timeout(with_headers: bool) -> None:
    gone = asyncio.Event()

    async def silent(exchange: Exchange) -> None:
        try:
            if with_headers:
                await exchange.start_stream()
            await exchange.client_gone()
        finally:
            gone.set()

    async with Client(silent, first_byte_timeout=0.2) as client:
        failure = await client.fails()
        # On a busy machine the time may be over before the request was out.
        if client.server.requests:
            await gone.wait()
    assert (failure.info.category, failure.info.code) == ("timeout", "response_timeout")
    assert failure.info.retryable


async def test_a_slow_rest_is_left_to_the_caller() -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.chunk(event(delta(content="a")))
        await asyncio.sleep(1.2)
        await exchange.chunk(event(delta("stop", content="b")) + DONE)
        await exchange.send(b"0\r\n\r\n")

    async with Client(slow, first_byte_timeout=1.0) as client:
        assert (await client.ask()).message.content == "ab"


async def test_cancelling_aborts_the_request() -> None:
    began, gone = asyncio.Event(), asyncio.Event()

    async def endless(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.chunk(event(delta(content="a")))
        began.set()
        await exchange.client_gone()
        gone.set()

    async with Client(endless) as client:
        task = asyncio.create_task(client.ask())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        provider = OpenAIProvider(base_url=f"http://user:{KEY}@127.0.0.1:{port}/v1", api_key=KEY)
        started = time.monotonic()
        with pytest.raises(ModelError) as caught:
            await provider.complete(ask(), new_call_id=ids())
        await provider.aclose()
    assert (caught.value.info.category, caught.value.info.code) == ("transient", "network_error")
    assert KEY not in str(caught.value)
    assert time.monotonic() - started < 5


async def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", f"ftp://user:{KEY}@proxy.example")
    monkeypatch.delenv("NO_PROXY", raising=False)
    provider = OpenAIProvider(base_url="http://model.example/v1")
    with pytest.raises(ModelError, match="proxy or the certificates of the environment") as caught:
        await provider.complete(ask(), new_call_id=ids())
    assert KEY not in str(caught.value)
    await provider.aclose()


async def test_a_server_that_hangs_up_at_once() -> None:
    async def hang_up(exchange: Exchange) -> None:
        exchange.writer.close()
        raise ConnectionResetError

    async with Client(hang_up) as client:
        assert (await client.fails()).info.code == "network_error"


def test_configuration_is_checked_without_showing_the_key() -> None:
    for broken in ("localhost:8000/v1", "ftp://x/v1", "http://"):
        with pytest.raises(ConfigurationError, match="the argument base_url"):
            OpenAIProvider(base_url=broken)
        with pytest.raises(ConfigurationError, match="OPENAI_BASE_URL"):
            OpenAIProvider.from_env({"OPENAI_BASE_URL": broken})
    with pytest.raises(ConfigurationError) as caught:
        OpenAIProvider(api_key="schlüssel")
    assert "schl" not in str(caught.value)
    provider = OpenAIProvider.from_env({"OPENAI_API_KEY": f" {KEY}\n"})
    assert KEY not in repr(provider)
    assert KEY not in provider.limiter_key
    assert provider.limiter_key != OpenAIProvider(api_key="another").limiter_key
    assert provider.limiter_key == OpenAIProvider(api_key=KEY).limiter_key


async def test_a_call_made_in_a_span_carries_its_trace() -> None:
    span = SpanContext("wf_a", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    async with Client(
        stream(delta(content="a"), delta("stop")), stream(delta(content="b"), delta("stop"))
    ) as client:
        with active(span):
            await client.ask()
        await client.ask()
        inside, outside = client.server.requests
    assert inside.headers["traceparent"] == span.traceparent
    assert "tracestate" not in inside.headers
    assert "traceparent" not in outside.headers
