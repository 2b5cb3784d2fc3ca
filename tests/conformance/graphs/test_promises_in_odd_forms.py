"""Promises of page 002 in odd forms: rare types, answers far below, runs cancelled anywhere."""

from __future__ import annotations

import asyncio
import enum
from typing import Any, Literal, NewType, TypedDict, cast

import pytest

from agentflow import (
    Executor,
    RetryPolicy,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from tests.conformance.graphs.rows import Policy, built, emits, node
from tests.integration.support.runs import must_be_sound

POLICIES = pytest.mark.parametrize("policy", ["superstep", "eager"])


class Shade(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    A = "a"


UserId = NewType("UserId", int)


class Point(TypedDict):
    x: int


class Tree(TypedDict):
    parts: list[Tree]


ROUTES: dict[str, tuple[tuple[Any, ...], list[tuple[Any, int]]]] = {
    "an IntEnum is neither int nor bool": (
        (int, bool, Shade, float),
        [(True, 1), (1, 0), (1.0, 3), (Shade.RED, 2)],
    ),
    "a StrEnum is nearer than str": ((str, Word), [(Word.A, 1), ("a", 0)]),
    "a Literal is nearer than its class": ((str, Literal["a"]), [("a", 1), ("b", 0)]),
    "True is not the Literal 1": ((Literal[1], bool, int), [(True, 1), (1, 0), (2, 2)]),
    "None of an Optional": ((int | None, str), [(None, 0), (3, 0), ("s", 1)]),
    "a NewType is what it stands for": ((UserId, str), [(3, 0)]),
    "a TypedDict is nearer than dict": ((dict, Point), [({"x": 1}, 1), ({"x": "1"}, 0), ({}, 0)]),
    "a TypedDict that names itself": ((Tree, dict), [({"parts": [{"parts": []}]}, 0), ({"parts": [1]}, 1)]),
    "a list of anything": ((list[Any], list[str], str), [([1, "a"], 0), (["a"], 1)]),
    "nested lists": ((list[list[int]], list[list[str]]), [([[1]], 0), ([["a"]], 1)]),
    "values of a dict": (
        (dict[str, int], dict[str, str], dict),
        [({"a": 1}, 0), ({"a": "b"}, 1), ({"a": None}, 2)],
    ),
}


@pytest.mark.parametrize("name", list(ROUTES))
async def test_a_value_reaches_the_handler_of_its_type(name: str):
    kinds, cases = ROUTES[name]

    async def work(value: Any, ctx: Any) -> None:
        await ctx.yield_output(ctx._handler.name)

    flow = built("superstep", emits("s", *(value for value, _ in cases)))
    flow.add_edge("s", node("z", work, takes=kinds, gives=(str,)))
    async with Runtime() as runtime:
        result = await runtime.run(flow.build(), 0)
    assert list(result.outputs) == [f"on{wanted}" for _, wanted in cases]


class Sizes(Executor):
    @handler
    async def on_items(self, items: list[Any], ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(len(items))

    @handler
    async def on_point(self, point: Point, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(point["x"])


@pytest.mark.parametrize(("value", "wanted"), [([1, "a"], 2), ([], 0), ({"x": 7}, 7)])
async def test_lists_of_anything_and_typed_dicts_are_annotations(value: Any, wanted: int):
    async with Runtime() as runtime:
        result = await runtime.run(WorkflowBuilder("w").set_start_executor(Sizes("sizes")).build(), value)
    assert result.outputs == (wanted,)


@pytest.mark.parametrize(
    "make", [SystemExit, GeneratorExit, StopIteration, asyncio.CancelledError, BaseException]
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_raises_fails_its_step_alone(make: Any, is_async: bool):
    async def raises_later(value: int) -> int:
        raise make("out")

    def raises(value: int) -> int:
        raise make("out")

    async def gives(value: int, ctx: Any) -> None:
        await ctx.yield_output(value)

    broken = executor(id="a")(raises_later if is_async else raises)
    flow = built("eager", broken, node("b", gives, gives=(int,)), on_failure="continue")
    async with Runtime() as runtime:
        result = await runtime.run(flow.build(), 3, raise_on_failure=False)
    assert (result.state, list(result.outputs)) == ("failed", [3])
    assert cast("Any", result.error).code == "executor_failed"


# -- requests far below ----------------------------------------------------------------------------


class Desk(Executor):
    @handler
    async def on_claim(self, claim: int, ctx: WorkflowContext) -> None:
        await ctx.request_info(claim, int)
        await ctx.request_info(claim, int)

    @response_handler
    async def on_answer(self, claim: int, answer: int, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(claim * 100 + answer)


def nested(levels: int, policy: Policy) -> Workflow:
    """Two requests of one handler, this many runs below."""
    flow = built(policy, Desk("desk"), name="w0").build()
    for level in range(levels):
        child = WorkflowExecutor(flow, "child", output="output")
        flow = built(policy, child, name=f"w{level + 1}").build()
    return flow


@POLICIES
@pytest.mark.parametrize("levels", [1, 2])
async def test_answers_given_together_are_waited_for_however_deep(policy: Policy, levels: int):
    async with Runtime() as runtime:
        run = await runtime.submit(nested(levels, policy), 1)
        first, second = (await run.result()).pending_requests
        run = await run.answer_all({second.request_id: 7, first.request_id: 8})
        result = await run.result()
        assert (result.state, sorted(result.outputs)) == ("completed", [107, 108])
        await must_be_sound(runtime, run.workflow_id)


@POLICIES
async def test_forks_of_forks_ask_for_themselves(policy: Policy):
    async with Runtime() as runtime:
        run = await runtime.submit(nested(2, policy), 1)
        first = [request.request_id for request in (await run.result()).pending_requests]
        fork = await run.fork()
        second = [request.request_id for request in (await fork.result()).pending_requests]
        await (await fork.answer_all({second[0]: 1})).result()
        again = await fork.fork()
        (third,) = [request.request_id for request in (await again.result()).pending_requests]
        assert len({*first, *second, third}) == 5
        result = await (await again.answer_all({third: 2})).result()
        assert sorted(result.outputs) == [101, 102]
        result = await (await fork.answer_all({second[1]: 3})).result()
        assert sorted(result.outputs) == [101, 103]
        result = await (await run.answer_all({first[0]: 4, first[1]: 5})).result()
        assert sorted(result.outputs) == [104, 105]


async def test_an_integer_may_be_written_with_a_point():
    async with Runtime() as runtime:
        run = await runtime.submit(nested(0, "superstep"), 1)
        first, second = (await run.result()).pending_requests
        result = await (await run.answer_all({first.request_id: 1.0, second.request_id: 2})).result()
    assert list(result.outputs) == [101, 102]
    assert {type(output) for output in result.outputs} == {int}


# -- cancelled anywhere ----------------------------------------------------------------------------


def _hanging(policy: Policy) -> Any:
    async def work(value: int, ctx: Any) -> None:
        await asyncio.Event().wait()

    return node("a", work, takes=(int,))


def _retried(policy: Policy) -> Any:
    async def work(value: int, ctx: Any) -> None:
        raise ValueError("away")

    return node("a", work, takes=(int,), retry=RetryPolicy(max_attempts=5, backoff="1h", max_elapsed="9h"))


def _over_budget(policy: Policy) -> Any:
    async def work(value: int, ctx: Any) -> None:
        await ctx.run_once("k", str, 1)

    return node("a", work, takes=(int,))


def _asking(policy: Policy) -> Any:
    return Desk("a")


def _asking_below(policy: Policy) -> Any:
    return WorkflowExecutor(nested(1, policy), "a")


STATES: dict[str, tuple[Any, str]] = {
    "at work": (_hanging, "workflow.step_started"),
    "between attempts": (_retried, "workflow.step_retrying"),
    "waiting for a person": (_asking, "workflow.waiting"),
    "waiting below": (_asking_below, "workflow.waiting"),
    "waiting for a budget": (_over_budget, "workflow.waiting"),
}


@POLICIES
@pytest.mark.parametrize("is_paused", [False, True], ids=["", "paused"])
@pytest.mark.parametrize("name", list(STATES))
async def test_a_run_is_cancelled_in_any_state_and_leaves_a_closed_history(
    name: str, is_paused: bool, policy: Policy
):
    make, reached = STATES[name]
    budget = {"max_tool_calls": 0, "on_exceeded": "ask"} if "budget" in name else None
    async with Runtime(MemoryLog()) as runtime:
        run = await runtime.submit(built(policy, make(policy)).build(), 1, budget=budget)
        async for event in run.events():
            if event.type == reached:
                break
        if is_paused:
            await run.pause(in_flight="suspend")
        run = await run.cancel("enough")
        assert (await run.result(raise_on_failure=False)).state == "cancelled"
        await must_be_sound(runtime, run.workflow_id)
