"""Services of type mcp: a reference server of the SDK on both transports, and servers that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)

from agentflow.definition.ir import ServiceSpec
from agentflow.tools import ServiceLoader, ToolContext, ToolError, child
from agentflow.tools.mcp_connection import McpConnection
from agentflow.tools.mcp_service import McpService
from tests.unit.tools.servers import CTX, Recorder, serve

HERE = Path(__file__).parent
RAW = str(HERE / "mcp_raw_server.py")


def stdio(notes: Path, *ways: str, **more: Any) -> ServiceSpec:
    options = {"transport": "stdio", "command": sys.executable, "args": [RAW, str(notes), *ways]}
    options |= {k: more.pop(k) for k in ("env", "cwd", "command", "args", "trust_hints") if k in more}
    return ServiceSpec(type="mcp", options=options, **more)


def http(url: str, **more: Any) -> ServiceSpec:
    options = {"transport": "streamable_http", "url": url}
    options |= {k: more.pop(k) for k in ("headers", "trust_hints") if k in more}
    return ServiceSpec(type="mcp", options=options, **more)


@asynccontextmanager
async def opened(spec: ServiceSpec, folder: Path | None = None) -> AsyncGenerator[McpService]:
    made = McpService("tools", spec, folder)
    try:
        assert await made.open() == []
        yield made
    finally:
        await made.aclose()


async def problems(spec: ServiceSpec, folder: Path | None = None) -> list[tuple[Any, ...]]:
    made = McpService("tools", spec, folder)
    found = await made.open()
    await made.aclose()
    return [(p.code, p.message, p.path, p.hint) for p in found]


async def call(made: McpService, name: str, /, **arguments: Any) -> Any:
    return await made.call(made.tools[name], arguments, CTX)


async def failure(made: McpService, name: str, /, **arguments: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await call(made, name, **arguments)
    return caught.value


async def noted(folder: Path, name: str) -> str:
    """What the server wrote down; waits for it."""
    file = folder / name
    await eventually(lambda: file.exists() and file.stat().st_size > 0)
    return file.read_text()


async def eventually(holds: Callable[[], bool]) -> None:
    """Another process has no way to tell us but to have done it."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


