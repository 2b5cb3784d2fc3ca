"""Services of type openapi: real documents, broken ones, and the requests that operations make."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentflow.definition.ir import ServiceSpec
from agentflow.definition.schemas import validate
from agentflow.tools import ToolError
from agentflow.tools.openapi_operations import Operation, read_operations
from agentflow.tools.openapi_service import OpenApiService
from agentflow.tools.path_template import BadArgument
from tests.unit.tools.servers import CTX, Recorder, serve

STRING = {"type": "string"}
ORDER = {
    "type": "object",
    "required": ["id", "lines"],
    "properties": {
        "id": {"type": "string", "readOnly": True},
        "note": {"type": "string", "nullable": True, "example": "soon"},
        "lines": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}},
        "parent": {"$ref": "#/components/schemas/Order"},
    },
}

DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "http://127.0.0.1:1/v1"}],
    "paths": {
        "/orders/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {
                "operationId": "getOrder",
                "summary": "One order.",
                "description": "With its lines.",
                "parameters": [
                    {
                        "name": "fields",
                        "in": "query",
                        "schema": {"type": "array", "items": {"type": "string"}},
                    },
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                    {
                        "name": "Idempotency-Key",
                        "in": "header",
                        "required": True,
                        "schema": {"type": "string"},
                    },
                ],
                "responses": {"200": {"description": "it"}},
            },
            "put": {
                "operationId": "putOrder",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}},
                },
                "responses": {"200": {"description": "it"}},
            },
            "delete": {"responses": {"204": {"description": "gone"}}},
        },
        "/uploads": {
            "post": {
                "operationId": "upload",
                "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {}}}},
                "responses": {"200": {"description": "it"}},
            }
        },
        "/search": {
            "post": {
                "operationId": "search",
                "requestBody": {"content": {"application/vnd.shop+json": {"schema": {"type": "object"}}}},
                "responses": {"200": {"description": "it"}},
            }
        },
    },
    "components": {
        "parameters": {"Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}},
        "schemas": {
            "Order": ORDER,
            "Line": {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}},
        },
    },
}


def spec(document: str, **more: Any) -> ServiceSpec:
    options = {
        "document": document,
        **{k: more.pop(k) for k in ("base_url", "headers", "security") if k in more},
    }
    return ServiceSpec(type="openapi", options=options, **more)


def write(folder: Path, document: Any, name: str = "api.json") -> str:
    text = json.dumps(document) if name.endswith("json") else yaml.safe_dump(document)
    (folder / name).write_text(text)
    return name


async def opened(folder: Path, document: Any = DOCUMENT, **more: Any) -> OpenApiService:
    made = OpenApiService("shop", spec(write(folder, document), **more), folder)
    assert await made.open() == []
    return made


async def problems(folder: Path, document: Any = DOCUMENT, **more: Any) -> list[tuple[Any, ...]]:
    made = OpenApiService("shop", spec(write(folder, document), **more), folder)
    return [(p.code, p.message, p.path, p.hint) for p in await made.open()]


def operation(folder_document: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The document with one operation `op` at `/x`."""
    return {**folder_document, "paths": {"/x": {"get": {"operationId": "op", **more}}}}


BARE: dict[str, Any] = {"openapi": "3.1.0", "servers": [{"url": "http://h"}]}


async def test_operations_are_functions(tmp_path: Path) -> None:
    made = await opened(tmp_path)
    assert list(made.tools) == ["getOrder", "putOrder", "delete_orders_id", "search"]
    get, put, _, search = made.tools.values()
    assert (get.description, get.side_effect, get.idempotent) == ("One order.\nWith its lines.", "read", True)
    assert (put.side_effect, put.idempotent, put.declared) == ("write", True, True)
    assert (search.side_effect, search.idempotent, search.declared) == ("external", False, False)
    assert get.input_schema["properties"].keys() == {"id", "fields", "X-Trace", "session"}
    assert get.input_schema["required"] == ["id"]
    assert put.input_schema["required"] == ["id", "body"]
    assert search.input_schema["required"] == []
    assert made.refused == {
        "upload": "its body is multipart/form-data, and its document does not describe the members"
    }


async def test_references_are_replaced_and_circles_keep_theirs(tmp_path: Path) -> None:
    schema = (await opened(tmp_path)).tools["putOrder"].input_schema
    assert schema["properties"]["body"] == {"$ref": "#/$defs/Order"}
    assert schema["$defs"] == {
        "Order": {
            "type": "object",
            "required": ["lines"],
            "properties": {
                "note": {"type": ["string", "null"]},
                "lines": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}},
                    },
                },
                "parent": {"$ref": "#/$defs/Order"},
            },
        }
    }


