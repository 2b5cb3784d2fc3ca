"""The operations of an OpenAPI document (3.0 to 3.2) as functions: what they take, and the request they make.

What the document says of answers is not used: descriptions are seldom exact, and a good answer must not be
thrown away for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from agentflow.definition.urls import path_arguments, path_problem
from agentflow.tools.json_schemas import SchemaBook, Unusable
from agentflow.tools.openapi_body import Body, choose_body
from agentflow.tools.openapi_security import Alternatives, Scheme, requirements, schemes_of
from agentflow.tools.openapi_styles import (
    STYLES,
    Parameter,
    cookie_text,
    header_text,
    path_text,
    query_parts,
)
from agentflow.tools.openapi_text import BrokenDocument
from agentflow.tools.path_template import BadArgument, filled

__all__ = ["Operation", "Operations", "read_operations"]

_METHODS: Final = ("get", "put", "post", "delete", "head", "patch", "query")
_MAX_DESCRIPTION: Final = 2_000
# These the runtime and the HTTP client set (OpenAPI ignores the first three as parameters).
_OWN_HEADERS: Final = frozenset(
    {"accept", "content-type", "authorization"}
    | {"idempotency-key", "traceparent", "tracestate", "agentflow-context"}
    | {"host", "content-length", "connection", "transfer-encoding"}
)
_VERSIONS: Final = ("3.0", "3.1", "3.2")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,40}")
_MAX_NAME: Final = 200


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
    tags: tuple[str, ...] = ()
    security: Alternatives = ()

    def request(self, arguments: dict[str, Any]) -> tuple[str, dict[str, str], bytes | None]:
        """Path with query, headers and body of a call. Raises BadArgument."""
        in_path: dict[str, str] = {}
        query: list[str] = []
        headers: dict[str, str] = {}
        cookies: list[str] = []
        for p in self.parameters:
            value = arguments.get(p.argument)
            if value is None:
                continue
            if p.where == "path":
                in_path[p.name] = path_text(p, value)
            elif p.where in ("query", "querystring"):
                query += query_parts(p, value)
            elif p.where == "header":
                headers[p.name] = header_text(p, value)
            else:
                cookies.append(cookie_text(p, value))
        if cookies:
            headers["cookie"] = "; ".join(cookies)

        def placed(match: re.Match[str]) -> str:
            if match[1] not in in_path:
                raise BadArgument(f"{match[1]} must be given, since it stands in the path")
            return in_path[match[1]]

        target = filled(self.path, placed)
        if query:
            target += "?" + "&".join(query)
        body = None
        if self.body is not None and self.media is not None and self.body in arguments:
            headers["content-type"], body = self.media.encode(arguments[self.body])
        return target, headers, body


class Operations(NamedTuple):
    """Those that can be offered, by name; why others cannot; the server that the document names; its security
    schemes."""

    offered: dict[str, Operation]
    refused: dict[str, str]
    server: str | None
    schemes: Mapping[str, Scheme | str] = {}


def read_operations(
    document: Any, own_headers: frozenset[str] = frozenset(), credentials: frozenset[str] = frozenset()
) -> Operations:
    """Return every operation, by its operationId, else by a name made of its method and path. `own_headers`
    (lower case) and the parameters that carry `credentials` (names of security schemes) are set by the
    service itself and are no arguments. Raises BrokenDocument."""
    root = _object(document, "", "the document")
    version = root.get("openapi")
    if not isinstance(version, str) or not version.startswith(_VERSIONS):
        said = f'openapi is "{str(version)[:20]}"' if version is not None else 'there is no "openapi" in it'
        raise BrokenDocument(f"{said}; OpenAPI 3.0, 3.1 and 3.2 are supported")
    book = SchemaBook(root, "openapi-3.0" if version.startswith("3.0") else "2020-12")
    schemes = schemes_of(root, book)
    set_here = [scheme for name, scheme in schemes.items() if name in credentials]
    reader = _Reader(book, root, own_headers | _OWN_HEADERS, set_here)
    offered: dict[str, Operation] = {}
    refused: dict[str, str] = {}
    found = list(_all(root, book))
    names = _names(found)
    for (pointer, path, item, method, operation), name in zip(found, names, strict=True):
        try:
            offered[name] = reader.operation(name, path, item, method, operation, pointer)
        except Unusable as reason:
            refused[name] = str(reason)
    return Operations(offered, refused, _server(root), schemes)


def _names(found: list[_Found]) -> list[str]:
    """Return the name of each operation. A made name gives way to an operationId. Raises BrokenDocument."""
    taken: set[str] = set()
    for pointer, _, _, _, operation in found:
        name = operation.get("operationId")
        if name is None:
            continue
        if not isinstance(name, str) or not name.strip():
            raise BrokenDocument(f"{pointer}/operationId is no text")
        if name in taken:
            raise BrokenDocument(f'{pointer}/operationId "{name[:80]}" is used twice')
        taken.add(name)
    names: list[str] = []
    for _, path, _, method, operation in found:
        given = operation.get("operationId")
        if given is None:
            stem = re.sub(r"\W+", "_", f"{method} {path}", flags=re.ASCII).strip("_")[:_MAX_NAME]
            given, number = stem, 2
            while given in taken:
                given, number = f"{stem}_{number}", number + 1
            taken.add(given)
        names.append(given)
    return names


_Found = tuple[str, str, dict[str, Any], str, dict[str, Any]]
"""Pointer, path, path item, method and operation."""


def _all(root: dict[str, Any], book: SchemaBook) -> Iterator[_Found]:
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
        more = _object(item.get("additionalOperations", {}), pointer, "additionalOperations")
        for method, operation in more.items():
            where = f"{pointer}/additionalOperations/{method}"
            if not _TOKEN.fullmatch(method):
                raise BrokenDocument(f"{where}: that is no method")
            yield where, path, item, method, _object(operation, where, f"{method} of {path[:80]}")


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

    def __init__(
        self,
        book: SchemaBook,
        root: dict[str, Any],
        own_headers: frozenset[str],
        set_here: list[Scheme | str],
    ) -> None:
        self._book = book
        self._root = root
        self._own_headers = own_headers
        self._credentials = {(s.where, s.name) for s in set_here if isinstance(s, Scheme)}

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
            tags=_tags(operation),
            security=requirements(operation, self._root),
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
                if not isinstance(name, str) or where not in STYLES:
                    raise BrokenDocument(f'{pointer}/parameters: one has no "name", or no "in" that is known')
                found[where, name] = p
        parameters: list[Parameter] = []
        schemas: dict[str, Any] = {}
        required: list[str] = []
        for (where, name), p in found.items():
            if where == "header" and name.lower() in self._own_headers:
                continue
            if (where, name) in self._credentials:
                continue  # a credential is the service's, and never an argument
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


def _tags(operation: dict[str, Any]) -> tuple[str, ...]:
    given = operation.get("tags")
    if not isinstance(given, list):
        return ()
    return tuple(tag for tag in cast("list[Any]", given) if isinstance(tag, str))


def _schema_of(parameter: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema of a parameter, and whether its value is written as JSON."""
    content = parameter.get("content")
    where = parameter["in"]
    if isinstance(content, dict):
        for kind, media in cast("dict[str, Any]", content).items():
            if not isinstance(media, dict):
                continue
            schema: Any = cast("dict[str, Any]", media).get("schema") or {}
            if where == "querystring" and kind.startswith("application/x-www-form-urlencoded"):
                return schema, False
            if where != "querystring" and "json" in kind:
                return schema, True
        raise Unusable(f'parameter "{parameter["name"]}" is neither plain nor JSON')
    if where == "querystring":
        raise Unusable(f'parameter "{parameter["name"]}" stands for the whole query, and has no "content"')
    schema = parameter.get("schema")
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}, False


def _parameter(given: dict[str, Any], argument: str, where: str, as_json: bool) -> Parameter:
    known = STYLES[where]
    style = given.get("style", known[0])
    if style not in known:
        raise Unusable(f'style "{str(style)[:40]}" of parameter "{given["name"]}" is not supported')
    explode = given.get("explode", style in ("form", "cookie"))
    return Parameter(argument, given["name"], where, style, bool(explode), as_json)


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


def _object(value: Any, pointer: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenDocument(f"{pointer or '#'}: {what} is no object")
    return cast("dict[str, Any]", value)
