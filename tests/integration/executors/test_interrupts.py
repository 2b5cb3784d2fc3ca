"""An interrupt of the program that embeds a Runtime: runs are parked, and go on in the next program."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow import Never, Runtime, Workflow, WorkflowBuilder, WorkflowContext, executor


def raise_it() -> None:
    raise KeyboardInterrupt


def press_once() -> None:
    signal.raise_signal(signal.SIGINT)


def press_twice() -> None:
    """Let the second interrupt come while the first is not yet dealt with."""
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def flow(calls: list[int], interrupt: Callable[[], None] | None) -> Workflow:
    @executor(id="first")
    async def first(value: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(value + 1)

    @executor(id="second")
    async def second(value: int, ctx: WorkflowContext[Never, int]) -> None:
        calls.append(value)
        if interrupt is not None:
            interrupt()
            await asyncio.Event().wait()
        await ctx.yield_output(value)

    return WorkflowBuilder("w").set_start_executor(first).add_edge(first, second).build()


@pytest.mark.parametrize("interrupt", [raise_it, press_once, press_twice])
def test_an_interrupt_in_a_handler_parks_its_run(tmp_path: Path, interrupt: Callable[[], None]):
    """The actor of the handler was replaced while the system ended, twice, and then the run had failed."""
    store, calls = f"sqlite:{tmp_path / 'runs.db'}", list[int]()

    async def program() -> None:
        async with Runtime(store) as runtime:
            await runtime.run(flow(calls, interrupt), 1)

    async def next_program() -> Any:
        async with Runtime(store) as runtime:
            runtime.register(flow(calls, None))
            [record] = await runtime.list()
            await runtime.resume(record.workflow_id)
            events = [event.type async for event in runtime.events(record.workflow_id)]
            return record.state, await runtime.result(record.workflow_id), events

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(program())
    assert calls == [2]
    state, result, events = asyncio.run(next_program())
    assert (state, result.state, result.outputs, calls) == ("paused", "completed", (2,), [2, 2])
    assert "workflow.step_failed" not in events