async def test_calls(tmp_path: Path) -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        made = await opened(tmp_path, base_url=url + "/v2/")
        arguments = {"id": "a/b", "fields": ["x", "y&z"], "X-Trace": "t", "session": "s; x=1"}
        assert await made.call(made.tools["getOrder"], arguments, CTX) == {"ok": True}
        get = recorder.last
        assert (get["path"], get["query"]) == ("/v2/orders/a%2Fb", "fields=x&fields=y%26z")
        assert get["headers"]["x-trace"] == "t"
        assert get["headers"]["cookie"] == "session=s%3B%20x%3D1"
        assert get["headers"]["idempotency-key"] == CTX.idempotency_key
        assert get["body"] == b""
        await made.call(made.tools["putOrder"], {"id": "1", "body": {"lines": []}}, CTX)
        assert recorder.last["body"] == b'{"lines":[]}'
        await made.call(made.tools["search"], {}, CTX)
        assert recorder.last["body"] == b""
        for wrong in ({"id": ".."}, {"id": "1", "X-Trace": "a\r\nX-Evil: 1"}, {"id": "1", "X-Trace": "€"}):
            with pytest.raises(ToolError) as caught:
                await made.call(made.tools["getOrder"], wrong, CTX)
            assert (caught.value.info.code, caught.value.executed) == ("invalid_tool_input", False)
        await made.aclose()


@pytest.mark.parametrize(
    ("parameter", "value", "query"),
    [
        ({}, ["a", "b"], "p=a&p=b"),
        ({"explode": False}, ["a", "b,c"], "p=a,b%2Cc"),
        ({"style": "spaceDelimited"}, ["a", "b"], "p=a%20b"),
        ({"style": "pipeDelimited"}, ["a", "b"], "p=a%7Cb"),
        ({}, {"a": 1, "b": None, "c": True}, "a=1&c=true"),
        ({"explode": False}, {"a": 1}, "p=a,1"),
        ({"style": "deepObject"}, {"a": 1, "b": "x y"}, "p%5Ba%5D=1&p%5Bb%5D=x%20y"),
        ({"content": {"application/json": {"schema": {}}}}, {"a": [1]}, "p=%7B%22a%22%3A%5B1%5D%7D"),
        ({}, None, ""),
        ({}, "", "p="),
        ({}, 1.0, "p=1.0"),
    ],
)
async def test_styles_of_query_parameters(
    tmp_path: Path, parameter: dict[str, Any], value: Any, query: str
) -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        given = {
            "name": "p",
            "in": "query",
            **({} if "content" in parameter else {"schema": {}}),
            **parameter,
        }
        made = await opened(tmp_path, operation(BARE, parameters=[given]), base_url=url)
        await made.call(made.tools["op"], {"p": value}, CTX)
        assert recorder.last["query"] == query
        await made.aclose()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"parameters": [{"name": "p", "in": "query", "schema": {"$ref": "https://x/s.json"}}]},
            '$ref "https://x/s.json" is remote; only references inside the document are followed',
        ),
        (
            {"parameters": [{"name": "p", "in": "query", "schema": {"$ref": "other.json#/a"}}]},
            '$ref "other.json#/a" is remote; only references inside the document are followed',
        ),
        (
            {"parameters": [{"name": "p", "in": "query", "schema": {"$ref": "#/nowhere"}}]},
            '$ref "#/nowhere" leads nowhere',
        ),
        ({"parameters": [{"$ref": "#/paths/~1x/get/parameters/0"}]}, "a $ref refers to itself"),
        (
            {"parameters": [{"name": "p", "in": "path", "style": "curly", "schema": {}}]},
            'style "curly" of parameter "p" is not supported',
        ),
        (
            {"parameters": [{"name": "p", "in": "query", "schema": {"type": "strng"}}]},
            "its schema is not valid: type is not what it may be, at #/properties/p/type",
        ),
        (
            {"parameters": [{"name": "p", "in": "query", "schema": {"pattern": "("}}]},
            "its schema is not valid: ",
        ),
        (
            {"parameters": [{"name": "p", "in": "query", "schema": {"$dynamicRef": "#x"}}]},
            "$dynamicRef is not supported",
        ),
        (
            {"parameters": [{"name": "p", "in": "query", "content": {"text/xml": {}}}]},
            'parameter "p" is neither',
        ),
    ],
)
async def test_operations_that_cannot_be_offered(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    document = operation(BARE, **more)
    document["paths"]["/ok"] = {"get": {"operationId": "fine"}}
    made = await opened(tmp_path, document)
    assert list(made.tools) == ["fine"]
    assert made.refused["op"].startswith(reason)
    ((code, message, path, _),) = await problems(
        tmp_path, document, functions={"op": {"side_effect": "read"}}
    )
    assert (code, path) == ("E_UNKNOWN_FUNCTION", "/functions/op")
    assert message.startswith(f'"shop" cannot offer "op": {reason}')


async def test_a_path_argument_that_nothing_describes(tmp_path: Path) -> None:
    document = {**BARE, "paths": {"/x/{id}": {"get": {"operationId": "op"}}}}
    ((code, message, path, _),) = await problems(tmp_path, document)
    assert (code, path) == ("E_SERVICE_UNAVAILABLE", "/document")
    assert 'no parameter describes "id"' in message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, 'there is no "openapi" in it; OpenAPI 3.0, 3.1 and 3.2 are supported'),
        ({"swagger": "2.0"}, 'there is no "openapi" in it'),
        ({"openapi": "4.0"}, 'openapi is "4.0"'),
        ([], "#: the document is no object"),
        ({**BARE, "paths": []}, "#/paths: paths is no object"),
        ({**BARE, "paths": {"/x": 1}}, '#/paths/~1x: the path "/x" is no object'),
        ({**BARE, "paths": {"/x": {"get": 1}}}, "#/paths/~1x/get: get of /x is no object"),
        ({**BARE, "paths": {"/x": {"get": {"operationId": 1}}}}, "#/paths/~1x/get/operationId is no text"),
        (operation(BARE, parameters={}), "#/paths/~1x/get/parameters is no array"),
        (operation(BARE, parameters=[1]), "#/paths/~1x/get/parameters: it is no object"),
        (operation(BARE, parameters=[{"name": "p"}]), '#/paths/~1x/get/parameters: one has no "name", or'),
        (
            {**BARE, "paths": {p: {"get": {"operationId": "op"}} for p in ("/a", "/b")}},
            '#/paths/~1b/get/operationId "op" is used twice',
        ),
        ({**BARE, "servers": [1], "paths": {}}, "#/servers/0: the server is no object"),
    ],
)
async def test_documents_that_are_no_openapi(tmp_path: Path, document: Any, message: str) -> None:
    ((code, found, path, _),) = await problems(tmp_path, document)
    assert (code, path) == ("E_SERVICE_UNAVAILABLE", "/document")
    assert found.startswith(f'service "shop": api.json: {message}')


