"""What takes long to judge is judged in a child process, and the event loop goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import msgspec
import pytest

from agentflow.definition.schemas import answer_aside, is_costly, validate
from agentflow.judge import JudgeProcess, judge_aside

COSTLY = {"uniqueItems": True, "title": "costly"}
DISTINCT = [f"item {n}" for n in range(100_000)]


@pytest.fixture
def judge() -> Iterator[JudgeProcess]:
    process = JudgeProcess()
    answer_aside(process.judge)
    yield process
    answer_aside(None)
    process.close()


def ask(judge: JudgeProcess, schema: object, value: object) -> list[str]:
    found = judge.judge(msgspec.json.encode(schema), msgspec.json.encode(value))
    assert found is not None
    return [issue.message for issue in found]


def test_the_child_gives_the_same_answers(judge: JudgeProcess):
    for schema, value in [
        ({"type": "string"}, 1),
        ({"items": {"minimum": 3}}, [1, 5, 2]),
        (COSTLY, DISTINCT),
    ]:
        answer_aside(None)
        here = [issue.message for issue in validate(schema, value)]
        assert ask(judge, schema, value) == here


def test_a_costly_value_is_judged_once_and_the_answer_is_kept(judge: JudgeProcess):
    schema = {**COSTLY, "title": "kept"}
    assert is_costly(schema, DISTINCT)
    assert validate(schema, DISTINCT) == []
    assert judge._child is not None
    judge.close()
    assert not is_costly(schema, DISTINCT)
    assert validate(schema, DISTINCT) == []
    assert judge._child is None


async def test_on_the_event_loop_the_answer_is_found_aside(judge: JudgeProcess):
    schema = {**COSTLY, "title": "loop"}
    value = [*DISTINCT, DISTINCT[0]]
    await judge_aside(schema, value)
    assert judge._child is not None
    judge.close()
    assert [issue.path for issue in validate(schema, value)] == [""]
    assert judge._child is None  # the loop's thread never asks the child


async def test_cheap_values_never_leave_the_loop(judge: JudgeProcess):
    await judge_aside({"type": "object"}, {"a": 1})
    assert judge._child is None


async def test_the_loop_goes_on_while_the_child_judges(judge: JudgeProcess):
    await asyncio.to_thread(ask, judge, True, 1)  # the start of the child is not what is measured
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await judge_aside({**COSTLY, "title": "turns"}, DISTINCT)
    counting.cancel()
    assert turns > 10


def test_a_child_that_was_killed_is_replaced(judge: JudgeProcess):
    assert ask(judge, {"type": "string"}, "a") == []
    assert judge._child is not None
    os.kill(judge._child.pid, signal.SIGKILL)
    judge._child.wait()
    assert ask(judge, {"type": "string"}, 1) == ["1 is not a string"]


def test_too_much_memory_is_an_issue_and_the_next_question_is_answered(judge: JudgeProcess):
    value = b"[" + b",".join([b"[]"] * 8_000_000) + b"]"
    found = judge.judge(b'{"type":"array"}', value)
    assert found is not None
    assert [issue.message for issue in found] == ["judging it by its schema took too much memory"]
    assert ask(judge, {"type": "string"}, "a") == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_knows_no_secrets(judge: JudgeProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTFLOW_SECRET_X", "do not pass on")
    ask(judge, True, 1)
    assert judge._child is not None
    with open(f"/proc/{judge._child.pid}/environ", "rb") as environment:
        assert b"do not pass on" not in environment.read()
