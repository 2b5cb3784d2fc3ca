"""Nested runs that draw on one budget, and barriers beside nested runs that wait (page 002 §8, §11)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import (
    Executor,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import must_be_sound

POLICIES = pytest.mark.parametrize("policy", ["superstep", "eager"])


class Split(Executor):
    @handler
    async def on_count(self, count: int, ctx: WorkflowContext[str]) -> None:
        for number in range(count):
            await ctx.send_message(str(number))


@executor(id="ask")
async def ask(text: str, ctx: WorkflowContext[Never, str]) -> None:
    answer = await ctx.call_model(text, model="scripted:m", max_tokens=16)
    await ctx.yield_output(answer.text)


def nested(policy: Any) -> Workflow:
    inner = WorkflowBuilder("inner").set_start_executor(ask).build()
    return (
        WorkflowBuilder("outer", policy=policy)
        .set_start_executor(Split("split"))
        .add_edge("split", WorkflowExecutor(inner, "inner", "output"))
        .build()
    )


@POLICIES
@pytest.mark.parametrize(("calls", "state"), [(3, "completed"), (2, "failed")])
async def test_nested_runs_together_use_no_more_than_the_budget(policy: str, calls: int, state: str):
    asked: list[str] = []

    def answer(request: Any) -> str:
        asked.append(request.messages[-1].content)
        return "ok"

    async with Runtime(MemoryLog(), models=[ScriptedModel(answer)]) as runtime:
        budget = {"max_model_calls": calls, "on_exceeded": "fail"}
        result = await runtime.run(nested(policy), 3, budget=budget, raise_on_failure=False)
        await must_be_sound(runtime, result.workflow_id)
    assert result.state == state
    assert len(asked) == calls
    assert result.usage.model_calls == calls


@POLICIES
async def test_without_a_budget_nested_runs_are_at_work_at_once(policy: str):
    async with Runtime(MemoryLog(), models=[ScriptedModel(lambda _: "ok")]) as runtime:
        result = await runtime.run(nested(policy), 3)
        rows = await runtime.log.read(result.workflow_id, 0, 1000)
    types = [
        (e.type, e.data.step_id) for r in rows if (e := decode(r.body)).type.startswith("workflow.step_")
    ]
    begun = [i for i, one in enumerate(types) if one == ("workflow.step_started", "inner")]
    ended = [i for i, one in enumerate(types) if one == ("workflow.step_completed", "inner")]
    assert max(begun) < min(ended)


class Asks(Executor):
    @handler
    async def on_text(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, bool)

    @response_handler
    async def on_word(self, text: str, word: bool, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{text} {word}")


async def test_a_waiting_nested_run_does_not_hold_the_barrier_and_its_outputs_come_in_a_later_superstep():
    @executor(id="beside")
    async def beside(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"{text}!")

    @executor(id="show")
    async def show(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{ctx.superstep}: {text}")

    inner = WorkflowBuilder("inner").set_start_executor(Asks("asks")).build()
    built = (
        WorkflowBuilder("outer")
        .set_start_executor(WorkflowExecutor(inner, "inner"), beside)
        .add_edge("inner", show)
        .add_edge(beside, show)
        .build()
    )
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(built, "a")
        result = await handle.result()
        assert (result.state, result.get_outputs()) == ("waiting", ["2: a!"])
        await handle.answer_all({r.request_id: True for r in result.pending_requests})
        result = await handle.result()
        await must_be_sound(runtime, handle.workflow_id)
    assert result.get_outputs() == ["2: a!", "3: a True"]
