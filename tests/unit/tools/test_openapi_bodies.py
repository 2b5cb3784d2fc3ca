"""No operation of an OpenAPI document is offered without its body (agents-models-tools D4)."""

from __future__ import annotations

import base64
import json
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from agentflow.definition.ir import ServiceSpec
from agentflow.definition.schemas import validate
from agentflow.tools import ToolError
from agentflow.tools.openapi_service import OpenApiService
from tests.unit.tools.servers import CTX, Recorder, serve

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

# As the document of a payment service writes it: every body is an optional form.
CHARGE = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer"},
        "currency": {"type": "string"},
        "capture": {"type": "boolean"},
        "metadata": {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "string"}},
                {"type": "string", "enum": [""]},
            ]
        },
        "expand": {"type": "array", "items": {"type": "string"}},
        "card": {"anyOf": [{"$ref": "#/components/schemas/Card"}, {"type": "string"}]},
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "string"}}}},
    },
}
DEEP = {"style": "deepObject", "explode": True}
PAYMENTS: dict[str, Any] = {
    "openapi": "3.0.0",
    "info": {"title": "Payments", "version": "1"},
    "paths": {
        "/v1/charges": {
            "get": {
                "operationId": "GetCharges",
                "parameters": [
                    {"name": "created", "in": "query", **DEEP, "schema": {"type": "object"}},
                    {"name": "expand", "in": "query", **DEEP, "schema": {"type": "array"}},
                ],
                "requestBody": {
                    "content": {FORM: {"encoding": {}, "schema": {"type": "object", "properties": {}}}},
                    "required": False,
                },
            },
            "post": {
                "operationId": "PostCharges",
                "requestBody": {
                    "required": False,
                    "content": {
                        FORM: {
                            "encoding": dict.fromkeys(("metadata", "expand", "card", "items"), DEEP),
                            "schema": CHARGE,
                        }
                    },
                },
            },
        }
    },
    "components": {"schemas": {"Card": {"type": "object", "properties": {"number": {"type": "string"}}}}},
}


def described(
    content: dict[str, Any], *, required: bool | None = None, method: str = "post"
) -> dict[str, Any]:
    body: dict[str, Any] = {"content": content}
    if required is not None:
        body["required"] = required
    return {"openapi": "3.1.0", "paths": {"/x": {"post": {"operationId": "op", "requestBody": body}}}}


async def opened(folder: Path, document: Any, url: str = "http://127.0.0.1:1") -> OpenApiService:
    (folder / "api.json").write_text(json.dumps(document))
    options = {"document": "api.json", "base_url": url}
    service = OpenApiService("shop", ServiceSpec(type="openapi", options=options), folder)
    assert await service.open() == []
    return service


async def sent(folder: Path, document: Any, arguments: dict[str, Any], name: str = "op") -> dict[str, Any]:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        service = await opened(folder, document, url)
        try:
            tool = service.tools[name]
            assert validate(tool.input_schema, arguments) == []
            await service.call(tool, arguments, CTX)
        finally:
            await service.aclose()
    return recorder.last


async def test_an_optional_form_gives_an_operation_its_parameters(tmp_path: Path) -> None:
    service = await opened(tmp_path, PAYMENTS)
    post = service.tools["PostCharges"].input_schema
    assert post["properties"]["body"]["properties"].keys() == CHARGE["properties"].keys()
    assert post["required"] == []
    assert service.tools["GetCharges"].input_schema["properties"].keys() == {"created", "expand"}


async def test_a_form_is_written_as_its_encoding_says(tmp_path: Path) -> None:
    body = {
        "amount": 2000,
        "currency": "eur & more",
        "capture": False,
        "metadata": {"order": "6735", "ünïcode": "ja"},
        "expand": ["customer", "invoice"],
        "card": {"number": "4242"},
        "items": [{"price": "p1"}, {"price": "p2"}],
    }
    request = await sent(tmp_path, PAYMENTS, {"body": body}, "PostCharges")
    assert request["headers"]["content-type"] == FORM
    assert parse_qsl(request["body"].decode(), strict_parsing=True) == [
        ("amount", "2000"),
        ("currency", "eur & more"),
        ("capture", "false"),
        ("metadata[order]", "6735"),
        ("metadata[ünïcode]", "ja"),
        ("expand[0]", "customer"),
        ("expand[1]", "invoice"),
        ("card[number]", "4242"),
        ("items[0][price]", "p1"),
        ("items[1][price]", "p2"),
    ]


