"""Replays with `Always` open nothing: no module is imported, no server started, nothing connected (§9)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.definition.loader import load_file
from agentflow.events.memory import MemoryLog
from agentflow.records.trace import encode_trace
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import log_of
from tests.integration.test_services import RAW
from tests.unit.tools.servers import Recorder, serve

CODE = """
from pathlib import Path
from agentflow import function

with Path({path!r}).open("a") as file:
    file.write("imported\\n")


@function(side_effect="read")
def look(x: int) -> dict:
    "Look."
    return {{"seen": x}}


def double(*, context, payload):
    return payload["x"] * 2
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def answers() -> ScriptedModel:
    """A model that calls a function, first with wrong arguments, and then answers."""

    def answer(request: Any) -> Any:
        said = [m for m in request.messages if m.role == "tool"]
        given: list[Any] = [call("own__look", x="none"), call("own__look", x=3)]
        return given[len(said)] if len(said) < 2 else said[-1].content

    return ScriptedModel(answer)


def document(folder: Path, notes: Path, url: str) -> Path:
    nodes = [
        {"id": "start", "type": "start", "next": "agent"},
        {
            "id": "agent",
            "type": "agent",
            "agent": {"system_prompt": "p", "functions": [{"service": "own", "function": "*"}]},
            "next": "server",
        },
        {"id": "server", "type": "tool", "tool": "server.echo", "input": {"n": 1}, "next": "site"},
        {"id": "site", "type": "tool", "tool": "site.get", "input": {}, "next": "worker"},
        {"id": "worker", "type": "tool", "tool": "worker:double", "input": {"x": 4}, "next": "end"},
        {"id": "end", "type": "end"},
    ]
    services = {
        "own": {"type": "python", "module": "own_code", "include": ["look"]},
        "server": {"type": "mcp", "transport": "stdio", "command": sys.executable, "args": [RAW, str(notes)]},
        "site": {"type": "http", "base_url": url, "functions": {"get": {"method": "GET", "path": "/"}}},
    }
    file = folder / "flow.json"
    file.write_text(json.dumps({"name": "w", "nodes": nodes, "services": services}))
    return file


@pytest.mark.parametrize("definition", [False, True], ids=["as recorded", "with the definition given"])
async def test_always_opens_no_service_and_imports_no_module(tmp_path: Path, definition: bool):
    notes, imported = tmp_path / "notes", tmp_path / "imported"
    notes.mkdir()
    code = CODE.format(path=str(imported))
    (tmp_path / "own_code.py").write_text(code)
    (tmp_path / "handlers.py").write_text(code)
    site, log = Recorder(), MemoryLog()
    async with serve(site.app) as url:
        file = document(tmp_path, notes, url)
        async with Runtime(log, models=[answers()]) as runtime:
            first = await runtime.run(file, {}, workflow_id="wf_a")
            trace = encode_trace(await runtime.trace("wf_a", "logical"))
        failed = [e.data for e in await log_of(log, "wf_a") if e.type == "tool.call_failed"]
        assert [(one.error.code, one.executed) for one in failed] == [("invalid_tool_input", False)]
        given, requests = load_file(file), len(site.requests)
        assert imported.read_text() == "imported\n" * 2
        for one in notes.iterdir():
            one.unlink()
        model = answers()
        async with Runtime(log, models=[model]) as runtime:
            more = {"definition": given} if definition else {}
            handle = await runtime.replay("wf_a", "Always", as_id="wf_b", **more)
            again = await handle.result(raise_on_failure=False)
            assert again.output == first.output, again.error
            assert encode_trace(await runtime.trace("wf_b", "logical")) == trace
    assert (len(site.requests), model.requests) == (requests, [])
    assert imported.read_text() == "imported\n" * 2
    assert list(notes.iterdir()) == []


async def test_a_replay_that_goes_on_after_a_restart_opens_nothing(tmp_path: Path):
    from tests.integration.test_replays import log_up_to

    notes, imported = tmp_path / "notes", tmp_path / "imported"
    notes.mkdir()
    code = CODE.format(path=str(imported))
    (tmp_path / "own_code.py").write_text(code)
    (tmp_path / "handlers.py").write_text(code)
    site, log = Recorder(), MemoryLog()
    async with serve(site.app) as url:
        file = document(tmp_path, notes, url)
        async with Runtime(log, models=[answers()]) as runtime:
            await runtime.run(file, {}, workflow_id="wf_a")
            await (await runtime.replay("wf_a", "Always", as_id="wf_b")).result()
            whole = await log_of(log, "wf_b")
        for one in ("own_code.py", "handlers.py", "flow.json"):
            (tmp_path / one).unlink()
        requests = len(site.requests)
        async with Runtime(await log_up_to(log, "wf_b", len(whole) // 2), models=[answers()]) as runtime:
            await runtime.recover()
            result = await runtime.result("wf_b", raise_on_failure=False)
        assert (result.state, len(site.requests)) == ("completed", requests), result.error