def runs(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


# --- the reference server


def check_reference(made: McpService) -> None:
    found = {n: (t.side_effect, t.idempotent, t.declared) for n, t in made.tools.items()}
    trusted = made.spec.options.get("trust_hints", False)
    assert found == {
        "add": ("read", True, True) if trusted else ("external", False, False),
        "drop": ("external", trusted, True),
        "note": ("external", False, False),
        "meta": ("external", False, False),
        "broken": ("external", False, False),
        "asks_a_person": ("external", False, False),
        "asks_a_model": ("external", False, False),
    }
    add = made.tools["add"]
    assert (add.name, add.description) == ("tools__add", "Adds two numbers.")
    assert add.input_schema["required"] == ["a", "b"]


async def check_calls(made: McpService) -> None:
    assert await call(made, "add", a=1, b=2) == {"result": 3}
    assert await call(made, "drop", name="x") == {"dropped": "x"}
    meta = (await call(made, "meta"))["meta"]
    assert meta["agentflow/context"] == {"tenant": "t1"}
    assert meta["traceparent"] == CTX.traceparent
    assert meta["tracestate"] == CTX.tracestate
    assert meta["agentflow/call"] == {
        "workflow_id": "wf_1",
        "step_id": "a",
        "iteration": None,
        "call_id": "call_1",
        "idempotency_key": CTX.idempotency_key,
        "attempt": 1,
    }
    error = await failure(made, "broken")
    assert (error.info.category, error.info.code) == ("tool", "tool_execution_failed")
    assert (error.executed, error.unknown) == (True, False)
    assert "broken" in error.info.message
    results = await asyncio.gather(*(call(made, "add", a=n, b=n) for n in range(20)))
    assert results == [{"result": 2 * n} for n in range(20)]


async def test_the_reference_server_as_a_process() -> None:
    spec = stdio(HERE, args=[str(HERE / "mcp_sdk_server.py")])
    async with opened(spec) as made:
        check_reference(made)
        await check_calls(made)


@pytest.mark.parametrize("stateless", [False, True])
async def test_the_reference_server_over_http(stateless: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.tools.mcp_sdk_server import app

    monkeypatch.setenv("AGENTFLOW_SECRET_MCP", "Bearer hunter2-abc")
    served = Guard(app.streamable_http_app(stateless_http=stateless), "Bearer hunter2-abc")
    async with serve(served) as url:
        async with opened(http(url + "/mcp", headers={"Authorization": {"$secret": "mcp"}})) as made:
            check_reference(made)
            await check_calls(made)
        ((code, message, path, _),) = await problems(http(url + "/mcp"))
    assert (code, message, path) == (
        "E_SERVICE_UNAVAILABLE",
        'service "tools": the server answered 401',
        "/url",
    )


class Guard:
    """Lets in who has the key."""

    def __init__(self, app: Any, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"").decode()
        app = self._app if scope["type"] != "http" or given == self._key else PlainTextResponse("no", 401)
        await app(scope, receive, send)


async def test_no_context_where_it_is_not_wanted(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path, send_context=False)) as made:
        task = asyncio.create_task(call(made, "slow"))
        meta = json.loads(await noted(tmp_path, "slow"))
        assert "agentflow/context" not in meta
        assert meta["agentflow/call"]["call_id"] == "call_1"
        task.cancel()
        await asyncio.wait({task})


# --- results


@pytest.mark.parametrize(
    ("what", "value"),
    [
        (1, "1"),
        ({"a": [None]}, '{"a": [null]}'),
        ("nothing", None),
        ("structured", {"a": 1}),
    ],
)
async def test_results(tmp_path: Path, what: Any, value: Any) -> None:
    async with opened(stdio(tmp_path)) as made:
        assert await call(made, "echo", n=what) == value


async def test_results_of_every_kind(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path)) as made:
        picture = await call(made, "echo", n="picture")
        assert picture == [
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "text", "text": "hi"},
        ]
        for what, category, code, message in (
            ("large", "tool", "invalid_tool_output", "the limit is 4,194,304"),
            ("wrong", "tool", "invalid_tool_output", "content"),
            ("refuse", "invalid_input", "invalid_tool_input", "n is refused"),
            ("break", "tool", "tool_execution_failed", "it broke"),
            ("fail", "tool", "tool_execution_failed", "it failed"),
        ):
            error = await failure(made, "echo", n=what)
            assert (error.info.category, error.info.code, error.unknown) == (category, code, False)
            assert message in error.info.message
        assert await call(made, "echo", n=1) == "1"


@pytest.mark.parametrize("what", ["asks_a_person", "asks_a_model"])
async def test_a_server_that_asks_its_client_for_something_is_refused(what: str) -> None:
    async with opened(stdio(HERE, args=[str(HERE / "mcp_sdk_server.py")])) as made:
        error = await failure(made, what)
    assert (error.info.category, error.info.code) == ("tool", "tool_execution_failed")
    assert re.search("Cannot send|not supported", error.info.message)  # by its protocol version


# --- starting


async def test_noise_neither_stops_nor_fills_anything(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path, "noisy")) as made:
        assert await call(made, "echo", n=1) == "1"


async def test_a_server_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_KEY", "hunter2-abc")
    found = await problems(stdio(tmp_path, "exit", env={"KEY": {"$secret": "key"}}))
    assert found == [
        (
            "E_SERVICE_UNAVAILABLE",
            'service "tools": its process ended with status 1: cannot start: ***',
            "/command",
            None,
        )
    ]


async def test_commands_and_folders_that_are_not_there(tmp_path: Path) -> None:
    for spec in (stdio(tmp_path, command="/no/such/program"), stdio(tmp_path, cwd="none")):
        ((code, message, path, _),) = await problems(spec, tmp_path)
        assert (code, path) == ("E_SERVICE_UNAVAILABLE", "/command")
        assert message.endswith("or no such cwd")
    (tmp_path / "program").write_text("")
    ((code, message, _, _),) = await problems(stdio(tmp_path, command=str(tmp_path / "program")))
    assert (code, message) == ("E_SERVICE_UNAVAILABLE", 'service "tools": Permission denied')


