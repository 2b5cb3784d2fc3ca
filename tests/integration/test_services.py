"""Services of every type in whole runs: agents that call them, and what becomes of a run when they fail."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.schemas import SchemaGenerator

from agentflow import DefinitionError, Runtime, Service, function
from agentflow.definition.loader import load_file
from agentflow.runtime.bound import Bound
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.unit.tools.servers import Recorder, serve

TOOLS = Path(__file__).parents[1] / "unit" / "tools"
RAW = str(TOOLS / "mcp_raw_server.py")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def step(id: str, *functions: tuple[str, str], **more: Any) -> dict[str, Any]:
    agent = {
        "systemPrompt": id,
        "input": "go",
        "attachedFunctions": [{"service": s, "function": f} for s, f in functions],
        "resultSchema": {},
    }
    agent |= {k: more.pop(k) for k in ("context",) if k in more}
    if not functions:
        del agent["attachedFunctions"]
    return {"type": "run", "id": id, "agent": agent, **more}


def write(folder: Path, services: dict[str, Any], *steps: dict[str, Any]) -> Path:
    document = {"version": "1.0", "services": services, "workflow": {"steps": list(steps)}}
    file = folder / "flow.json"
    file.write_text(json.dumps(document, indent=2))
    return file


def stdio(notes: Path, *ways: str, **more: Any) -> dict[str, Any]:
    args = [RAW, str(notes), *ways]
    return {"type": "mcp", "transport": "stdio", "command": sys.executable, "args": args, **more}


def once(tool: str, **arguments: Any) -> Callable[[Any], Any]:
    """A model that calls one function and answers with what it says."""

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        return json.dumps({"said": last.content}) if last.role == "tool" else call(tool, **arguments)

    return answer


async def events(runtime: Runtime, run_id: str, kind: str) -> list[Any]:
    return [e async for e in runtime.events(run_id, follow=False) if e.type == kind]


async def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- an application that describes itself


async def get_order(request: Request) -> Response:
    """
    summary: One order.
    operationId: getOrder
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}}
      - {name: X-Api-Key, in: header, schema: {type: string}}
    responses:
      200: {description: The order.}
    """
    if request.headers.get("x-api-key") != "hunter2-openapi":
        return JSONResponse({"detail": f"wrong key {request.headers.get('x-api-key')}"}, 401)
    return JSONResponse({"id": request.path_params["id"], "key": request.headers["x-api-key"]})


async def add_note(request: Request) -> Response:
    """
    operationId: addNote
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}}
    requestBody:
      content:
        application/json:
          schema: {type: object, required: [text], properties: {text: {type: string}}}
    responses:
      200: {description: The note.}
    """
    return JSONResponse({"noted": (await request.json())["text"]})


SCHEMAS = SchemaGenerator(
    {"openapi": "3.0.0", "info": {"title": "Shop", "version": "1"}, "servers": [{"url": "/"}]}
)


def shop() -> Starlette:
    def describe(request: Request) -> Response:
        return JSONResponse(SCHEMAS.get_schema(routes=request.app.routes))

    return Starlette(
        routes=[
            Route("/orders/{id:path}/notes", add_note, methods=["POST"]),
            Route("/orders/{id:path}", get_order, methods=["GET"]),
            Route("/openapi.json", describe, include_in_schema=False),
        ]
    )


PYTHON = """
from agentflow import ToolContext, function

@function(side_effect="read", sensitive=True)
def whoami(ctx: ToolContext) -> dict:
    return {"tenant": ctx.context["tenant"], "access_token": "hunter2-python", "trace": ctx.traceparent}
