"""Services of type http against real servers, good and bad ones."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import math
import socket
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse

from agentflow.definition.ir import ServiceSpec
from agentflow.tools import ToolContext, ToolError
from agentflow.tools.http_service import HttpService
from tests.unit.tools.servers import CTX, Recorder, raw, serve

FUNCTIONS: dict[str, dict[str, Any]] = {
    "get": {"method": "GET", "path": "/orders/{id}", "query": ["full"]},
    "head": {"method": "HEAD", "path": "/orders/{id}"},
    "post": {"method": "POST", "path": "/orders/{id}/notes", "query": ["dry_run"]},
    "put": {"method": "PUT", "path": "/orders/{id}"},
    "patch": {"method": "PATCH", "path": "/orders/{id}"},
    "delete": {"method": "DELETE", "path": "/orders/{id}"},
}


def spec(url: str, functions: dict[str, dict[str, Any]] | None = None, **more: Any) -> ServiceSpec:
    headers = more.pop("headers", None)
    options = {"base_url": url, **({"headers": headers} if headers else {})}
    return ServiceSpec(type="http", functions=functions or FUNCTIONS, options=options, **more)


@asynccontextmanager
async def service(url: str, *args: Any, **more: Any) -> AsyncGenerator[HttpService]:
    made = HttpService("shop", spec(url, *args, **more))
    assert await made.open() == []
    try:
        yield made
    finally:
        await made.aclose()


async def call(made: HttpService, name: str, ctx: ToolContext = CTX, /, **arguments: Any) -> Any:
    return await made.call(made.tools[name], arguments, ctx)


async def failure(made: HttpService, name: str, ctx: ToolContext = CTX, /, **arguments: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await call(made, name, ctx, **arguments)
    return caught.value


# --- requests


async def test_arguments_go_into_path_query_and_body() -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url, service(url + "/v1/") as made:
        assert await call(made, "get", id=7, full=True, page=1.5) == {"ok": True}
        get = recorder.last
        assert (get["method"], get["path"], get["query"]) == ("GET", "/v1/orders/7", "full=true&page=1.5")
        assert get["body"] == b""
        await call(made, "post", id="a", dry_run=False, text="ü", n=[1, None], deep={"a": 1})
        post = recorder.last
        assert (post["path"], post["query"]) == ("/v1/orders/a/notes", "dry_run=false")
        assert json.loads(post["body"]) == {"text": "ü", "n": [1, None], "deep": {"a": 1}}
        assert post["headers"]["content-type"] == "application/json"
        await call(made, "put", id="a")
        assert recorder.last["body"] == b"{}"
        await call(made, "delete", id="a", tags=["x", "y z"], none=None, deep={"a": 1})
        assert recorder.last["query"] == "tags=x&tags=y%20z&deep=%7B%22a%22%3A1%7D"
        assert recorder.last["body"] == b""


async def test_every_request_says_which_call_it_is() -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url, service(url) as made:
        await call(made, "get", id="1")
    headers = recorder.last["headers"]
    assert headers["idempotency-key"] == CTX.idempotency_key
    assert headers["traceparent"] == CTX.traceparent
    assert headers["tracestate"] == CTX.tracestate
    encoded = headers["agentflow-context"]
    assert "=" not in encoded
    assert json.loads(base64.urlsafe_b64decode(encoded + "==")) == {"tenant": "t1"}
    assert headers["user-agent"].startswith("agentflow/")


async def test_no_context_where_it_is_not_wanted_or_there_is_none() -> None:
    recorder = Recorder()
    empty = ToolContext(
        **{f: getattr(CTX, f) for f in CTX.__struct_fields__}
        | {"context": None, "traceparent": None, "tracestate": None}
    )
    async with serve(recorder.app) as url:
        async with service(url, send_context=False) as made:
            await call(made, "get", id="1")
            assert "agentflow-context" not in recorder.last["headers"]
        async with service(url) as made:
            await call(made, "get", empty, id="1")
            assert "agentflow-context" not in recorder.last["headers"]
            assert "traceparent" not in recorder.last["headers"]


async def test_a_context_that_no_header_can_hold() -> None:
    recorder = Recorder()
    fields = {f: getattr(CTX, f) for f in CTX.__struct_fields__}
    fits = ToolContext(**fields | {"context": "x" * 6142})
    large = ToolContext(**fields | {"context": "x" * 6143})
    async with serve(recorder.app) as url, service(url) as made:
        await call(made, "get", fits, id="1")
        assert len(recorder.last["headers"]["agentflow-context"]) == 8192
        error = await failure(made, "get", large, id="1")
    assert (error.info.category, error.info.code, error.executed) == (
        "invalid_input",
        "context_too_large",
        False,
    )
    assert "send_context: false" in error.info.message
    assert len(recorder.requests) == 1


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("a/b", "/orders/a%2Fb"),
        ("a?b=c&d#e", "/orders/a%3Fb%3Dc%26d%23e"),
        ("ä €😀", "/orders/%C3%A4%20%E2%82%AC%F0%9F%98%80"),
        ("100%", "/orders/100%25"),
        ("%2e%2e", "/orders/%252e%252e"),
        ("...", "/orders/..."),
        ("a..b", "/orders/a..b"),
        (True, "/orders/true"),
        (-1.5, "/orders/-1.5"),
        ("{x}", "/orders/%7Bx%7D"),
    ],
)
async def test_path_arguments_stay_in_their_segment(value: Any, path: str) -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url, service(url) as made:
        await call(made, "get", id=value)
    assert recorder.last["path"] == path
    assert recorder.last["query"] == ""


@pytest.mark.parametrize(
    "value",
    [
        "",
        ".",
        "..",
        "a/..",
        "../admin",
        "a/./b",
        "..\\x",
        "x/ .. /y",
        None,
        ["a"],
        {"a": 1},
        "a\nb",
        "\x00",
        "\ud800",
    ],
)
async def test_path_arguments_that_are_none(value: Any) -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url, service(url) as made:
        error = await failure(made, "get", id=value)
    assert (error.info.category, error.info.code) == ("invalid_input", "invalid_tool_input")
    assert not error.executed
    assert recorder.requests == []


async def test_arguments_never_set_headers_of_the_call() -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url, service(url, headers={"X-Key": "k"}) as made:
        await call(made, "post", id="1", Authorization="me", **{"x-key": "other"})
    assert recorder.last["headers"]["x-key"] == "k"
    assert "authorization" not in recorder.last["headers"]


# --- answers


def answering(body: bytes, content_type: str | None, status: int = 200, **headers: str) -> Recorder:
    given = {**headers, **({"content-type": content_type} if content_type else {})}
    return Recorder(lambda _: Response(body, status, given))


@pytest.mark.parametrize(
    ("body", "content_type", "value"),
    [
        (b'{"a": [1.5, null]}', "application/json", {"a": [1.5, None]}),
        (b'\xef\xbb\xbf"x"', "application/json; charset=utf-8", "x"),
        (b"[1]", "application/problem+json", [1]),
        (b"12345678901234567890123", "text/json", 12345678901234567890123),
        (b'{"a": 1}', "text/plain", '{"a": 1}'),
        (b"caf\xe9", "text/plain; charset=latin-1", "café"),
        ("ü".encode(), None, "ü"),
        (b"<a/>", "application/xml", "<a/>"),
        (b"", "application/json", None),
        (b" \n", "application/json", None),
    ],
)
async def test_answers(body: bytes, content_type: str | None, value: Any) -> None:
    async with serve(answering(body, content_type).app) as url, service(url) as made:
        found = await call(made, "get", id="1")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b'{"a": ', "application/json", "says that it is JSON, and is not"),
        (b"NaN", "application/json", "says that it is JSON, and is not"),
        (b"[" + b"1e300," * 6_000 + b"1]", "application/json", "which take too long to read"),
        (b'"\\ud800"', "application/json", "says that it is JSON, and is not"),
        (b"\xff\xd8\xff", "image/jpeg", "is image/jpeg, neither JSON nor text"),
        (b"\xff", None, "is binary, neither JSON nor text"),
        (b"x", "text/plain; charset=none-such", "neither JSON nor text"),
        (b"[" * 100_000 + b"]" * 100_000, "application/json", "says that it is JSON, and is not"),
    ],
)
async def test_answers_that_are_no_output(body: bytes, content_type: str | None, message: str) -> None:
    async with serve(answering(body, content_type).app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert (error.info.category, error.info.code) == ("tool", "invalid_tool_output")
    assert message in error.info.message


async def test_a_head_request_says_only_that_it_is_there() -> None:
    async with serve(answering(b"never sent", "text/plain").app) as url, service(url) as made:
        assert await call(made, "head", id="1") is None


async def test_an_output_schema_is_checked() -> None:
    function = {"method": "GET", "path": "/", "output_schema": {"type": "object", "required": ["id"]}}
    recorder = Recorder(lambda _: JSONResponse({"no": 1}))
    async with serve(recorder.app) as url, service(url, {"f": function}) as made:
        error = await failure(made, "f")
        assert error.info.code == "invalid_tool_output"
        assert error.info.details is not None
        recorder.answer = lambda _: JSONResponse({"id": 1})
        assert await call(made, "f") == {"id": 1}


async def endless() -> AsyncGenerator[bytes]:
    while True:
        yield b"x" * 65536
        await asyncio.sleep(0)


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
async def test_a_huge_answer_is_cut_off_while_it_comes(encoding: str) -> None:
    # 20 MB of zeros are 20 KB when compressed.
    packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)

    async def bomb() -> AsyncGenerator[bytes]:
        for _ in range(20):
            yield packer.compress(bytes(1 << 20))
        yield packer.flush()

    def answer(_: Request) -> Response:
        headers = {"content-encoding": encoding} if encoding else {}
        return StreamingResponse(bomb() if encoding else endless(), media_type="text/plain", headers=headers)

    async with serve(Recorder(answer).app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert (error.info.category, error.info.code) == ("tool", "invalid_tool_output")
    assert "more than 4,194,304 bytes" in error.info.message
    assert not error.unknown


async def test_compressed_answers_that_were_not_asked_for_are_read() -> None:
    packed = gzip.compress(b'{"a": 1}')
    recorder = answering(packed, "application/json", **{"content-encoding": "gzip"})
    async with serve(recorder.app) as url, service(url) as made:
        assert await call(made, "get", id="1") == {"a": 1}
        assert recorder.last["headers"]["accept-encoding"] == "identity"


@pytest.mark.parametrize(("encoding", "body"), [("gzip", b"not gzip"), ("br", b"x"), ("zstd", b"x")])
async def test_compressions_that_cannot_be_undone(encoding: str, body: bytes) -> None:
    recorder = answering(body, "text/plain", **{"content-encoding": encoding})
    async with serve(recorder.app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert error.info.code == "network_error"
    assert "compressed" in error.info.message


# --- refusals


@pytest.mark.parametrize(
    ("status", "category", "code", "retryable", "unknown"),
    [
        (400, "invalid_input", "invalid_request", False, False),
        (401, "auth", "authentication_failed", False, False),
        (402, "quota", "insufficient_quota", False, False),
        (403, "auth", "authentication_failed", False, False),
        (404, "invalid_input", "not_found", False, False),
        (408, "transient", "server_error", True, False),
        (409, "invalid_input", "invalid_request", False, False),
        (422, "invalid_input", "invalid_request", False, False),
        (429, "rate_limited", "rate_limited", True, False),
        (500, "transient", "server_error", True, False),
        (502, "transient", "server_error", True, True),
        (503, "transient", "server_error", True, False),
        (504, "transient", "server_error", True, True),
        (304, "tool", "tool_execution_failed", False, False),
    ],
)
async def test_refusals_by_status(
    status: int, category: str, code: str, retryable: bool, unknown: bool
) -> None:
    # What the text says is not looked at: this one names other statuses.
    body = b"" if status == 304 else b"HTTP 503, status code: 429"
    async with serve(answering(body, "text/plain", status).app) as url, service(url) as made:
        error = await failure(made, "post", id="1")
    assert (error.info.category, error.info.code, error.info.retryable) == (category, code, retryable)
    assert (error.info.http_status, error.unknown, error.executed) == (status, unknown, True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"detail": "no such order"}, "no such order"),
        ({"error": {"message": "no such order", "code": 7}}, "no such order"),
        ({"title": "Gone", "status": 404}, "Gone"),
        ({"error": "no such order"}, "no such order"),
        ("no such order", "no such order"),
        ([1], None),
    ],
)
async def test_the_agent_hears_why(body: Any, said: str | None) -> None:
    async with serve(Recorder(lambda _: JSONResponse(body, 404)).app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert error.info.message == "shop__get: HTTP 404" + (f": {said}" if said else "")
    assert error.info.details == ({"body": body} if isinstance(body, dict) else None)


async def test_details_are_redacted() -> None:
    body = {"detail": "no", "access_token": "abc", "deep": [{"password": "p", "token_count": 3}]}
    async with serve(Recorder(lambda _: JSONResponse(body, 400)).app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert error.info.details == {
        "body": {"detail": "no", "access_token": "***", "deep": [{"password": "***", "token_count": 3}]}
    }


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("soon", None), ("-1", None), ("inf", None)])
async def test_retry_after(value: str, seconds: float | None) -> None:
    async with serve(answering(b"", None, 429, **{"retry-after": value}).app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert error.retry_after == seconds
    assert error.info.details == (None if seconds is None else {"retry_after_s": seconds})


async def test_retry_after_as_a_date() -> None:
    header = {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}
    async with serve(answering(b"", None, 503, **header).app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert error.retry_after is not None
    assert math.isfinite(error.retry_after)
    assert error.retry_after > 1e9


# --- redirects


async def test_redirects_within_the_server_are_followed() -> None:
    def answer(request: Request) -> Response:
        if request.url.path.startswith("/orders"):
            status = int(request.query_params.get("status", 307))
            return RedirectResponse("/new", status)
        return JSONResponse({"method": request.method})

    recorder = Recorder(answer)
    async with serve(recorder.app) as url, service(url) as made:
        assert await call(made, "get", id="1", status=302) == {"method": "GET"}
        assert await call(made, "put", id="1", a=2) == {"method": "PUT"}
        assert recorder.last["body"] == b'{"a":2}'
        assert recorder.last["headers"]["idempotency-key"] == CTX.idempotency_key
        error = await failure(made, "delete", id="1", status=302)
        assert "with another method: not followed" in error.info.message


async def test_a_post_that_is_answered_elsewhere() -> None:
    def answer(request: Request) -> Response:
        if request.method == "POST":
            return RedirectResponse("/result", 303)
        return JSONResponse("done")

    async with serve(Recorder(answer).app) as url, service(url) as made:
        assert await call(made, "post", id="1") == "done"


async def test_redirects_to_another_server_are_not_followed() -> None:
    other = Recorder()
    async with serve(other.app) as elsewhere:
        recorder = Recorder(lambda _: RedirectResponse(elsewhere + "/steal", 307))
        async with serve(recorder.app) as url, service(url, headers={"Authorization": "Bearer abc"}) as made:
            for name in ("get", "post"):
                error = await failure(made, name, id="1")
                assert (error.info.category, error.info.http_status) == ("tool", 307)
                assert "redirects elsewhere: not followed" in error.info.message
    assert other.requests == []


async def test_redirects_without_end() -> None:
    recorder = Recorder(lambda _: RedirectResponse("/again", 307))
    async with serve(recorder.app) as url, service(url) as made:
        error = await failure(made, "get", id="1")
    assert "redirects for ever" in error.info.message
    assert len(recorder.requests) == 6


# --- servers that fail


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def test_no_server() -> None:
    async with service(f"http://127.0.0.1:{closed_port()}") as made:
        error = await failure(made, "post", id="1")
    assert (error.info.category, error.info.code) == ("transient", "network_error")
    assert (error.executed, error.unknown) == (False, False)


async def test_a_name_that_does_not_resolve() -> None:
    async with service("http://nowhere.invalid") as made:
        error = await failure(made, "post", id="1")
    assert (error.info.code, error.executed, error.unknown) == ("network_error", False, False)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"SSH-2.0-OpenSSH\r\n",
    ],
)
async def test_a_server_that_dies_leaves_the_outcome_open(answer: bytes) -> None:
    async def die(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async with raw(die) as url, service(url) as made:
        error = await failure(made, "post", id="1")
    assert (error.info.category, error.info.code) == ("transient", "network_error")
    assert (error.executed, error.unknown) == (True, True)


async def test_giving_up_on_slow_headers_closes_the_connection() -> None:
    began, gone = asyncio.Event(), asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        await writer.drain()
        began.set()
        while await reader.read(1000):  # until the client goes
            pass
        gone.set()

    async with raw(drip) as url, service(url) as made:
        calling = asyncio.ensure_future(call(made, "get", id="1"))
        await began.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await gone.wait()


async def test_a_service_can_be_called_again_after_it_was_closed() -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url, service(url) as made:
        await call(made, "get", id="1")
        await made.aclose()
        await made.aclose()
        assert await call(made, "get", id="1") == {"ok": True}


# --- secrets


async def test_secrets_are_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Response:
        status = int(request.query_params["status"])
        said = {"detail": f"bad key {request.headers['x-api-key']}", "all": dict(request.headers)}
        return JSONResponse(said, status)

    monkeypatch.setenv("AGENTFLOW_SECRET_SHOP_KEY_1", "hunter2-abc\n")
    headers = {"X-Api-Key": {"$secret": "shop.key-1"}, "Authorization": "Bearer in-the-document"}
    async with serve(Recorder(answer).app) as url, service(url, headers=headers) as made:
        answered = await call(made, "get", id="1", status=200)
        assert answered["all"]["x-api-key"] == "***"
        assert answered["detail"] == "bad key ***"
        assert "in-the-document" not in str(answered)
        error = await failure(made, "get", id="1", status=400)
        assert "hunter2" not in repr(error.info)
        assert "***" in error.info.message
        assert "hunter2" not in repr(made) + repr(made._values) + repr(vars(made))
        monkeypatch.setenv("AGENTFLOW_SECRET_SHOP_KEY_1", "another-one")
        assert (await call(made, "get", id="1", status=200))["all"]["x-api-key"] == "***"
        monkeypatch.delenv("AGENTFLOW_SECRET_SHOP_KEY_1")
        error = await failure(made, "get", id="1", status=200)
        assert (error.info.category, error.info.code, error.executed) == ("policy", "secret_not_set", False)


async def test_a_secret_that_is_not_set_is_told_while_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTFLOW_SECRET_A", raising=False)
    headers = {"X/1": {"$secret": "a"}, "B": "b", "C": {"$secret": "none-such"}}
    made = HttpService("shop", spec("http://127.0.0.1:1", headers=headers))
    found = await made.open()
    assert [(p.code, p.message, p.path, p.hint) for p in found] == [
        (
            "E_SERVICE_DENIED",
            'secret "a" is not set',
            "/headers/X~11",
            "set AGENTFLOW_SECRET_A in the environment",
        ),
        (
            "E_SERVICE_DENIED",
            'secret "none-such" is not set',
            "/headers/C",
            "set AGENTFLOW_SECRET_NONE_SUCH in the environment",
        ),
    ]


async def test_a_secret_that_no_header_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_A", "hunter2\nX-Injected: 1")
    recorder = Recorder()
    async with serve(recorder.app) as url, service(url, headers={"X-Key": {"$secret": "a"}}) as made:
        error = await failure(made, "get", id="1")
    assert not error.executed
    assert "hunter2" not in repr(error.info)
    assert recorder.requests == []


# --- what a function is


def test_side_effects_follow_the_method_and_the_document_wins() -> None:
    functions = {name: dict(f) for name, f in FUNCTIONS.items()}
    functions["gone"] = {"method": "DELETE", "path": "/", "side_effect": "irreversible", "idempotent": False}
    functions["find"] = {
        "method": "POST",
        "path": "/",
        "side_effect": "read",
        "description": "Finds.",
        "timeout": 3.0,
        "approval": True,
        "private": True,
    }
    tools = HttpService("shop", spec("http://h", functions, timeout=9.0)).tools
    found = {name: (t.side_effect, t.idempotent, t.declared) for name, t in tools.items()}
    assert found == {
        "get": ("read", True, True),
        "head": ("read", True, True),
        "post": ("external", False, False),
        "put": ("write", True, True),
        "patch": ("external", False, False),
        "delete": ("write", True, True),
        "gone": ("irreversible", False, True),
        "find": ("read", True, True),
    }
    find = tools["find"]
    assert (find.description, find.timeout, find.approval, find.private) == ("Finds.", 3.0, True, True)
    assert (tools["get"].timeout, tools["get"].approval, tools["get"].private) == (9.0, False, False)


def test_the_schema_asks_for_what_stands_in_the_path() -> None:
    given = {"type": "object", "properties": {"id": {"type": "integer"}, "x": {}}, "required": ["x"]}
    functions = {
        "given": {"method": "GET", "path": "/{id}/{x}", "input_schema": given},
        "none": {"method": "GET", "path": "/{id}", "query": ["q"]},
        "empty": {"method": "GET", "path": "/", "input_schema": {}},
    }
    tools = HttpService("shop", spec("http://h", functions)).tools
    assert tools["given"].input_schema == {**given, "required": ["x", "id"]}
    assert tools["none"].input_schema["required"] == ["id"]
    assert list(tools["none"].input_schema["properties"]) == ["id", "q"]
    assert tools["empty"].input_schema == {}


async def test_include_chooses_functions() -> None:
    made = HttpService("shop", spec("http://h", include=("get", "put")))
    assert list(made.tools) == ["get", "put"]
    assert await made.open() == []
    ((code, message, path, hint),) = [
        (p.code, p.message, p.path, p.hint)
        for p in await HttpService("shop", spec("http://h", include=("get", "gett"))).open()
    ]
    assert (code, message, path) == ("E_UNKNOWN_FUNCTION", '"shop" has no "gett"', "/include/1")
    assert hint == 'did you mean "get"?'


async def test_a_specification_made_in_python_is_checked_too() -> None:
    (found,) = await HttpService("shop", spec("ftp://h")).open()
    assert (found.code, found.path) == ("E_SERVICE_UNAVAILABLE", "/base_url")
    functions = {"f": {"method": "GET", "path": "/a/../{x}"}}
    (found,) = await HttpService("shop", spec("http://h", functions)).open()
    assert (found.code, found.path) == ("E_TOOL_SCHEMA", "/functions/f/path")


# --- trust


async def test_a_private_address_needs_trust() -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        made = HttpService("shop", spec(url), trusted=False)
        (found,) = await made.open()
        assert (found.code, found.path) == ("E_SERVICE_DENIED", "/base_url")
        # And at the connection, whatever was found before.
        error = await failure(made, "get", id="1")
        assert (error.info.category, error.info.code) == ("policy", "service_denied")
        assert (error.executed, error.unknown) == (False, False)
        await made.aclose()
    assert recorder.requests == []


async def test_an_address_that_redirects_nowhere_near_is_no_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment is not used for those who are not trusted: it could not be held to this."""
    recorder = Recorder()
    async with serve(recorder.app) as url:
        monkeypatch.setenv("http_proxy", url)
        made = HttpService("shop", spec("http://nowhere.invalid"), trusted=False)
        error = await failure(made, "get", id="1")
        await made.aclose()
    assert error.info.code == "network_error"
    assert recorder.requests == []


async def test_plain_text_refusals() -> None:
    async with (
        serve(Recorder(lambda _: PlainTextResponse("  no\nway  ", 400)).app) as url,
        service(url) as made,
    ):
        error = await failure(made, "get", id="1")
    assert error.info.message == "shop__get: HTTP 400: no way"
