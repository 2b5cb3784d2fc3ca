"""Agents against servers of models that are not ours: a mock server, a gateway, the embedded engine's.

Each of the wire formats calls functions, answers by a schema, does both, is refused for length, is cut, is
cancelled, and asks forty times in a row over connections that the server may close.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import msgspec
import pytest
import pytest_asyncio

from agentflow import Runtime, Service, function
from agentflow.events import catalogue as ev
from agentflow.models import Models
from agentflow.models.local.process import LocalServer
from agentflow.models.local.weights import require
from agentflow.models.table import known_profile
from tests.faults.packages import npm_installed, python_environment
from tests.integration.support.runs import document, log_of, step
from tests.unit.models import local_model
from tests.unit.models.wire_formats import CHAT, GEMINI, MESSAGES, RESPONSES, Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

MOCK = Path(__file__).parent / "foreign_mock.mjs"
KEY = "sk-of-the-tests-0123456789"
PATHS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": "/v1", "gemini": "/v1beta"}


class Place(NamedTuple):
    """A server: its address, the name of its model, and its key."""

    url: str
    model: str
    key: str = KEY


@asynccontextmanager
async def process(
    *command: str, stdin: int = asyncio.subprocess.DEVNULL, **env: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    null = asyncio.subprocess.DEVNULL
    made = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=null, stdin=stdin, env={**os.environ, **env}
    )
    try:
        yield made
    finally:
        made.kill()
        await made.communicate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mock() -> AsyncIterator[Place]:
    modules = npm_installed("@copilotkit/aimock@1.43.0")
    script = modules.parent / MOCK.name  # beside what it imports
    script.write_text(MOCK.read_text())
    async with process("node", str(script)) as running:
        assert running.stdout is not None
        yield Place((await running.stdout.readline()).decode().strip(), "gpt-4o")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(mock: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder = python_environment("litellm", "litellm[proxy]==1.106.2")
    upstream = {"model": "openai/gpt-4o", "api_base": f"{mock.url}/v1", "api_key": KEY}
    options = {
        "model_list": [{"model_name": "m", "litellm_params": upstream}],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": KEY},
    }
    file = tmp_path_factory.mktemp("gateway") / "config.yaml"
    file.write_text(json.dumps(options))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ("--config", str(file), "--host", "127.0.0.1", "--port", str(port))
    async with process(
        str(folder / "bin/litellm"), *arguments, LITELLM_LOCAL_MODEL_COST_MAP="True"
    ) as running:
        assert running.stdout is not None
        lines = asyncio.ensure_future(running.stdout.read())  # so that it never waits for its reader
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client, asyncio.timeout(120):
            while not await _is_up(client, url):
                assert running.returncode is None
                await asyncio.sleep(0.2)
        yield Place(url, "m")
        lines.cancel()


async def _is_up(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health/readiness")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(request.param)


WAYS = [
    pytest.param(place, wire, id=f"{place}-{wire.name}")
    for place in ("mock", "gateway")
    for wire in (CHAT, RESPONSES, MESSAGES, GEMINI)
]
every_way = pytest.mark.parametrize(("place", "wire"), WAYS, indirect=["place"])


@function(side_effect="read")
def look(key: str) -> str:
    """Look up a key."""
    return f"value of {key}"


@asynccontextmanager
async def opened(place: Place, wire: Wire) -> AsyncGenerator[Runtime]:
    provider = wire.provider(base_url=place.url + PATHS[wire.name], api_key=place.key, name="server")
    async with Runtime(models=Models([provider]), services=[Service.of("desk", look)]) as runtime:
        yield runtime


def asking(place: Place, text: str, *, functions: Any = "none", schema: Any = None, **more: Any) -> Any:
    made = step("a", functions=functions, input=text, schema=schema or {}, **more)
    if schema is None:
        del made["agent"]["resultSchema"]
    made["agent"]["model"] = f"server:{place.model}"
    return document(made)


def of(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event.data for event in events if isinstance(event.data, kind)]


N = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@every_way
async def test_functions(place: Place, wire: Wire) -> None:
    async with opened(place, wire) as runtime:
        result = await runtime.run(asking(place, "Use tools", functions=["look"]), {})
        events = await log_of(runtime, result.workflow_id)
    assert "looked up" in str(result.output)
    assert [done.output for done in of(events, ev.ToolCallCompleted)] == ["value of a", "value of b"]
    assert of(events, ev.ModelCallFailed) == []
    assert all(done.usage.input_tokens > 0 for done in of(events, ev.ModelCallCompleted))


@every_way
async def test_a_schema(place: Place, wire: Wire) -> None:
    async with opened(place, wire) as runtime:
        result = await runtime.run(asking(place, "Answer by schema", schema=N), {})
        events = await log_of(runtime, result.workflow_id)
    assert result.output == {"a": {"n": 3}}
    assert of(events, ev.ModelCallFailed) == []


@every_way
async def test_functions_and_a_schema(place: Place, wire: Wire) -> None:
    async with opened(place, wire) as runtime:
        result = await runtime.run(asking(place, "Do both", functions=["look"], schema=N), {})
        events = await log_of(runtime, result.workflow_id)
    assert result.output == {"a": {"n": 4}}
    assert [done.output for done in of(events, ev.ToolCallCompleted)] == ["value of c"]
    assert of(events, ev.ModelCallFailed) == []


@every_way
async def test_too_long(place: Place, wire: Wire) -> None:
    async with opened(place, wire) as runtime:
        result = await runtime.run(asking(place, "Too long"), {}, raise_on_failure=False)
        events = await log_of(runtime, result.workflow_id)
    [failed] = of(events, ev.ModelCallFailed)
    assert failed.error.code == "context_length_exceeded", failed.error


@every_way
async def test_an_answer_that_is_cut(place: Place, wire: Wire) -> None:
    async with opened(place, wire) as runtime:
        result = await runtime.run(asking(place, "Be cut"), {}, raise_on_failure=False)
        events = await log_of(runtime, result.workflow_id)
    assert result.state == "failed"
    assert {failed.error.code for failed in of(events, ev.ModelCallFailed)} == {"output_truncated"}


@every_way
async def test_a_call_that_is_cancelled(place: Place, wire: Wire) -> None:
    async with opened(place, wire) as runtime:
        run = await runtime.submit(asking(place, "Be slow"), {})
        async for event in runtime.events(run.workflow_id):
            if isinstance(event.data, ev.ModelCallStarted):
                break
        await runtime.cancel(run.workflow_id)
        result = await runtime.rest(run.workflow_id)
        assert result.state == "cancelled"
        events = await log_of(runtime, run.workflow_id)
        [failed] = of(events, ev.ModelCallFailed)
        assert failed.error.category == "cancelled"
        result = await runtime.run(asking(place, "Hello"), {})
        assert result.output == {"a": {"text": "Grüße, 世界 🎉"}}


@every_way
async def test_forty_requests_one_after_another(place: Place, wire: Wire) -> None:
    async with opened(place, wire) as runtime:
        for _ in range(40):
            result = await runtime.run(asking(place, "Hello"), {})
            assert result.output == {"a": {"text": "Grüße, 世界 🎉"}}
            events = await log_of(runtime, result.workflow_id)
            assert of(events, ev.ModelCallFailed) == []


# -- The embedded engine's server, which is llama.cpp's -------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    env = local_model.environment(tmp_path_factory.mktemp("data"))
    server = LocalServer(require(local_model.NAME, env), "m", threads=1, context=512)
    endpoint = await server.ensure()
    yield Place(endpoint.url.removesuffix("/v1"), "m", endpoint.key)
    await server.aclose()


engine_ways = pytest.mark.parametrize(
    "wire", [pytest.param(w, id=w.name) for w in (CHAT, RESPONSES, MESSAGES)]
)


def short(place: Place, text: str, limit: int, **more: Any) -> Any:
    made = asking(place, text, **more)
    made["workflow"]["steps"][0]["agent"] |= {
        "accept_truncated": True,
        "model": {"model": f"server:{place.model}", "max_tokens": limit},
    }
    return made


@pytest.mark.local_model
@engine_ways
async def test_the_engine_answers_forty_requests_one_after_another(engine: Place, wire: Wire) -> None:
    async with opened(engine, wire) as runtime:
        for _ in range(40):
            result = await runtime.run(short(engine, "Hello", 2), {})
            events = await log_of(runtime, result.workflow_id)
            assert of(events, ev.ModelCallFailed) == []
            assert of(events, ev.ModelCallCompleted)[0].usage.output_tokens > 0


@pytest.mark.local_model
@engine_ways
async def test_the_engine_refuses_what_is_too_long(engine: Place, wire: Wire) -> None:
    async with opened(engine, wire) as runtime:
        result = await runtime.run(short(engine, "word " * 2_000, 2), {}, raise_on_failure=False)
        [failed] = of(await log_of(runtime, result.workflow_id), ev.ModelCallFailed)
    assert failed.error.code == "context_length_exceeded", failed.error


@pytest.mark.local_model
@engine_ways
async def test_the_engine_is_cancelled_and_serves_again(engine: Place, wire: Wire) -> None:
    async with opened(engine, wire) as runtime:
        run = await runtime.submit(short(engine, "Tell a long story.", 400), {})
        async for event in runtime.events(run.workflow_id):
            if isinstance(event.data, ev.ModelCallStarted):
                break
        await runtime.cancel(run.workflow_id)
        assert (await runtime.rest(run.workflow_id)).state == "cancelled"
        assert (await runtime.run(short(engine, "Hello", 2), {})).state == "completed"


# The same server with a chat template for functions, which that of the model is not.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calling_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    model = require(local_model.NAME, local_model.environment(tmp_path_factory.mktemp("data")))
    script = Path(__file__).parent / "foreign_engine.py"
    async with process(sys.executable, str(script), str(model), stdin=asyncio.subprocess.PIPE) as running:
        assert running.stdout is not None
        yield Place((await running.stdout.readline()).decode().strip(), "m")


N_OF_TWO = {**N, "properties": {"n": {"type": "integer", "enum": [1, 2]}}}


@function(name="look", side_effect="read")
def look_at_one(key: Literal["a", "b"]) -> str:
    """Look up a key."""
    return f"value of {key}"


@asynccontextmanager
async def engine_opened(engine: Place, wire: Wire) -> AsyncGenerator[Runtime]:
    """A runtime for which the server answers by a schema as the profile of llama.cpp says; beside chat
    completions it knows no schemas."""
    profile = known_profile("llamacpp", "m")
    if wire is not CHAT:
        profile = msgspec.structs.replace(profile, schema_mode="tool")
    provider = wire.provider(
        base_url=engine.url + PATHS[wire.name], api_key="any", name="server", profiles=lambda model: profile
    )
    services = [Service.of("desk", look_at_one)]
    async with Runtime(models=Models([provider]), services=services) as runtime:
        yield runtime


def calm(place: Place, text: str, limit: int = 80, **more: Any) -> Any:
    made = short(place, text, limit, **more)
    made["workflow"]["steps"][0]["agent"]["model"] |= {"temperature": 0}
    return made


@pytest.mark.local_model
@engine_ways
async def test_the_engine_calls_functions(calling_engine: Place, wire: Wire) -> None:
    async with engine_opened(calling_engine, wire) as runtime:
        result = await runtime.run(calm(calling_engine, "Call a function: Look.", functions=["look"]), {})
        events = await log_of(runtime, result.workflow_id)
    [done] = of(events, ev.ToolCallCompleted)
    assert done.output in ("value of a", "value of b")
    assert of(events, ev.ModelCallFailed) == []
    assert [bool(c.message.tool_calls) for c in of(events, ev.ModelCallCompleted)] == [True, False]


@pytest.mark.local_model
@engine_ways
async def test_the_engine_answers_by_the_schema_of_its_profile(calling_engine: Place, wire: Wire) -> None:
    async with engine_opened(calling_engine, wire) as runtime:
        result = await runtime.run(calm(calling_engine, "Call a function: Two.", schema=N_OF_TWO), {})
        events = await log_of(runtime, result.workflow_id)
    assert result.output["a"]["n"] in (1, 2)
    assert len(of(events, ev.ModelCallCompleted)) == 1
    assert of(events, ev.ModelCallFailed) == []


@pytest.mark.local_model
@engine_ways
async def test_the_engine_calls_functions_and_answers_by_a_schema(calling_engine: Place, wire: Wire) -> None:
    """Its grammar of a schema lets no function be called, so that the answer is the call of one."""
    made = calm(calling_engine, "Call a function: Look.", functions=["look"], schema=N_OF_TWO)
    async with engine_opened(calling_engine, wire) as runtime:
        result = await runtime.run(made, {})
        events = await log_of(runtime, result.workflow_id)
    assert [done.output[:8] for done in of(events, ev.ToolCallCompleted)] == ["value of"]
    assert result.output["a"]["n"] in (1, 2)
    assert of(events, ev.ModelCallFailed) == []


@pytest.mark.local_model
@engine_ways
async def test_an_answer_of_the_engine_that_is_cut(calling_engine: Place, wire: Wire) -> None:
    made = calm(calling_engine, "Tell a long story.", 8)
    made["workflow"]["steps"][0]["agent"]["accept_truncated"] = False
    async with engine_opened(calling_engine, wire) as runtime:
        result = await runtime.run(made, {}, raise_on_failure=False)
        events = await log_of(runtime, result.workflow_id)
    assert result.state == "failed"
    assert {failed.error.code for failed in of(events, ev.ModelCallFailed)} == {"output_truncated"}


@pytest.mark.local_model
async def test_the_engine_answers_by_a_schema(engine: Place) -> None:
    schema = {**N, "properties": {"n": {"type": "integer", "enum": [1, 2]}}}
    async with opened(engine, CHAT) as runtime:
        result = await runtime.run(short(engine, "One or two?", 40, schema=schema), {})
        events = await log_of(runtime, result.workflow_id)
    assert result.output["a"]["n"] in (1, 2)
    assert of(events, ev.ModelCallFailed) == []
