"""Predicates and selections in Python on edges of agents: evaluated by the Runtime, recorded as routes."""

from __future__ import annotations

from typing import Any, Never

import pytest

from agentflow import (
    AgentResponse,
    Case,
    Default,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowFailed,
    executor,
)
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from tests.integration.executors.crashes import cut_log
from tests.integration.graphs.teams import agents, model, opened
from tests.integration.support.runs import must_be_sound


@executor(id="yes")
async def yes(said: AgentResponse, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(f"yes {said.text}")


@executor(id="no")
async def no(said: AgentResponse, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(f"no {said.text}")


def is_good(said: AgentResponse) -> bool:
    assert isinstance(said, AgentResponse)
    return said.text == "good"


def is_bad(said: AgentResponse, shared: Any) -> bool:
    return said.text != "good" and shared["seen"] == 0


def by_text(said: AgentResponse, targets: list[str]) -> list[str]:
    assert targets == ["yes", "no"]
    return {"good": ["yes"], "bad": ["no"], "both": ["yes", "no"]}.get(said.text, [])


def raises(said: AgentResponse) -> bool:
    raise ValueError("no opinion")


def graph(kind: str, runtime: Runtime) -> Workflow:
    (agent,) = agents("A")
    builder = WorkflowBuilder("judged").add_shared("seen", int, default=0).set_start_executor(agent)
    builder = builder.with_checkpointing(runtime)
    if kind == "single":
        builder.add_edge(agent, yes, is_good).add_edge(agent, no, is_bad)
    elif kind == "switch":
        builder.add_switch_case_edge_group(agent, [Case(is_good, yes), Default(no)])
    else:
        builder.add_multi_selection_edge_group(agent, [yes, no], by_text)
    return builder.build()


@pytest.mark.parametrize("kind", ["single", "switch", "multi"])
@pytest.mark.parametrize(("text", "wanted"), [("good", "yes good"), ("bad", "no bad")])
async def test_code_chooses_the_way_of_an_answer(kind: str, text: str, wanted: str):
    async with opened(model(A=[text])) as runtime:
        result = await graph(kind, runtime).run("Go.")
        assert result.get_outputs() == [wanted]
        await must_be_sound(runtime, result.workflow_id)


@pytest.mark.parametrize(("text", "wanted"), [("both", ["no both", "yes both"]), ("none", [])])
async def test_a_selection_takes_several_or_none(text: str, wanted: list[str]):
    async with opened(model(A=[text])) as runtime:
        result = await graph("multi", runtime).run("Go.")
    assert sorted(result.get_outputs()) == wanted
    assert len(result.undelivered) == (0 if wanted else 1)


async def test_code_that_raises_fails_the_step_and_is_not_tried_again():
    script = model(A=["good"])
    async with opened(script) as runtime:
        (agent,) = agents("A")
        builder = WorkflowBuilder("w").set_start_executor(agent).add_edge(agent, yes, raises)
        with pytest.raises(WorkflowFailed) as failed:
            await builder.with_checkpointing(runtime).build().run("Go.")
    (step,) = [e.data.error for e in failed.value.result.events if e.type == "workflow.step_failed"]
    assert step.code == "routing_failed"
    assert "ValueError: no opinion" in step.message
    assert len(script.requests) == 1


@pytest.mark.parametrize("kind", ["single", "switch", "multi"])
async def test_a_run_goes_on_from_every_event_with_equal_routes(kind: str):
    log, script = MemoryLog(), ScriptedModel(lambda request: "good")
    async with Runtime(log, models=[script]) as runtime:
        workflow = graph(kind, runtime)
        whole = await workflow.run("Go.")
        rows = await log.read(whole.workflow_id, 0, 1_000)
    for upto in range(1, len(rows)):
        cut, again = await cut_log(whole.workflow_id, workflow, rows[:upto]), ScriptedModel(lambda r: "good")
        async with Runtime(cut, models=[again]) as runtime:
            fresh = graph(kind, runtime)
            runtime.register(fresh)
            result = await fresh.resume(whole.workflow_id)
            assert result.get_outputs() == whole.get_outputs() == ["yes good"]
            paid = sum(row.type == "model.call_completed" for row in rows[:upto])
            assert paid + len(again.requests) == 1
            assert routes(result) == routes(whole)


def routes(result: Any) -> list[Any]:
    """Return what each edge did with each message of a run."""
    ends = [e.data for e in result.events if e.type == "workflow.step_completed"]
    return [message.deliveries for end in ends for message in end.messages or ()]
