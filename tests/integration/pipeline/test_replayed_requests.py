"""Replays of requests: all stages again on recorded results (page 003 §9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.testing import call
from tests.integration.pipeline.support import Desk, done, model_of, normalized, plan, requests_of, step
from tests.integration.pipeline.test_delegates import Crew
from tests.integration.support.runs import must_be_sound

POLICIES = ["Always", "Refresh", "Mixed"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def _delegate(step_id: str, request: Any) -> Any:
    if any(m.role == "tool" for m in request.messages) or step_id == "b":
        return done(step_id)
    return call("files__note", text=step_id)


async def _through(runtime: Runtime, run: Any) -> Any:
    """The result of a run whose questions are all granted."""
    while (result := await run.result(raise_on_failure=False)).state == "waiting":
        for asked in await runtime.requests(run.workflow_id):
            if asked.request_type == "review":
                await runtime.execute(run.workflow_id)
            else:
                await runtime.decide(run.workflow_id, request_id=asked.request_id, granted=True)
    return result


@pytest.mark.parametrize("review", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_request_is_replayed_to_the_same_end(policy: str, review: bool, tmp_path: Path):
    desk = Desk()
    steps = plan(step("a", toolsets=["files"]), step("b", "a", requires_approval=True))
    model = model_of([steps] * 2, _delegate, normal=[normalized()] * 2)
    async with Runtime(models=[model], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x", review=review)).run
        assert run is not None
        first = await _through(runtime, run)
        asked, calls = len(model.requests), list(desk.calls)
        again = await runtime.replay(run.workflow_id, policy)  # type: ignore[arg-type]
        second = await _through(runtime, again)
        await must_be_sound(runtime, again.workflow_id)
        record = await runtime.record(again.workflow_id)
    assert first.state == second.state == "completed"
    assert second.output["final_output"] == first.output["final_output"]
    assert record.request.phase == "completed"  # type: ignore[union-attr]
    if policy == "Always":
        assert (len(model.requests), desk.calls) == (asked, calls)


async def test_a_request_of_a_foreign_delegate_is_replayed(tmp_path: Path):
    crew = Crew()
    async with Runtime(models=[], services=[crew.service()]) as runtime:
        requests = requests_of(runtime, tmp_path, delegate="crew")
        run = await requests.submit_plan(plan(step("a"), step("b", "a")))
        first = await run.result()
        again = await runtime.replay(run.workflow_id, "Always")
        second = await again.result()
        await must_be_sound(runtime, again.workflow_id)
    assert second.output["final_output"] == first.output["final_output"]
    assert crew.steps == [("a", 1), ("b", 1)]
