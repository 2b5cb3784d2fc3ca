"""A request whose process dies: behind each event of its log another one goes on (page 004 §11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.events.memory import MemoryLog
from agentflow.testing import call
from tests.integration.pipeline.support import (
    DELEGATE,
    NORMALIZER,
    PLANNER,
    Desk,
    asked,
    done,
    model_of,
    normalized,
    plan,
    requests_of,
    restored,
    step,
)
from tests.integration.support.runs import must_be_sound


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


PLAN = plan(
    step("look"),
    step("send", "look", toolsets=["messaging"], expected_artifacts=["missing.md"]),
    step("tell", "send"),
    step("other"),
)
BLOCKED = normalized(status="blocked", blockers=["to whom?"])


def _delegate(step_id: str, request: Any) -> Any:
    sent = any(m.role == "tool" for m in request.messages)
    if step_id == "send" and not sent:
        return call("messaging__send", to="a@b.example", body="x")
    return done(step_id)


def _model() -> Any:
    return model_of([PLAN], _delegate, normal=[normalized()])


async def _drive(runtime: Runtime, run_id: str) -> Any:
    """Answer whatever is asked until the run ends."""
    while True:
        handle = await runtime.attach(run_id)
        result = await handle.result(raise_on_failure=False)
        if result.state not in ("waiting", "paused"):
            return result
        for request in await runtime.requests(run_id):
            if request.kind == "step":
                await runtime.decide(run_id, request_id=request.request_id, granted=True)
            elif request.request_type == "review":
                await runtime.execute(run_id)
            else:
                await runtime.answer(run_id, request.request_id, {"choice": "retry"})


def _shown(result: Any) -> Any:
    final = dict(result.output["final_output"])
    return result.state, final


async def test_behind_some_events_another_process_goes_on_and_repeats_nothing(tmp_path: Any):
    await cut_and_go_on(tmp_path, every=9)


async def cut_and_go_on(tmp_path: Any, every: int) -> None:
    """Cut the log of a request behind events, go on, and compare; `make faults` does it behind each."""
    log, desk, model = MemoryLog(), Desk(), _model()
    async with Runtime(log, models=[model], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x", review=True)).run
        assert run is not None
        run_id = run.workflow_id
        whole = await _drive(runtime, run_id)
        rows = await log.read(run_id, 0, 10_000)
    assert desk.calls == ["send a@b.example"]
    for upto in range(1, len(rows), every):
        before = [row.type for row in rows[:upto]]
        cut = await restored(run_id, log, rows[:upto])
        again, desk = _model(), Desk()
        where = f"cut behind {before[-1]} at {upto - 1}"
        async with Runtime(cut, models=[again], services=desk.services()) as runtime:
            await runtime.recover()
            async with asyncio.timeout(30):
                result = await _drive(runtime, run_id)
            events = await must_be_sound(runtime, run_id)
            record = await runtime.record(run_id)
        assert _shown(result) == _shown(whole), where
        types = [e.type for e in events]
        for once in ("plan.activated", "plan.normalized", "plan.proposed", "plan.accepted", "plan.compiled"):
            assert types.count(once) == 1, where
        for stage, event in ((NORMALIZER, "plan.normalized"), (PLANNER, "plan.proposed")):
            if event in before:
                assert asked(again, stage) == 0, where
        if "plan.executed" in before:
            assert asked(again, DELEGATE) == 0, where
        assert record.request.phase == "partial", where  # type: ignore[union-attr]


async def test_a_step_that_is_done_is_not_repeated(tmp_path: Any):
    steps = plan(step("a"), step("b", "a"), step("c", "b"))
    log, model = MemoryLog(), model_of([steps])
    async with Runtime(log, models=[model]) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.result()
        rows = await log.read(run.workflow_id, 0, 10_000)
    ends = [i for i, row in enumerate(rows) if row.type == "workflow.step_completed"]
    first_step = next(i for i in ends if b'"execute/a"' in rows[i].body)
    cut = await restored(run.workflow_id, log, rows[: first_step + 1])
    again = model_of()
    async with Runtime(cut, models=[again]) as runtime:
        await runtime.recover()
        result = await (await runtime.attach(run.workflow_id)).result()
    assert asked(again, DELEGATE) == 2
    assert [s["status"] for s in result.output["final_output"]["steps"]] == ["done"] * 3


async def test_a_blocked_stage_waits_after_a_restart(tmp_path: Any):
    log, model = MemoryLog(), model_of(normal=[BLOCKED])
    async with Runtime(log, models=[model]) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
    again = model_of([plan(step("a"))], normal=[normalized()])
    async with Runtime(log, models=[again]) as runtime:
        await runtime.recover()
        handle = await runtime.attach(run.workflow_id)
        rest = await handle.rest()
        assert rest.state == "waiting"
        assert again.requests == []
        question = rest.pending_requests[0]
        await runtime.answer(run.workflow_id, question.request_id, {"clarification": "to Ann"})
        result = await handle.result()
    assert result.output["final_output"]["status"] == "ready"


async def test_the_read_model_shows_at_every_event_what_the_engine_folds(tmp_path: Any):
    desk = Desk()
    async with Runtime(models=[_model()], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x", review=True)).run
        assert run is not None
        await _drive(runtime, run.workflow_id)
        last = (await runtime.record(run.workflow_id)).last_offset
        for offset in range(last + 1):
            shown = await runtime.state(run.workflow_id, offset)
            folded = await runtime.fold(run.workflow_id, at=offset)
            steps = {name: (step.state, step.attempt, step.visits) for name, step in shown.steps.items()}
            places = {name: folded.nodes[name] for name in shown.steps}
            wanted = {name: (one.status, one.attempt, one.visits) for name, one in places.items()}
            assert (offset, shown.state, steps) == (offset, folded.status, wanted)
            assert set(shown.waiting.requests) == set(folded.requests)
            assert shown.usage == folded.usage
            assert set(shown.calls) == set(folded.calls)