async def test_the_folder_of_the_document_is_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    shutil.copy(RAW, tmp_path / "inner" / "server.py")
    async with opened(stdio(tmp_path, args=["inner/server.py", "."]), tmp_path):
        assert (tmp_path / "started").exists()
    async with opened(stdio(tmp_path, args=["server.py", "."], cwd="inner"), tmp_path):
        assert (tmp_path / "inner" / "started").exists()


async def test_a_server_that_says_nothing_has_so_much_time_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_GRACE", 0.1)
    loader = ServiceLoader(start_timeout=0.3)
    service, (found,) = await loader.load("tools", stdio(tmp_path, "silent"), None)
    assert service is None
    assert (found.code, found.message) == (
        "E_SERVICE_UNAVAILABLE",
        'service "tools": it was not ready within 0.3 s',
    )
    assert not runs(int(await noted(tmp_path, "started")))
    await loader.aclose()


async def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "mcp.client", raising=False)
    assert await problems(stdio(tmp_path)) == [
        (
            "E_SERVICE_UNAVAILABLE",
            'service "tools": MCP servers need the extra mcp',
            "/type",
            'install it: pip install "agentflow[mcp]"',
        )
    ]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("way", "code", "message"),
    [
        ("twice", "E_TOOL_DUPLICATE", 'service "tools" has two functions "echo"'),
        ("empty", "E_SERVICE_UNAVAILABLE", 'service "tools": it offers no function'),
        ("endless", "E_SERVICE_UNAVAILABLE", 'service "tools": it lists more than 1000 tools'),
    ],
)
async def test_lists_that_are_none(tmp_path: Path, way: str, code: str, message: str) -> None:
    ((found, said, _, _),) = await problems(stdio(tmp_path, way))
    assert found == code
    assert said.startswith(message)


async def test_lists_of_several_pages_and_old_schemas(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path, "pages")) as made:
        assert list(made.tools) == ["tool0", "tool1", "tool2"]
        assert "$schema" not in made.tools["tool0"].input_schema
    async with opened(stdio(tmp_path, "schemas")) as made:
        assert list(made.tools) == ["pair"]
        assert made.tools["pair"].input_schema["properties"]["a"]["prefixItems"] == [{"type": "string"}]
        assert "is remote" in made.refused["remote"]


async def test_options_of_functions(tmp_path: Path) -> None:
    said = {"echo": {"side_effect": "none", "timeout": 2.0, "private": True, "approval": True}}
    async with opened(stdio(tmp_path, functions=said, include=("echo",), timeout=9.0)) as made:
        (echo,) = made.tools.values()
        assert (echo.side_effect, echo.idempotent, echo.timeout) == ("none", True, 2.0)
        assert (echo.private, echo.approval) == (True, True)
    found = await problems(stdio(tmp_path, functions={"ecko": {}}, include=("slow", "sloth")))
    assert [(code, path) for code, _, path, _ in found] == [
        ("E_UNKNOWN_FUNCTION", "/functions/ecko"),
        ("E_UNKNOWN_FUNCTION", "/include/1"),
    ]


async def test_a_server_that_offers_more_later(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path, "grows")) as made:
        assert await made.open() == []
        assert await noted(tmp_path, "listed") == "1"
        await call(made, "echo", n="grow")
        assert await made.open() == []
        assert list(made.tools) == ["echo", "slow", "new"]


async def test_a_function_that_vanished_is_not_found_and_the_server_is_not_asked(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path, "shrinks")) as made:
        echo = made.tools["echo"]
        await call(made, "echo", n="grow")
        with pytest.raises(ToolError) as caught:
            await made.call(echo, {"n": 1}, CTX)
        assert (caught.value.info.code, caught.value.executed) == ("tool_not_found", False)
        assert list(made.tools) == ["slow"]
        assert await noted(tmp_path, "listed") == "2"


