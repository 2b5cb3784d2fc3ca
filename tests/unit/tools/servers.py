"""Servers that the tests of services talk to: all on 127.0.0.1, on free ports, ended by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentflow.tools import ToolContext

CTX = ToolContext(
    context={"tenant": "t1"},
    workflow_id="wf_1",
    step_id="a",
    iteration=None,
    call_id="call_1",
    idempotency_key="wf_1/a//call_1",
    attempt=1,
    traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    tracestate="rojo=00f067aa0ba902b7",
)


@asynccontextmanager
async def serve(app: Any, port: int = 0) -> AsyncGenerator[str]:
    """The address of an ASGI application on uvicorn, until the block is left.

    Without uvicorn's main loop, which looks after signals and the time, and takes a tenth of a second to end.
    """
    config = uvicorn.Config(app, host="127.0.0.1", port=port, ws="none", log_level="critical")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    assert server.started
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.servers[0].close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        for task in list(server.server_state.tasks):
            task.cancel()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        await server.lifespan.shutdown()


class Recorder:
    """Answers what it is told to and remembers what it was asked."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response] | Response] | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer = answer or (lambda _: JSONResponse({"ok": True}))
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]
        self.app = Starlette(routes=[Route("/{rest:path}", self._handle, methods=methods)])

    async def _handle(self, request: Request) -> Response:
        self.requests.append(
            {
                "method": request.method,
                "path": request.scope["raw_path"].decode(),
                "query": request.scope["query_string"].decode(),
                "headers": dict(request.headers),
                "body": await request.body(),
            }
        )
        answer = self.answer(request)
        return await answer if isinstance(answer, Awaitable) else answer

    @property
    def last(self) -> dict[str, Any]:
        return self.requests[-1]


@asynccontextmanager
async def raw(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    """A server that does not keep to HTTP: `answer` gets each connection once its request head has come."""
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
