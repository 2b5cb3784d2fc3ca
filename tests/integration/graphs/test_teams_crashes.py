"""Teams in which a process ends: a new one goes on from the log, and pays for no answer twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow import (
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffBuilder,
    MagenticBuilder,
    PlanDecision,
    PlanReview,
    Runtime,
    SequentialBuilder,
    Workflow,
)
from agentflow.events.memory import MemoryLog
from agentflow.models.base import ModelRequest
from agentflow.testing import ScriptedModel, call
from tests.integration.executors.crashes import cut_log
from tests.integration.graphs.teams import Teller, agents
from tests.integration.support.runs import must_be_sound


def answer(request: ModelRequest) -> Any:
    """Answer by what was said, so that a repeated request gets an equal answer."""
    texts = [m.content for m in request.messages[1:]]
    name, last = request.messages[0].content.removeprefix("You are ").rstrip("."), texts[-1]
    if last.startswith("Decide who"):
        return {"next": None if len(texts) > 3 else ("a", "b")[len(texts) % 2], "reason": "turns"}
    if "Judge where" in last:
        values = {"is_request_satisfied": len(texts) > 5, "is_in_loop": False, "is_progress_being_made": True}
        values |= {"next_speaker": "a", "instruction_or_question": "Go on."}  # type: ignore[dict-item]
        return {key: {"answer": value, "reason": ""} for key, value in values.items()}
    if name == "H":
        return call("handoff_to_b", message="over")
    return f"{name} heard {len(texts)}"


TEAMS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialBuilder([*agents("A"), Teller("t"), *agents("B")]).with_request_info(
        ["b"]
    ),
    "concurrent": lambda: ConcurrentBuilder(agents("A", "B", "C"), max_in_flight=2),
    "group_chat": lambda: GroupChatBuilder(agents("A", "B"), manager=agents("Chief")[0]),
    "handoff": lambda: HandoffBuilder(agents("H", "B"), start="h"),
    "magentic": lambda: MagenticBuilder(agents("A"), manager=agents("Chief")[0], enable_plan_review=True),
}


async def drive(runtime: Runtime, workflow: Workflow, run_id: str) -> Any:
    """Wait for the end of a run; accept what it asks about."""
    run = await workflow.attach(run_id)
    while True:
        result = await run.result()
        if result.state != "waiting":
            return result
        answers = {
            r.request_id: PlanDecision(decision="approve") if type(r.data) is PlanReview else ""
            for r in result.pending_requests
        }
        run = await run.respond(answers)


def paid(rows: Any) -> int:
    return sum(row.type == "model.call_completed" for row in rows)


def said(result: Any) -> Any:
    (output,) = result.get_outputs()
    return output.output, output.stop_reason, output.rounds, [m.text for m in output.messages]


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TEAMS)
async def test_a_team_goes_on_from_behind_any_event(name: str, step: int):
    log, model = MemoryLog(), ScriptedModel(answer)
    async with Runtime(log, models=[model]) as runtime:
        workflow = TEAMS[name]().with_checkpointing(runtime).build()
        run = await workflow.start("Go.")
        whole = said(await drive(runtime, workflow, run.workflow_id))
        rows = await log.read(run.workflow_id, 0, 10_000)
    assert paid(rows) == len(model.requests) > 1
    for upto in range(1 + len(name) % step, len(rows), step):
        cut, again = await cut_log(run.workflow_id, workflow, rows[:upto]), ScriptedModel(answer)
        async with Runtime(cut, models=[again]) as runtime:
            fresh = TEAMS[name]().with_checkpointing(runtime).build()
            runtime.register(fresh)
            await (await fresh.attach(run.workflow_id)).resume()
            assert said(await drive(runtime, fresh, run.workflow_id)) == whole, upto
            assert paid(rows[:upto]) + len(again.requests) == len(model.requests), upto
            await must_be_sound(runtime, run.workflow_id)


@pytest.mark.parametrize("name", ["group_chat", "magentic"])
@pytest.mark.parametrize("at", [1, 2, 4])
async def test_a_closed_runtime_is_followed_by_another_on_the_same_file(name: str, at: int, tmp_path: Path):
    store, reached = f"sqlite:{tmp_path / 'runs.db'}", asyncio.Event()
    answered: list[ModelRequest] = []

    async def until(request: ModelRequest) -> Any:
        if len(answered) == at:
            reached.set()
            await asyncio.Event().wait()
        answered.append(request)
        return answer(request)

    async with Runtime(store, models=[ScriptedModel(until)], grace=0.1) as runtime:
        workflow = TEAMS[name]().with_checkpointing(runtime).build()
        run = await workflow.start("Go.")
        driving = asyncio.create_task(drive(runtime, workflow, run.workflow_id))
        await reached.wait()
        driving.cancel()
    second = ScriptedModel(answer)
    async with Runtime(store, models=[second]) as runtime:
        fresh = TEAMS[name]().with_checkpointing(runtime).build()
        runtime.register(fresh)
        await (await fresh.attach(run.workflow_id)).resume()
        result = await drive(runtime, fresh, run.workflow_id)
    alone = ScriptedModel(answer)
    async with Runtime(models=[alone]) as runtime:
        whole = TEAMS[name]().with_checkpointing(runtime).build()
        wanted = await drive(runtime, whole, (await whole.start("Go.")).workflow_id)
    assert said(result) == said(wanted)
    assert at + len(second.requests) == len(alone.requests)


async def test_a_team_names_its_store_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from agentflow.graphs import close_runtimes

    store = f"sqlite:{tmp_path / 'runs.db'}"
    first = SequentialBuilder([Teller("t")]).with_request_info().with_checkpointing(store).build()
    waiting = await first.run("Go.")
    assert waiting.state == "waiting"
    await close_runtimes()
    again = SequentialBuilder([Teller("t")]).with_request_info().with_checkpointing(store).build()
    answers = {r.request_id: "" for r in waiting.pending_requests}
    result = await again.send_responses(waiting.workflow_id, answers)
    await close_runtimes()
    assert said(result)[0] == "t: Go."
