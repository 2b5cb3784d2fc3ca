"""The operations of an OpenAPI document (3.0, 3.1) as functions: what they take, and the request they make.

What the document says of answers is not used: descriptions are seldom exact, and a good answer must not be
thrown away for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.definition.urls import path_arguments, path_problem
from agentflow.tools.json_schemas import SchemaBook, Unusable
from agentflow.tools.openapi_body import Body, choose_body, deep_pairs
from agentflow.tools.openapi_body import quoted as _quoted
from agentflow.tools.openapi_body import text_of as _text
from agentflow.tools.openapi_text import BrokenDocument
from agentflow.tools.path_template import BadArgument, expand

__all__ = ["Operation", "Operations", "read_operations"]

_METHODS: Final = ("get", "put", "post", "delete", "head", "patch")
_MAX_DESCRIPTION: Final = 2_000
# These the runtime and the HTTP client set (OpenAPI ignores the first three as parameters).
_OWN_HEADERS: Final = frozenset(
    {"accept", "content-type", "authorization"}
    | {"idempotency-key", "traceparent", "tracestate", "agentflow-context"}
    | {"host", "content-length", "connection", "transfer-encoding"}
)
_SEPARATORS: Final = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|"}


class Parameter(NamedTuple):
    """An argument that does not stand in the body. `argument` is its name for the agent."""

    argument: str
    name: str
    where: str
    style: str
    explode: bool
    as_json: bool


class Operation(NamedTuple):
    """One function. `body` is the argument that is sent as the body, `media` how it is written; None if the
    operation takes none."""

    id: str
    method: str
    path: str
    description: str
    input_schema: dict[str, Any]
    parameters: tuple[Parameter, ...]
    body: str | None
    media: Body | None = None

    def request(self, arguments: dict[str, Any]) -> tuple[str, dict[str, str], bytes | None]:
        """Return path with query, headers and body of a call. Raises BadArgument."""
        in_path: dict[str, Any] = {}
        query: list[tuple[str, str]] = []
        headers: dict[str, str] = {}
        cookies: list[str] = []
        for p in self.parameters:
            value = arguments.get(p.argument)
            if value is None:
                continue
            if p.where == "path":
                in_path[p.name] = _joined(value, ",")
            elif p.where == "query":
                query += _query_pairs(p, value)
            elif p.where == "header":
                headers[p.name] = _header_text(p.argument, _joined(value, ","))
            else:
                cookies.append(f"{p.name}={_quoted(_joined(value, ','))}")
        if cookies:
            headers["cookie"] = "; ".join(cookies)
        target = expand(self.path, in_path)
        if query:
            target += "?" + "&".join(f"{_quoted(name)}={_quoted(text)}" for name, text in query)
        body = None
        if self.body is not None and self.media is not None and self.body in arguments:
            headers["content-type"], body = self.media.encode(arguments[self.body])
        return target, headers, body


class Operations(NamedTuple):
    """Those that can be offered, by operationId; why others cannot; the server that the document names."""

    offered: dict[str, Operation]
    refused: dict[str, str]
    server: str | None


def read_operations(document: Any, own_headers: frozenset[str] = frozenset()) -> Operations:
    """Return every operation with an operationId. `own_headers` (lower case) are set by the service itself
    and are no arguments. Raises BrokenDocument."""
    root = _object(document, "", "the document")
    version = root.get("openapi")
    if not isinstance(version, str) or not version.startswith(("3.0", "3.1")):
        said = f'openapi is "{str(version)[:20]}"' if version is not None else 'there is no "openapi" in it'
        raise BrokenDocument(f"{said}; OpenAPI 3.0 and 3.1 are supported")
    book = SchemaBook(root, "openapi-3.0" if version.startswith("3.0") else "2020-12")
    reader = _Reader(book, own_headers | _OWN_HEADERS)
    offered: dict[str, Operation] = {}
    refused: dict[str, str] = {}
    for pointer, path, item, method, operation in _all(root, book):
        name = operation.get("operationId")
        if name is None:
            continue
        if not isinstance(name, str) or not name.strip():
            raise BrokenDocument(f"{pointer}/operationId is no text")
        if name in offered or name in refused:
            raise BrokenDocument(f'{pointer}/operationId "{name[:80]}" is used twice')
        try:
            offered[name] = reader.operation(name, path, item, method, operation, pointer)
        except Unusable as reason:
            refused[name] = str(reason)
    return Operations(offered, refused, _server(root))


def _all(
    root: dict[str, Any], book: SchemaBook
) -> Iterator[tuple[str, str, dict[str, Any], str, dict[str, Any]]]:
    paths = _object(root.get("paths", {}), "#/paths", "paths")
    for path, given in paths.items():
        if path.startswith("x-"):
            continue
        pointer = f"#/paths/{path.replace('~', '~0').replace('/', '~1')}"
        item = _object(given, pointer, f'the path "{path[:80]}"')
        if "$ref" in item:
            try:
                item = _object(book.resolve(item["$ref"]), pointer, f'the path "{path[:80]}"')
            except Unusable as reason:
                raise BrokenDocument(f"{pointer}: {reason}") from None
        for method in _METHODS:
            if method in item:
                where = f"{pointer}/{method}"
                yield where, path, item, method, _object(item[method], where, f"{method} of {path[:80]}")


def _server(root: dict[str, Any]) -> str | None:
    """Return the first server, its variables replaced by their defaults."""
    servers = root.get("servers")
    if not isinstance(servers, list) or not servers:
        return None
    first = _object(cast("list[Any]", servers)[0], "#/servers/0", "the server")
    url = first.get("url")
    if not isinstance(url, str):
        raise BrokenDocument("#/servers/0/url is no text")
    variables = first.get("variables")
    for name, variable in cast("dict[str, Any]", variables).items() if isinstance(variables, dict) else ():
        default = cast("dict[str, Any]", variable).get("default") if isinstance(variable, dict) else None
        url = url.replace("{" + name + "}", str(default))
    return url


class _Reader:
    """Makes operations. Raises Unusable for one that cannot be called, BrokenDocument for no OpenAPI."""

    def __init__(self, book: SchemaBook, own_headers: frozenset[str]) -> None:
        self._book = book
        self._own_headers = own_headers

    def operation(
        self,
        name: str,
        path: str,
        item: dict[str, Any],
        method: str,
        operation: dict[str, Any],
        pointer: str,
    ) -> Operation:
        wrong = path_problem(path)
        if wrong is not None:
            raise Unusable(f"its path {wrong}")
        parameters, schemas, required = self._parameters(item, operation, pointer)
        placed = {p.name for p in parameters if p.where == "path"}
        for argument in path_arguments(path):
            if argument not in placed:
                raise Unusable(f'no parameter describes "{argument}" of its path')
        media, needs_body = self._body(operation, pointer, method)
        body = None
        if media is not None:
            body = "body"
            while body in schemas:
                body = f"request_{body}"
            schemas[body] = _noted(media.schema, media.note)
            if needs_body:
                required.append(body)

        def build(made: dict[str, Any]) -> dict[str, Any]:
            return {
                "type": "object",
                "properties": made,
                "required": required,
                "additionalProperties": False,
            }

        input_schema = self._book.standalone(schemas, build)
        texts = (operation.get("summary"), operation.get("description"))
        description = "\n".join(dict.fromkeys(t.strip() for t in texts if isinstance(t, str) and t.strip()))
        return Operation(
            id=name,
            method=method.upper(),
            path=path,
            description=description[:_MAX_DESCRIPTION],
            input_schema=input_schema,
            parameters=parameters,
            body=body,
            media=media,
        )

    def _parameters(
        self, item: dict[str, Any], operation: dict[str, Any], pointer: str
    ) -> tuple[tuple[Parameter, ...], dict[str, Any], list[str]]:
        """Return the parameters, their schemas by argument, the arguments that are required."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for home in (item, operation):
            given = home.get("parameters", [])
            if not isinstance(given, list):
                raise BrokenDocument(f"{pointer}/parameters is no array")
            for raw in cast("list[Any]", given):
                p = self._followed(raw, f"{pointer}/parameters")
                name, where = p.get("name"), p.get("in")
                if not isinstance(name, str) or where not in ("path", "query", "header", "cookie"):
                    raise BrokenDocument(f'{pointer}/parameters: one has no "name", or no "in" that is known')
                found[where, name] = p
        parameters: list[Parameter] = []
        schemas: dict[str, Any] = {}
        required: list[str] = []
        for (where, name), p in found.items():
            if where == "header" and name.lower() in self._own_headers:
                continue
            argument = name if name not in schemas else f"{name}_{where}"
            schema, as_json = _schema_of(p)
            if isinstance(p.get("description"), str) and "description" not in schema:
                schema = {**schema, "description": p["description"]} if "$ref" not in schema else schema
            schemas[argument] = schema
            if where == "path" or p.get("required") is True:
                required.append(argument)
            parameters.append(_parameter(p, argument, where, as_json))
        return tuple(parameters), schemas, required

    def _body(self, operation: dict[str, Any], pointer: str, method: str) -> tuple[Body | None, bool]:
        """Return the body, and whether a call must have one."""
        if "requestBody" not in operation:
            return None, False
        body = self._followed(operation["requestBody"], f"{pointer}/requestBody")
        content = _object(body.get("content", {}), f"{pointer}/requestBody/content", "content")
        for kind, media in content.items():
            _object(media, f"{pointer}/requestBody/content", kind)
        needed = body.get("required") is True
        bodiless = method in ("get", "head")
        return choose_body(self._book, content, needed=needed, bodiless=bodiless), needed

    def _followed(self, value: Any, pointer: str) -> dict[str, Any]:
        for _ in range(10):
            members = _object(value, pointer, "it")
            if "$ref" not in members:
                return members
            value = self._book.resolve(members["$ref"])
        raise Unusable("a $ref refers to itself")


