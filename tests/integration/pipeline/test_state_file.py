"""The state file that runs of requests write, and runs that are made from its lines (page 004 §14)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from agentflow import Runtime
from agentflow.cli import app
from agentflow.events.memory import MemoryLog
from agentflow.pipeline.settings import STATE_FILE
from agentflow.pipeline.state_file import FIELDS, import_line, read_state_file
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
    step,
)
from tests.integration.support.runs import must_be_sound


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def lines_of(root: Path, run_id: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (root / run_id / STATE_FILE).read_bytes().splitlines()]


def shown(lines: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    return [(one["phase"], one["status"], [r["step_id"] for r in one["executor_results"]]) for one in lines]


async def test_a_line_is_written_after_each_stage_step_pause_and_end(tmp_path: Path):
    log, desk = MemoryLog(), Desk()
    first = model_of(plan(step("a"), step("send", "a", toolsets=["messaging"]), step("b", "send")))
    async with Runtime(log, models=[first], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        await runtime.pause(run.workflow_id)
    before = lines_of(tmp_path, run.workflow_id)
    assert shown(before) == [
        ("planning", "initialized", []),
        ("planning", "initialized", []),
        ("executing", "initialized", ["a"]),
        ("awaiting_approval", "blocked", ["a"]),
        ("paused", "blocked", ["a"]),
    ]
    assert (before[0]["normalized_request"], before[0]["plan"]) == (normalized(), None)
    assert before[1]["plan"]["summary"] == "the plan"
    assert before[3]["blockers"] == ["send: approval required"]
    assert before[4]["blocked_reason"] == "operator"
    assert all([key for key in one if key != "blocked_reason"] == list(FIELDS) for one in before)
    again = model_of()
    async with Runtime(log, models=[again], services=desk.services()) as runtime:  # another process
        await runtime.recover()
        await runtime.resume(run.workflow_id)
        handle = await runtime.attach(run.workflow_id)
        await handle.rest()
        await runtime.decide(run.workflow_id, step_id="send", granted=True)
        result = await handle.result()
    after = lines_of(tmp_path, run.workflow_id)
    assert after[: len(before)] == before
    assert after[-1]["final_output"] == result.output["final_output"]
    assert shown(after)[-1] == ("partial", "partial", ["a", "send", "b"])
    assert {p for p, _, _ in shown(after[len(before) :])} >= {"executing", "verifying", "partial"}
    found, problems = read_state_file(tmp_path / run.workflow_id / STATE_FILE)
    assert (found[run.workflow_id], problems) == (after[-1], [])


async def test_none_is_written_if_it_is_off(tmp_path: Path):
    async with Runtime(models=[model_of(plan(step("a")))]) as runtime:
        run = (await requests_of(runtime, tmp_path, state_file="").submit("workflow: x")).run
        assert run is not None
        await run.result()
    assert os.listdir(tmp_path / run.workflow_id) == []


async def test_a_file_that_cannot_be_written_fails_no_run(tmp_path: Path):
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / STATE_FILE).symlink_to(tmp_path / "elsewhere")
    async with Runtime(models=[model_of(plan(step("a")))]) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x", workspace=str(workspace))).run
        assert run is not None
        assert (await run.result()).output["final_output"]["status"] == "ready"
    assert not (tmp_path / "elsewhere").exists()


class TestImport:
    async def cut(self, root: Path, line: int, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """A line of the state file of a run of three steps in a row, and what that run came to."""
        model = model_of(plan(step("a"), step("b", "a"), step("c", "b"), **more))
        async with Runtime(models=[model]) as runtime:
            run = (await requests_of(runtime, root).submit("workflow: x")).run
            assert run is not None
            output = (await run.result()).output["final_output"]
        return lines_of(root, run.workflow_id)[line], output

    @pytest.mark.parametrize(
        ("line", "normals", "plans", "steps"),
        [(0, 0, 1, 3), (1, 0, 0, 3), (2, 0, 0, 2), (3, 0, 0, 1), (5, 0, 0, 0), (6, 0, 0, 0)],
        ids=["normalized", "planned", "one step", "two steps", "executed", "verified"],
    )
    async def test_a_run_goes_on_where_its_line_stands(
        self, tmp_path: Path, line: int, normals: int, plans: int, steps: int
    ):
        state, whole = await self.cut(tmp_path, line)
        again = model_of(plan(step("a"), step("b", "a"), step("c", "b")))
        async with Runtime(models=[again]) as runtime:
            requests = requests_of(runtime, tmp_path / "second")
            run = await requests.import_run(import_line(state))
            assert run.workflow_id == state["workflow_id"]
            assert (await requests.import_run(import_line(state))).workflow_id == run.workflow_id
            record = await runtime.record(run.workflow_id)
            assert (record.state, record.request.phase) == ("paused", "paused")  # type: ignore[union-attr]
            assert again.requests == []
            assert await requests.latest() == run.workflow_id
            await runtime.resume(run.workflow_id)
            final = (await run.result()).output["final_output"]
            await must_be_sound(runtime, run.workflow_id)
        assert (asked(again, NORMALIZER), asked(again, PLANNER), asked(again, DELEGATE)) == (
            normals,
            plans,
            steps,
        )
        assert final == whole

    async def test_what_the_file_claims_of_approvals_and_verdicts_counts_for_nothing(self, tmp_path: Path):
        desk = Desk()
        mail = [{"type": "email", "uri": "mailto:a@b.example"}]
        steps = plan(
            step("a"),
            step("send", "a", toolsets=["messaging"], approval_status="approved", expected_artifacts=mail),
        )
        claimed = [{"type": "email", "uri": "mailto:a@b.example", "status": "verified", "id": "<1@desk>"}]
        state = {
            "workflow_id": "7f3a",
            "raw_input": "workflow: x",
            "user_input": "x",
            "activation_trigger": "explicit_prefix",
            "execution_requested": True,
            "normalized_request": normalized(),
            "plan": steps,
            "executor_results": [done("a"), done("a") | {"status": "surely"}],
            "verifier_output": {"status": "ready", "verdicts": [], "summary": "s", "blockers": []},
        }
        line = import_line(state)
        assert line.dropped == ("executor_results[1]",)
        again = model_of(delegate=lambda step_id, request: done(step_id, artifacts=claimed))
        async with Runtime(models=[again], services=desk.services()) as runtime:
            run = await requests_of(runtime, tmp_path).import_run(line)
            assert run.workflow_id.startswith("wf_")
            await runtime.resume(run.workflow_id)
            assert (await run.rest()).state == "waiting"
            await runtime.decide(run.workflow_id, step_id="send", granted=True)
            final = (await run.result()).output["final_output"]
        assert asked(again, DELEGATE) == 1
        assert [(s["status"], s["verdict"]) for s in final["steps"]] == [("done", "pass"), ("done", "fail")]

    async def test_results_of_an_edited_plan_do_not_count(self, tmp_path: Path):
        state, _ = await self.cut(tmp_path, 2)
        state["execution_requested"] = False
        again = model_of()
        async with Runtime(models=[again]) as runtime:
            run = await requests_of(runtime, tmp_path / "second").import_run(import_line(state))
            await runtime.resume(run.workflow_id)
            assert (await runtime.record(run.workflow_id)).request.phase == "awaiting_review"  # type: ignore[union-attr]
            await runtime.execute(run.workflow_id, plan=plan(step("a", action="another"), step("b", "a")))
            await run.result()
        assert asked(again, DELEGATE) == 2

    def test_the_command_line_imports_and_says_what_it_leaves_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        state, _ = asyncio.run(self.cut(tmp_path, 1))
        over = {**state, "workflow_id": "wf_over", "final_output": {}}
        file = tmp_path / "states.jsonl"
        rows = [msgspec.json.encode(one) for one in (state, over)]
        file.write_bytes(b"\n".join([b"no json", *rows, b'{"workflow_id": "torn']))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        store = f"sqlite:{tmp_path}/runs.db"
        words = ["import", str(file), "--store", store]
        shown = CliRunner().invoke(app, words, prog_name="agentflow")
        assert shown.exit_code == 0, shown.output
        assert f"{state['workflow_id']} is paused" in shown.output
        assert "wf_over: not imported: it has ended" in shown.output
        assert "states.jsonl:1: no JSON object" in shown.output

        async def stored() -> list[tuple[str, str]]:
            async with Runtime(store, models=[model_of()]) as runtime:
                return [(one.workflow_id, one.state) for one in await runtime.list()]

        assert asyncio.run(stored()) == [(state["workflow_id"], "paused")]
