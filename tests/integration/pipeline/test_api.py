"""Requests over the API of the daemon (page 004 §13)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.client import ProblemError
from agentflow.errors import AgentflowError
from tests.integration.pipeline.support import Desk, done, model_of, plan, step
from tests.unit.server.kit import serving


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


async def test_a_request_is_reviewed_edited_and_executed_over_the_api(tmp_path: Any):
    desk, model = Desk(), model_of(plan(step("a"), step("b")), lambda step_id, request: done(step_id))
    async with (
        serving(tmp_path, model=model, services=tuple(desk.services())) as served,
        served.client() as client,
        served.http() as http,
    ):
        answer = await client.request("workflow: x", review=True)
        assert answer.run is not None
        run_id = answer.run.workflow_id
        assert (answer.activation.trigger, answer.activation.execution_requested) == (
            "explicit_prefix",
            False,
        )
        await client.rest(run_id)
        record = await client.record(run_id)
        assert record.request.phase == "awaiting_review"  # type: ignore[union-attr]
        stored = await client.plan(run_id)
        bad = {"plan": plan(step("a", "a"), step("a", toolsets=["no"]))}
        refused = await http.put(f"/workflows/{run_id}/plan", json=bad)
        assert refused.status_code == 422
        assert refused.json()["code"] == "plan_invalid"
        codes = {d["code"] for d in refused.json()["diagnostics"]}
        assert codes == {"E_PLAN_CYCLE", "E_PLAN_DUPLICATE_ID", "E_PLAN_TOOLSET"}
        changed = await http.put(
            f"/workflows/{run_id}/plan", json={"plan": plan(step("a")), "plan_digest": stored.plan_digest}
        )
        assert changed.status_code == 200
        assert [s["id"] for s in changed.json()["plan"]["steps"]] == ["a"]
        stale = await http.post(f"/workflows/{run_id}/execute", json={"plan_digest": stored.plan_digest})
        assert (stale.status_code, stale.json()["code"]) == (409, "digest_mismatch")
        early = await http.get(f"/workflows/{run_id}/final")
        assert (early.status_code, early.json()["code"]) == (409, "output_not_ready")
        started = await http.post(f"/workflows/{run_id}/execute")
        assert started.status_code == 202
        result = await client.result(run_id)
        final = await client.final(run_id)
        assert result.output["final_output"] == final
        assert final["status"] == "ready"
        assert (await client.compact(run_id))["final_output"] == final
        resumed = await http.post(f"/workflows/{run_id}/resume")
        assert (resumed.status_code, resumed.json()["output"]["final_output"]) == (200, final)
        over = await http.post(f"/workflows/{run_id}/execute")
        assert (over.status_code, over.json()["code"]) == (409, "run_terminal")


async def test_a_rejected_plan_is_a_cancelled_run(tmp_path: Any):
    async with serving(tmp_path, model=model_of(plan(step("a")))) as served, served.client() as client:
        answer = await client.request("workflow: x", review=True)
        assert answer.run is not None
        await client.rest(answer.run.workflow_id)
        await client.reject(answer.run.workflow_id, reason="no")
        result = await client.result(answer.run.workflow_id, raise_on_failure=False)
        assert result.state == "cancelled"
        record = await client.record(answer.run.workflow_id)
        assert record.request.phase == "rejected"  # type: ignore[union-attr]


async def test_a_text_is_judged_and_nothing_is_stored(tmp_path: Any):
    async with serving(tmp_path, model=model_of()) as served, served.client() as client:
        found = await client.classify("幫我規劃一個流程, 先給我看")
        assert (found.mode, found.trigger, found.execution_requested) == (
            "workflow",
            "semantic_detector",
            False,
        )
        assert (await client.request("hello")).run is None
        assert (await client.list()) == []
        with pytest.raises(AgentflowError) as refused:
            await client.classify("   ")
        assert isinstance(refused.value, ProblemError)
        assert (refused.value.status, refused.value.problem["code"]) == (422, "message_length")


async def test_a_workspace_that_cannot_be_is_refused_before_there_is_a_run(tmp_path: Any):
    (tmp_path / "agentflow" / "workspaces").mkdir(parents=True)
    (tmp_path / "agentflow" / "workspaces" / "file").touch()
    async with serving(tmp_path, model=model_of(), services=tuple(Desk().services())) as served:
        async with served.http() as http:
            for wanted in ("/etc", "../out", "a\0b", "a" * 5_000, "~nobody/x", "file", "file/below"):
                body = {"message": "workflow: x", "workspace": wanted}
                answer = await http.post("/requests", json=body)
                assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), wanted
                assert [d["code"] for d in answer.json()["diagnostics"]] == ["E_WORKSPACE"]
        assert await served.runtime.list() == []


async def test_toolsets_are_listed_with_their_class(tmp_path: Any):
    desk = Desk()
    async with (
        serving(tmp_path, model=model_of(), services=tuple(desk.services())) as served,
        served.client() as client,
    ):
        found = {one.name: one for one in await client.toolsets()}
    assert {name: one.side_effect for name, one in found.items()} == {
        "files": "write",
        "messaging": "external",
    }
    assert "slack" in found["messaging"].aliases


TEMPLATE = """
name: notes
inputs: {topic: {required: true}}
summary: "Note ${{ inputs.topic }}"
steps:
  - {id: note, title: Note, action: "Write about ${{ inputs.topic }}", owner: agent, depends_on: [],
     toolsets: [files]}
