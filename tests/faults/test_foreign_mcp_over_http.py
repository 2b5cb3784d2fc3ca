"""The reference server of MCP, from npm, over HTTP: restarted in the middle, hanging, flooding."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.definition.ir import ServiceSpec
from agentflow.events import catalogue as ev
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ToolError
from agentflow.tools.mcp_service import McpService
from tests.faults.packages import npm_installed
from tests.integration.support.runs import document, log_of, step
from tests.unit.tools.servers import CTX

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG = "trigger-long-running-operation"


class Reference:
    """The server on one port, through its restarts."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        modules = npm_installed("@modelcontextprotocol/server-everything@2026.8.31")
        script = modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
        self.process = await asyncio.create_subprocess_exec(
            "node",
            str(script),
            "streamableHttp",
            env={**os.environ, "PORT": str(self.port)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        while b"listening" not in await self.process.stderr.readline():
            assert self.process.returncode is None
        self._reader = asyncio.create_task(self.process.stderr.read())

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        await self.process.wait()
        await self._reader

    def stop_answering(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def reference() -> AsyncGenerator[Reference]:
    made = Reference()
    await made.start()
    try:
        yield made
    finally:
        await made.kill()


def spec(server: Reference, **functions: Any) -> ServiceSpec:
    options = {"transport": "streamable_http", "url": server.url}
    return ServiceSpec(type="mcp", options=options, functions=functions)


@asynccontextmanager
async def opened(server: Reference) -> AsyncGenerator[McpService]:
    made = McpService("tools", spec(server), Path())
    try:
        assert await made.open() == []
        yield made
    finally:
        await made.aclose()


async def said(made: McpService, name: str, **arguments: Any) -> str:
    return str(await made.call(made.tools[name], arguments, CTX))


async def test_its_functions_answer() -> None:
    async with reference() as server, opened(server) as made:
        assert {"echo", "get-sum", LONG} <= made.tools.keys()
        assert "Echo: ünï" in await said(made, "echo", message="ünï")
        assert "5" in await said(made, "get-sum", a=2, b=3)
        answers = await asyncio.gather(*(said(made, "get-sum", a=n, b=n) for n in range(40)))
        assert all(str(2 * n) in answer for n, answer in enumerate(answers))
        assert "image" in await said(made, "get-tiny-image")


async def test_it_is_restarted_between_two_calls() -> None:
    async with reference() as server, opened(server) as made:
        assert "Echo: 1" in await said(made, "echo", message="1")
        await server.kill()
        with pytest.raises(ToolError) as caught:
            await said(made, "echo", message="2")
        assert (caught.value.info.code, caught.value.unknown) == ("network_error", False)
        await server.start()  # which knows nothing of the session
        assert "Echo: 3" in await said(made, "echo", message="3")


async def test_it_is_restarted_in_the_middle_of_a_call() -> None:
    """What happened to the call is unknown, and it is not repeated."""
    async with reference() as server, opened(server) as made:
        running = asyncio.create_task(said(made, LONG, duration=60, steps=1))
        assert "Echo" in await said(made, "echo", message="it is under way")
        await server.kill()
        with pytest.raises(ToolError) as caught:
            await running
        assert caught.value.unknown
        await server.start()
        assert "Echo: on" in await said(made, "echo", message="on")


async def test_an_agent_goes_on_after_a_restart() -> None:
    """A run in whose middle the server was restarted: no call is lost, and none is made twice."""
    async with reference() as server:
        made = step("a", functions=["echo"])
        del made["agent"]["resultSchema"]
        made["agent"]["model"] = "scripted:m"
        restarted = False

        async def restart() -> None:
            await server.kill()
            await server.start()

        class Restarting(ScriptedModel):
            async def complete(self, request: Any, **more: Any) -> Any:
                nonlocal restarted
                if len(self.requests) == 1 and not restarted:
                    restarted = True
                    await restart()
                return await super().complete(request, **more)

        model = Restarting([call("desk__echo", message="1"), call("desk__echo", message="2"), "done"])
        options = {"type": "mcp", "transport": "streamable_http", "url": server.url}
        async with Runtime(models=[model]) as runtime:
            whole = {**document(made), "services": {"desk": options}}
            result = await runtime.run(whole, {})
            events = await log_of(runtime, result.workflow_id)
    assert restarted
    done = [str(e.data.output) for e in events if isinstance(e.data, ev.ToolCallCompleted)]
    assert ["Echo: 1" in done[0], "Echo: 2" in done[1], len(done)] == [True, True, 2]
    assert not any(isinstance(e.data, ev.ToolCallFailed) for e in events)


async def test_it_hangs() -> None:
    """A server that no longer answers costs the caller its own time limit, and serves again afterwards."""
    async with reference() as server, opened(server) as made:
        server.stop_answering()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await said(made, "echo", message="lost")
        server.go_on()
        assert "Echo: back" in await said(made, "echo", message="back")


async def test_it_floods_the_session_with_messages_meanwhile() -> None:
    async with reference() as server, opened(server) as made:
        await said(made, "toggle-simulated-logging")
        await said(made, "toggle-subscriber-updates")
        answers = await asyncio.gather(*(said(made, "echo", message=str(n)) for n in range(60)))
        assert all(f"Echo: {n}" in answer for n, answer in enumerate(answers))
        long = await said(made, LONG, duration=1, steps=1000)  # a thousand messages of progress
        assert "completed" in long
