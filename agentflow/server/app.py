"""The ASGI application: the table of operations behind the layer of access control."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentflow.config import ServerConfig
from agentflow.runtime import Runtime
from agentflow.server.access import Access, Authorize, path_of
from agentflow.server.definitions import Definitions, definitions_beside
from agentflow.server.metrics import Metrics
from agentflow.server.openapi import describe
from agentflow.server.operations import Operation
from agentflow.server.page import serve_page
from agentflow.server.problems import Refusal, problem_response
from agentflow.server.routes import (
    bulk,
    catalogue,
    commands,
    documentation,
    questions,
    requests,
    runs,
    sessions,
    streaming,
    submitting,
    system,
)
from agentflow.server.routing import Tree
from agentflow.server.service import Service
from agentflow.server.sessions import Sessions
from agentflow.server.tokens import Tokens

__all__ = ["OPERATIONS", "Application", "described"]

OPERATIONS: tuple[Operation, ...] = (
    *submitting.OPERATIONS,
    *runs.OPERATIONS,
    *streaming.OPERATIONS,
    *commands.OPERATIONS,
    *bulk.OPERATIONS,
    *questions.OPERATIONS,
    *requests.OPERATIONS,
    *catalogue.OPERATIONS,
    *documentation.OPERATIONS,
    *sessions.OPERATIONS,
    *system.OPERATIONS,
)


@cache
def described() -> bytes:
    """Return the OpenAPI document; built at the first request."""
    return describe(OPERATIONS)


class Application:
    """The API of one open Runtime and the dashboard below `/ui/`, as an ASGI application.

    The daemon runs it. It can be mounted in an application of Starlette or FastAPI too, where it refuses
    every request that has no token, unless `authorize` says who its caller is: it is given the request and
    returns an Actor, or None to refuse; it may be a coroutine function. Callers that it names are not trusted
    to name code of this machine unless they are `trusted`. Paths respect `root_path`.

    `stop` asks the process to end. `GET /metrics` also shows what the Runtime measures if
    `metrics.telemetry()` was given to it.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ServerConfig | None = None,
        tokens: Tokens | None = None,
        *,
        authorize: Authorize | None = None,
        definitions: Definitions | None = None,
        stop: Callable[[], None] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        config = config or ServerConfig()
        tokens = tokens or Tokens()
        sessions = Sessions(tokens, trust_all=config.trust_submitted_services)
        kept = definitions or definitions_beside(runtime.log.url, config.definitions)
        self.service = Service(runtime, config, kept, described, stop, metrics, tokens, sessions)
        self._asgi = Access(_Router(self.service), config, tokens, sessions, authorize)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._asgi(scope, receive, send)


class _Router:
    """Behind the access layer: hands a request to its operation."""

    def __init__(self, service: Service) -> None:
        self._service = service
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in OPERATIONS:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        for table in by_path.values():
            if "GET" in table:
                table["HEAD"] = table["GET"]
        self._tree = Tree(by_path.items())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")
        path = path_of(scope)
        if path == "/ui" or (path.startswith("/ui/") and scope["method"] in ("GET", "HEAD")):
            await serve_page(path, scope, receive, send)
            return
        found = self._tree.find(path)
        if found is None:
            refusal = Refusal("not_found", "there is nothing at this path", hint="see /openapi.json")
            await problem_response(refusal, scope["path"])(scope, receive, send)
            return
        operation = found.value.get(scope["method"])
        if operation is None:
            allow = ", ".join(sorted(found.value))
            refusal = Refusal("method_not_allowed", f"here one can {allow}", headers={"Allow": allow})
            await problem_response(refusal, scope["path"])(scope, receive, send)
            return
        scope["path_params"] = found.names
        response = await operation.answer(Request(scope, receive, send), self._service)
        await response(scope, receive, send)