def bomb() -> bytes:
    """Nine lines that mean a hundred million values."""
    lines = [b"l0: &l0 1"]
    lines += [b"l%d: &l%d [%s]" % (i, i, b", ".join([b"*l%d" % (i - 1)] * 10)) for i in range(1, 9)]
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"openapi": "3.1.0",\n  nope}', "2:3: "),
        (b"openapi: 3.1.0\npaths: [", '2:8: the bracket "[" is not closed; add "]"'),
        (b"a: 1\na: 2", '2:1: key "a" is repeated'),
        (b"a: *b", "1:4: an alias stands inside its own anchor, or has none"),
        (b"<<: {a: 1}", "1:1: merge keys are not JSON"),
        (b"? [a]\n: b", "1:3: a key is no text"),
        (b"a\xff", "1:2: byte 0xff is not UTF-8"),
        (b"[" * 300_000, "1:101: it is nested too deeply"),
        (b'{"a":' * 300_000, "it is nested too deeply"),
        (bomb(), "it has more than 1,000,000 values"),
    ],
)
async def test_texts_that_are_no_document(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "api.yaml").write_bytes(text)
    (found,) = await OpenApiService("shop", spec("api.yaml"), tmp_path).open()
    assert (found.code, found.path) == ("E_SERVICE_UNAVAILABLE", "/document")
    assert message in found.message
    assert len(found.message) < 400


