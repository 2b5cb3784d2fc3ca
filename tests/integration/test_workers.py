"""Worker handlers: `custom_worker` of node YAML, and `worker:` functions of every kind that calls one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow import DefinitionError, Runtime, Service, function
from agentflow.definition import load_file, load_value
from tests.integration.support.runs import log_of
from tests.unit.cli.support import Sandbox
from tests.unit.server.kit import serving

Seen = list[dict[str, Any]]


def worker(handler: str = "score", payload: Any = None, id: str = "a", **more: Any) -> dict[str, Any]:
    fields = {"handler": handler, **more.pop("fields", {})}
    return {"id": id, "node_type": {"custom_worker": fields}, "config": {"payload": payload}, **more}


def document(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    ids = [node["id"] for node in nodes]
    edges = [{"from": a, "to": b} for a, b in itertools.pairwise(ids)]
    return {"id": "w", "entry_node": ids[0], "nodes": list(nodes), "edges": edges, **more}


async def run(source: dict[str, Any], input: Any = None, **workers: Any) -> Any:
    async with Runtime(workers=workers) as runtime:
        return await runtime.run(source, input, raise_on_failure=False)


async def test_a_handler_gets_its_payload_and_what_it_may_read():
    seen: Seen = []

    def score(*, context: Any, payload: Any) -> Any:
        seen.append(context)
        return payload["x"] + 1

    nodes = worker(payload={"x": "{{ input.n }}"}), worker(payload={"x": "{{ nodes.a.output }}"}, id="b")
    result = await run(document(*nodes, globals={"unit": "kg"}), {"n": 1}, score=score)
    assert result.output == 3
    first, second = seen
    assert (first["input"], first["nodes"], first["globals"]) == ({"n": 1}, {}, {"unit": "kg"})
    assert second["nodes"]["a"]["output"] == 2
    trace = second["trace"]
    assert (trace["workflow_id"], trace["node_id"], trace["attempt"]) == (result.workflow_id, "b", 1)
    assert first["trace"]["idempotency_key"] != trace["idempotency_key"]


async def test_a_handler_cannot_change_the_state_of_its_run():
    def spoil(*, context: Any, payload: Any) -> None:
        context["input"].clear()
        context["nodes"].clear()
        payload.append("more")

    nodes = [
        worker("spoil", "{{ input.items }}"),
        {"id": "b", "node_type": {"transform": {"expression": "input.items"}}},
    ]
    assert (await run(document(*nodes), {"items": ["one"]}, spoil=spoil)).output == ["one"]


async def test_capabilities_narrow_what_a_handler_reads():
    seen: Seen = []

    def look(*, context: Any) -> None:
        seen.append(context)

    source = {
        "version": "v0",
        "name": "w",
        "globals": {"open": 1, "hidden": 2},
        "nodes": [
            {"id": "start", "type": "start", "next": "t"},
            {"id": "t", "type": "transform", "value": 1, "next": "a"},
            {
                "id": "a",
                "type": "tool",
                "tool": "worker:look",
                "next": "end",
                "capabilities": {"read": ["globals.open"]},
            },
            {"id": "end", "type": "end"},
        ],
    }
    assert (await run(source, {"secret": 1}, look=look)).state == "completed"
    (context,) = seen
    assert (context["input"], context["nodes"], context["globals"]) == (None, {}, {"open": 1})


@pytest.mark.parametrize("form", ["async", "one parameter", "any", "object"])
async def test_forms_of_handlers(form: str):
    async def coroutine(*, context: Any, payload: Any) -> Any:
        return payload

    class Echo:
        def __call__(self, context: Any, payload: Any) -> Any:
            return payload

    handlers: dict[str, Any] = {
        "async": coroutine,
        "one parameter": lambda payload: payload,
        "any": lambda **given: given["payload"],
        "object": Echo(),
    }
    assert (await run(document(worker(payload=[1])), score=handlers[form])).output == [1]


def test_a_function_that_cannot_take_context_and_payload_is_refused():
    with pytest.raises(TypeError, match='worker "score" takes ticket'):
        Runtime(workers={"score": lambda ticket: ticket})


@pytest.mark.parametrize("kind", ["map", "retry_compensate"])
async def test_other_kinds_call_handlers(kind: str):
    called: list[Any] = []

    def double(*, context: Any, payload: Any) -> Any:
        called.append((context["input"]["xs"], payload))
        if payload == 9:
            raise ValueError("nine")
        return payload

    fields: dict[str, Any] = {"items_path": "input.xs", "worker": "double"}
    if kind == "retry_compensate":
        fields = {
            "tool": "worker:double",
            "compensate_tool": "worker:double",
            "max_retries": 0,
            "input": 9,
            "compensate_input": 1,
        }
    source = document({"id": "a", "node_type": {kind: fields}})
    result = await run(source, {"xs": [1, 2]}, double=double)
    if kind == "map":
        assert result.output == [1, 2]
    else:
        assert (result.output["status"], result.output["compensation"]) == ("compensated", 1)
    assert all(xs == [1, 2] for xs, _ in called)


async def test_what_a_handler_raises_is_retried_by_the_policy_of_its_node():
    tries: list[int] = []

    @function(side_effect="none")
    def score(*, context: Any, payload: Any) -> int:
        tries.append(context["trace"]["attempt"])
        if len(tries) < 3:
            raise RuntimeError("not yet")
        return 7

    retry = {"max_attempts": 3, "backoff": {"type": "fixed", "initial": "1ms"}}
    async with Runtime(workers={"score": score}) as runtime:
        result = await runtime.run(document(worker(retry=retry)))
        events = await log_of(runtime, result.workflow_id)
    assert (result.output, tries) == (7, [1, 2, 3])
    failed = [event.data for event in events if event.type == "tool.call_failed"]
    assert [data.tool_name for data in failed] == ["worker:score"] * 2
    assert "RuntimeError: not yet" in failed[0].error.message


async def test_a_result_that_is_no_json_fails_the_node():
    result = await run(document(worker()), score=lambda payload: object())
    cause = result.error
    while cause.cause is not None:
        cause = cause.cause
    assert (result.state, cause.code) == ("failed", "invalid_tool_output")


# -- where handlers come from ----------------------------------------------------------------------

HANDLERS = """\
from helper import offset

