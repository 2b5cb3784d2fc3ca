"""A plan is edited while it waits for an approval (page 004 §6, §7)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime
from agentflow.errors import CommandRefused
from tests.integration.pipeline.support import Desk, model_of, plan, requests_of, step
from tests.integration.support.runs import log_of, must_be_sound


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def _plan(**more: Any) -> dict[str, Any]:
    return plan(step("a"), step("send", "a", toolsets=["messaging"], **more), step("b", "send"))


async def test_a_changed_action_voids_the_open_question(tmp_path: Any):
    model = model_of(_plan())
    async with Runtime(models=[model], services=Desk().services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        (old,) = await runtime.requests(run.workflow_id)
        await runtime.edit_plan(run.workflow_id, _plan(action="send it to Ann alone"))
        await run.rest()
        (new,) = await runtime.requests(run.workflow_id)
        assert new.digest != old.digest
        assert new.subject["action"] == "send it to Ann alone"
        for answer in ({"request_id": old.request_id}, {"step_id": "send", "digest": old.digest}):
            with pytest.raises(CommandRefused) as refused:
                await runtime.decide(run.workflow_id, granted=True, **answer)
            assert refused.value.code in ("request_closed", "digest_mismatch")
        await runtime.decide(run.workflow_id, step_id="send", granted=True, digest=new.digest)
        result = await run.result()
        events = await must_be_sound(runtime, run.workflow_id)
        last = events[-1].offset
        for offset in range(last + 1):
            shown = await runtime.state(run.workflow_id, offset)
            folded = await runtime.fold(run.workflow_id, at=offset)
            assert set(shown.waiting.requests) == set(folded.requests)
            assert shown.state == folded.status
    asked = [e.data for e in events if e.type == "approval.requested"]
    assert [one.supersedes for one in asked[1:]] == [old.request_id]
    assert result.output["final_output"]["status"] in ("ready", "partial")
    sent = next(r for r in model.requests if '"step_id":"send"' in r.messages[-1].content)
    assert "send it to Ann alone" in sent.messages[-1].content


async def test_a_step_that_has_started_cannot_be_changed(tmp_path: Any):
    model = model_of(_plan())
    async with Runtime(models=[model], services=Desk().services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        before = await log_of(runtime, run.workflow_id)
        changed = _plan()
        changed["steps"][0]["action"] = "other"
        fewer = plan(*_plan()["steps"][:2])
        for wrong in (changed, fewer):
            with pytest.raises(CommandRefused) as refused:
                await runtime.edit_plan(run.workflow_id, wrong)
            assert refused.value.code == "plan_invalid"
            assert {d["code"] for d in refused.value.details["diagnostics"]} == {"E_PLAN_STARTED"}
        assert len(await log_of(runtime, run.workflow_id)) == len(before)


async def test_a_plan_is_edited_while_its_run_is_paused(tmp_path: Any):
    model = model_of(_plan())
    async with Runtime(models=[model], services=Desk().services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        await runtime.pause(run.workflow_id)
        changed = _plan()
        changed["steps"][2]["action"] = "tell Ann as well"
        await runtime.edit_plan(run.workflow_id, changed)
        await runtime.resume(run.workflow_id)
        await run.rest()
        await runtime.decide(run.workflow_id, step_id="send", granted=True)
        result = await run.result()
        events = await must_be_sound(runtime, run.workflow_id)
    assert [s["status"] for s in result.output["final_output"]["steps"]] == ["done"] * 3
    assert sum(e.type == "approval.requested" for e in events) == 1  # its step has not changed
    told = next(r for r in model.requests if '"step_id":"b"' in r.messages[-1].content)
    assert "tell Ann as well" in told.messages[-1].content


async def test_each_part_of_a_step_changes_what_is_approved(tmp_path: Any):
    changes: dict[str, Any] = {
        "title": "Another",
        "action": "do  send",
        "toolsets": ["messaging", "files"],
        "expected_artifacts": ["mailto:ann@example.org"],
        "verification": {"contains": ["x"]},
    }
    async with Runtime(models=[model_of(_plan())], services=Desk().services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        (first,) = await runtime.requests(run.workflow_id)
        seen = [first]
        for field, value in changes.items():
            edited = _plan()
            edited["steps"][1][field] = value
            await runtime.edit_plan(run.workflow_id, edited)
            await run.rest()
            (request,) = await runtime.requests(run.workflow_id)
            with pytest.raises(CommandRefused):
                await runtime.decide(run.workflow_id, step_id="send", granted=True, digest=seen[-1].digest)
            seen.append(request)
        assert len({request.digest for request in seen}) == len(seen)
        await runtime.edit_plan(run.workflow_id, _plan())
        await run.rest()
        (back,) = await runtime.requests(run.workflow_id)
        assert back.digest == first.digest


async def test_a_grant_that_was_not_used_is_void_when_its_step_changes(tmp_path: Any):
    desk, model = Desk(), model_of(_plan())
    async with Runtime(models=[model], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        await runtime.pause(run.workflow_id)
        await runtime.decide(run.workflow_id, step_id="send", granted=True)
        await runtime.edit_plan(run.workflow_id, _plan(action="send it to Ann alone"))
        await runtime.resume(run.workflow_id)
        assert (await run.rest()).state == "waiting"
        (request,) = await runtime.requests(run.workflow_id)
        assert request.subject["action"] == "send it to Ann alone"
        await runtime.decide(run.workflow_id, step_id="send", granted=False)
        await run.result()
        await must_be_sound(runtime, run.workflow_id)
    assert not any('"step_id":"send"' in r.messages[-1].content for r in model.requests)