# --- dying and ending


async def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path)) as made:
        first = int(await noted(tmp_path, "started"))
        error = await failure(made, "echo", n="die")
        assert (error.info.category, error.info.code) == ("transient", "network_error")
        assert (error.executed, error.unknown) == (True, True)
        assert await call(made, "echo", n=1) == "1"
        assert int((tmp_path / "started").read_text()) != first
        assert not runs(first)
        assert not is_zombie(first)


async def test_a_server_that_died_while_nobody_called_costs_no_call(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path)) as made:
        pid = int(await noted(tmp_path, "started"))
        os.kill(pid, 9)
        assert made._connection is not None
        connection = made._connection
        await eventually(lambda: not connection.is_open)
        assert await call(made, "echo", n=1) == "1"


async def test_a_line_without_end_ends_the_server(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path)) as made:
        error = await failure(made, "echo", n="huge")
        assert error.info.code == "network_error"
        assert await call(made, "echo", n=1) == "1"


async def test_a_cancelled_call_is_taken_back(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path)) as made:
        task = asyncio.create_task(call(made, "slow"))
        await noted(tmp_path, "slow")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "requestId" in json.loads(await noted(tmp_path, "cancelled"))
        assert await call(made, "echo", n=1) == "1"


async def test_a_server_ends_with_its_service(tmp_path: Path) -> None:
    async with opened(stdio(tmp_path)) as made:
        pid = int(await noted(tmp_path, "started"))
        await made.aclose()
        await made.aclose()
        assert (tmp_path / "left").exists()  # it was asked, and not killed
        assert not runs(pid)
        assert not is_zombie(pid)
        assert await call(made, "echo", n=1) == "1"


async def test_a_server_that_will_not_end_is_made_to_and_so_is_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_GRACE", 0.1)
    async with opened(stdio(tmp_path, "stubborn")):
        pid, grandchild = int(await noted(tmp_path, "started")), int(await noted(tmp_path, "grandchild"))
        assert runs(grandchild)
    assert not runs(pid)
    assert not is_zombie(pid)
    await eventually(lambda: not runs(grandchild))  # it is not ours to reap


ENDS_MEANWHILE = """
import asyncio, sys
from pathlib import Path
from agentflow.definition.ir import ServiceSpec
from agentflow.tools.mcp_service import McpService

async def main():
    options = {"transport": "stdio", "command": sys.executable, "args": sys.argv[1:]}
    made = McpService("tools", ServiceSpec(type="mcp", options=options), None)
    assert await made.open() == []
    closing = asyncio.create_task(made.aclose())
    await asyncio.sleep(0.1)  # it has begun, and takes seconds
    assert not closing.done()

asyncio.run(main())
"""


async def test_a_loop_that_ends_meanwhile_leaves_no_process(tmp_path: Path) -> None:
    """At its end a loop cancels every task, whatever it shields."""
    program = [sys.executable, "-c", ENDS_MEANWHILE, RAW, str(tmp_path), "stubborn"]
    process = await asyncio.create_subprocess_exec(*program)
    assert await process.wait() == 0
    for name in ("started", "grandchild"):
        pid = int(await noted(tmp_path, name))
        await eventually(lambda pid=pid: not runs(pid))


async def test_calls_at_the_same_time_start_one_server(tmp_path: Path) -> None:
    made = McpService("tools", stdio(tmp_path), None)
    async with opened(made.spec) as other:
        tools = other.tools
    (tmp_path / "started").unlink()
    results = await asyncio.gather(*(made.call(tools["echo"], {"n": n}, CTX) for n in range(10)))
    assert results == [str(n) for n in range(10)]
    assert made._child is not None
    assert int((tmp_path / "started").read_text()) == made._child.pid
    await made.aclose()


async def test_a_server_that_nobody_uses_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connection(name: str, open: Any, changed: Any) -> McpConnection:
        return McpConnection(name, open, changed, idle=0.05)

    monkeypatch.setattr("agentflow.tools.mcp_connection.McpConnection", connection)
    async with opened(stdio(tmp_path)) as made:
        await noted(tmp_path, "left")
        assert await call(made, "echo", n=1) == "1"


