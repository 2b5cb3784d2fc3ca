"""Predicates and selections run aside: one that hangs fails its sender, and holds nothing else up."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentflow import Runtime, WorkflowBuilder, WorkflowContext, executor
from agentflow.errors import RoutingFailed
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.runtime import executor_actor


@executor(id="begin")
async def begin(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text)


@executor(id="end")
async def end(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(text)


@executor(id="other")
async def other(text: str, ctx: WorkflowContext[Never, str]) -> None: ...


@pytest.mark.parametrize("kind", ["predicate", "selection"])
async def test_code_on_an_edge_that_hangs_fails_its_sender_and_names_the_edge(kind: str, monkeypatch: Any):
    monkeypatch.setattr(executor_actor, "JUDGEMENT_LIMIT_S", 0.05)
    release = threading.Event()

    def hangs(text: str, *_: Any) -> Any:
        release.wait()
        return True

    builder = WorkflowBuilder("w").set_start_executor(begin)
    if kind == "predicate":
        built = builder.add_edge(begin, end, lambda text: hangs(text), name="slow").build()
    else:
        built = builder.add_multi_selection_edge_group(begin, [end, other], hangs).build()
    try:
        async with Runtime(MemoryLog()) as runtime:
            with pytest.raises(RoutingFailed, match=r"begin.*did not return within 0\.05 s") as caught:
                await runtime.run(built, "a")
        assert ("slow" if kind == "predicate" else "hangs") in str(caught.value)
    finally:
        release.set()


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
