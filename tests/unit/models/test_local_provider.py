"""The embedded model end to end: a real child process, real tokens."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentflow.definition.conversation import Message
from agentflow.errors import ConfigurationError
from agentflow.models import ModelError, ModelReply, Models
from agentflow.models.local.provider import LocalProvider

from . import local_model
from .helpers import ask, ids, tool

pytestmark = [pytest.mark.local_model, pytest.mark.asyncio(loop_scope="module")]

MAIL = {
    "type": "object",
    "properties": {"email": {"type": "string", "format": "email"}, "order": {"type": "integer"}},
    "required": ["email", "order"],
}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return local_model.environment(tmp_path_factory.mktemp("data"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def provider(env: dict[str, str]) -> AsyncIterator[LocalProvider]:
    provider = LocalProvider(env=env)
    yield provider
    await provider.aclose()


async def complete(provider: LocalProvider, **more: Any) -> ModelReply:
    return await provider.complete(ask(**{"model": local_model.NAME, **more}), new_call_id=ids())


def child(provider: LocalProvider) -> int:
    [server] = provider._servers.values()
    assert server.pid is not None
    return server.pid


async def test_a_text_is_the_same_each_time(provider: LocalProvider) -> None:
    first, second = [
        await complete(provider, text="Say hello.", parameters={"max_tokens": 12}) for _ in range(2)
    ]
    assert first.message.content
    assert first.message == second.message
    assert first.response_model == local_model.NAME
    assert first.usage.cost_usd == 0.0
    assert first.finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 9}, "ok": {"type": "boolean"}},
            "required": ["n", "ok"],
            "additionalProperties": False,
        },
        {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3},
        {"const": {"fixed": "ünï"}},
        {
            "$defs": {"x": {"enum": [1, 2]}},
            "type": "object",
            "properties": {"v": {"$ref": "#/$defs/x"}},
            "required": ["v"],
        },
    ],
)
async def test_answers_keep_to_the_schema(provider: LocalProvider, schema: dict[str, Any]) -> None:
    import jsonschema

    reply = await complete(provider, text="Anything.", output_schema=schema, parameters={"max_tokens": 60})
    jsonschema.validate(json.loads(reply.message.content), schema)


async def test_a_call_that_is_cut_in_its_arguments_is_not_complete(provider: LocalProvider) -> None:
    """agents-models-tools D1."""
    lookup = tool("crm.lookup", email={"type": "string"})
    text = "Please write to zoe.martin@shop.example. Zoe"
    reply = await complete(provider, text=text, tools=(lookup,), parameters={"max_tokens": 3})
    assert (reply.end, reply.finish_reason) == ("cut", "length")


async def test_one_function_is_called_once_with_what_the_text_says(provider: LocalProvider) -> None:
    lookup = tool("crm.lookup", email={"type": "string"}, order={"type": "integer"})
    text = "My order 4711 did not arrive. Please write to zoe.martin@shop.example. Zoe"
    reply = await complete(provider, text=text, tools=(lookup,), output_schema=MAIL)
    [call] = reply.message.tool_calls
    assert (call.id, call.name, reply.finish_reason) == ("call_1", "crm.lookup", "tool_calls")
    assert json.loads(call.arguments) == {"email": "zoe.martin@shop.example", "order": 4711}
    answered = (
        *ask(text).messages,
        reply.message,
        Message(role="tool", tool_call_id="call_1", content='{"plan":"gold"}'),
    )
    plan = {"type": "object", "properties": {"plan": {"enum": ["gold", "none"]}}, "required": ["plan"]}
    final = await complete(provider, messages=answered, tools=(lookup,), output_schema=plan)
    assert (final.message.tool_calls, json.loads(final.message.content)) == ((), {"plan": "gold"})
    repair = (*answered, final.message, Message(role="user", content="That was not valid: answer again."))
    assert (
        await complete(provider, messages=repair, tools=(lookup,), output_schema=plan)
    ).message.tool_calls == ()


async def test_two_functions_are_refused(provider: LocalProvider) -> None:
    with pytest.raises(ModelError, match="takes one function, 2 are attached"):
        await complete(provider, tools=(tool("a"), tool("b")))


async def test_labels_are_calibrated_once_for_a_prompt(provider: LocalProvider) -> None:
    system = """Label the review.

Broke after two days.
{"sentiment":"negative"}
Works as described, very happy.
{"sentiment":"positive"}
I waited an hour for nothing.
{"sentiment":"negative"}
What a lovely evening!
{"sentiment":"positive"}"""
    schema = {
        "type": "object",
        "properties": {"sentiment": {"enum": ["positive", "negative"]}},
        "required": ["sentiment"],
        "additionalProperties": False,
    }
    before = len(provider._calibrated)
    right = 0
    for text, label in [
        ("I love this phone, the camera is superb.", "positive"),
        ("Never again, a waste of money.", "negative"),
        ("Comfortable shoes, I wear them every day.", "positive"),
        ("Terrible support, nobody answers.", "negative"),
    ]:
        reply = await complete(provider, system=system, text=text, output_schema=schema)
        right += json.loads(reply.message.content)["sentiment"] == label
    assert right >= 3
    assert len(provider._calibrated) == before + 1
    assert len(list(provider._calibrated.values())[-1]) == 2


async def test_a_death_in_the_middle_is_transient_and_the_next_call_works(provider: LocalProvider) -> None:
    await complete(provider, parameters={"max_tokens": 1})
    began = asyncio.Event()
    request = ask("Count to a thousand.", model=local_model.NAME, parameters={"max_tokens": 900})
    task = asyncio.create_task(
        provider.complete(request, new_call_id=ids(), on_delta=lambda kind, text: began.set())
    )
    await began.wait()
    pid = child(provider)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ModelError) as caught:
        await task
    info = caught.value.info
    assert (info.category, info.code, info.retryable) == ("transient", "server_error", True)
    assert "SIGKILL" in info.message
    assert caught.value.partial
    assert (await complete(provider, parameters={"max_tokens": 3})).message.content
    assert child(provider) != pid


async def test_the_key_of_the_child_is_in_no_error(provider: LocalProvider) -> None:
    with pytest.raises(ModelError) as caught:
        await complete(provider, text="word " * 9_000)
    assert caught.value.info.code == "context_length_exceeded"
    [server] = provider._servers.values()
    endpoint = await server.ensure()
    assert endpoint.key not in f"{caught.value!r} {caught.value.info} {caught.value.__cause__!r}"


async def test_a_file_of_ones_own(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    shutil.copyfile(local_model.path(env), path)
    models = Models(env=env)
    ref = models.resolve(f"local:{path}")
    try:
        reply = await models.provider(ref).complete(
            ask(model=ref.model, parameters={"max_tokens": 2}), new_call_id=ids()
        )
        assert (reply.response_model, reply.usage.output_tokens) == ("mine", 2)
    finally:
        await models.aclose()


@pytest.mark.parametrize("threads", ["0", "many", "-1", "1.5"])
async def test_threads_are_checked(env: dict[str, str], threads: str) -> None:
    with pytest.raises(ConfigurationError, match="AGENTFLOW_LOCAL_THREADS"):
        LocalProvider(env={**env, "AGENTFLOW_LOCAL_THREADS": threads})