"""


async def test_a_template_is_installed_changed_run_and_removed(tmp_path: Any):
    desk, model = Desk(), model_of()
    async with (
        serving(tmp_path, model=model, services=tuple(desk.services())) as served,
        served.client() as client,
        served.http() as http,
    ):
        made = await http.post("/templates", json={"source": TEMPLATE})
        assert (made.status_code, made.json()["origin"]) == (201, "user")
        again = await http.post("/templates", json={"source": TEMPLATE})
        assert (again.status_code, again.json()["code"]) == (409, "template_exists")
        names = [one.name for one in (await client.templates()).items]
        assert {"notes", "research_email_digest"} <= {*names}
        bad = await http.post("/templates/notes/runs", json={"inputs": {"tpic": "x"}})
        assert bad.status_code == 422
        assert {d["code"] for d in bad.json()["diagnostics"]} == {
            "E_TEMPLATE_INPUT_MISSING",
            "E_TEMPLATE_INPUT_UNKNOWN",
        }
        run_id = await client.run_template("notes", {"topic": "actors"})
        result = await client.result(run_id)
        assert result.output["final_output"]["objective"] == "Note actors"
        assert (await client.record(run_id)).definition.name == "notes"
        changed = await http.patch("/templates/notes", json={"description": "D"})
        assert changed.json()["description"] == "D"
        assert (await http.delete("/templates/notes")).status_code == 204
        gone = await http.get("/templates/notes")
        assert (gone.status_code, gone.json()["code"]) == (404, "template_not_found")


async def test_all_that_a_person_decides_by_is_in_the_api(tmp_path: Any):
    """Plan, problems and digest of a review; subject, class, digest and deadline of an approval; by whom."""
    desk = Desk()
    says = step("send", "a", toolsets=["messaging"], requires_approval=False, approval_status="approved")
    model = model_of(plan(step("a"), says), lambda step_id, request: done(step_id))
    async with (
        serving(tmp_path, model=model, services=tuple(desk.services())) as served,
        served.client() as client,
        served.http() as http,
    ):
        begun = (await client.request("幫我規劃一個流程, 先給我看")).run
        assert begun is not None
        run_id = begun.workflow_id
        await client.rest(run_id)
        (review,) = (await http.get("/inbox")).json()["items"]
        assert (review["kind"], review["request_type"], review["workflow_id"]) == ("input", "review", run_id)
        shown = (await http.get(f"/workflows/{run_id}/plan")).json()
        assert review["subject"]["plan_digest"] == shown["plan_digest"]
        assert (shown["accepted"], [s["id"] for s in shown["plan"]["steps"]]) == (False, ["a", "send"])
        assert {d["code"] for d in shown["diagnostics"]} == {"W_PLAN_SELF_APPROVED", "W_PLAN_UNVERIFIABLE"}
        events = (
            await http.get(f"/workflows/{run_id}/events", params={"type": "plan.*", "follow": "false"})
        ).text
        assert '"adjustments":[{' in events
        await http.post(f"/workflows/{run_id}/execute", json={"plan_digest": shown["plan_digest"]})
        await client.rest(run_id)
        (asked,) = (await http.get("/inbox")).json()["items"]
        assert (asked["kind"], asked["step_id"], asked["side_effect"]) == ("step", "execute/send", "external")
        assert asked["deadline"] is not None
        subject = asked["subject"]
        assert (subject["title"], subject["action"], subject["toolsets"]) == (
            "SEND",
            "do send",
            ["messaging"],
        )
        assert subject["inputs"]["a"]["output"] == "a is done"
        record = (await http.get(f"/workflows/{run_id}")).json()
        assert record["request"]["phase"] == "awaiting_approval"
        assert record["steps"]["execute/a"]["state"] == "succeeded"
        compact = await client.compact(run_id)
        assert [(r["step_id"], r["status"]) for r in compact["executor_output"]["step_results"]] == [
            ("a", "done"),
            ("send", "skipped"),
        ]
        assert compact["blockers"] == ["send: approval required"]
        body = {"step_id": "send", "decision": "deny", "reason": "no", "digest": asked["digest"]}
        assert (await http.post(f"/workflows/{run_id}/approvals", json=body)).status_code == 200
        output = (await client.result(run_id)).output
        assert (await http.get("/inbox")).json()["items"] == []
        (decided,) = output["report"]["approvals"]
        assert (decided["decision"], decided["reason"], decided["digest"]) == (
            "denied",
            "no",
            asked["digest"],
        )
        assert decided["by"]
        names = {one.name: (one.side_effect, one.state) for one in await client.toolsets()}
        assert names["messaging"] == ("external", "enabled")
    assert desk.calls == []
