"""A daemon's API on real sockets in the test's own loop, and what tests submit to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from agentflow import Runtime, Service, function
from agentflow.client import Client
from agentflow.config import ServerConfig
from agentflow.events.log import EventLog
from agentflow.server.app import Application
from agentflow.server.http_server import HttpServer
from agentflow.server.limits import Limits
from agentflow.server.metrics import Metrics
from agentflow.server.sockets import Listeners
from agentflow.server.tokens import ALL_SCOPES, Token, Tokens
from agentflow.testing import ScriptedModel


def agents(*prompts: str, **more: Any) -> dict[str, Any]:
    """An agent list of the scripted model, which answers by echo."""
    listed = [
        {"name": f"agent_{i}", "system_prompt": p, "model": "scripted:m"} for i, p in enumerate(prompts)
    ]
    return {"agents": listed, **more}


ECHO = agents("echo")

STEPS = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: first
      agent: {systemPrompt: first, input: "${{ inputs.text }}", attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
    - type: run
      id: second
      depends_on: [first]
      agent: {systemPrompt: second, input: "${{ steps.first.outputs.result }}", attachedFunctions: none,
              model: "scripted:m", resultSchema: {type: string}}
"""

APPROVAL = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: ask
      approval: true
      agent: {systemPrompt: go, input: x, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""


def echo() -> ScriptedModel:
    """Answers what it was asked, with a mark."""
    return ScriptedModel(lambda request: request.messages[-1].content + "!", max_concurrency=64)


class Gate:
    """A function that is open until the test lets it go; a document names it as `gate.hold`."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()
        self.calls = 0

    def service(self) -> Service:
        @function(name="hold", side_effect="read")
        async def hold() -> dict[str, int]:
            """Waits."""
            self.calls += 1
            self.entered.set()
            await self.leave.wait()
            return {"held": self.calls}

        return Service.of("gate", hold)

    def document(self) -> dict[str, Any]:
        return {
            "agents": [
                {
                    "name": "holder",
                    "system_prompt": "hold",
                    "model": "scripted:m",
                    "tools": ["gate.hold"],
                }
            ]
        }


def holding_model() -> ScriptedModel:
    """Calls `gate.hold` once, then answers; any other prompt is echoed."""
    from agentflow.testing.scripted import call

    def answer(request: Any) -> Any:
        if request.messages[0].content != "hold":
            return request.messages[-1].content + "!"
        if request.messages[-1].role == "tool":
            return "released"
        return call("gate__hold")

    return ScriptedModel(answer, max_concurrency=64)


class Serving:
    """What a test needs of a served Runtime."""

    def __init__(
        self, runtime: Runtime, app: Application, server: HttpServer, socket: Path, port: int
    ) -> None:
        self.runtime = runtime
        self.app = app
        self.server = server
        self.socket = socket
        self.port = port

    @property
    def unix_url(self) -> str:
        return f"unix:{self.socket}"

    @property
    def tcp_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self, *, tcp: bool = False, **more: Any) -> httpx.AsyncClient:
        if tcp:
            return httpx.AsyncClient(base_url=self.tcp_url, trust_env=False, verify=False, timeout=20, **more)
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=20, **more)

    def client(self, *, tcp: bool = False, **more: Any) -> Client:
        return Client(self.tcp_url if tcp else self.unix_url, **more)


def tokens(**named: tuple[str, ...]) -> tuple[Tokens, dict[str, str]]:
    """Tokens by name and scopes, and their secrets."""
    import hashlib

    secrets = {name: f"{name}-0123456789abcdefghijklmnopqrstuvwxyz" for name in named}
    made = []
    for name, scopes in named.items():
        given = ALL_SCOPES if "admin" in scopes else frozenset({*scopes, "read"})
        made.append(Token(name, given, hashlib.sha256(secrets[name].encode()).digest()))
    return Tokens(made), secrets


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    store: str | EventLog = "memory:",
    model: ScriptedModel | None = None,
    services: tuple[Service, ...] = (),
    config: ServerConfig | None = None,
    given: Tokens | None = None,
    kind: str | None = None,
    metrics: Metrics | None = None,
    limits: Limits | None = None,
    max_connections: int = 4_096,
    **more: Any,
) -> AsyncGenerator[Serving]:
    """Serve a Runtime on a Unix socket and a TCP port. `kind` says what the port is taken for."""
    listeners = Listeners()
    socket = folder / "s"
    listeners.add_unix(socket)
    listeners.add_tcp("127.0.0.1:0")
    tcp = listeners.listeners[1]
    if kind is not None:
        tcp.kind = kind  # type: ignore[assignment]
    port = tcp.sock.getsockname()[1]
    try:
        async with Runtime(store, models=[model or echo()], services=services, **more) as runtime:
            app = Application(runtime, config, given, metrics=metrics)
            server = HttpServer(app, listeners, limits=limits, max_connections=max_connections)
            task = asyncio.ensure_future(server.serve())
            await server.started_event.wait()
            try:
                yield Serving(runtime, app, server, socket, port)
            finally:
                app.service.streams.close()
                runtime.hub.close()
                server.stop()
                await task
    finally:
        listeners.close()
