"""Handlers that end in odd ways: each fails its step with a clear error, and nothing else (page 002 §8)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from agentflow import (
    Executor,
    Runtime,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowValidationError,
    executor,
    handler,
)
from agentflow.events.memory import MemoryLog
from agentflow.executors import FunctionExecutor, Never
from tests.conformance.graphs.rows import emits, gives
from tests.integration.support.runs import must_be_sound

POLICIES = pytest.mark.parametrize("policy", ["superstep", "eager"])


def cancel_own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return task


async def by_waiting() -> None:
    cancel_own_task()
    await asyncio.Event().wait()


async def by_swallowing() -> None:
    cancel_own_task()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def by_returning() -> None:
    cancel_own_task()


async def twice() -> None:
    for _ in range(2):
        cancel_own_task()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def by_a_callback() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.Event().wait()


@POLICIES
@pytest.mark.parametrize("way", [by_waiting, by_swallowing, by_returning, twice, by_a_callback])
async def test_a_handler_that_cancels_its_own_task_fails_once_and_the_next_message_is_handled(
    way: Callable[[], Any], policy: Any, caplog: pytest.LogCaptureFixture
):
    begun: list[int] = []

    class Odd(Executor):
        @handler
        async def on_number(self, value: int, ctx: WorkflowContext[Never, int]) -> None:
            begun.append(value)
            if value % 2:
                await way()
            await ctx.yield_output(value)

    flow = WorkflowBuilder("w", policy=policy).set_start_executor(emits("s", 1, 2, 3, 4))
    flow.add_edge("s", Odd("odd", on_error="skip"))
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(flow.build(), 0)
        assert result.state == "completed"
        assert begun == [1, 2, 3, 4]
        failed = [e.data.error for e in result.events if e.type == "workflow.step_failed"]
        assert [error.code for error in failed] == ["executor_failed"] * 2
        assert all("cancellation that it asked for itself" in error.message for error in failed)
        completed = [e.step for e in result.events if e.type == "workflow.step_completed"]
        assert completed.count("odd") == 2
        await must_be_sound(runtime.log, result.workflow_id)
    assert "HandlerCancelled" not in caplog.text


class Unwritable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unpicklable(Exception):
    def __init__(self, first: int, second: Any) -> None:
        super().__init__(first)
        self.kept = second


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Unwritable, "bad raised Unwritable, whose text cannot be made: RuntimeError"),
        (lambda: Unpicklable(1, lambda: None), "bad raised Unpicklable: 1"),
        (lambda: ValueError("half \ud800 a pair"), r"half \ud800 a pair"),
        (lambda: ValueError("x" * 20_000_000), "(19,991,808 more characters)"),
        (lambda: BaseExceptionGroup("both", [Unwritable(), KeyError(1)]), "both (2 sub-exceptions)"),
        (lambda: StopAsyncIteration(3), "StopAsyncIteration: 3"),
    ],
    ids=["no text", "no pickle", "no JSON", "20 MB", "group", "stop"],
)
async def test_the_error_of_a_handler_can_always_be_told(make: Callable[[], BaseException], words: str):
    @executor(id="bad")
    async def bad(value: int) -> None:
        raise make()

    def too_odd(data: int) -> bool:
        raise make()

    async with Runtime(MemoryLog()) as runtime:
        flow = WorkflowBuilder("w").set_start_executor(bad).build()
        result = await runtime.run(flow, 1, raise_on_failure=False)
        assert result.error is not None
        assert result.error.code == "executor_failed"
        assert words in result.error.message
        routed = WorkflowBuilder("r").set_start_executor(emits("s", 1)).add_edge("s", gives("t"), too_odd)
        result = await runtime.run(routed.build(), 1, raise_on_failure=False)
        assert result.error is not None
        assert result.error.code == "routing_failed"
        assert words.removeprefix("bad ") in result.error.message


def yields_with_context() -> Any:
    @executor(id="g")
    async def generate(value: int, ctx: WorkflowContext[int]) -> Any:
        yield value

    return generate


def yields_without_context() -> Any:
    @executor(id="g")
    async def generate(value: int) -> Any:
        yield value

    return generate


def yields_in_a_thread() -> Any:
    @executor(id="g")
    def generate(value: int) -> Any:
        yield value

    return generate


@pytest.mark.parametrize("make", [yields_with_context, yields_without_context, yields_in_a_thread])
def test_a_generator_is_no_function_of_an_executor(make: Callable[[], Any]):
    with pytest.raises(TypeError, match=r"generate is a generator: send each value by ctx\.send_message"):
        make()


def test_a_generator_is_no_handler():
    class Generates(Executor):
        @handler
        async def on_number(self, value: int, ctx: WorkflowContext[int]) -> Any:
            yield value

    with pytest.raises(WorkflowValidationError, match=r"E_NO_HANDLER.*on_number is a generator"):
        WorkflowBuilder("w").set_start_executor(Generates("g")).build()


class Doubles:
    async def __call__(self, value: int) -> int:
        return 2 * value


async def add(number: int, value: int) -> int:
    return number + value


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (Doubles(), 42),
        (functools.partial(Doubles().__call__), 42),
        (functools.partial(add, 1), 22),
        (wrapped(Doubles().__call__), 42),
    ],
    ids=["object", "partial of a method", "partial", "wrapper"],
)
async def test_any_callable_is_a_function_of_an_executor(function: Any, wanted: int):
    flow = WorkflowBuilder("w").set_start_executor(FunctionExecutor(function, "f")).add_edge("f", gives("g"))
    async with Runtime(MemoryLog()) as runtime:
        assert (await runtime.run(flow.build(), 21)).get_outputs() == [wanted]


async def test_a_handler_that_returns_what_it_does_not_declare_fails_with_both_types():
    class Returns(Executor):
        @handler
        async def on_number(self, value: int, ctx: WorkflowContext[int]):
            return "a text"

    flow = WorkflowBuilder("w").set_start_executor(Returns("r")).build()
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(flow, 1, raise_on_failure=False)
        assert result.error is not None
        assert result.error.code == "message_type_undeclared"
        for part in ("on_number", '"r"', "str", "int"):
            assert part in result.error.message


@POLICIES
async def test_a_list_of_a_million_numbers_and_ten_megabytes_are_messages(policy: Any):
    @executor(id="big")
    async def big(value: int, ctx: WorkflowContext[list[int] | str | bytes]) -> None:
        await ctx.send_message(list(range(1_000_000)))
        await ctx.send_message("x" * 10_000_000)
        await ctx.send_message(b"y" * 10_000_000)

    flow = WorkflowBuilder("w", policy=policy).set_start_executor(big)
    flow.add_edge("big", gives("size", list[int] | str | bytes, lambda v: (len(v), type(v[-1]).__name__)))
    async with Runtime(MemoryLog()) as runtime:
        found = (await runtime.run(flow.build(), 1)).get_outputs()
        assert found == [(1_000_000, "int"), (10_000_000, "str"), (10_000_000, "int")]
