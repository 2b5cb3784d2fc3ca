"""What each command on a plan does in each state of its run (page 004 §7), and deadlines of approvals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.testing import virtual
from agentflow import Runtime
from agentflow.errors import AgentflowError
from tests.integration.pipeline.support import Desk, done, model_of, normalized, plan, requests_of, step
from tests.integration.support.runs import types_of
from tests.integration.virtual import LoopClock


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


@asynccontextmanager
async def run_in(state: str, root: Any) -> AsyncIterator[tuple[Runtime, str]]:
    """A request that stands in a phase."""
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def held(answer: Any) -> Any:
        begun.set()
        await gate.wait()
        return answer

    model = model_of(
        (lambda request: held(plan(step("a")))) if state == "planning" else None,
        lambda step_id, request: held(done(step_id)) if state == "executing" else done(step_id),
        normal=normalized(status="blocked", blockers=["?"]) if state == "awaiting_clarification" else None,
    )
    if state == "awaiting_approval":
        model.add([plan(step("a", toolsets=["messaging"]))], when="You plan.")
    elif state != "planning":
        model.add([plan(step("a"))], when="You plan.")
    review = state in ("awaiting_review", "rejected", "paused")
    async with Runtime(models=[model], services=Desk().services()) as runtime:
        run = (await requests_of(runtime, root).submit("workflow: x", review=review)).run
        assert run is not None
        if state in ("planning", "executing"):
            await begun.wait()
        else:
            await run.rest()
        if state == "rejected":
            await runtime.reject(run.workflow_id)
            await run.rest()
        elif state == "paused":
            await runtime.pause(run.workflow_id)
        elif state == "completed":
            await run.result()
        record = await runtime.record(run.workflow_id)
        assert record.request.phase == state  # type: ignore[union-attr]
        yield runtime, run.workflow_id
        gate.set()
        if state in ("planning", "executing"):
            await run.result()


OK = "ok"
TABLE = {
    "planning": ("invalid_transition", "invalid_transition", "no_plan"),
    "awaiting_clarification": ("invalid_transition", "invalid_transition", "no_plan"),
    "awaiting_review": (OK, OK, OK),
    "paused": (OK, OK, OK),
    "executing": (OK, "invalid_transition", "invalid_transition"),
    "awaiting_approval": (OK, "invalid_transition", "plan_invalid"),
    "completed": ("run_terminal", "run_terminal", "run_terminal"),
    "rejected": ("run_terminal", OK, "run_terminal"),
}
"""By phase: execute, reject, and another plan."""


@pytest.mark.parametrize("state", list(TABLE))
@pytest.mark.parametrize("command", ["execute", "reject", "edit"])
async def test_a_command_fits_a_phase_or_changes_nothing(state: str, command: str, tmp_path: Any):
    wanted = TABLE[state][["execute", "reject", "edit"].index(command)]
    async with run_in(state, tmp_path) as (runtime, run_id):
        before = await types_of(runtime, run_id)
        given = {
            "execute": lambda: runtime.execute(run_id),
            "reject": lambda: runtime.reject(run_id),
            "edit": lambda: runtime.edit_plan(run_id, plan(step("z"))),
        }[command]
        if wanted == OK:
            await given()
            return
        with pytest.raises(AgentflowError) as refused:
            await given()
        assert refused.value.code == wanted
        assert await types_of(runtime, run_id) == before


@virtual
async def test_an_approval_that_nobody_gives_is_denied_after_seven_days(tmp_path: Any):
    desk = Desk()
    model = model_of(plan(step("send", toolsets=["messaging"]), step("other")))
    async with Runtime(models=[model], services=desk.services(), clock=LoopClock()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        begun = asyncio.get_running_loop().time()
        async for event in runtime.events(run.workflow_id):
            if event.type == "approval.denied":
                assert (event.data.via, event.data.by) == ("deadline", "system")
        assert asyncio.get_running_loop().time() - begun == pytest.approx(7 * 86_400, abs=5)
        result = await run.result()
        await runtime.decide(run.workflow_id, step_id="send", granted=False)
        with pytest.raises(AgentflowError) as refused:
            await runtime.decide(run.workflow_id, step_id="send", granted=True)
        assert refused.value.code == "decision_conflict"
    assert desk.calls == []
    assert [s["status"] for s in result.output["final_output"]["steps"]] == ["skipped", "done"]
