"""Services of type `http`: requests that the document itself describes (page 001 §1.4)."""

from __future__ import annotations

from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ServiceSpec
from agentflow.definition.urls import address_problem, path_arguments, path_problem
from agentflow.tools.path_template import BadArgument, as_text, expand
from agentflow.tools.problems import is_included, problem, unavailable, unknown_functions
from agentflow.tools.tool import SideEffect, Tool, ToolError, settled
from agentflow.tools.web import Request, WebService

__all__ = ["EFFECTS", "HttpService", "query_string"]

EFFECTS: Final[dict[str, tuple[SideEffect | None, bool | None]]] = {
    "GET": ("read", None),
    "HEAD": ("read", None),
    "PUT": ("write", True),
    "DELETE": ("write", True),
}
"""What a method says of side effect and idempotency; of the others it says nothing."""

_IN_QUERY: Final = frozenset({"GET", "HEAD", "DELETE"})


class HttpService(WebService):
    """Each function is one request: arguments in the path, in the query, and the others in a JSON body (in
    the query for GET, HEAD and DELETE)."""

    def __init__(self, name: str, spec: ServiceSpec, *, trusted: bool = True) -> None:
        super().__init__(name, spec, trusted=trusted)
        self._base = str(spec.options.get("base_url", "")).rstrip("/")
        self.tools = {
            function: _tool(name, function, said, spec)
            for function, said in spec.functions.items()
            if is_included(function, spec.include)
        }

    async def open(self) -> list[Diagnostic]:
        found = address_problem(self._base)
        if found is not None:
            return [unavailable(self.name, f"base_url {found}", "/base_url")]
        for function, said in self.spec.functions.items():
            wrong = path_problem(str(said.get("path", "")))
            if wrong is not None:
                message = f'function "{function}" of service "{self.name}": its path {wrong}'
                return [problem("E_TOOL_SCHEMA", message, f"/functions/{function}/path")]
        included = list(self.spec.include or ())
        problems = unknown_functions(self.name, included, list(self.spec.functions), {}, "include")
        return problems or await self._check_access(self._base, "/base_url")

    def _request(self, tool: Tool, arguments: dict[str, Any]) -> Request:
        said = self.spec.functions[tool.function]
        method, path = said["method"], said["path"]
        placed = set(path_arguments(path))
        in_query = set(said.get("query") or ())
        if method in _IN_QUERY:
            in_query |= arguments.keys() - placed
        try:
            target = expand(path, arguments)
            query = query_string({k: v for k, v in arguments.items() if k in in_query})
        except BadArgument as bad:
            message = f"{tool.name}: {bad}"
            raise ToolError.of("invalid_input", "invalid_tool_input", message, executed=False) from None
        body = None
        if method not in _IN_QUERY:
            left = {k: v for k, v in arguments.items() if k not in placed and k not in in_query}
            body = msgspec.json.encode(left)
        return Request(method, f"{self._base}{target}{query}", body=body)


def _tool(service: str, function: str, said: dict[str, Any], spec: ServiceSpec) -> Tool:
    side_effect, idempotent = EFFECTS.get(said["method"], (None, None))
    return Tool(
        service=service,
        function=function,
        input_schema=_input_schema(said),
        output_schema=said.get("output_schema"),
        **settled(spec, function, side_effect=side_effect, idempotent=idempotent),
    )


def _input_schema(said: dict[str, Any]) -> dict[str, Any]:
    """Return the declared schema, which must ask for what stands in the path; without one, any other argument
    is taken."""
    needed = path_arguments(said["path"])
    given: dict[str, Any] | None = said.get("input_schema")
    if given is not None:
        required = list(dict.fromkeys([*given.get("required", ()), *needed]))
        return {**given, "required": required} if required else given
    names = dict.fromkeys([*needed, *(said.get("query") or ())])
    properties: dict[str, Any] = {name: {"type": ["string", "number", "boolean"]} for name in names}
    return {"type": "object", "properties": properties, "required": needed}


def query_string(arguments: dict[str, Any]) -> str:
    """Return `?a=1&b=2`, or nothing. An array is repeated, null is left out, an object is JSON."""
    pairs: list[tuple[str, str]] = []
    for name, value in arguments.items():
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        for item in values:
            if item is None:
                continue
            text = as_text(item)
            pairs.append((name, msgspec.json.encode(item).decode() if text is None else text))
    try:
        encoded = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs)
    except UnicodeEncodeError:
        raise BadArgument("an argument has half of a surrogate pair in it") from None
    return f"?{encoded}" if encoded else ""