"""


def whole_store(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("runs.db*"))


async def test_agents_call_services_of_every_type_and_no_secret_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.unit.tools.mcp_sdk_server import app as reference

    caplog.set_level(logging.DEBUG)
    for kind in ("openapi", "http", "mcp", "env"):
        monkeypatch.setenv(f"AGENTFLOW_SECRET_{kind.upper()}", f"hunter2-{kind}")
    # A server that tells all that it was told.
    echo = Recorder(lambda request: JSONResponse({"headers": dict(request.headers)}))
    (tmp_path / "own_tools.py").write_text(PYTHON)
    async with (
        serve(shop()) as shop_url,
        serve(echo.app) as echo_url,
        serve(reference.streamable_http_app(stateless_http=True)) as mcp_url,
    ):
        services = {
            "own": {"type": "python", "module": "own_tools"},
            "plain": {
                "type": "http",
                "base_url": echo_url,
                "headers": {"Authorization": {"$secret": "http"}},
                "functions": {"ask": {"method": "POST", "path": "/ask/{what}"}},
            },
            "shop": {
                "type": "openapi",
                "document": shop_url + "/openapi.json",
                "headers": {"X-Api-Key": {"$secret": "openapi"}},
            },
            "local": stdio(tmp_path, env={"KEY": {"$secret": "env"}}),
            "remote": {
                "type": "mcp",
                "transport": "streamable_http",
                "url": mcp_url + "/mcp",
                "headers": {"Authorization": {"$secret": "mcp"}},
            },
        }
        context = {"tenant": "t1", "quota": 5}
        model = ScriptedModel()
        wanted = {
            "own": ("whoami", {}),
            "plain": ("ask", {"what": "a/ü?", "n": 1}),
            "shop": ("getOrder", {"id": "a/b c"}),
            "local": ("echo", {"n": "env"}),
            "remote": ("add", {"a": 2, "b": 3}),
        }
        steps = []
        for service, (name, arguments) in wanted.items():
            model.add(once(f"{service}__{name}", **arguments), when=service)
            steps.append(step(service, (service, name), context=context))
        url = f"sqlite:{tmp_path / 'runs.db'}"
        async with Runtime(url, models=[model]) as runtime:
            result = await runtime.run(write(tmp_path, services, *steps))
            started = await events(runtime, result.workflow_id, "tool.call_started")
        said = {name: json.loads(output["said"]) for name, output in result.output.items()}
    assert said["own"] == {"tenant": "t1", "access_token": "***", "trace": said["own"]["trace"]}
    assert said["shop"] == {"id": "a/b c", "key": "***"}
    assert said["local"]["KEY"] == "***"
    assert said["remote"] == {"result": 5}
    assert said["plain"]["headers"]["authorization"] == "***"
    # What the servers really got.
    (asked,) = echo.requests
    assert asked["path"] == "/ask/a%2F%C3%BC%3F"
    assert asked["headers"]["authorization"] == "hunter2-http"
    encoded = asked["headers"]["agentflow-context"]
    assert json.loads(base64.urlsafe_b64decode(encoded + "==")) == context
    (call_event,) = [e for e in started if e.data.tool_name == "plain__ask"]
    assert asked["headers"]["idempotency-key"] == call_event.data.idempotency_key
    assert asked["headers"]["traceparent"] == f"00-{call_event.trace.trace_id}-{call_event.trace.span_id}-01"
    (own_event,) = [e for e in started if e.data.tool_name == "own__whoami"]
    assert said["own"]["trace"].split("-")[2] == own_event.trace.span_id
    # And nothing of it anywhere else.
    stored = whole_store(tmp_path)
    assert b"tool.call_completed" in stored
    assert b"hunter2" not in stored
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(model.requests)


# --- the life of a service


async def test_runs_share_a_server_and_it_ends_with_the_runtime(tmp_path: Path) -> None:
    document = write(tmp_path, {"local": stdio(tmp_path)}, step("a", ("local", "echo")))
    model = ScriptedModel(once("local__echo", n=1))
    async with Runtime(models=[model]) as runtime:
        await asyncio.gather(*(runtime.run(document) for _ in range(5)))
        pid = int((tmp_path / "started").read_text())
        await runtime.run(document)
        assert int((tmp_path / "started").read_text()) == pid
        assert runs(pid)
    assert not runs(pid)
    assert (tmp_path / "left").exists()


async def test_a_server_that_dies_in_a_call_leaves_its_outcome_open(tmp_path: Path) -> None:
    document = write(tmp_path, {"local": stdio(tmp_path)}, step("a", ("local", "echo")))
    model = ScriptedModel(once("local__echo", n="die"))
    async with Runtime(models=[model]) as runtime:
        handle = await runtime.submit(document)
        result = await handle.result()
        assert result.state == "waiting"
        (asked,) = await events(runtime, result.workflow_id, "input.requested")
        assert asked.data.request_type == "outcome_unknown"
        (failed,) = await events(runtime, result.workflow_id, "tool.call_failed")
        assert (failed.data.outcome, failed.data.error.code) == ("unknown", "network_error")
        await handle.answer(asked.data.request_id, {"choice": "done", "output": "settled"})
        result = await (await runtime.attach(result.workflow_id)).result()
        assert result.output == {"a": {"said": "settled"}}


async def test_a_safe_call_that_was_lost_goes_back_to_the_agent(tmp_path: Path) -> None:
    services = {"local": stdio(tmp_path, functions={"echo": {"side_effect": "read"}})}
    model = ScriptedModel([call("local__echo", n="die"), call("local__echo", n=7), {"done": True}])
    async with Runtime(models=[model]) as runtime:
        result = await runtime.run(write(tmp_path, services, step("a", ("local", "echo"))))
        assert result.output == {"a": {"done": True}}
        (failed,) = await events(runtime, result.workflow_id, "tool.call_failed")
        assert (failed.data.outcome, failed.data.error.category) == ("failed", "transient")
        (completed,) = await events(runtime, result.workflow_id, "tool.call_completed")
        assert completed.data.output == "7"


async def test_a_call_that_was_never_sent_is_no_question(tmp_path: Path) -> None:
    async with serve(Recorder().app) as url:
        pass
    services = {
        "plain": {"type": "http", "base_url": url, "functions": {"f": {"method": "POST", "path": "/"}}}
    }
    model = ScriptedModel([call("plain__f"), {"done": True}])
    async with Runtime(models=[model]) as runtime:
        result = await runtime.run(write(tmp_path, services, step("a", ("plain", "f"))))
        (failed,) = await events(runtime, result.workflow_id, "tool.call_failed")
    assert result.output == {"a": {"done": True}}
    assert failed.data.executed is False
    assert failed.data.outcome == "not_started"


@pytest.mark.parametrize(("method", "state"), [("GET", "completed"), ("POST", "waiting")])
async def test_a_server_that_is_too_slow(tmp_path: Path, method: str, state: str) -> None:
    gone = asyncio.Event()

    async def slow(request: Request) -> Response:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()
        return JSONResponse(1)

    async with serve(Recorder(slow).app) as url:
        functions = {"f": {"method": method, "path": "/", "timeout": "100ms"}}
        services = {"plain": {"type": "http", "base_url": url, "functions": functions}}
        model = ScriptedModel([call("plain__f"), {"done": True}])
        async with Runtime(models=[model]) as runtime:
            handle = await runtime.submit(write(tmp_path, services, step("a", ("plain", "f"))))
            result = await handle.result()
            (failed,) = await events(runtime, result.workflow_id, "tool.call_failed")
        await gone.wait()
    assert (result.state, failed.data.error.code) == (state, "tool_timeout")


async def test_a_cancelled_run_takes_its_calls_back(tmp_path: Path) -> None:
    document = write(tmp_path, {"local": stdio(tmp_path)}, step("a", ("local", "slow")))
    async with Runtime(models=[ScriptedModel(once("local__slow"))]) as runtime:
        handle = await runtime.submit(document)
        await eventually(lambda: (tmp_path / "slow").exists())
        await handle.cancel(mode="hard")
        assert (await handle.rest()).state == "cancelled"
        await eventually(lambda: (tmp_path / "cancelled").exists())


async def test_a_service_is_called_so_often_at_once(tmp_path: Path) -> None:
    now, most = 0, 0

    async def count(_: Request) -> Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(20):
            await asyncio.sleep(0)
        now -= 1
        return JSONResponse("ok")

    async with serve(Recorder(count).app) as url:
        services = {
            "plain": {
                "type": "http",
                "base_url": url,
                "max_concurrency": 2,
                "functions": {"f": {"method": "GET", "path": "/"}},
            }
        }
        steps = [step(f"s{n}", ("plain", "f")) for n in range(6)]
        async with Runtime(models=[ScriptedModel(once("plain__f"))]) as runtime:
            result = await runtime.run(write(tmp_path, services, *steps))
    assert result.state == "completed"
    assert most == 2


async def test_another_process_starts_the_services_of_a_run_again(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    document = write(tmp_path, {"local": stdio(tmp_path)}, step("a", ("local", "echo")))
    async with Runtime(url, models=[ScriptedModel(once("local__echo", n="die"))]) as runtime:
        handle = await runtime.submit(document)
        assert (await handle.result()).state == "waiting"
        (asked,) = await events(runtime, handle.workflow_id, "input.requested")
    first = int((tmp_path / "started").read_text())
    async with Runtime(url, models=[ScriptedModel(once("local__echo", n=2))]) as runtime:
        await runtime.answer(handle.workflow_id, asked.data.request_id, {"choice": "fail"})
        result = await (await runtime.attach(handle.workflow_id)).result()
        assert int((tmp_path / "started").read_text()) != first
        assert result.state in ("completed", "failed")


async def test_services_are_opened_side_by_side(tmp_path: Path) -> None:
    """Each server answers only when the other one has been asked, so one after the other would never end."""
    asked = {name: asyncio.Event() for name in "ab"}

    def describing(own: str, other: str) -> Recorder:
        async def answer(_: Request) -> Response:
            asked[own].set()
            await asked[other].wait()
            paths = {"/": {"get": {"operationId": own}}}
            return JSONResponse({"openapi": "3.1.0", "servers": [{"url": "/"}], "paths": paths})

        return Recorder(answer)

    async with serve(describing("a", "b").app) as a, serve(describing("b", "a").app) as b:
        services = {n: {"type": "openapi", "document": u + "/api"} for n, u in (("a", a), ("b", b))}
        bound = await bind(write(tmp_path, services, step("x", ("a", "a"), ("b", "b"))))
    assert bound.diagnostics == []
    assert bound.grants == {"x": ["a.a", "b.b"]}


# --- what binding says


async def bind(document: Path, *, trusted: bool = True, **options: Any) -> Bound:
    async with Runtime(models=[ScriptedModel()], **options) as runtime:
        return await runtime.bind(load_file(document), trusted=trusted)


async def test_every_problem_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTFLOW_SECRET_NONE", raising=False)
    (tmp_path / "broken_tools.py").write_text("1 / 0")
    (tmp_path / "api.yaml").write_text("openapi: 3.1.0\npaths: {/x: {get: {operationId: op}}}\nx: [")
    document = """\