def _schema_of(parameter: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema of a parameter, and whether its value is written as JSON."""
    content = parameter.get("content")
    if isinstance(content, dict):
        for kind, media in cast("dict[str, Any]", content).items():
            if "json" in kind and isinstance(media, dict):
                return cast("dict[str, Any]", media).get("schema") or {}, True
        raise Unusable(f'parameter "{parameter["name"]}" is neither plain nor JSON')
    schema = parameter.get("schema")
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}, False


def _parameter(given: dict[str, Any], argument: str, where: str, as_json: bool) -> Parameter:
    usual = "form" if where in ("query", "cookie") else "simple"
    style = given.get("style", usual)
    known = (usual, *(("spaceDelimited", "pipeDelimited", "deepObject") if where == "query" else ()))
    if style not in known:
        raise Unusable(f'style "{style}" of parameter "{given["name"]}" is not supported')
    explode = given.get("explode", style == "form")
    return Parameter(argument, given["name"], where, style, bool(explode), as_json)


def _query_pairs(p: Parameter, value: Any) -> list[tuple[str, str]]:
    if p.as_json:
        return [(p.name, msgspec.json.encode(value).decode())]
    if p.style == "deepObject":
        return list(deep_pairs(p.name, value))
    if isinstance(value, list):
        texts = [_text(item) for item in cast("list[Any]", value)]
        if p.explode:
            return [(p.name, text) for text in texts]
        return [(p.name, _SEPARATORS.get(p.style, ",").join(texts))]
    if isinstance(value, dict):
        members = {k: _text(v) for k, v in cast("dict[str, Any]", value).items() if v is not None}
        if p.explode:
            return list(members.items())
        return [(p.name, ",".join(f"{key},{text}" for key, text in members.items()))]
    return [(p.name, _text(value))]


def _joined(value: Any, separator: str) -> str:
    if isinstance(value, list):
        return separator.join(_text(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return separator.join(f"{key}{separator}{_text(v)}" for key, v in members.items() if v is not None)
    return _text(value)


def _noted(schema: Any, note: str | None) -> Any:
    """Return the schema of a body with a note in its description."""
    if note is None:
        return schema
    members = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    described = members.get("description")
    text = f"{described} {note}" if isinstance(described, str) and described else note
    if "$ref" in members:
        return {"description": text, "allOf": [members]}
    return {**members, "description": text}


def _header_text(argument: str, text: str) -> str:
    if not all(c.isprintable() and ord(c) < 256 for c in text):
        raise BadArgument(f"{argument} has a character in it that no header can hold")
    return text.strip()


def _object(value: Any, pointer: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenDocument(f"{pointer or '#'}: {what} is no object")
    return cast("dict[str, Any]", value)
