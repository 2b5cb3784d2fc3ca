"""What takes long to judge is judged before the engine decides, so that no decision judges it on the loop."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.schemas import is_costly
from agentflow.judge import JudgeProcess
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, document, step
from tests.integration.test_results import working

# Distinct for each test: an answer is kept for the schema and value that it is about.
MANY = [f"item {n}" for n in range(100_000)]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each question to the judge whether it was asked where it may wait, and so answered aside."""
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    # A Runtime that another test killed without closing it still counts as a user of the judge.
    monkeypatch.setattr("agentflow.judge._installed", None)
    found: list[bool] = []
    judge = JudgeProcess.judge

    def noting(self: JudgeProcess, schema: bytes, value: bytes) -> Any:
        issues = judge(self, schema, value)
        found.append(issues is not None)
        return issues

    monkeypatch.setattr(JudgeProcess, "judge", noting)
    return found


async def test_the_answer_of_a_model(judged: list[bool]):
    schema = {"type": "array", "uniqueItems": True, "title": "of a model"}
    async with Runtime(models=[ScriptedModel([MANY])]) as runtime:
        result = await runtime.run(document(step("list", schema=schema)), {})
    assert len(result.output["list"]) == len(MANY)
    assert judged == [True]


async def test_the_arguments_of_a_call(judged: list[bool]):
    @function(side_effect="read")
    async def look(items: list[str]) -> int:
        """Look."""
        return len(items)

    look_at = Service.of("desk", look)
    (tool,) = look_at.tools.values()
    tool.input_schema["properties"]["items"]["uniqueItems"] = True
    model = ScriptedModel([call("desk__look", items=MANY), "1"])
    async with Runtime(models=[model], services=[look_at]) as runtime:
        await runtime.run(document(step("list", functions=["look"])), {})
    assert False not in judged
    assert judged


async def test_an_input(judged: list[bool]):
    given = {"x": {"schema": {"type": "array", "uniqueItems": True, "title": "of an input"}}}
    async with Runtime(models=[ScriptedModel(["1"])]) as runtime:
        await runtime.run({**document(step("list")), "inputs": given}, {"x": MANY})
    assert judged == [True]


async def test_the_last_runtime_ends_the_judge(judged: list[bool], monkeypatch: pytest.MonkeyPatch):
    closed: list[JudgeProcess] = []
    close = JudgeProcess.close
    monkeypatch.setattr(JudgeProcess, "close", lambda self: (closed.append(self), close(self)))
    given = {"x": {"schema": {"type": "array", "uniqueItems": True, "title": "of the last one"}}}
    async with Runtime():
        async with Runtime(models=[ScriptedModel(["1"])]) as runtime:
            await runtime.run({**document(step("list")), "inputs": given}, {"x": MANY})
        assert closed == []
    (judge,) = closed
    assert not judge.started


async def test_the_result_of_a_function(judged: list[bool]):
    @function(side_effect="read")
    async def items() -> list[str]:
        """List."""
        return MANY

    listing = Service.of("desk", items)
    (tool,) = listing.tools.values()
    schema = {"type": "array", "uniqueItems": True, "title": "of a function"}
    listing.tools["items"] = dataclasses.replace(tool, output_schema=schema, max_output_bytes=4 << 20)
    model = ScriptedModel([call("desk__items"), "1"])
    async with Runtime(models=[model], services=[listing]) as runtime:
        handle = await runtime.submit(document(step("list", functions=["items"])), {})
        await handle.result()
        types = [event.type async for event in handle.events(follow=False)]
    assert "tool.call_completed" in types
    assert judged == [True]


async def test_the_answer_of_a_person(judged: list[bool], tmp_path: Path):
    """A value for a call whose outcome is unknown: 100,000 objects, judged before the command is decided."""
    url = f"sqlite:{tmp_path / 'runs.db'}"
    with working("slow_run", url, "wf_left"):
        pass
    output = [{"name": name} for name in MANY]
    async with Runtime(url, services=[Desk().service()], recover=True) as runtime:
        (asked,) = (await runtime.result("wf_left")).pending_requests
        answer = {"choice": "done", "output": output}
        assert is_costly(asked.response_schema, answer)
        await runtime.answer("wf_left", asked.request_id, answer)
        assert (await runtime.result("wf_left")).state == "completed"
    assert judged == [True]
