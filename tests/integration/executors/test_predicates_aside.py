"""Predicates and selections run aside: one that hangs fails its sender, and holds nothing else up."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentflow import (
    AgentResponse,
    RetryPolicy,
    Runtime,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowFailed,
    executor,
    reducers,
)
from agentflow.errors import RoutingFailed
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.runtime import edge_code
from tests.integration.graphs.teams import agents, model, opened


@pytest.fixture
def stuck(monkeypatch: Any):
    """Code that hangs until the test is over; the limit of code on edges is 50 ms."""
    monkeypatch.setattr(edge_code, "EDGE_CODE_LIMIT_S", 0.05)
    release = threading.Event()

    def hangs(*_: Any) -> Any:
        release.wait()
        return True

    yield hangs
    release.set()


@executor(id="begin")
async def begin(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text)


@executor(id="end")
async def end(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(text)


@executor(id="other")
async def other(text: str, ctx: WorkflowContext[Never, str]) -> None: ...


@pytest.mark.parametrize("kind", ["predicate", "selection"])
async def test_code_on_an_edge_that_hangs_fails_its_sender_and_names_the_edge(kind: str, stuck: Any):
    builder = WorkflowBuilder("w").set_start_executor(begin)
    if kind == "predicate":
        built = builder.add_edge(begin, end, lambda text: stuck(text), name="slow").build()
    else:
        built = builder.add_multi_selection_edge_group(begin, [end, other], stuck).build()
    async with Runtime(MemoryLog()) as runtime:
        with pytest.raises(RoutingFailed, match=r"begin.*did not return within 0\.05 s") as caught:
            await runtime.run(built, "a")
    assert ("slow" if kind == "predicate" else "hangs") in str(caught.value)


@executor(id="said")
async def said(answer: AgentResponse, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(answer.text)


async def test_a_predicate_on_an_edge_of_an_agent_that_hangs_fails_the_step(stuck: Any):
    async with opened(model(A=["good"])) as runtime:
        (agent,) = agents("A")
        builder = WorkflowBuilder("w").set_start_executor(agent)
        builder.add_edge(agent, said, lambda answer: stuck(answer), name="slow")
        with pytest.raises(WorkflowFailed) as caught:
            await builder.with_checkpointing(runtime).build().run("Go.")
    (step,) = [e.data.error for e in caught.value.result.events if e.type == "workflow.step_failed"]
    assert step.code == "routing_failed"
    assert step.details["edge"] == "slow"
    assert "did not return within 0.05 s" in step.message


async def test_a_predicate_for_outputs_of_a_nested_workflow_that_hangs_fails_the_step(stuck: Any):
    inner = WorkflowBuilder("inner").set_start_executor(end).build()
    nested = WorkflowExecutor(inner, "nested")
    builder = WorkflowBuilder("outer").set_start_executor(nested)
    built = builder.add_edge(nested, other, lambda text: stuck(text), name="slow").build()
    async with Runtime(MemoryLog()) as runtime:
        with pytest.raises(RoutingFailed, match=r"nested.*did not return within 0\.05 s") as caught:
            await runtime.run(built, "a")
    assert "slow" in str(caught.value)


@pytest.mark.parametrize("kind", ["agent", "nested"])
async def test_a_predicate_of_no_executor_does_not_run_on_the_thread_of_the_event_loop(kind: str):
    threads: list[int] = []

    def look(value: Any) -> bool:
        threads.append(threading.get_ident())
        return True

    async with opened(model(A=["good"])) as runtime:
        source: Any = agents("A")[0]
        target = said
        if kind == "nested":
            source = WorkflowExecutor(WorkflowBuilder("inner").set_start_executor(end).build(), "nested")
            target = other
        builder = WorkflowBuilder("w").set_start_executor(source).add_edge(source, target, look)
        await builder.with_checkpointing(runtime).build().run("Go.")
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_other_branches_of_a_run_go_on_while_a_predicate_of_an_agent_takes_its_time():
    entered, release = threading.Event(), threading.Event()
    order: list[str] = []

    def waits(answer: AgentResponse) -> bool:
        entered.set()
        assert release.wait(5)
        order.append("judged")
        return True

    @executor(id="meanwhile")
    def meanwhile(text: str) -> str:
        assert entered.wait(5)
        return text

    @executor(id="last")
    async def last(text: str, ctx: WorkflowContext[Never, str]) -> None:
        order.append("last")
        release.set()
        await ctx.yield_output(text)

    async with opened(model(A=["good"])) as runtime:
        (agent,) = agents("A")
        builder = WorkflowBuilder("w", policy="eager").set_start_executor(begin)
        builder.add_fan_out_edges(begin, [agent, meanwhile]).add_edge(agent, said, waits)
        built = builder.add_edge(meanwhile, last).with_checkpointing(runtime).build()
        result = await built.run("Go.")
    assert order == ["last", "judged"]
    assert result.get_outputs() == ["Go.", "good"]


async def test_a_run_is_cancelled_while_a_predicate_of_an_agent_hangs(stuck: Any, monkeypatch: Any):
    monkeypatch.setattr(edge_code, "EDGE_CODE_LIMIT_S", 60)
    entered = threading.Event()

    def hangs(answer: AgentResponse) -> bool:
        entered.set()
        return stuck(answer)

    async with opened(model(A=["good"])) as runtime:
        (agent,) = agents("A")
        builder = WorkflowBuilder("w").set_start_executor(agent).add_edge(agent, said, hangs)
        run = await builder.with_checkpointing(runtime).build().start("Go.")
        assert await asyncio.to_thread(entered.wait, 5)
        await run.cancel()
        assert (await run.result(raise_on_failure=False)).state == "cancelled"


async def test_predicates_that_end_the_process_fail_their_sender():
    def leaves(text: str) -> bool:
        raise SystemExit(3)

    built = WorkflowBuilder("w").set_start_executor(begin).add_edge(begin, end, leaves).build()
    async with Runtime(MemoryLog()) as runtime:
        with pytest.raises(RoutingFailed, match="raised SystemExit: 3"):
            await runtime.run(built, "a")


@pytest.mark.parametrize("policy", ["superstep", "eager"])
async def test_results_that_read_a_shared_state_of_before_are_found_anew(policy: str):
    """The predicate runs while another branch commits what it reads."""
    entered, committed = threading.Event(), threading.Event()
    seen: list[int] = []

    def looks(text: str, shared: Any) -> bool:
        seen.append(shared["n"])
        entered.set()
        assert policy == "superstep" or committed.wait(5)
        return shared["n"] == 1

    @executor(id="slow")
    async def slow(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

    @executor(id="writer")
    async def writer(text: str, ctx: WorkflowContext[str]) -> None:
        assert policy == "superstep" or await asyncio.to_thread(entered.wait, 5)
        ctx.set_shared_state("n", 1)
        await ctx.send_message(text)

    @executor(id="behind")
    async def behind(text: str, ctx: WorkflowContext) -> None:
        committed.set()

    builder = WorkflowBuilder("w", policy=policy).add_shared("n", int, default=0)  # type: ignore[arg-type]
    builder.set_start_executor(begin).add_fan_out_edges(begin, [slow, writer])
    built = builder.add_edge(slow, end, looks).add_edge(writer, behind).build()
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(built, "a")
    assert seen == ([0] if policy == "superstep" else [0, 1])
    assert result.get_outputs() == ([] if policy == "superstep" else ["a"])


@pytest.mark.parametrize("case", ["hangs", "raises"])
async def test_a_reducer_that_hangs_or_raises_fails_the_step_that_wrote(case: str, stuck: Any):
    def folds(value: Any, update: Any) -> Any:
        if case == "raises":
            raise ValueError("no number")
        return stuck()

    @executor(id="writes", retry=RetryPolicy(max_attempts=3))
    async def writes(text: str, ctx: WorkflowContext) -> None:
        ctx.set_shared_state("n", 1)

    reducers.register(f"aside_{case}", folds)
    built = WorkflowBuilder("w").add_shared("n", int, reducer=folds).set_start_executor(writes).build()
    async with Runtime(MemoryLog()) as runtime:
        with pytest.raises(WorkflowFailed, match='shared key "n"') as caught:
            await runtime.run(built, "a")
    assert caught.value.result.error.code == "reducer_failed"
    why = "did not return within 0.05 s" if case == "hangs" else "raised ValueError: no number"
    assert why in str(caught.value)
    types = [event.type for event in caught.value.result.events]
    assert "workflow.step_retrying" not in types
    assert "workflow.step_completed" not in types


async def test_a_handler_reads_what_its_own_updates_make():
    @executor(id="writes")
    async def writes(text: str, ctx: WorkflowContext[Never, list[int]]) -> None:
        ctx.set_shared_state("n", 1)
        ctx.set_shared_state("n", 2)
        await ctx.yield_output(ctx.get_shared_state("n"))
        ctx.set_shared_state("n", 3)
        await ctx.yield_output(ctx.get_shared_state("n"))

    builder = WorkflowBuilder("w").add_shared("n", list[int], reducer=reducers.append, default=[0])
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(builder.set_start_executor(writes).build(), "a")
    assert result.get_outputs() == [[0, 1, 2], [0, 1, 2, 3]]


async def test_another_run_goes_on_while_a_predicate_takes_its_time():
    entered, release = threading.Event(), threading.Event()

    def waits(text: str) -> bool:
        if text == "slow":
            entered.set()
            assert release.wait(5)
        return True

    built = WorkflowBuilder("w").set_start_executor(begin).add_edge(begin, end, waits).build()
    async with Runtime(MemoryLog()) as runtime:
        slow = await runtime.submit(built, "slow")
        while not entered.is_set():
            assert (await runtime.run(built, "fast")).get_outputs() == ["fast"]
        assert (await runtime.run(built, "fast")).get_outputs() == ["fast"]
        release.set()
        assert (await slow.result()).get_outputs() == ["slow"]


async def test_predicates_do_not_run_on_the_thread_of_the_event_loop():
    threads: list[int] = []

    def look(text: str, shared: Any) -> bool:
        threads.append(threading.get_ident())
        return True

    built = WorkflowBuilder("w").set_start_executor(begin).add_edge(begin, end, look).build()
    async with Runtime(MemoryLog()) as runtime:
        await runtime.run(built, "a")
    assert threads
    assert threading.get_ident() not in threads
