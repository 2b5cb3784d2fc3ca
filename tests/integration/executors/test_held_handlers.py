"""Handlers whose step is held after a failure, and tried again by a person (page 002 §8)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime, Workflow, WorkflowBuilder, WorkflowContext, executor
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.testing import ScriptedModel
from tests.integration.executors.crashes import cut_log
from tests.integration.support.runs import must_be_sound


def failing_once(policy: Any, calls: list[str]) -> Workflow:
    def look(number: int) -> int:
        calls.append("look")
        return number + 1

    @executor(id="work")
    async def work(number: int, ctx: WorkflowContext[Never, str]) -> None:
        found = await ctx.run_once("look", look, number, side_effect="write")
        answer = await ctx.call_model("say", model="scripted:m")
        await ctx.add_event("tried", {"found": found})
        await ctx.yield_output(f"attempt {ctx.attempt}: {found} {answer.text}")
        if ctx.attempt == 1:
            raise ValueError("not yet")

    return WorkflowBuilder("w", policy=policy, on_failure="hold").set_start_executor(work).build()


@pytest.mark.parametrize("policy", ["superstep", "eager"])
async def test_a_held_handler_that_is_tried_again_repeats_no_recorded_call(policy: str):
    calls: list[str] = []

    def answer(_: Any) -> str:
        calls.append("ask")
        return "ok"

    log = MemoryLog()
    async with Runtime(log, models=[ScriptedModel(answer)]) as runtime:
        handle = await runtime.submit(failing_once(policy, calls), 1)
        held = await handle.result(raise_on_failure=False)
        assert (held.state, held.pause, held.get_outputs()) == ("paused", "failure", ["attempt 1: 2 ok"])
        await runtime.retry(handle.workflow_id, "work")
        result = await handle.result()
        await must_be_sound(runtime, handle.workflow_id)
        rows = await log.read(handle.workflow_id, 0, 1000)
    assert calls == ["look", "ask"]
    assert result.get_outputs() == ["attempt 2: 2 ok"]
    tried = [event for row in rows if (event := decode(row.body)).type == "custom.tried"]
    assert [(event.step, event.attempt) for event in tried] == [("work", 1), ("work", 2)]
    retried = next(row.offset for row in rows if row.type == "workflow.step_retrying")
    for upto in range(retried + 1, len(rows)):
        again = failing_once(policy, calls)
        cut = await cut_log(handle.workflow_id, again, rows[:upto])
        async with Runtime(cut, models=[ScriptedModel(answer)]) as runtime:
            runtime.register(again)
            await runtime.recover()
            taken = await runtime.attach(handle.workflow_id)
            if (await taken.rest()).state == "paused":
                await taken.resume()
            assert (await taken.result()).get_outputs() == ["attempt 2: 2 ok"], rows[upto - 1].type
    assert calls == ["look", "ask"]


@pytest.mark.parametrize("policy", ["superstep", "eager"])
async def test_a_fork_in_the_middle_of_a_handler_has_its_recorded_calls(policy: str):
    calls: list[str] = []

    def answer(_: Any) -> str:
        calls.append("ask")
        return "ok"

    log = MemoryLog()
    async with Runtime(log, models=[ScriptedModel(answer)]) as runtime:
        workflow = failing_once(policy, calls)
        handle = await runtime.submit(workflow, 1)
        await handle.result(raise_on_failure=False)
        rows = await log.read(handle.workflow_id, 0, 1000)
        for type, wanted in (("tool.call_completed", ["ask"]), ("model.call_completed", [])):
            calls.clear()
            at = next(row.offset for row in rows if row.type == type)
            fork = await runtime.fork(handle.workflow_id, offset=at)
            await fork.result(raise_on_failure=False)
            assert calls == wanted, type
