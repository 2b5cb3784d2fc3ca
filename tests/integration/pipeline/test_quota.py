"""A provider's quota pauses a request, and only what has no result runs again (page 004 §11)."""

from __future__ import annotations

from typing import Any

import pytest

from actors.testing import virtual
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError
from tests.integration.pipeline.support import DELEGATE, asked, done, model_of, plan, requests_of, step
from tests.integration.support.runs import must_be_sound
from tests.integration.virtual import LoopClock


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def _quota() -> ModelError:
    return ModelError(ErrorInfo(category="quota", code="insufficient_quota", message="the quota is used up"))


class Limited:
    """A delegate whose step `b` is refused until `free`."""

    def __init__(self) -> None:
        self.free = False
        self.seen: list[str] = []

    def __call__(self, step_id: str, request: Any) -> Any:
        self.seen.append(step_id)
        return _quota() if step_id == "b" and not self.free else done(step_id)


@virtual
async def test_the_others_are_kept_and_only_the_refused_step_runs_again(tmp_path: Any):
    limited, log = Limited(), MemoryLog()
    model = model_of(plan(step("a"), step("b"), step("c")), limited)
    async with Runtime(log, models=[model], clock=LoopClock()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        rest = await run.rest()
        record = await runtime.record(run.workflow_id)
        assert (rest.state, rest.pause) == ("paused", "quota")
        assert record.request.phase == "paused_quota"  # type: ignore[union-attr]
        compact = await runtime.compact(run.workflow_id)
        assert compact["status"] == "blocked"
        assert compact["blocked_reason"]
        # The pause may come before a step beside the refused one has asked.
        assert "b" in limited.seen
        assert len(limited.seen) == len(set(limited.seen))
        limited.free = True
        await runtime.resume(run.workflow_id)
        result = await run.result()
        await must_be_sound(runtime, run.workflow_id)
    assert sorted(limited.seen) == ["a", "b", "b", "c"]
    assert result.output["final_output"]["status"] == "ready"
    assert asked(model, DELEGATE) == 4


@virtual
async def test_a_number_in_a_message_is_no_quota(tmp_path: Any):
    def answer(step_id: str, request: Any) -> Any:
        return done(step_id) | {"status": "failed", "error": "cannot create quotation 512", "output": ""}

    model = model_of(plan(step("a")), answer)
    async with Runtime(models=[model], clock=LoopClock()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        result = await run.result()
    assert result.state == "completed"
    assert result.output["final_output"]["blockers"][0] == "a: cannot create quotation 512"
    assert asked(model, DELEGATE) == 1


@virtual
async def test_a_planner_without_quota_pauses_and_normalizes_once(tmp_path: Any):
    model = model_of([_quota(), plan(step("a"))])
    async with Runtime(models=[model], clock=LoopClock()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        assert (await run.rest()).pause == "quota"
        await runtime.resume(run.workflow_id)
        result = await run.result()
    assert result.output["final_output"]["status"] == "ready"