async def test_yaml_means_what_json_would(tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text(
        """
        openapi: 3.1.0
        servers: [{url: http://h}]
        paths:
          /x:
            get:
              operationId: op
              parameters:
                - name: p
                  in: query
                  schema: &s {type: string, enum: [no, 2020-01-01, "1", on], default: no}
                - {name: q, in: query, schema: *s}
                - {name: r, in: query, schema: {type: number, minimum: 1.5, maximum: 1e3, nullable: ~}}
              responses: {200: {description: it}}
        """
    )
    made = OpenApiService("shop", spec("api.yaml"), tmp_path)
    assert await made.open() == []
    properties = made.tools["op"].input_schema["properties"]
    assert properties["p"] == {"type": "string", "enum": ["no", "2020-01-01", "1", "on"], "default": "no"}
    assert properties["q"] == properties["p"]
    assert properties["r"] == {"type": "number", "minimum": 1.5, "maximum": 1000.0}


async def test_a_document_that_is_not_there(tmp_path: Path) -> None:
    for name, reason in (("none.json", "No such file or directory"), (".", "Is a directory")):
        (found,) = await OpenApiService("shop", spec(name), tmp_path).open()
        assert (found.code, found.path) == ("E_SERVICE_UNAVAILABLE", "/document")
        assert reason in found.message


async def test_include_and_options_of_functions(tmp_path: Path) -> None:
    said = {"search": {"side_effect": "read", "description": "Finds.", "timeout": 2.0}}
    made = await opened(tmp_path, include=("search",), functions=said)
    assert list(made.tools) == ["search"]
    search = made.tools["search"]
    assert (search.side_effect, search.description, search.timeout) == ("read", "Finds.", 2.0)
    ((code, message, path, hint),) = await problems(tmp_path, include=("search", "serch"))
    assert (code, message, path) == ("E_UNKNOWN_FUNCTION", '"shop" has no "serch"', "/include/1")
    assert hint == 'did you mean "search"?'


async def test_operations_without_an_id_have_a_made_name(tmp_path: Path) -> None:
    paths = {
        "/users/{user-id}/posts": {"get": {}, "options": {"operationId": "never"}},
        "/a": {"get": {}},
        "/a/": {"get": {}},
        "/b": {"get": {"operationId": "get_a"}},
        "/": {"get": {}},
    }
    parameters = [{"name": "user-id", "in": "path", "required": True, "schema": STRING}]
    paths["/users/{user-id}/posts"]["get"] = {"parameters": parameters}
    made = await opened(tmp_path, {**BARE, "paths": paths})
    assert list(made.tools) == ["get_users_user_id_posts", "get_a_2", "get_a_3", "get_a", "get"]


async def test_a_document_without_operations(tmp_path: Path) -> None:
    assert await problems(tmp_path, {**BARE, "paths": {"/x": {}}}) == [
        ("E_SERVICE_UNAVAILABLE", 'service "shop": it offers no function', "/document", None)
    ]


async def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    made = await opened(tmp_path, operation(BARE))
    before = made.tools["op"]
    assert await made.open() == []
    assert made.tools["op"] is before
    write(tmp_path, {**BARE, "paths": {"/y": {"get": {"operationId": "other"}}}})
    os.utime(tmp_path / "api.json", ns=(1, 1))
    assert await made.open() == []
    assert list(made.tools) == ["other"]


async def test_the_server_of_the_document(tmp_path: Path) -> None:
    def at(*servers: Any) -> dict[str, Any]:
        return {**operation(BARE), "servers": list(servers)}

    variables = {"port": {"default": "81"}}
    for servers, base in (
        ([{"url": "http://h:{port}/v1/", "variables": variables}], "http://h:81/v1"),
        ([{"url": "https://h"}, {"url": "https://other"}], "https://h"),
    ):
        assert (await opened(tmp_path, at(*servers)))._base == base
    for servers in ([], [{"url": "/v1"}], [{"url": "https://ann:pw@h"}]):
        ((code, message, path, hint),) = await problems(tmp_path, at(*servers))
        assert (code, path, hint) == ("E_SERVICE_UNAVAILABLE", "/document", "set base_url")
        assert "pw" not in message


async def test_a_document_from_a_server() -> None:
    document = {**operation(BARE), "servers": [{"url": "/v1"}]}
    recorder = Recorder(lambda _: JSONResponse(document))
    async with serve(recorder.app) as url:
        made = OpenApiService("shop", spec(url + "/api.json?key=secretive"), None)
        assert await made.open() == []
        assert await made.open() == []
        assert len(recorder.requests) == 1
        await made.call(made.tools["op"], {}, CTX)
        assert recorder.last["path"] == "/v1/x"
        await made.aclose()
        for answer, message in (
            (Response("{", 200), 'service "shop": api.json: 1:'),
            (Response("", 403), 'service "shop": api.json: the server answered 403'),
        ):
            recorder.answer = lambda _, answer=answer: answer
            made = OpenApiService("shop", spec(url + "/api.json?key=secretive"), None)
            (found,) = await made.open()
            assert found.message.startswith(message)
            assert "secretive" not in found.message
            await made.aclose()
    (found,) = await OpenApiService("shop", spec(url + "/api.json"), None).open()
    assert found.code == "E_SERVICE_UNAVAILABLE"
    assert "no connection to 127.0.0.1" in found.message


async def test_a_document_does_not_decide_where_headers_go() -> None:
    recorder = Recorder(lambda _: JSONResponse(operation(BARE)))
    headers = {"Authorization": "Bearer abc"}
    async with serve(recorder.app) as url:
        made = OpenApiService("shop", spec(url + "/api.json", headers=headers), None)
        (found,) = await made.open()
        assert (found.code, found.path) == ("E_SERVICE_DENIED", "/document")
        assert found.hint == "set base_url if they may go there"
        assert "authorization" not in recorder.last["headers"]
        await made.aclose()
        made = OpenApiService("shop", spec(url + "/api.json", headers=headers, base_url="http://h"), None)
        assert await made.open() == []
        await made.aclose()


async def test_without_trust_neither_files_nor_private_addresses(tmp_path: Path) -> None:
    name = write(tmp_path, DOCUMENT)
    (found,) = await OpenApiService("shop", spec(name), tmp_path, trusted=False).open()
    assert (found.code, found.message, found.path) == (
        "E_SERVICE_DENIED",
        'service "shop" reads a file, this submission may not',
        "/document",
    )
    recorder = Recorder(lambda _: JSONResponse(DOCUMENT))
    async with serve(recorder.app) as url:
        made = OpenApiService("shop", spec(url + "/api.json"), None, trusted=False)
        (found,) = await made.open()
        await made.aclose()
    assert (found.code, found.path) == ("E_SERVICE_DENIED", "/document")
    assert recorder.requests == []


async def test_a_schema_that_grows_by_being_written_out_keeps_its_references(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {"L0": {"type": "string"}}
    for i in range(1, 40):
        ref = {"$ref": f"#/components/schemas/L{i - 1}"}
        schemas[f"L{i}"] = {"type": "object", "properties": {"a": ref, "b": ref}}
    document = operation(
        BARE, parameters=[{"name": "p", "in": "query", "schema": {"$ref": "#/components/schemas/L39"}}]
    )
    document["components"] = {"schemas": schemas}
    schema = (await opened(tmp_path, document)).tools["op"].input_schema
    assert len(json.dumps(schema)) < 100_000
    value: Any = "deep"
    for _ in range(39):
        value = {"a": value}
    assert validate(schema, {"p": value}) == []
    assert validate(schema, {"p": {"a": value}}) != []


async def test_a_large_document_of_schemas_that_all_contain_each_other(tmp_path: Path) -> None:
    schemas = {
        f"S{i}": {
            "type": "object",
            "properties": {f"p{j}": {"$ref": f"#/components/schemas/S{(7 * i + j) % 100}"} for j in range(5)},
        }
        for i in range(100)
    }
    paths = {
        f"/x{i}": {
            "post": {
                "operationId": f"op{i}",
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/S{i % 100}"}}}
                },
            }
        }
        for i in range(300)
    }
    document = {**BARE, "paths": paths, "components": {"schemas": schemas}}
    tools = (await opened(tmp_path, document)).tools
    assert len(tools) == 300
    assert all(len(tool.input_schema["$defs"]) == 100 for tool in tools.values())
    assert validate(tools["op0"].input_schema, {"body": {"p0": {"p1": {"p2": 1}}}}) != []


async def test_references_in_chains_and_circles_without_end(tmp_path: Path) -> None:
    chain = {
        f"C{i}": {"type": "array", "items": {"$ref": f"#/components/schemas/C{i + 1}"}} for i in range(3000)
    }
    rounds = {
        "A": {"allOf": [{"$ref": "#/components/schemas/B"}]},
        "B": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/A"}]},
        "Self": {"$ref": "#/components/schemas/Self"},
    }
    paths = {
        f"/{name}": {
            "get": {
                "operationId": name,
                "parameters": [
                    {"name": "p", "in": "query", "schema": {"$ref": f"#/components/schemas/{name}"}}
                ],
            }
        }
        for name in ("C0", "A", "Self")
    }
    document = {
        **BARE,
        "paths": {**paths, "/ok": {"get": {"operationId": "ok"}}},
        "components": {"schemas": {**chain, "C3000": {"type": "string"}, **rounds}},
    }
    made = await opened(tmp_path, document)
    assert list(made.tools) == ["ok"]
    assert "nested too deeply" in made.refused["C0"]
    assert "refers to itself without end" in made.refused["A"]
    assert "refers to itself without end" in made.refused["Self"]


async def test_names_of_definitions_are_kept_apart(tmp_path: Path) -> None:
    a = {"type": "object", "properties": {"again": {"$ref": "#/components/schemas/T"}}}
    b = {"type": "array", "items": {"$ref": "#/components/other/T"}}
    parameters = [
        {"name": n, "in": "query", "schema": {"$ref": f"#/components/{where}/T"}}
        for n, where in (("a", "schemas"), ("b", "other"))
    ]
    document = {
        **operation(BARE, parameters=parameters),
        "components": {"schemas": {"T": a}, "other": {"T": b}},
    }
    schema = (await opened(tmp_path, document)).tools["op"].input_schema
    assert schema["properties"] == {"a": {"$ref": "#/$defs/T"}, "b": {"$ref": "#/$defs/T_1"}}
    assert schema["$defs"]["T"]["properties"]["again"] == {"$ref": "#/$defs/T"}
    assert schema["$defs"]["T_1"]["items"] == {"$ref": "#/$defs/T_1"}


async def test_a_reference_with_something_beside_it(tmp_path: Path) -> None:
    parameters = [
        {"name": "a", "in": "query", "schema": {"$ref": "#/components/schemas/N", "description": "Mine."}},
        {"name": "b", "in": "query", "schema": {"$ref": "#/components/schemas/N", "minimum": 3}},
    ]
    document = {
        **operation(BARE, parameters=parameters),
        "components": {"schemas": {"N": {"type": "number"}}},
    }
    properties = (await opened(tmp_path, document)).tools["op"].input_schema["properties"]
    assert properties["a"] == {"type": "number", "description": "Mine."}
    assert properties["b"] == {"minimum": 3, "allOf": [{"type": "number"}]}


async def test_bounds_of_openapi_3_0(tmp_path: Path) -> None:
    schemas: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        (
            {"type": "string", "nullable": True, "enum": ["a"]},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"allOf": [STRING], "nullable": True}, {"anyOf": [{"allOf": [STRING]}, {"type": "null"}]}),
    ]
    for given, expected in schemas:
        parameters = [{"name": "p", "in": "query", "schema": given}]
        document = operation({**BARE, "openapi": "3.0.0"}, parameters=parameters)
        assert (await opened(tmp_path, document)).tools["op"].input_schema["properties"]["p"] == expected