async def test_a_caller_that_gives_up_while_it_starts_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_GRACE", 0.1)
    made = McpService("tools", stdio(tmp_path, "silent"), None)
    opening = asyncio.ensure_future(made.open())
    started = int(await noted(tmp_path, "started"))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not runs(started)
    await made.aclose()


# --- secrets and trust


async def test_secrets_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_SECRET_KEY", "hunter2-abc")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-children")
    env = {"KEY": {"$secret": "key"}, "PLAIN": "p"}
    async with opened(stdio(tmp_path, env=env)) as made:
        seen = json.loads(await call(made, "echo", n="env"))
        assert (seen["KEY"], seen["PLAIN"]) == ("***", "p")
        assert "OPENAI_API_KEY" not in seen
        assert "AGENTFLOW_SECRET_KEY" not in seen
        assert "PATH" in seen
        error = await failure(made, "echo", n="fail")
        assert error.info.message == "tools__echo: it failed: ***"
        assert "hunter2" not in repr(made) + repr(vars(made))
        await made.aclose()
        monkeypatch.delenv("AGENTFLOW_SECRET_KEY")
        error = await failure(made, "echo", n=1)
        assert (error.info.category, error.info.code, error.executed) == ("policy", "secret_not_set", False)
    assert await problems(stdio(tmp_path, env=env)) == [
        (
            "E_SERVICE_DENIED",
            'secret "key" is not set',
            "/env/KEY",
            "set AGENTFLOW_SECRET_KEY in the environment",
        )
    ]


async def test_without_trust_no_process_and_no_private_address(tmp_path: Path) -> None:
    loader = ServiceLoader()
    _, (found,) = await loader.load("tools", stdio(tmp_path), None, trusted=False)
    assert (found.code, found.message, found.path) == (
        "E_SERVICE_DENIED",
        'service "tools" starts a process, this submission may not',
        "/transport",
    )
    recorder = Recorder()
    async with serve(recorder.app) as url:
        made = McpService("tools", http(url), None, trusted=False)
        (found,) = await made.open()
        assert (found.code, found.path) == ("E_SERVICE_DENIED", "/url")
        # And at the connection, whatever was found before.
        monkey = pytest.MonkeyPatch()
        monkey.setattr(made, "_check_address", nothing)
        (found,) = await made.open()
        monkey.undo()
        assert found.code == "E_SERVICE_UNAVAILABLE"
        assert "which is not public" in found.message
        await made.aclose()
    assert recorder.requests == []
    await loader.aclose()


async def nothing() -> list[Any]:
    return []


# --- HTTP servers that misbehave


@pytest.mark.parametrize("status", [404, 429, 500])
async def test_refusals_over_http(status: int) -> None:
    recorder = Recorder(lambda _: PlainTextResponse("no", status))
    async with serve(recorder.app) as url:
        ((code, message, path, _),) = await problems(http(url))
    assert (code, path) == ("E_SERVICE_UNAVAILABLE", "/url")
    assert message == f'service "tools": the server answered {status}'


async def test_no_server() -> None:
    async with serve(Recorder().app) as url:
        pass
    ((code, message, path, _),) = await problems(http(url))
    assert (code, path) == ("E_SERVICE_UNAVAILABLE", "/url")
    assert message == 'service "tools": no connection to 127.0.0.1 (ConnectError)'


async def test_redirects_to_another_server_are_not_followed() -> None:
    other = Recorder()
    async with serve(other.app) as elsewhere:
        recorder = Recorder(lambda _: RedirectResponse(elsewhere, 307))
        async with serve(recorder.app) as url:
            ((code, _, _, _),) = await problems(http(url, headers={"Authorization": "Bearer abc"}))
    assert code == "E_SERVICE_UNAVAILABLE"
    assert other.requests == []


