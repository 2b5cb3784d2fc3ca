"""The view of a run, folded from the events of real runs."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from agentflow.cli.live import TableView, view_on
from agentflow.cli.progress import Progress, count, duration
from agentflow.definition.failure import ErrorInfo
from agentflow.events.envelope import Event
from agentflow.models import ModelError
from agentflow.runtime import Runtime
from agentflow.testing import ScriptedModel

STEPS = {
    "version": "1.0",
    "name": "demo",
    "workflow": {
        "steps": [
            {"type": "run", "id": "first", "agent": {"systemPrompt": "First.", "input": "a b"}},
            {
                "type": "run",
                "id": "each",
                "depends_on": ["first"],
                "for_each": "${{ inputs.items }}",
                "agent": {"systemPrompt": "Each.", "input": "${{ item }}"},
            },
            {
                "type": "run",
                "id": "never",
                "depends_on": ["first"],
                "if": "inputs.items == 1",
                "agent": {"systemPrompt": "Never.", "input": "x"},
            },
        ]
    },
}


async def run(
    model: ScriptedModel, document: dict[str, Any] = STEPS, **inputs: Any
) -> tuple[Progress, list[Any], list[str]]:
    async with Runtime("memory:", models=[model]) as runtime:
        definition = runtime.load({**document, "models": {"default": "scripted:m"}})
        handle = await runtime.submit(definition, {"items": [1, 2, 3], **inputs})
        await handle.rest()
        events: list[Event[Any]] = [e async for e in handle.events(follow=False)]
    progress = Progress(definition.workflow)
    return progress, events, [line for event in events for line in progress.take(event)]


def plain(lines: list[str]) -> list[str]:
    """Without what differs from run to run: ids and times."""
    return [re.sub(r"wf_\w+", "ID", re.sub(r"\b[\d.]+ m?s\b", "T", line)) for line in lines]


async def test_lines_of_a_run():
    progress, _, lines = await run(ScriptedModel(lambda request: "one two"))
    shown = plain(lines)
    assert shown[:2] == ["ID started: demo", "first started"]
    assert shown[2] == "first completed in T, 5 tokens"
    assert "each started with 3 items" in shown
    assert sum(line.startswith("each[") for line in shown) == 3
    assert any(line.endswith("completed in T (3/3)") for line in shown)
    assert "never skipped: condition_false" in shown
    assert re.fullmatch(r"ID completed in T, \d+ tokens, \$0.0000", shown[-1])
    each = progress.steps["each"]
    assert (each.state, each.done, each.total, each.failed) == ("succeeded", 3, 3, 0)
    assert progress.state == "completed"
    assert list(progress.steps) == ["first", "each", "never"]


async def test_lines_of_a_failure():
    def answer(request: Any) -> Any:
        if request.messages[-1].content == "2":
            return ModelError(ErrorInfo(category="auth", code="authentication_failed", message="no"))
        return "ok"

    progress, _, lines = await run(ScriptedModel(answer))
    assert "each[1] failed: authentication_failed: no" in " ".join(lines)
    assert progress.steps["each"].state == "failed"
    assert (progress.steps["each"].done, progress.steps["each"].failed) == (3, 1)
    assert lines[-1].partition(" ")[2].startswith("failed in ")


async def test_the_table_shows_every_step_and_ends_with_the_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    _, events, _ = await run(ScriptedModel(lambda request: "one two"))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    fresh = Progress(await graph())
    view = view_on(stream, fresh)
    assert isinstance(view, TableView)
    with view:
        for event in events:
            view.take(event)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue().rpartition("\x1b[?25h")[0]).rpartition(
        "\r"
    )[2]
    assert re.search(r"✓\s+first\s+[\d.]+ m?s\s+5 tokens", last), last
    assert re.search(r"✓\s+each\s+3/3\s", last)
    assert re.search(r"-\s+never\s+condition_false", last)
    assert re.search(r"demo · completed · [\d.]+ m?s · \d+ tokens", last)
    assert stream.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


async def test_a_table_higher_than_the_terminal_shows_what_matters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    steps = [
        {"type": "run", "id": f"s{i}", "agent": {"systemPrompt": f"Step {i}.", "input": "x"}}
        for i in range(40)
    ]

    def answer(request: Any) -> Any:
        if request.messages[0].content == "Step 30.":
            return ModelError(ErrorInfo(category="auth", code="authentication_failed", message="no"))
        return "ok"

    document = {"version": "1.0", "workflow": {"steps": steps}}
    progress, _, _ = await run(ScriptedModel(answer), document)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with view_on(stream, progress):
        pass
    frame = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).rpartition("\r")[2].splitlines()
    assert len(frame) <= 12
    assert any(re.search(r"✗\s+s30\s.*authentication_failed", line) for line in frame)
    assert any("and 32 more" in line for line in frame)


async def graph() -> Any:
    async with Runtime("memory:", models=[ScriptedModel(lambda request: "x")]) as runtime:
        return runtime.load({**STEPS, "models": {"default": "scripted:m"}}).workflow


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_940, "59.9 s"),
        (60_000, "1 min 00 s"),
        (3_725_000, "1 h 02 min"),
    ],
)
def test_durations(ms: int, text: str):
    assert duration(ms) == text


def test_counts():
    assert (count(0, "token"), count(1, "token"), count(12_345, "token")) == (
        "0 tokens",
        "1 token",
        "12,345 tokens",
    )


async def test_a_question_that_is_taken_back():
    document = {**STEPS, "models": {"default": "scripted:m"}}
    budget = {"max_model_calls": 1, "on_exceeded": "ask"}
    async with Runtime("memory:", models=[ScriptedModel(lambda request: "said")]) as runtime:
        definition = runtime.load(document)
        handle = await runtime.submit(definition, {"items": [1]}, budget=budget)
        assert (await handle.rest()).state == "waiting"
        (request,) = await runtime.requests(handle.workflow_id)
        await runtime.withdraw(handle.workflow_id, request.request_id, "not now")
        await handle.rest()
        events: list[Event[Any]] = [e async for e in handle.events(follow=False)]
    progress = Progress(definition.workflow)
    lines = [line for event in events for line in progress.take(event)]
    asked = next(line for line in lines if "asks" in line)
    step = asked.partition(" ")[0]
    assert f"{step} is not asked any more: {request.request_id}" in lines
