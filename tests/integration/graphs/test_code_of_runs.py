"""A Runtime binds a graph with Python code once; no run ever gets the code of another workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
)
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never


class Says(Executor):
    def __init__(self, word: str) -> None:
        super().__init__("says")
        self.word = word

    @handler
    async def say(self, number: int, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{self.word} {number}")


def of_closure(word: str) -> Workflow:
    @executor(id="says")
    async def says(number: int, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{word} {number}")

    return WorkflowBuilder("one").set_start_executor(says).build()


def of_instance(word: str) -> Workflow:
    return WorkflowBuilder("one").set_start_executor(Says(word)).build()


def of_predicate(word: str) -> Workflow:
    @executor(id="first")
    async def first(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)

    def last(name: str) -> Any:
        @executor(id=name)
        async def says(number: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(f"{name} {number}")

        return says

    def leads_to(name: str) -> Callable[[int], bool]:
        return lambda number: name == word

    built = WorkflowBuilder("one").set_start_executor(first)
    for name in "ab":
        built.add_edge("first", last(name), condition=leads_to(name))
    return built.build()


def of_nested(word: str) -> Workflow:
    inner = WorkflowExecutor(of_closure(word), "inner", output="output")
    return WorkflowBuilder("two").set_start_executor(inner).build()


MAKERS = pytest.mark.parametrize("make", [of_closure, of_instance, of_predicate, of_nested])


@MAKERS
async def test_workflows_with_equal_graphs_keep_their_own_code_in_one_runtime(make: Any):
    works = {word: make(word) for word in "ab"}
    assert len({w.definition.ir_hash for w in works.values()}) == 1
    wanted = [f"{word} {i}" for i in range(4) for word in "ab"]
    async with Runtime(MemoryLog()) as runtime:
        one_by_one = [(await runtime.run(works[word], i)).output for i in range(4) for word in "ab"]
        runs = [runtime.run(works[word], i) for i in range(4) for word in "ab"]
        at_once = [result.output for result in await asyncio.gather(*runs)]
    assert one_by_one == at_once == wanted


@MAKERS
async def test_one_workflow_runs_in_two_runtimes_at_once_and_after_each_other(make: Any):
    work = make("a")
    async with Runtime(MemoryLog()) as first, Runtime(MemoryLog()) as second:
        runs = [runtime.run(work, i) for i in range(3) for runtime in (first, second)]
        found = [result.output for result in await asyncio.gather(*runs)]
    assert found == [f"a {i}" for i in range(3) for _ in range(2)]
    async with Runtime(MemoryLog()) as third:
        assert (await third.run(work, 9)).output == "a 9"
