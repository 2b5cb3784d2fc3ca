"""What takes long to judge is judged before the engine decides, so that no decision judges it on the loop."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.judge import JudgeProcess
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import document, step

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
