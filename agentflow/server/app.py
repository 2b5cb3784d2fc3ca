"""The ASGI application: the table of operations behind the layer that decides who may use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentflow.config import ServerConfig
from agentflow.runtime import Runtime
from agentflow.server.access import Access
from agentflow.server.definitions import Definitions, definitions_beside
from agentflow.server.openapi import describe
from agentflow.server.operations import Operation
from agentflow.server.problems import Refusal, problem_response, refusal_of
from agentflow.server.routes import catalogue, commands, runs, streaming, system
from agentflow.server.service import Service
from agentflow.server.tokens import Tokens

__all__ = ["OPERATIONS", "Application", "described"]

OPERATIONS: tuple[Operation, ...] = (
    *runs.OPERATIONS,
    *streaming.OPERATIONS,
    *commands.OPERATIONS,
    *catalogue.OPERATIONS,
    *system.OPERATIONS,
)


@cache
def described() -> bytes:
    """The OpenAPI document; made when it is first asked for."""
    return describe(OPERATIONS)


class Application:
    """The API of one open Runtime, as an ASGI application.

    The daemon runs it; it can be mounted in another server too, where every request needs a token. `stop`
    asks the process to end.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ServerConfig | None = None,
        tokens: Tokens | None = None,
        *,
        definitions: Definitions | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        config = config or ServerConfig()
        kept = definitions or definitions_beside(runtime.log.url, config.definitions)
        self.service = Service(runtime, config, kept, stop)
        app = Starlette(routes=_routes(), exception_handlers={HTTPException: _http_error, Exception: _error})
        app.router.redirect_slashes = False
        app.state.service = self.service
        app.state.openapi = described
        self._asgi = Access(app, config, tokens or Tokens())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await self._asgi(scope, receive, send)


def _routes() -> list[Route]:
    """A route for each path; the method chooses the operation."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [Route(path, _Endpoint(table)) for path, table in by_path.items()]


class _Endpoint:
    """What stands at one path. A class with ASGI signature, so that Starlette hands all methods over."""

    def __init__(self, table: dict[str, Operation]) -> None:
        self._table = dict(table)
        if "GET" in table:
            self._table["HEAD"] = table["GET"]
        self._allow = ", ".join(sorted(self._table))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._table.get(scope["method"])
        response: Any
        if operation is None:
            refusal = Refusal(
                "method_not_allowed", f"here one can {self._allow}", headers={"Allow": self._allow}
            )
            response = problem_response(refusal, scope["path"])
        else:
            response = await operation(Request(scope, receive, send))
        await response(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    detail = "there is nothing at this path"
    return problem_response(Refusal("not_found", detail, hint="see /openapi.json"), request.url.path)


async def _error(request: Request, error: Exception) -> Response:
    return problem_response(refusal_of(error), request.url.path)