async def test_arguments_of_one_name(tmp_path: Path) -> None:
    parameters = [
        {"name": "id", "in": where, "required": True, "schema": {}} for where in ("query", "header")
    ]
    parameters.append({"name": "body", "in": "query", "schema": {}})
    body = {"content": {"application/json": {"schema": {}}}}
    recorder = Recorder()
    async with serve(recorder.app) as url:
        made = await opened(tmp_path, operation(BARE, parameters=parameters, requestBody=body), base_url=url)
        assert list(made.tools["op"].input_schema["properties"]) == [
            "id",
            "id_header",
            "body",
            "request_body",
        ]
        arguments = {"id": "q", "id_header": "h", "body": "b", "request_body": [1]}
        await made.call(made.tools["op"], arguments, CTX)
        assert recorder.last["query"] == "id=q&body=b"
        assert recorder.last["headers"]["id"] == "h"
        await made.aclose()


# --- styles of paths, headers and cookies


def in_path(**how: Any) -> Operation:
    """An operation at `/x/{p}/y`."""
    parameter = {"name": "p", "in": "path", "required": True, "schema": {}, **how}
    document = {**BARE, "paths": {"/x/{p}/y": {"get": {"operationId": "op", "parameters": [parameter]}}}}
    return read_operations(document).offered["op"]


