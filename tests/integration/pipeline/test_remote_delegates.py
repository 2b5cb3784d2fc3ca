"""Delegates that are programs, over MCP and over HTTP: the tests start them (page 004 §8)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.config import Config
from agentflow.errors import ConfigurationError
from agentflow.events.memory import MemoryLog
from agentflow.pipeline.assembly import assemble
from agentflow.pipeline.requests import Requests
from agentflow.tools.remote_delegates import remote_delegate
from tests.integration.pipeline.support import Desk, done, plan, requests_of, step
from tests.integration.support.runs import must_be_sound
from tests.integration.test_services import eventually as until

PROGRAM = str(Path(__file__).with_name("delegate_program.py"))
KINDS = ["mcp", "http"]


def declaration(kind: str, folder: Path, port: int = 0) -> dict[str, Any]:
    if kind == "mcp":
        args = [PROGRAM, "mcp", str(folder)]
        return {"type": "mcp", "transport": "stdio", "command": sys.executable, "args": args}
    functions = {
        "delegate_task": {"method": "POST", "path": "/tasks"},
        "ping": {"method": "GET", "path": "/ping"},
    }
    return {"type": "http", "base_url": f"http://127.0.0.1:{port}", "functions": functions}


@asynccontextmanager
async def program(kind: str, folder: Path) -> AsyncGenerator[dict[str, Any]]:
    """Its declaration; over MCP the runtime starts it, as it does for users."""
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    if kind == "mcp":
        yield declaration("mcp", folder)
        return
    words = (sys.executable, PROGRAM, "http", str(folder))
    child = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    yield declaration("http", folder, int(await child.stdout.readline()))
    child.kill()
    await child.wait()


def answer(folder: Path, step_id: str, attempt: int, **found: Any) -> None:
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    (folder / "answers" / f"{step_id}-{attempt}").write_text(json.dumps(found))


def tasks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "tasks").read_text().splitlines()]


@asynccontextmanager
async def serving(
    kind: str, folder: Path, log: Any = "memory:"
) -> AsyncGenerator[tuple[Runtime, Requests, Path]]:
    async with program(kind, folder) as declared:
        services = [*Desk().services(), remote_delegate("crew", declared)]
        async with Runtime(log, models=[], services=services) as runtime:
            yield runtime, requests_of(runtime, folder / "work", delegate="crew"), folder


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_delegate_may_do_passes_the_wire(kind: str, tmp_path: Path):
    """One program for all of it: to start one costs a second of CPU."""
    async with serving(kind, tmp_path) as (runtime, requests, folder):
        await _it_does_the_steps_and_its_usage_is_charged(runtime, requests, folder, kind)
        await _answers_are_repaired_and_reported_calls_are_evidence(runtime, requests, folder)
        await _the_deadline_of_an_attempt_holds(requests, folder)


async def _it_does_the_steps_and_its_usage_is_charged(
    runtime: Runtime, requests: Requests, folder: Path, kind: str
) -> None:
    steps = plan(step("a", expected_artifacts=["a.md"]), step("b", "a", toolsets=["files"]))
    run = await requests.submit_plan(steps, budget={"max_tokens": 200, "max_cost_usd": 5})
    output = (await run.result()).output
    events = await must_be_sound(runtime, run.workflow_id)
    usage = (await runtime.record(run.workflow_id)).usage
    final = output["final_output"]
    assert [(s["status"], s["verdict"], s["output"]) for s in final["steps"]] == [
        ("done", "pass", "by a program")
    ] * 2
    assert (final["execution_mode"], final["stage3_available"]) == ("delegated", True)
    assert (usage.input_tokens, usage.output_tokens, usage.model_calls) == (200, 40, 4)
    assert usage.cost_usd == pytest.approx(0.02)
    first, second = tasks(folder)
    assert first["deadline"] == 600.0
    assert second["budget"] == {"max_tokens": 80, "max_cost_usd": 4.99}
    assert second["context"]["dependencies"]["a"]["output"] == "by a program"
    assert (second["role"], second["toolsets"]) == ("leaf", ["files"])
    assert [e.data.service for e in events if e.type == "tool.call_started"][:2] == ["crew", "crew"]
    if kind == "http":
        keys = (folder / "keys").read_text().split()
        assert len(set(keys)) == 2
        assert all(key.startswith(run.workflow_id) for key in keys)


async def _answers_are_repaired_and_reported_calls_are_evidence(
    runtime: Runtime, requests: Requests, folder: Path
) -> None:
    mail = {"type": "email", "uri": "mailto:a@b.example", "status": "created", "id": "<1@crew>"}
    sent = {"name": "smtp", "parameters": {"to": "a@b.example"}, "output": {"message_id": "<1@crew>"}}
    result = done("send", artifacts=[mail])
    answer(folder, "send", 1, answer={"status": "completed", "result": result, "tool_calls": [sent]})
    answer(folder, "c", 1, answer={"results": [{"status": "ok", "summary": "no JSON"}]})
    fenced = f"```json\n{json.dumps(done('c'))}\n```"
    answer(folder, "c", 2, answer={"results": [{"status": "ok", "summary": fenced}], "error": None})
    expected = [{"type": "email", "uri": "mailto:a@b.example"}]
    steps = plan(step("c"), step("send", toolsets=["messaging"], expected_artifacts=expected))
    run = await requests.submit_plan(steps)
    await run.rest()
    await runtime.decide(run.workflow_id, step_id="send", granted=True, by="ann")
    output = (await run.result()).output
    await must_be_sound(runtime, run.workflow_id)
    verdicts = [(s["step_id"], s["verdict"]) for s in output["final_output"]["steps"]]
    assert verdicts == [("c", "pass"), ("send", "pass")]
    assert output["report"]["artifacts"][0]["evidence"]["id"] == "<1@crew>"
    assert [t["attempt"] for t in tasks(folder) if t["step_id"] == "c" and "repair" in t["context"]] == [2]


async def _the_deadline_of_an_attempt_holds(requests: Requests, folder: Path) -> None:
    answer(folder, "late", 1, sleep=20)
    retry = {"timeout": "1s", "max_attempts": 2, "backoff": "1ms"}
    run = await requests.submit_plan(plan(step("late")), options={"retry": retry})
    final = (await run.result()).output["final_output"]
    attempts = [(task["attempt"], task["deadline"]) for task in tasks(folder) if task["step_id"] == "late"]
    assert attempts == [(1, 1.0), (2, 1.0)]
    assert final["steps"][0]["status"] == "done"


async def test_an_http_status_decides_what_follows(tmp_path: Path):
    answer(tmp_path, "a", 1, answer={"http": 503})
    answer(tmp_path, "b", 1, answer={"http": 400, "error": "HTTP 503"})
    async with serving("http", tmp_path) as (_, requests, folder):
        options = {"retry": {"max_attempts": 2, "backoff": "1ms"}}
        run = await requests.submit_plan(plan(step("a"), step("b")), options=options)
        final = (await run.result()).output["final_output"]
    assert [s["status"] for s in final["steps"]] == ["done", "failed"]
    assert sorted((t["step_id"], t["attempt"]) for t in tasks(folder)) == [("a", 1), ("a", 2), ("b", 1)]


async def test_a_program_that_says_it_is_away_or_is_not_there_gets_nothing(tmp_path: Path):
    async with serving("http", tmp_path) as (_, requests, folder):
        (folder / "away").touch()
        run = await requests.submit_plan(plan(step("a")))
        final = (await run.result()).output["final_output"]
        assert final["partial_reason"] == "delegate unavailable"
        assert not (folder / "tasks").exists()
    gone = [declaration("http", tmp_path, 9), {**declaration("mcp", tmp_path), "command": "/no/such/program"}]
    for declared in gone:
        async with Runtime(models=[], services=[remote_delegate("crew", declared)]) as runtime:
            run = await requests_of(runtime, tmp_path, delegate="crew").submit_plan(plan(step("a")))
            final = (await run.result()).output["final_output"]
        assert final["stage3_available"] is False
        assert final["steps"][0]["status"] == "failed"


async def test_a_program_that_dies_is_started_again(tmp_path: Path):
    answer(tmp_path, "a", 1, sleep=30)
    log = MemoryLog()
    async with serving("mcp", tmp_path, log) as (runtime, requests, folder):
        options = {"retry": {"max_attempts": 3, "backoff": "1ms"}}
        run = await requests.submit_plan(plan(step("a"), step("b", "a")), options=options)
        await until((folder / "tasks").exists)
        (pid,) = _children_of_this_process("delegate_program")
        os.kill(pid, signal.SIGKILL)
        final = (await run.result()).output["final_output"]
        await must_be_sound(runtime, run.workflow_id)
    assert [s["status"] for s in final["steps"]] == ["done", "done"]


def _children_of_this_process(name: str) -> list[int]:
    found: list[int] = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            try:
                parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and name.encode() in (one / "cmdline").read_bytes():
                    found.append(int(one.name))
            except OSError:
                continue
    return found


async def test_the_configuration_declares_it(tmp_path: Path):
    async with program("http", tmp_path) as declared:
        pipeline = {
            "workspace_roots": [str(tmp_path / "work")],
            "delegate": "crew",
            "delegates": {"crew": declared},
        }
        parts = assemble(Config(store="memory:", pipeline=pipeline))
        async with Runtime(models=[], services=parts.services()) as runtime:
            run = await parts.requests(runtime).submit_plan(plan(step("a")))
            final = (await run.result()).output["final_output"]
    assert final["steps"][0]["output"] == "by a program"


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"type": "python", "module": "os"}, "none of a program"),
        ({"type": "mcp", "transport": "stdio"}, "command"),
        ({"type": "http", "base_url": "http://x"}, "functions"),
        ({"type": "http", "base_url": "ftp://x", "functions": {}}, "base_url"),
    ],
)
def test_a_declaration_that_cannot_be_run_is_refused(declared: dict[str, Any], said: str):
    with pytest.raises(ConfigurationError, match=said):
        remote_delegate("crew", declared)
