"""Services of every kind that leave a mark when anything of them runs or is asked, for tests of trust.

A case has a name of its own and a service of its own, so that nothing that was loaded for one case serves
another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.unit.tools.servers import serve

KINDS = ("python", "stdio", "mcp", "openapi", "openapi_file", "http", "secret")
MARKED_BY_BINDING = frozenset({"python", "stdio", "mcp", "openapi"})
"""Kinds of which something runs, or is asked, before any function is called."""

_MODULE = """\
from pathlib import Path
from agentflow import function
mark = Path({mark!r})
mark.touch()
@function(side_effect="read")
def go() -> dict:
    '''Goes.'''
    mark.touch()
    return {{}}
"""

_PROCESS = """\
import json, pathlib, sys
mark = pathlib.Path(sys.argv[1])
mark.touch()
for line in sys.stdin:
    asked = json.loads(line)
    answer = json.loads(sys.argv[2]).get(asked["method"])
    if asked["method"] == "tools/call":
        mark.touch()
    if "id" not in asked:
        continue
    said = {"error": {"code": -32601, "message": "no"}} if answer is None else {"result": answer}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""

_MCP: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "marked", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "went"}]},
}


class Marked:
    """The services of a test. `url` is the server that HTTP kinds talk to, `folder` has code and marks."""

    def __init__(self, folder: Path, url: str, asked: set[str]) -> None:
        self._folder = folder
        self.url = url
        self._asked = asked

    def ran(self, case: str) -> bool:
        """True if code of the service of this case ran, or a request for it came."""
        return case in self._asked or self._mark(case).exists()

    def forget(self, case: str) -> None:
        """Take the mark of a case away."""
        self._asked.discard(case)
        self._mark(case).unlink(missing_ok=True)

    def document(self, kind: str, case: str) -> dict[str, Any]:
        """A definition whose only agent may call the function `go` of the service of this case."""
        agent = {"name": "goer", "system_prompt": "go", "model": "scripted:m", "tools": ["marked.go"]}
        return {"name": case, "agents": [agent], "services": {"marked": self._service(kind, case)}}

    def _mark(self, case: str) -> Path:
        return self._folder / f"{case}.mark"

    def _service(self, kind: str, case: str) -> dict[str, Any]:
        base = f"{self.url}/{case}"
        if kind == "python":
            text = _MODULE.format(mark=str(self._mark(case)))
            (self._folder / f"{case}.py").write_text(text)
            return {"type": "python", "module": case}
        if kind == "stdio":
            args = ["-I", "-S", "-c", _PROCESS, str(self._mark(case)), json.dumps(_MCP)]
            return {"type": "mcp", "transport": "stdio", "command": sys.executable, "args": args}
        if kind == "mcp":
            return {"type": "mcp", "transport": "streamable_http", "url": f"{base}/mcp"}
        if kind == "openapi":
            return {"type": "openapi", "document": f"{base}/api.json"}
        if kind == "openapi_file":
            file = self._folder / f"{case}.json"
            file.write_text(json.dumps(_described(base)))
            return {"type": "openapi", "document": str(file)}
        function = {"method": "GET", "path": "/go"}
        made: dict[str, Any] = {"type": "http", "base_url": base, "functions": {"go": function}}
        return {**made, "headers": {"X-Key": {"$secret": "marked"}}} if kind == "secret" else made


def _described(base: str) -> dict[str, Any]:
    operation = {"operationId": "go", "responses": {"200": {"description": "went"}}}
    info = {"title": "marked", "version": "1"}
    return {
        "openapi": "3.1.0",
        "info": info,
        "servers": [{"url": base}],
        "paths": {"/go": {"get": operation}},
    }


@asynccontextmanager
async def marked_services(folder: Path) -> AsyncGenerator[Marked]:
    """Serve the HTTP kinds on 127.0.0.1, which is a private address, until the block is left."""
    asked: set[str] = set()
    found: list[Marked] = []

    async def answer(request: Request) -> Response:
        case, _, rest = request.path_params["rest"].partition("/")
        asked.add(case)
        if case == "provider":
            return JSONResponse({"error": {"message": "no such model"}}, 400)
        if rest == "api.json":
            return JSONResponse(_described(f"{found[0].url}/{case}"))
        if rest != "mcp":
            return JSONResponse({"went": True})
        if request.method != "POST":
            return Response(status_code=405)
        said = await request.json()
        if "id" not in said:
            return Response(status_code=202)
        result = _MCP.get(said["method"])
        error = {"error": {"code": -32601, "message": "no"}}
        more = error if result is None else {"result": result}
        return JSONResponse({"jsonrpc": "2.0", "id": said["id"], **more})

    app = Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST", "DELETE"])])
    async with serve(app) as url:
        found.append(Marked(folder, url, asked))
        yield found[0]