LISTED, MAPPED = ["a/b", "c,d"], {"R": 100, "G": None, "B": "x y"}


@pytest.mark.parametrize(
    ("style", "explode", "value", "path"),
    [
        ("simple", False, "blue", "blue"),
        ("simple", False, LISTED, "a%2Fb,c%2Cd"),
        ("simple", True, LISTED, "a%2Fb,c%2Cd"),
        ("simple", False, MAPPED, "R,100,B,x%20y"),
        ("simple", True, MAPPED, "R=100,B=x%20y"),
        ("label", False, "blue", ".blue"),
        ("label", False, LISTED, ".a%2Fb,c%2Cd"),
        ("label", True, LISTED, ".a%2Fb.c%2Cd"),
        ("label", False, MAPPED, ".R,100,B,x%20y"),
        ("label", True, MAPPED, ".R=100.B=x%20y"),
        ("matrix", False, "blue", ";p=blue"),
        ("matrix", False, LISTED, ";p=a%2Fb,c%2Cd"),
        ("matrix", True, LISTED, ";p=a%2Fb;p=c%2Cd"),
        ("matrix", False, MAPPED, ";p=R,100,B,x%20y"),
        ("matrix", True, MAPPED, ";R=100;B=x%20y"),
    ],
)
def test_styles_of_path_parameters(style: str, explode: bool, value: Any, path: str) -> None:
    parameter = {
        "name": "p",
        "in": "path",
        "required": True,
        "style": style,
        "explode": explode,
        "schema": {},
    }
    document = {**BARE, "paths": {"/x/{p}/y": {"get": {"operationId": "op", "parameters": [parameter]}}}}
    found = read_operations(document).offered["op"]
    assert found.request({"p": value})[0] == f"/x/{path}/y"


