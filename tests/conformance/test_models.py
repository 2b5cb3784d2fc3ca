"""What every model adapter must do, whatever stands behind it. One suite, run for each of them.

`openai-wire` and the others of that kind are adapters against a server of the tests, `openai-engine` is one
against an implementation of the protocol that is not ours, `local` the embedded model, `scripted` the test
kit's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, get_args

import pytest
import pytest_asyncio

from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.failure import Category
from agentflow.models import ModelError, ModelProvider, ModelReply, ModelRequest
from agentflow.models.local.process import LocalServer
from agentflow.models.local.provider import LocalProvider
from agentflow.models.local.weights import require
from agentflow.models.openai import OpenAIProvider
from agentflow.testing import ScriptedModel, call
from tests.unit.models import local_model
from tests.unit.models.helpers import ids, tool
from tests.unit.models.wire_formats import WIRES, Wire
from tests.unit.models.wire_server import USAGE, Exchange, WireServer, delta, refusal, sending, stream

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {
    "type": "object",
    "properties": {"urgency": {"type": "string", "enum": ["high", "low"]}},
    "required": ["urgency"],
    "additionalProperties": False,
}
TEXT = "My address is ann@example.org, please help."
TOO_LONG = "word " * 9_000
ENDLESS = "Count from one to ten thousand, one number a line."
LOOKUP = tool("crm.lookup", email={"type": "string"})


class Adapter(NamedTuple):
    """A provider under test. `calls_at_will` is a model that calls a function when it is offered one."""

    provider: ModelProvider
    model: str
    secret: str | None = None
    calls_at_will: bool = True


async def answer(exchange: Exchange) -> None:
    """A model in a few lines, at the other end of the wire."""
    body = exchange.seen.body
    last = body["messages"][-1]
    if last["content"] == TOO_LONG:
        await refusal(400, code="context_length_exceeded", message="too long")(exchange)
    elif last["content"] == ENDLESS:
        await exchange.start_stream()
        await exchange.client_gone()
    elif body.get("tools") and last["role"] != "tool":
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"email":"ann@example.org"}'}
        await stream(
            delta(tool_calls=[{"index": 0, "id": "p1", "function": function}]), delta("tool_calls"), USAGE
        )(exchange)
    elif "response_format" in body:
        await stream(delta(content='{"urgency"'), delta("stop", content=': "low"}'), USAGE)(exchange)
    else:
        await stream(delta(content="Hello "), delta("stop", content="there."), USAGE)(exchange)


def answering(wire: Wire) -> Callable[[Exchange], Awaitable[None]]:
    """The same model at the other end of any wire format."""

    async def respond(exchange: Exchange) -> None:
        body = exchange.seen.body
        said, whole = wire.texts_in(body), json.dumps(body)
        if TOO_LONG in said:
            await refusal(400, code="context_length_exceeded", message="too long")(exchange)
        elif ENDLESS in said:
            await exchange.start_stream()
            await exchange.client_gone()
        elif wire.tools_in(body) and "gold" not in whole:
            call = ("p1", wire.tools_in(body)[0], ['{"email":', '"ann@example.org"}'])
            await sending(wire.stream([], [call]))(exchange)
        elif "urgency" in whole:
            await sending(wire.stream(['{"urgency"', ': "low"}']))(exchange)
        else:
            await sending(wire.stream(["Hello ", "there."]))(exchange)

    return respond


async def script(request: ModelRequest) -> Any:
    """The same model for the scripted adapter."""
    last = request.messages[-1]
    if last.content == TOO_LONG:
        async with WireServer(refusal(400, code="context_length_exceeded")) as server:
            provider = OpenAIProvider(base_url=server.url)
            try:
                await provider.complete(request, new_call_id=ids())
            finally:
                await provider.aclose()
    if last.content == ENDLESS:
        await asyncio.Event().wait()
    if request.tools and last.role != "tool":
        return call("crm.lookup", email="ann@example.org")
    return {"urgency": "low"} if request.output_schema else "Hello there."


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[
        "scripted",
        "openai-wire",
        *(f"{name}-wire" for name in WIRES if name != "openai"),
        pytest.param("openai-engine", marks=pytest.mark.local_model),
        pytest.param("local", marks=pytest.mark.local_model),
    ],
)
async def adapter(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Adapter]:
    kind = request.param
    if kind == "scripted":
        yield Adapter(ScriptedModel(script), "any")
    elif kind == "openai-wire":
        async with WireServer(answer) as server:
            provider = OpenAIProvider(base_url=server.url, api_key="sk-conformance-key")
            yield Adapter(provider, "m", "sk-conformance-key")
            await provider.aclose()
    elif kind.endswith("-wire"):
        wire = WIRES[kind.removesuffix("-wire")]
        async with WireServer(answering(wire)) as server:
            other = wire.provider(base_url=server.url, api_key="sk-conformance-key")
            yield Adapter(other, "m", "sk-conformance-key")
            await other.aclose()
    else:
        env = local_model.environment(tmp_path_factory.mktemp("data"))
        if kind == "local":
            local = LocalProvider(env=env)
            yield Adapter(local, local_model.NAME)
            await local.aclose()
            return
        engine = LocalServer(require(local_model.NAME, env), "engine", threads=1, context=2048)
        endpoint = await engine.ensure()
        provider = OpenAIProvider(base_url=endpoint.url, api_key=endpoint.key, loopback=True)
        yield Adapter(provider, "engine", endpoint.key, calls_at_will=False)
        await provider.aclose()
        await engine.aclose()


def ask(adapter: Adapter, text: str = TEXT, **more: Any) -> ModelRequest:
    messages = (Message(role="system", content="You help customers."), Message(role="user", content=text))
    parameters = {"max_tokens": 40, "temperature": 0}
    return ModelRequest(**{"model": adapter.model, "messages": messages, "parameters": parameters, **more})


async def complete(adapter: Adapter, request: ModelRequest, **more: Any) -> ModelReply:
    return await adapter.provider.complete(request, **{"new_call_id": ids(), **more})


def check(reply: ModelReply) -> None:
    """What holds for every reply."""
    assert reply.message.role == "assistant"
    assert reply.finish_reason
    assert reply.response_model
    assert (reply.usage.model_calls, reply.usage.tool_calls) == (1, 0)
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0
    assert reply.first_token_ms is not None


async def test_what_a_provider_says_of_itself(adapter: Adapter) -> None:
    provider = adapter.provider
    assert isinstance(provider, ModelProvider)
    assert provider.name
    assert ":" not in provider.name
    assert provider.max_concurrency >= 1
    assert provider.limiter_key
    if adapter.secret:
        assert adapter.secret not in provider.limiter_key
        assert adapter.secret not in repr(provider)
    assert provider.profile(adapter.model) == provider.profile(adapter.model)
    assert provider.profile("never heard of").tools in ("none", "single", "many")


async def test_a_text_and_its_deltas(adapter: Adapter) -> None:
    pieces: list[tuple[str, str]] = []
    reply = await complete(adapter, ask(adapter), on_delta=lambda kind, text: pieces.append((kind, text)))
    check(reply)
    assert reply.message.content
    assert reply.message.tool_calls == ()
    assert reply.finish_reason in ("stop", "length")
    assert "".join(text for kind, text in pieces if kind == "output") == reply.message.content
    assert {kind for kind, _ in pieces} <= {"output", "thinking"}


async def test_an_answer_by_schema(adapter: Adapter) -> None:
    reply = await complete(adapter, ask(adapter, output_schema=SCHEMA))
    check(reply)
    assert json.loads(reply.message.content)["urgency"] in ("high", "low")


async def test_a_call_and_the_answer_to_its_result(adapter: Adapter) -> None:
    request = ask(adapter, tools=(LOOKUP,), output_schema=SCHEMA)
    if adapter.calls_at_will:
        reply = await complete(adapter, request)
        check(reply)
        [made] = reply.message.tool_calls
        assert (made.id, made.name) == ("call_1", LOOKUP.name)
        assert json.loads(made.arguments) == {"email": "ann@example.org"}
        assert reply.finish_reason == "tool_calls"
    else:
        made = ToolCall(
            id="call_1", name=LOOKUP.name, arguments='{"email":"ann@example.org"}', provider_id="p"
        )
        message = Message(role="assistant", tool_calls=(made,))
        reply = ModelReply(message=message, finish_reason="tool_calls", response_model=adapter.model)
    result = Message(role="tool", tool_call_id=made.id, content='{"plan":"gold"}')
    messages = (*request.messages, reply.message, result)
    final = await complete(
        adapter, ask(adapter, messages=messages, tools=request.tools, output_schema=SCHEMA)
    )
    check(final)
    assert final.message.tool_calls == ()
    assert json.loads(final.message.content)["urgency"] in ("high", "low")


async def test_a_failure_is_an_error_with_a_category(adapter: Adapter) -> None:
    with pytest.raises(ModelError) as caught:
        await complete(adapter, ask(adapter, TOO_LONG))
    info = caught.value.info
    assert info.category in get_args(Category)
    assert (info.category, info.code) == ("invalid_input", "context_length_exceeded")
    assert not info.retryable
    if adapter.secret:
        assert adapter.secret not in f"{caught.value} {info}"


async def test_cancelling_ends_the_call_and_nothing_else(adapter: Adapter) -> None:
    request = ask(adapter, ENDLESS, parameters={"max_tokens": 4_000, "temperature": 0})
    task = asyncio.create_task(complete(adapter, request))
    done, _ = await asyncio.wait([task], timeout=0.2)
    assert not done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    check(await complete(adapter, ask(adapter)))


async def test_calls_may_overlap(adapter: Adapter) -> None:
    replies = await asyncio.gather(*(complete(adapter, ask(adapter, output_schema=SCHEMA)) for _ in range(4)))
    for reply in replies:
        check(reply)


async def test_a_provider_that_was_closed_twice_connects_anew(adapter: Adapter) -> None:
    await adapter.provider.aclose()
    await adapter.provider.aclose()
    check(await complete(adapter, ask(adapter)))