async def test_a_deep_parameter_of_a_query_is_written_at_any_depth(tmp_path: Path) -> None:
    arguments = {"created": {"gte": 1, "not": {"lt": 2}}, "expand": ["a", "b"]}
    request = await sent(tmp_path, PAYMENTS, arguments, "GetCharges")
    assert parse_qsl(request["query"]) == [
        ("created[gte]", "1"),
        ("created[not][lt]", "2"),
        ("expand[0]", "a"),
        ("expand[1]", "b"),
    ]
    assert request["body"] == b""


OBJECT = {"type": "object", "properties": {"a": {}, "b": {}}}


@pytest.mark.parametrize(
    ("encoding", "body", "expected"),
    [
        ({}, {"a": [1, 2], "b": {"c": 1}}, [("a", "1"), ("a", "2"), ("b", '{"c":1}')]),
        ({"a": {"explode": False}}, {"a": [1, "x,y"]}, [("a", "1,x,y")]),
        ({"a": {"style": "pipeDelimited"}}, {"a": [1, 2]}, [("a", "1|2")]),
        ({"a": {"style": "spaceDelimited"}}, {"a": [1, 2]}, [("a", "1 2")]),
        ({"a": {"style": "form"}}, {"a": {"c": 1, "d": 2}}, [("c", "1"), ("d", "2")]),
        ({"a": {"style": "form", "explode": False}}, {"a": {"c": 1, "d": 2}}, [("a", "c,1,d,2")]),
        ({}, {"a": None, "b": True}, [("b", "true")]),
    ],
)
async def test_styles_of_a_form(tmp_path: Path, encoding: Any, body: Any, expected: Any) -> None:
    document = described({FORM: {"schema": OBJECT, "encoding": encoding}})
    request = await sent(tmp_path, document, {"body": body})
    assert parse_qsl(request["body"].decode()) == expected


@pytest.mark.parametrize("required", [True, False, None])
async def test_a_body_is_required_as_the_document_says(tmp_path: Path, required: bool | None) -> None:
    for kind in (FORM, MULTIPART, "application/json", "text/plain", "application/octet-stream"):
        schema = OBJECT if kind in (FORM, MULTIPART, "application/json") else {"type": "string"}
        service = await opened(tmp_path, described({kind: {"schema": schema}}, required=required))
        tool = service.tools["op"]
        assert "body" in tool.input_schema["properties"]
        assert tool.input_schema["required"] == (["body"] if required else [])