def stub(answers: dict[str, Any]) -> Recorder:
    """A server without sessions that answers methods by a table."""

    async def answer(request: Any) -> Any:
        message = json.loads(await request.body() or b"{}")
        method = message.get("method")
        if request.method != "POST" or "id" not in message:
            return PlainTextResponse("", 405 if request.method != "POST" else 202)
        made = answers.get(method)
        if callable(made):
            return made(message)
        if made is None:
            error = {"code": -32601, "message": "Method not found"}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": made})

    return Recorder(answer)


ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "stub", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "f", "inputSchema": {"type": "object"}}]},
}


@pytest.mark.parametrize(
    ("status", "category", "code", "unknown"),
    [
        (401, "auth", "authentication_failed", False),
        (429, "rate_limited", "rate_limited", False),
        (500, "transient", "server_error", False),
        (504, "transient", "server_error", True),
    ],
)
async def test_calls_that_are_refused_over_http(status: int, category: str, code: str, unknown: bool) -> None:
    refusal = {"tools/call": lambda _: PlainTextResponse("status code: 503", status)}
    async with serve(stub(ANSWERS | refusal).app) as url, opened(http(url)) as made:
        error = await failure(made, "f")
    assert (error.info.category, error.info.code, error.info.http_status) == (category, code, status)
    assert error.unknown is unknown


class Forgetful:
    """A server with sessions; after `forget` it refuses requests of earlier ones by `status` and `body`."""

    def __init__(self, status: int, body: str = "") -> None:
        self.status, self.body = status, body
        self.sessions: list[str] = []
        self.executed: list[str] = []
        self.asked: list[str] = []
        self.is_known = True
        self.recorder = Recorder(self.answer)

    def forget(self) -> None:
        self.is_known = False

    async def answer(self, request: Any) -> Any:
        message = json.loads(await request.body() or b"{}")
        if request.method != "POST" or "id" not in message:
            return PlainTextResponse("", 405 if request.method != "POST" else 202)
        self.asked.append(message["method"])
        if message["method"] == "initialize":
            self.is_known = True
            self.sessions.append(f"s{len(self.sessions)}")
            return self.done(message, ANSWERS["initialize"], {"mcp-session-id": self.sessions[-1]})
        if not self.is_known or request.headers.get("mcp-session-id") != self.sessions[-1]:
            return PlainTextResponse(self.body, self.status, media_type="application/json")
        if message["method"] == "tools/list":
            return self.done(message, ANSWERS["tools/list"])
        return self.called(message)

    def called(self, message: Any) -> Any:
        self.executed.append(self.sessions[-1])
        return self.done(message, {"content": [{"type": "text", "text": "done"}]})

    def done(self, message: Any, result: Any, headers: Any = None) -> Any:
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


REFERENCE = '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID"},"id":null}'


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, ""), (410, ""), (400, REFERENCE), (400, "Unknown session"), (422, "{}"), (401, ""), (409, "")],
)
async def test_a_forgotten_session_is_opened_again(status: int, body: str) -> None:
    """agents-models-tools D9."""
    server = Forgetful(status, body)
    async with serve(server.recorder.app) as url, opened(http(url)) as made:
        server.forget()
        assert await call(made, "f") == "done"
        assert await call(made, "f") == "done"
    assert server.sessions == ["s0", "s1"]
    assert server.executed == ["s1", "s1"]


