"""Failed and skipped steps of a finished request run again in a fork (page 004 §11)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime
from agentflow.errors import CommandRefused
from tests.integration.pipeline.support import (
    NORMALIZER,
    PLANNER,
    Desk,
    asked,
    done,
    model_of,
    plan,
    requests_of,
    step,
)
from tests.integration.support.runs import must_be_sound


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


async def test_done_steps_keep_their_results_and_the_others_run_again(tmp_path: Any):
    seen: list[str] = []

    def answer(step_id: str, request: Any) -> Any:
        seen.append(step_id)
        if step_id == "b" and seen.count("b") == 1:
            return done("b") | {"status": "failed", "error": "no", "output": ""}
        return done(step_id)

    model = model_of(plan(step("a"), step("b", "a"), step("c", "b")), answer)
    async with Runtime(models=[model]) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        first = await run.result()
        fork = await runtime.fork(run.workflow_id, from_failure=True)
        again = await fork.result()
        await must_be_sound(runtime, fork.workflow_id)
        record = await runtime.record(fork.workflow_id)
        with pytest.raises(CommandRefused) as refused:
            await runtime.fork(fork.workflow_id, from_failure=True)
    assert first.output["final_output"]["status"] == "partial"
    assert again.output["final_output"]["status"] == "ready"
    assert seen == ["a", "b", "b", "c"]
    assert (asked(model, NORMALIZER), asked(model, PLANNER)) == (1, 1)
    assert record.request.phase == "completed"  # type: ignore[union-attr]
    assert refused.value.code == "not_failed"


async def test_a_denied_step_is_asked_about_again(tmp_path: Any):
    desk = Desk()
    model = model_of(plan(step("a"), step("send", "a", toolsets=["messaging"])))
    async with Runtime(models=[model], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        await runtime.decide(run.workflow_id, step_id="send", granted=False)
        await run.result()
        fork = await runtime.fork(run.workflow_id, from_failure=True)
        assert (await fork.rest()).state == "waiting"
        await runtime.decide(fork.workflow_id, step_id="send", granted=True)
        result = await fork.result()
    assert [s["status"] for s in result.output["final_output"]["steps"]] == ["done", "done"]


async def test_a_failed_stage_begins_again(tmp_path: Any):
    model = model_of(["no JSON"] * 3 + [plan(step("a"))])
    async with Runtime(models=[model]) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        assert (await run.result(raise_on_failure=False)).state == "failed"
        fork = await runtime.fork(run.workflow_id, from_failure=True)
        result = await fork.result()
    assert result.output["final_output"]["status"] == "ready"
    assert asked(model, NORMALIZER) == 1