@pytest.mark.parametrize("style", ["simple", "label", "matrix"])
@pytest.mark.parametrize("value", ["..", ".", "a/../b", "", [], "a\x00", ["..", "x"], {"..": 1}])
def test_no_style_leaves_the_segment(style: str, value: Any) -> None:
    found = in_path(style=style)
    with pytest.raises(BadArgument):
        found.request({"p": value})


@pytest.mark.parametrize(
    ("where", "explode", "value", "expected"),
    [
        ("header", False, MAPPED, {"p": "R,100,B,x y"}),
        ("header", True, MAPPED, {"p": "R=100,B=x y"}),
        ("cookie", True, ["a", "b"], {"cookie": "p=a&p=b"}),
        ("cookie", False, ["a", "b;"], {"cookie": "p=a,b%3B"}),
        ("cookie", True, {"a": 1, "b": 2}, {"cookie": "a=1&b=2"}),
    ],
)
def test_styles_of_headers_and_cookies(where: str, explode: bool, value: Any, expected: Any) -> None:
    parameter = {"name": "p", "in": where, "explode": explode, "schema": {}}
    found = read_operations(operation(BARE, parameters=[parameter])).offered["op"]
    assert found.request({"p": value})[1] == expected


# --- OpenAPI 3.2


def test_what_openapi_3_2_adds() -> None:
    form = {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}
    whole = {"name": "q", "in": "querystring", "content": form}
    item = {
        "query": {
            "operationId": "find",
            "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
        },
        "additionalOperations": {
            "COPY": {
                "operationId": "copy",
                "parameters": [whole],
            }
        },
        "get": {
            "operationId": "get",
            "parameters": [
                {"name": "c", "in": "cookie", "style": "cookie", "schema": {}},
                {"name": "d", "in": "querystring", "content": {"text/xml": {}}},
            ],
        },
    }
    found = read_operations({"openapi": "3.2.0", "servers": [{"url": "http://h"}], "paths": {"/x": item}})
    assert {name: o.method for name, o in found.offered.items()} == {"find": "QUERY", "copy": "COPY"}
    assert found.offered["find"].request({"body": {"a": 1}})[2] == b'{"a":1}'
    assert found.offered["copy"].request({"q": {"a": [1, 2], "b": "x y"}})[0] == "/x?a=1&a=2&b=x%20y"
    assert found.refused == {"get": 'parameter "d" is neither plain nor JSON'}


# --- security schemes

SECURED: dict[str, Any] = {
    **BARE,
    "security": [{"token": []}],
    "components": {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"},
            "login": {"type": "http", "scheme": "Basic"},
            "key": {"type": "apiKey", "in": "query", "name": "api_key"},
            "head": {"type": "apiKey", "in": "header", "name": "X-Key"},
            "cook": {"type": "apiKey", "in": "cookie", "name": "sid"},
            "oauth": {"type": "oauth2", "flows": {}},
            "digest": {"type": "http", "scheme": "digest"},
            "mutual": {"type": "mutualTLS"},
        }
    },
    "paths": {
        "/default": {"get": {"operationId": "default"}},
        "/none": {"get": {"operationId": "none", "security": []}},
        "/login": {"get": {"operationId": "login", "security": [{}, {"login": []}]}},
        "/key": {
            "get": {
                "operationId": "key",
                "security": [{"key": [], "cook": []}],
                "parameters": [
                    {"name": "api_key", "in": "query", "schema": STRING},
                    {"name": "q", "in": "query", "schema": STRING},
                ],
            }
        },
        "/either": {"get": {"operationId": "either", "security": [{"oauth": ["write"]}, {"head": []}]}},
    },
}