@pytest.mark.parametrize("status", [404, 400])
async def test_a_list_of_a_forgotten_session_is_asked_for_again(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Forgetful(status)
    async with serve(server.recorder.app) as url, opened(http(url)) as made:
        server.forget()
        monkeypatch.setattr("agentflow.tools.mcp_service._FRESH", 0.0)
        assert await made.open() == []
    assert server.sessions == ["s0", "s1"]


@pytest.mark.parametrize("status", [400, 401, 422])
async def test_a_refusal_that_is_about_the_call_is_not_repeated(status: int) -> None:
    class Strict(Forgetful):
        def called(self, message: Any) -> Any:
            return PlainTextResponse("no such thing", status)

    server = Strict(404)
    async with serve(server.recorder.app) as url, opened(http(url)) as made:
        error = await failure(made, "f")
    assert error.info.http_status == status
    assert server.sessions == ["s0"]
    assert server.asked.count("tools/call") == 1


async def test_a_call_that_may_have_run_is_not_repeated_but_the_next_one_has_a_new_session() -> None:
    server = Forgetful(500)
    async with serve(server.recorder.app) as url, opened(http(url)) as made:
        server.forget()
        error = await failure(made, "f")
        assert (error.info.code, server.asked.count("tools/call")) == ("server_error", 1)
        assert await call(made, "f") == "done"
    assert server.sessions == ["s0", "s1"]


async def test_a_session_that_is_refused_for_ever_is_an_error() -> None:
    class Broken(Forgetful):
        def called(self, message: Any) -> Any:
            self.forget()
            return PlainTextResponse("", 400)

    server = Broken(400)
    async with serve(server.recorder.app) as url, opened(http(url)) as made:
        error = await failure(made, "f")
    assert error.info.http_status == 400
    assert server.asked.count("tools/call") == 2


async def test_hints_count_only_if_the_document_trusts_them(tmp_path: Path) -> None:
    """agents-models-tools D9: a hint never makes a call repeatable or free of consent."""
    hints = {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
    listed = {"tools": [{"name": "f", "inputSchema": {"type": "object"}, "annotations": hints}]}
    async with serve(stub(ANSWERS | {"tools/list": listed}).app) as url:
        async with opened(http(url)) as made:
            tool = made.tools["f"]
            assert (tool.side_effect, tool.idempotent, tool.declared) == ("external", False, False)
        async with opened(http(url, trust_hints=True)) as made:
            tool = made.tools["f"]
            assert (tool.side_effect, tool.idempotent, tool.declared) == ("read", True, True)
        said = {"f": {"side_effect": "write", "idempotent": False}}
        async with opened(http(url, trust_hints=True, functions=said)) as made:
            tool = made.tools["f"]
            assert (tool.side_effect, tool.idempotent, tool.declared) == ("write", False, True)


async def test_a_compressed_answer_is_refused() -> None:
    def packed(message: Any) -> Any:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [], "_": "a" * 1_000_000}}
        body = gzip.compress(json.dumps(answer).encode())
        return Response(body, headers={"content-encoding": "gzip"}, media_type="application/json")

    recorder = stub(ANSWERS | {"tools/call": packed})
    async with serve(recorder.app) as url, opened(http(url)) as made:
        error = await failure(made, "f")
        assert error.unknown
    assert all(r["headers"]["accept-encoding"] == "identity" for r in recorder.requests)


async def test_a_server_that_goes_away_and_comes_back() -> None:
    done = {"content": [{"type": "text", "text": "done"}]}
    answers = ANSWERS | {"tools/call": done}
    async with serve(stub(answers).app) as url:
        made = McpService("tools", http(url), None)
        assert await made.open() == []
    error = await failure(made, "f")
    assert (error.info.code, error.executed, error.unknown) == ("network_error", False, False)
    async with serve(stub(answers).app, port=int(url.rpartition(":")[2])):
        assert await call(made, "f") == "done"
        await made.aclose()


async def test_a_huge_answer_is_cut_off() -> None:
    def endless(_: Any) -> Any:
        async def body() -> AsyncGenerator[bytes]:
            while True:
                yield b" " * 65536
                await asyncio.sleep(0)

        return StreamingResponse(body(), media_type="application/json")

    async with serve(stub(ANSWERS | {"tools/call": endless}).app) as url, opened(http(url)) as made:
        error = await failure(made, "f")
    assert (error.info.category, error.info.code) == ("tool", "invalid_tool_output")


def test_the_context_is_a_plain_value() -> None:
    made = McpService("tools", http("http://h"), None)
    fields = {f: getattr(CTX, f) for f in CTX.__struct_fields__}
    meta = made._meta(ToolContext(**fields | {"context": None, "traceparent": None, "tracestate": None}))
    assert list(meta) == ["agentflow/call"]
