"""Looking at runs in a browser from a process that is no daemon: at a store that is only read, or through a
port of this machine at a daemon on a Unix socket.

The port asks for the cookie of a one-time code, because the socket behind it would take every local user for
its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentflow.config import ServerConfig
from agentflow.events.log import EventLog
from agentflow.runtime import Runtime
from agentflow.server.access import Access, Actor
from agentflow.server.app import Application
from agentflow.server.definitions import Definitions
from agentflow.server.http_server import HttpServer
from agentflow.server.limits import Limits
from agentflow.server.page import serve_page
from agentflow.server.problems import Refusal, problem_response, refusal_of
from agentflow.server.routes.sessions import end_of, session_of
from agentflow.server.sessions import Sessions
from agentflow.server.sockets import Listeners
from agentflow.server.tokens import Tokens

__all__ = ["forwarder", "listening", "read_only_application"]

_SHUTDOWN_S = 0.5
_DROPPED = frozenset(
    {b"host", b"connection", b"cookie", b"origin", b"referer", b"content-length", b"transfer-encoding"}
)
"""Fields of a request that are of the browser's connection, or were judged here already."""


@asynccontextmanager
async def read_only_application(log: EventLog) -> AsyncGenerator[tuple[Application, str]]:
    """Serve an open store without changing it; yields the application and a code for its page."""
    async with Runtime(log) as runtime:
        app = Application(runtime, ServerConfig(require_token=True), definitions=Definitions(None))
        code = app.service.sessions.issue_code(Actor("local", frozenset({"read"})))
        try:
            yield app, code
        finally:
            app.service.streams.close()


@asynccontextmanager
async def forwarder(socket: str) -> AsyncGenerator[tuple[ASGIApp, str]]:
    """Pass requests on to the daemon at a Unix socket, from callers with a cookie of this application; yields
    it and a code for its page."""
    tokens = Tokens()
    sessions = Sessions(tokens)
    transport = httpx.AsyncHTTPTransport(uds=socket)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
        app = Access(_Forwarder(client, sessions), ServerConfig(require_token=True), tokens, sessions)
        yield app, sessions.issue_code(Actor("local"))


class _Forwarder:
    """ASGI behind the layer of access control: sessions and the page are of this process, all else is
    answered by the daemon."""

    def __init__(self, client: Any, sessions: Any) -> None:
        self._client = client
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:

        request = Request(scope, receive, send)
        path, method = scope["path"], scope["method"]
        try:
            if path == "/ui" or path.startswith("/ui/"):
                await serve_page(path, scope, receive, send)
            elif path == "/session" and method in ("POST", "DELETE"):
                found = session_of if method == "POST" else end_of
                response = await found(request, self._sessions)
                await response(scope, receive, send)
            else:
                await self._pass_on(request, send)
        except Exception as error:
            await problem_response(refusal_of(error), path)(scope, receive, send)

    async def _pass_on(self, request: Any, send: Send) -> None:

        headers = [
            (name, value)
            for name, value in request.headers.raw
            if name not in _DROPPED and not name.startswith(b"sec-")
        ]
        query: bytes = request.scope["query_string"]
        target = httpx.URL("http://localhost").copy_with(
            raw_path=request.scope["path"].encode() + (b"?" + query if query else b"")
        )
        wanted = self._client.build_request(
            request.method, target, headers=headers, content=await request.body()
        )
        try:
            answer = await self._client.send(wanted, stream=True)
        except httpx.TransportError:
            raise Refusal("storage_unavailable", "the daemon does not answer; it may have ended") from None
        try:
            fields = [pair for pair in answer.headers.raw if pair[0].lower() not in _DROPPED]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": fields})
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()


@asynccontextmanager
async def listening(app: ASGIApp, port: int) -> AsyncGenerator[str]:
    """Serve an application on 127.0.0.1; yields its URL.

    At the end streams are cut after _SHUTDOWN_S: what they show goes on elsewhere, or is only read.
    """

    listeners = Listeners()
    try:
        listeners.add_tcp(f"127.0.0.1:{port}")
        server = HttpServer(app, listeners, limits=Limits(shutdown_s=_SHUTDOWN_S))
        serving = asyncio.ensure_future(server.serve())
        await server.started_event.wait()
        try:
            yield f"http://127.0.0.1:{listeners.listeners[0].sock.getsockname()[1]}"
        finally:
            server.stop()
            await serving
    finally:
        listeners.close()