def score(*, context, payload):
    return payload + offset

def wrong(ticket):
    return ticket
"""


def write(folder: Path, node: dict[str, Any], handlers: str | None = HANDLERS) -> Path:
    if handlers is not None:
        (folder / "handlers.py").write_text(handlers)
        (folder / "helper.py").write_text("offset = 40\n")
    path = folder / "flow.yaml"
    path.write_text(json.dumps(document(node)))
    return path


async def test_handlers_stand_beside_the_document(tmp_path: Path):
    path = write(tmp_path, worker(payload=2))
    async with Runtime() as runtime:
        assert (await runtime.run(path)).output == 42


async def test_a_registered_handler_wins_over_a_file(tmp_path: Path):
    path = write(tmp_path, worker(payload=2))
    async with Runtime(workers={"score": lambda payload: "registered"}) as runtime:
        assert (await runtime.run(path)).output == "registered"


async def test_a_node_names_another_file(tmp_path: Path):
    path = write(tmp_path, worker(payload=2, fields={"handler_file": "code/scores.py"}), None)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/scores.py").write_text("def score(*, context, payload):\n    return 'here'\n")
    async with Runtime() as runtime:
        assert (await runtime.run(path)).output == "here"


@pytest.mark.parametrize("file", ["../x.py", "/etc/x.py", "x.sh", "a b.py", "a/../x.py"])
def test_a_file_elsewhere_is_refused(file: str):
    with pytest.raises(DefinitionError) as refused:
        load_value(document(worker(fields={"handler_file": file})))
    assert [found.code for found in refused.value.diagnostics] == ["E_VALUE"]


@pytest.mark.parametrize(
    ("handlers", "name", "said"),
    [
        (None, "score", 'no file "handlers.py"'),
        (HANDLERS, "scores", 'has no function "scores"'),
        (HANDLERS, "wrong", "takes ticket"),
        ("raise OSError('no disk')", "score", "OSError: no disk"),
        ("def _score(**given): ...", "_score", "has no function"),
    ],
    ids=["no file", "no function", "other parameters", "raises", "private"],
)
async def test_a_missing_handler_is_a_diagnostic_at_its_place(
    handlers: str | None, name: str, said: str, tmp_path: Path
):
    path = tmp_path / "flow.yaml"
    write(tmp_path, worker(name), handlers)
    path.write_text(
        f"id: w\nentry_node: a\nnodes:\n  - id: a\n    node_type:\n      custom_worker:\n"
        f"        handler: {name}\n"
    )
    async with Runtime() as runtime:
        with pytest.raises(DefinitionError) as refused:
            await runtime.submit(path)
        assert not (await runtime.log.runs()).items
    (found,) = refused.value.diagnostics
    assert (found.code, found.line, found.column) == ("E_MISSING_WORKER", 7, 18)
    assert said in found.message
    assert found.hint


SNEAKY = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n" + HANDLERS


async def test_an_untrusted_submission_imports_no_file(tmp_path: Path):
    definition = load_file(write(tmp_path, worker(payload=2), SNEAKY))
    async with Runtime() as runtime:
        with pytest.raises(DefinitionError, match="E_MISSING_WORKER"):
            await runtime.submit(definition, trusted=False)
        assert not (tmp_path / "ran").exists()
        await runtime.run(definition)
    assert (tmp_path / "ran").exists()


async def test_an_untrusted_submission_calls_registered_handlers(tmp_path: Path):
    definition = load_file(write(tmp_path, worker(payload=2), SNEAKY))
    async with Runtime(workers={"score": lambda payload: payload}) as runtime:
        handle = await runtime.submit(definition, trusted=False)
        assert (await handle.result()).output == 2
    assert not (tmp_path / "ran").exists()


async def test_a_file_on_the_import_path_is_none_beside_the_document(tmp_path: Path, monkeypatch: Any):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "handlers.py").write_text(SNEAKY)
    monkeypatch.syspath_prepend(str(elsewhere))
    path = write(tmp_path, worker(), None)
    async with Runtime() as runtime:
        with pytest.raises(DefinitionError, match="E_MISSING_WORKER"):
            await runtime.submit(path)
    assert not (elsewhere / "ran").exists()


async def test_a_service_of_the_same_name_does_not_hide_handlers():
    service = Service.of("worker", function(name="score")(lambda: 1))
    async with Runtime(services=[service], workers={"score": lambda payload: payload}) as runtime:
        with pytest.raises(DefinitionError) as refused:
            await runtime.submit(document(worker()))
    (found,) = refused.value.diagnostics
    assert found.code == "E_MISSING_WORKER"
    assert "a service is called" in found.message


async def test_agents_are_not_offered_handlers():
    async with Runtime(workers={"score": lambda payload: payload}) as runtime:
        assert [tool.function for tool in await runtime.tools()] == []


# -- restarts --------------------------------------------------------------------------------------


async def test_a_run_goes_on_with_the_handlers_of_the_next_process(tmp_path: Path):
    store = f"sqlite:{tmp_path / 'runs.db'}"
    ask = {"id": "ask", "node_type": {"human_input": {"input_type": "text", "prompt": "?"}}}
    source = document(ask, worker(payload="{{ nodes.ask.output }}"))
    async with Runtime(store, workers={"score": lambda payload: f"first {payload}"}) as runtime:
        handle = await runtime.submit(source)
        (asked,) = (await handle.rest()).pending_requests
    async with Runtime(store) as runtime:
        with pytest.raises(DefinitionError, match="E_MISSING_WORKER"):
            await runtime.answer(handle.workflow_id, asked.request_id, "x")
    async with Runtime(store, workers={"score": lambda payload: f"second {payload}"}) as runtime:
        answered = await runtime.answer(handle.workflow_id, asked.request_id, "x")
        assert (await answered.result()).output == "second x"


# -- command line and daemon -----------------------------------------------------------------------


async def test_a_daemon_imports_no_handlers_for_others(tmp_path: Path):
    path = write(tmp_path, worker(payload=2), SNEAKY)
    body = {"definition": json.loads(path.read_text()), "folder": str(tmp_path)}
    async with serving(tmp_path) as served:
        async with served.http(tcp=True) as others:
            answer = await others.post("/workflows?wait=5", json=body)
            assert {found["code"] for found in answer.json()["diagnostics"]} == {"E_MISSING_WORKER"}
            named = {"definition": body["definition"], "name": "theirs"}
            assert (await others.post("/definitions", json=named)).status_code == 201
        async with served.http() as owner:
            refused = await owner.post(
                "/workflows", json={"definition_ref": "theirs", "folder": str(tmp_path)}
            )
            assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")
            assert not (tmp_path / "ran").exists()
            done = await owner.post("/workflows?wait=5", json=body)
            assert done.json()["output"] == 42, done.text


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    yield made
    made.close()


def test_the_command_line_runs_handlers_of_a_file_and_of_a_module(sandbox: Sandbox):
    write(sandbox.folder, worker(payload=2))
    done = sandbox.invoke("run", "flow.yaml", "--json")
    assert (done.exit_code, json.loads(done.stdout)["output"]) == (0, 42), done.stderr
    (sandbox.folder / "handlers.py").unlink()
    module = "def score(payload): return 'loaded'\nhandlers = {'score': score}\nnone = {'s': 7}\n"
    (sandbox.folder / "scoring.py").write_text(module)
    refused = sandbox.invoke("run", "flow.yaml")
    assert (refused.exit_code, "E_MISSING_WORKER" in refused.stderr) == (3, True)
    loaded = sandbox.start("run", "flow.yaml", "--load", "scoring:handlers", "--json")
    out, said = loaded.communicate(timeout=30)
    assert json.loads(out)["output"] == "loaded", said
    wrong = sandbox.start("run", "flow.yaml", "--load", "scoring:none")
    _, said = wrong.communicate(timeout=30)
    assert (wrong.returncode, 'worker "s" is of type int' in said) == (3, True)