async def test_credentials_go_where_their_schemes_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("token", "login", "key", "head", "cook")
    for name in names:
        monkeypatch.setenv(f"AGENTFLOW_SECRET_{name.upper()}", f"u:{name} 1")
    given = {name: {"$secret": name} for name in names}
    recorder = Recorder()
    async with serve(recorder.app) as url:
        made = await opened(tmp_path, SECURED, base_url=url, security=given)
        sent: dict[str, Any] = {}
        for name, tool in made.tools.items():
            await made.call(tool, {"q": "x"} if name == "key" else {}, CTX)
            sent[name] = recorder.last
        await made.aclose()
    headers = {name: request["headers"] for name, request in sent.items()}
    assert headers["default"]["authorization"] == "Bearer u:token 1"
    assert "authorization" not in headers["none"]
    assert headers["login"]["authorization"] == "Basic dTpsb2dpbiAx"
    assert (sent["key"]["query"], headers["key"]["cookie"]) == ("q=x&api_key=u%3Akey%201", "sid=u%3Acook%201")
    assert headers["either"]["x-key"] == "u:head 1"
    assert "authorization" not in headers["either"]
    assert list(made.tools["key"].input_schema["properties"]) == ["q"]


async def test_without_a_credential_its_parameter_stays_an_argument(tmp_path: Path) -> None:
    made = await opened(tmp_path, SECURED)
    assert list(made.tools["key"].input_schema["properties"]) == ["api_key", "q"]


async def test_credentials_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_S", "1")
    wrong = {name: {"$secret": "S"} for name in ("tokn", "digest", "mutual")}
    assert await problems(tmp_path, SECURED, security=wrong) == [
        (
            "E_SERVICE_UNAVAILABLE",
            'service "shop": its document has no security scheme "tokn"',
            "/security/tokn",
            'did you mean "token"?',
        ),
        (
            "E_SERVICE_UNAVAILABLE",
            'service "shop": its security scheme "digest": the HTTP scheme "digest" is not supported; set the'
            " header under headers",
            "/security/digest",
            None,
        ),
        (
            "E_SERVICE_UNAVAILABLE",
            'service "shop": its security scheme "mutual": the type "mutualTLS" is not supported',
            "/security/mutual",
            None,
        ),
    ]
    ((code, message, path, hint),) = await problems(
        tmp_path, SECURED, security={"token": {"$secret": "gone"}}
    )
    assert (code, message, path) == ("E_SERVICE_DENIED", 'secret "gone" is not set', "/security/token")
    assert hint == "set AGENTFLOW_SECRET_GONE in the environment"


async def test_a_credential_in_the_query_is_in_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_K", "hunter2 hunter2")
    given = {name: {"$secret": "K"} for name in ("key", "cook")}

    def echoed(request: Any) -> Response:
        return JSONResponse({"message": f"wrong key in {request.url}"}, status_code=401)

    async with serve(Starlette(routes=[Route("/key", echoed)])) as url:
        made = await opened(tmp_path, SECURED, base_url=url, security=given)
        with pytest.raises(ToolError) as caught:
            await made.call(made.tools["key"], {"q": "x"}, CTX)
        await made.aclose()
    assert "wrong key in" in caught.value.info.message
    assert "hunter2" not in str(caught.value.info)


# --- include by pattern and tag


async def test_functions_are_included_by_pattern_and_tag(tmp_path: Path) -> None:
    def tagged(name: str, *tags: str) -> dict[str, Any]:
        return {"get": {"operationId": name, "tags": list(tags)}}

    paths = {
        "/a": tagged("repos/list", "repos"),
        "/b": tagged("repos/get", "repos"),
        "/c": tagged("users/get", "users"),
        "/d": tagged("other", "admin", "users"),
    }
    document = {**BARE, "paths": paths}

    async def offered(*include: str) -> list[str]:
        return list((await opened(tmp_path, document, include=include)).tools)

    assert await offered("repos/*") == ["repos/list", "repos/get"]
    assert await offered("*/get", "other") == ["repos/get", "users/get", "other"]
    assert await offered("tag:users") == ["users/get", "other"]
    assert await problems(tmp_path, document, include=("repo/*", "tag:user")) == [
        (
            "E_UNKNOWN_FUNCTION",
            '"shop" has no "repo/*"',
            "/include/0",
            "no function has a name that it matches",
        ),
        ("E_UNKNOWN_FUNCTION", '"shop" has no "tag:user"', "/include/1", 'did you mean "tag:users"?'),
    ]
