"""`agentflow mcp-server`: each call of a workflow is a durable run (official client over stdio and HTTP)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from agentflow import Runtime, Service, function
from agentflow.cli.mcp_tools import WorkflowTools
from agentflow.cli.target import LocalTarget
from agentflow.definition import load_value
from agentflow.definition.call_schema import input_schema
from agentflow.definition.ir import EndNode, InputSpec, StartNode, WaitNode, Workflow
from agentflow.definition.loader import definition_of
from agentflow.errors import ConfigurationError
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import chain, document, step


def waiting(name: str, seconds: float) -> Workflow:
    nodes = (
        StartNode(id="__start", next="w"),
        WaitNode(id="w", index=0, duration=seconds, next="__end"),
        EndNode(id="__end", index=1),
    )
    return Workflow(name=name, nodes=nodes)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Two files, `quick` and `slow`, and the environment of a server whose runs are kept below."""
    for workflow in (waiting("quick", 0.01), waiting("slow", 3_600)):
        (tmp_path / f"{workflow.name}.json").write_text(definition_of(workflow).source)
    return {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path),
        "AGENTFLOW_STORE": f"sqlite:{tmp_path / 'runs.db'}",
    }


@asynccontextmanager
async def over_stdio(folder: Path, env: dict[str, str]) -> AsyncIterator[Client]:
    arguments = ["-m", "agentflow", "mcp-server", "quick.json", "slow.json", "--local"]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=env, cwd=folder)
    async with Client(stdio_client(server)) as client:
        yield client


@asynccontextmanager
async def over_http(folder: Path, env: dict[str, str]) -> AsyncIterator[Client]:
    arguments = ["-m", "agentflow", "mcp-server", "quick.json", "slow.json", "--local"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        "--listen",
        "127.0.0.1:0",
        env=env,
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        told = (await process.stderr.readline()).decode()
        assert told.startswith("listening on http://127.0.0.1:"), told
        async with Client(told.removeprefix("listening on ").strip()) as client:
            yield client
    finally:
        process.terminate()
        assert await process.wait() == 130


async def runs_of(env: dict[str, str]) -> dict[str, str]:
    async with Runtime(env["AGENTFLOW_STORE"]) as runtime:
        return {record.definition.name: record.state for record in (await runtime.records()).items}


@pytest.mark.parametrize("connected", [over_stdio, over_http])
async def test_a_call_is_a_run_with_progress_and_cancelling_it_cancels_the_run(
    connected: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    shown: list[str] = []
    begun = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        shown.append(f"{done:g} of {total:g}: {message}")
        begun.set()

    async with connected(tmp_path, environment) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["quick", "slow"]
        result = await client.call_tool("quick", {}, progress_callback=progress)
        assert not result.is_error
        assert result.structured_content is not None
        assert result.structured_content["state"] == "completed"
        assert any("w completed" in line for line in shown)
        begun.clear()
        call = asyncio.ensure_future(client.call_tool("slow", {}, progress_callback=progress))
        await begun.wait()
        call.cancel()
        await asyncio.wait({call})
        again = await client.call_tool("quick", {})  # the server goes on
        assert not again.is_error
    states = await runs_of(environment)
    assert states == {"quick": "completed", "slow": "cancelled"}


async def test_a_client_that_goes_away_cancels_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    call = {"name": "slow", "arguments": {}, "_meta": {"progressToken": 1}}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentflow", "mcp-server", "slow.json", "--local"),
        env=environment,
        cwd=tmp_path,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def say(method: str, params: dict[str, Any], **more: Any) -> None:
        assert process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params, **more}
        process.stdin.write(msgspec.json.encode(message) + b"\n")
        await process.stdin.drain()

    await say("initialize", hello, id=1)
    await process.stdout.readline()
    await say("notifications/initialized", {})
    await say("tools/call", call, id=2)
    assert b"w started" in await process.stdout.readline()
    process.stdin.close()  # as it is when a client was killed
    assert await process.wait() == 0
    assert (await runs_of(environment))["slow"] not in ("cancelled", "failed")


@asynccontextmanager
async def in_process(*subjects: Any, **more: Any) -> AsyncIterator[Client]:
    async with Runtime("memory:", **more) as runtime:
        pairs = [(definition_of(s) if isinstance(s, Workflow) else s, s) for s in subjects]
        pairs = [(definition, definition) for definition, _ in pairs]
        tools = WorkflowTools(LocalTarget(runtime), pairs, version="1", cancels_when_gone=True)
        async with Client(tools.server) as client:
            yield client
        await tools.close()


async def test_a_failed_run_and_wrong_input_are_errors_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")

    @function(side_effect="none")
    def broken() -> str:
        raise ValueError("no way")

    asks = load_value({**document(step("a", input="${{ inputs.city }}")), "name": "asks"})
    model = ScriptedModel([{"ok": True}])
    services = [Service.of("desk", broken)]
    async with in_process(chain("broken", name="fails"), asks, models=[model], services=services) as client:
        failed = await client.call_tool("fails", {})
        assert failed.is_error
        assert "no way" in failed.content[0].text
        wrong = await client.call_tool("asks", {})
        assert wrong.is_error
        assert "city" in wrong.content[0].text
        assert model.requests == []
        assert not (await client.call_tool("asks", {"city": "Ulm"})).is_error
        unknown = await client.call_tool("nothing", {})
        assert "there are fails, asks" in unknown.content[0].text


async def test_a_run_that_waits_for_a_person_says_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    held = load_value({**document(step("a", approval=True)), "name": "held"})
    async with in_process(held, models=[ScriptedModel([{}])]) as client:
        result = await client.call_tool("held", {})
    assert result.is_error
    assert result.structured_content is not None
    assert result.structured_content["state"] == "waiting"


def test_the_arguments_are_those_of_the_workflow() -> None:
    inputs = {
        "city": InputSpec(schema={"type": "string"}, description="Where."),
        "n": InputSpec(required=False),
    }
    schema = input_schema(definition_of(Workflow(name="w", nodes=waiting("w", 1).nodes, inputs=inputs)))
    assert schema["properties"]["city"] == {"type": "string", "description": "Where."}
    assert schema["required"] == ["city"]
    assert input_schema(definition_of(waiting("w", 1)))["properties"] == {"input": True}


def test_two_workflows_of_one_name_are_refused() -> None:
    one = definition_of(waiting("w", 1))
    with pytest.raises(ConfigurationError, match="two workflows have the name w"):
        WorkflowTools(None, [(one, one), (one, one)], version="1", cancels_when_gone=False)  # type: ignore[arg-type]