version: "1.0"
services:
  code: {type: python, module: ▸broken_tools}
  described: {type: openapi, document: ▸api.yaml, base_url: "http://h"}
  started: {type: mcp, transport: stdio, command: ▸/no/such/program}
  keyed:
    type: http
    base_url: http://h
    headers:
      X-Key: ▸{$secret: none}
    functions: {f: {method: GET, path: /}}
  plain:
    type: http
    base_url: http://h
    include: [f, ▸g]
    functions: {f: {method: GET, path: /}}
  good:
    type: http
    base_url: http://h
    functions:
      getOrder: {method: GET, path: /}
  a: {type: http, base_url: "http://h", functions: {b__c: {method: GET, path: /}}}
  a__b: {type: http, base_url: "http://h", functions: {c: {method: GET, path: /}}}
workflow:
  steps:
    - type: run
      id: one
      agent:
        systemPrompt: x
        input: y
        resultSchema: {}
        attachedFunctions:
          - {service: ▸godo, function: getOrder}
          - {service: good, function: ▸getOrdr}
          - {service: code, function: anything}
          - {service: a, function: b__c}
          - ▸{service: a__b, function: c}
"""
    marks = [
        (number, column.start() + 1 - seen)
        for number, line in enumerate(document.splitlines(), 1)
        for seen, column in enumerate(re.finditer("▸", line))
    ]
    file = tmp_path / "flow.yaml"
    file.write_text(document.replace("▸", ""))
    found = sorted((await bind(file)).diagnostics, key=lambda d: (d.line or 0, d.column or 0))
    assert [(d.line, d.column) for d in found] == marks
    assert [(d.code, d.path, d.hint) for d in found] == [
        ("E_SERVICE_UNAVAILABLE", "/services/code/module", None),
        ("E_SERVICE_UNAVAILABLE", "/services/described/document", None),
        ("E_SERVICE_UNAVAILABLE", "/services/started/command", None),
        ("E_SERVICE_DENIED", "/services/keyed/headers/X-Key", "set AGENTFLOW_SECRET_NONE in the environment"),
        ("E_UNKNOWN_FUNCTION", "/services/plain/include/1", 'did you mean "f"?'),
        (
            "E_UNKNOWN_SERVICE",
            "/workflow/steps/0/agent/attachedFunctions/0/service",
            'did you mean "good"?',
        ),
        (
            "E_UNKNOWN_FUNCTION",
            "/workflow/steps/0/agent/attachedFunctions/1/function",
            'did you mean "getOrder"?',
        ),
        ("E_TOOL_DUPLICATE", "/workflow/steps/0/agent/attachedFunctions/4", "rename a service"),
    ]
    messages = [d.message for d in found]
    assert messages[0] == 'service "code": ZeroDivisionError: division by zero'
    assert messages[1] == 'service "described": api.yaml: 3:4: the bracket "[" is not closed; add "]"'
    assert messages[3] == 'secret "none" is not set'


async def test_an_agent_list_names_functions_in_one_word(tmp_path: Path) -> None:
    services = {
        name: {"type": "http", "base_url": "http://h", "functions": {f: {"method": "GET", "path": "/"}}}
        for name, f in (("web", "search"), ("crm", "search"), ("shop", "order"))
    }
    agents = [{"name": "a", "system_prompt": "p", "tools": ["order", "search", "crm.search", "none"]}]
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"agents": agents, "services": services}))
    bound = await bind(file)
    assert bound.grants == {"a": ["shop.order", "crm.search"]}
    assert [(d.code, d.path, d.hint) for d in bound.diagnostics] == [
        ("E_TOOL_UNKNOWN", "/agents/0/tools/1", "write web.search"),
        ("E_TOOL_UNKNOWN", "/agents/0/tools/3", None),
    ]


UNTRUSTED: dict[str, dict[str, Any]] = {
    "python": {"type": "python", "module": "json"},
    "process": {"type": "mcp", "transport": "stdio", "command": "true"},
    "loopback": {"type": "mcp", "transport": "streamable_http", "url": "http://127.0.0.1:1/mcp"},
    "metadata": {"type": "openapi", "document": "http://169.254.169.254/latest"},
    "secret": {
        "type": "http",
        "base_url": "http://8.8.8.8",
        "headers": {"X": {"$secret": "S"}},
        "functions": {"f": {"method": "GET", "path": "/"}},
    },
}


async def test_a_submission_without_trust_gets_nothing_of_this_machine(tmp_path: Path) -> None:
    for name, service in UNTRUSTED.items():
        document = write(tmp_path, {name: service}, step("a", (name, "f")))
        async with Runtime(models=[ScriptedModel()]) as runtime:
            with pytest.raises(DefinitionError) as caught:
                await runtime.submit(document, trusted=False)
            assert await runtime.list() == []
        (found,) = caught.value.diagnostics
        assert found.code == "E_SERVICE_DENIED", name
        assert (found.path or "").startswith(f"/services/{name}/")
        assert found.line is not None


async def test_trust_is_not_gained_by_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        services = {
            "plain": {"type": "http", "base_url": url, "functions": {"f": {"method": "GET", "path": "/"}}}
        }
        document = write(tmp_path, services, step("a", ("plain", "f")))
        store = f"sqlite:{tmp_path / 'runs.db'}"

        async def no_check(*_: Any) -> list[Any]:
            return []

        # As if the name had been public while it was bound, and then another address came up.
        with monkeypatch.context() as patch:
            patch.setattr("agentflow.tools.web.WebService._check_access", no_check)
            model = ScriptedModel([call("plain__f"), {"done": 1}])
            async with Runtime(store, models=[model]) as runtime:
                result = await runtime.run(document, trusted=False)
                (failed,) = await events(runtime, result.workflow_id, "tool.call_failed")
                assert failed.data.error.code == "service_denied"
        gate = asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr("agentflow.tools.web.WebService._check_access", no_check)

            async def wait(_: Any) -> Any:
                gate.set()
                await asyncio.Event().wait()

            async with Runtime(store, models=[ScriptedModel([wait])], grace=0.1) as runtime:
                handle = await runtime.submit(document, trusted=False)
                await gate.wait()
        async with Runtime(store, models=[ScriptedModel()]) as runtime:
            with pytest.raises(DefinitionError) as caught:
                await runtime.resume(handle.workflow_id)
            assert caught.value.diagnostics[0].code == "E_SERVICE_DENIED"
    assert recorder.requests == []


# --- grants


EFFECTS: dict[str, Any] = {
    "look": {"method": "GET", "path": "/"},
    "put": {"method": "PUT", "path": "/"},
    "post": {"method": "POST", "path": "/"},
    "burn": {"method": "POST", "path": "/", "side_effect": "irreversible", "approval": True},
    "hidden": {"method": "GET", "path": "/", "private": True},
}
PLAIN = {"plain": {"type": "http", "base_url": "http://h", "functions": EFFECTS}}


@pytest.mark.parametrize(
    ("implicit", "offered"),
    [
        ("deny", {"look": (False, False), "post": (False, False)}),
        (
            "allow",
            {"look": (False, False), "put": (True, False), "post": (False, False), "burn": (True, True)},
        ),
        (
            "ask",
            {"look": (False, False), "put": (True, True), "post": (False, False), "burn": (True, True)},
        ),
    ],
)
async def test_functions_that_all_gives(tmp_path: Path, implicit: Any, offered: dict[str, Any]) -> None:
    document = write(tmp_path, PLAIN, step("all"), step("star", ("plain", "*")))
    bound = await bind(document, implicit_side_effects=implicit)
    for name in ("all", "star"):
        infos = bound.steps[name].tools.values()
        assert {i.function: (i.implied, i.needs_approval) for i in infos} == offered


async def test_functions_that_are_named_are_not_implied(tmp_path: Path) -> None:
    document = write(
        tmp_path, PLAIN, step("a", ("plain", "put"), ("plain", "*"), ("plain", "hidden"), ("plain", "burn"))
    )
    infos = (await bind(document, implicit_side_effects="ask")).steps["a"].tools
    found = {i.function: (i.declared, i.implied, i.approval, i.needs_approval) for i in infos.values()}
    assert found == {
        "put": (True, False, False, False),
        "look": (True, False, False, False),
        "post": (False, False, False, False),
        "burn": (True, False, True, True),
        "hidden": (True, False, False, False),
    }


async def test_what_is_known_of_a_function_goes_with_its_service(tmp_path: Path) -> None:
    @function
    def f() -> int:
        return 1

    service = Service.of("own", f)
    tool = weakref.ref(service.tools["f"])
    document = write(tmp_path, PLAIN, step("a", ("own", "f")))
    bound = await bind(document, services=[service])
    info = bound.steps["a"].tools["own__f"]
    again = await bind(document, services=[service])
    assert again.steps["a"].tools["own__f"] is info
    del service, bound, again
    gc.collect()
    assert tool() is None
    assert info.function == "f"