async def test_a_style_that_a_part_names_writes_it(tmp_path: Path) -> None:
    """As the files of a payment service want the data of a link: `link[create]=true`."""
    properties = {
        "file": {"type": "string", "format": "binary"},
        "link": {"type": "object"},
        "expand": {"type": "array", "items": {"type": "string"}},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    encoding = {"link": DEEP, "expand": DEEP, "tags": {"style": "form", "explode": False}, "file": DEEP}
    document = described({MULTIPART: {"schema": {"properties": properties}, "encoding": encoding}})
    body = {
        "file": base64.b64encode(b"bytes").decode(),
        "link": {"create": True, "metadata": {"a": "b"}},
        "expand": ["x", "y"],
        "tags": ["t", "u"],
    }
    request = await sent(tmp_path, document, {"body": body})
    head = f"Content-Type: {request['headers']['content-type']}\r\n\r\n".encode()
    parts = BytesParser(policy=HTTP).parsebytes(head + request["body"]).iter_parts()
    read = [(part.get_param("name", header="content-disposition"), part.get_content()) for part in parts]
    assert read == [
        ("file", b"bytes"),
        ("link[create]", "true"),
        ("link[metadata][a]", "b"),
        ("expand[0]", "x"),
        ("expand[1]", "y"),
        ("tags", "t,u"),
    ]


async def test_parts_of_a_multipart_body(tmp_path: Path) -> None:
    properties = {
        "file": {"type": "string", "format": "binary"},
        "photo": {"$ref": "#/components/schemas/Photo"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "about": {"type": "object"},
        "count": {"type": "integer"},
    }
    document = described(
        {
            MULTIPART: {
                "schema": {"type": "object", "properties": properties, "required": ["file"]},
                "encoding": {"photo": {"contentType": "image/png, image/jpeg"}},
            }
        },
        required=True,
    )
    document["components"] = {"schemas": {"Photo": {"type": "string", "contentMediaType": "image/png"}}}
    raw = bytes(range(256))
    body = {
        "file": base64.b64encode(raw).decode(),
        "photo": base64.b64encode(b"png").decode(),
        "tags": ["x", "y"],
        "about": {"k": "ü"},
        "count": 3,
    }
    request = await sent(tmp_path, document, {"body": body})
    head = f"Content-Type: {request['headers']['content-type']}\r\n\r\n".encode()
    message = BytesParser(policy=HTTP).parsebytes(head + request["body"])
    assert message.get_content_type() == MULTIPART
    parts = [
        (
            part.get_param("name", header="content-disposition"),
            part.get_filename(),
            part.get("content-type"),
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    ]
    assert [(n, f, c) for n, f, c, _ in parts] == [
        ("file", "file", "application/octet-stream"),
        ("photo", "photo", "image/png"),
        ("tags", None, None),
        ("tags", None, None),
        ("about", None, "application/json"),
        ("count", None, None),
    ]
    assert raw in request["body"]
    assert [p for *_, p in parts[1:]] == [b"png", b"x", b"y", '{"k":"ü"}'.encode(), b"3"]
    again = await sent(tmp_path, document, {"body": body})
    assert again["body"] == request["body"]  # every attempt sends the same bytes
    service = await opened(tmp_path, document)
    assert "base64" in service.tools["op"].input_schema["properties"]["body"]["description"]


@pytest.mark.parametrize(
    ("kind", "value", "content_type", "data"),
    [
        ("text/plain", "Grüße", "text/plain; charset=utf-8", "Grüße".encode()),
        ("text/csv", "a,b", "text/csv; charset=utf-8", b"a,b"),
        ("application/xml", "<a/>", "application/xml; charset=utf-8", b"<a/>"),
        ("application/octet-stream", "AAEC", "application/octet-stream", b"\0\1\2"),
        ("image/png", "AAEC", "image/png", b"\0\1\2"),
        ("application/merge-patch+json", "x", "application/merge-patch+json", b'"x"'),
    ],
)
async def test_text_bytes_and_other_json(
    tmp_path: Path, kind: str, value: str, content_type: str, data: bytes
) -> None:
    document = described({kind: {"schema": {"type": "string"}}}, required=True)
    request = await sent(tmp_path, document, {"body": value})
    assert (request["headers"]["content-type"], request["body"]) == (content_type, data)


async def test_json_is_chosen_before_a_form(tmp_path: Path) -> None:
    content = {
        MULTIPART: {"schema": OBJECT},
        FORM: {"schema": OBJECT},
        "application/json": {"schema": OBJECT},
    }
    request = await sent(tmp_path, described(content), {"body": {"a": 1}})
    assert (request["headers"]["content-type"], request["body"]) == ("application/json", b'{"a":1}')


@pytest.mark.parametrize("required", [True, False, None])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"application/xml": {"schema": OBJECT}}, "application/xml, which cannot be written"),
        ({"image/*": {"schema": {"type": "string"}}}, "image/*, which cannot be written"),
        ({"application/octet-stream": {"schema": {"type": "array"}}}, "octet-stream, which cannot"),
        ({MULTIPART: {"schema": {}}}, "multipart/form-data, and its document does not describe the members"),
        ({FORM: {}}, "its document does not describe the members"),
        ({FORM: {"schema": OBJECT, "encoding": {"a": {"style": "matrix"}}}}, 'style "matrix" of member "a"'),
    ],
)
async def test_a_body_that_cannot_be_written_refuses_the_operation(
    tmp_path: Path, content: Any, reason: str, required: bool | None
) -> None:
    document = described(content, required=required)
    document["paths"]["/y"] = {"get": {"operationId": "other"}}
    service = await opened(tmp_path, document)
    assert list(service.tools) == ["other"]
    assert reason in service.refused["op"]


async def test_arguments_that_are_no_base64_are_told_to_the_agent(tmp_path: Path) -> None:
    document = described({"application/octet-stream": {}}, required=True)
    service = await opened(tmp_path, document)
    with pytest.raises(ToolError, match="not base64") as caught:
        await service.call(service.tools["op"], {"body": "no base64!"}, CTX)
    assert (caught.value.info.code, caught.value.executed) == ("invalid_tool_input", False)


async def test_members_of_composed_schemas_count(tmp_path: Path) -> None:
    schema = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"b": {"type": "string"}}}]}
    document = described({FORM: {"schema": schema}})
    document["components"] = {
        "schemas": {"Base": {"type": "object", "properties": {"a": {"type": "string"}}}}
    }
    request = await sent(tmp_path, document, {"body": {"a": "1", "b": "2"}})
    assert parse_qsl(request["body"].decode()) == [("a", "1"), ("b", "2")]
