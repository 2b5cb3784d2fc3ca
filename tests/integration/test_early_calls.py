"""Calls of functions without effects begin before their batch is durable; nothing else does (page 000 §6)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from agentflow import Never, Runtime, Service, WorkflowBuilder, WorkflowContext, executor, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.events.envelope import decode
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog

NAMES = ("plain1", "plain2", "pay", "plain3")


class HeldLog(MemoryLog):
    """A log whose appends behind the first become durable when they are let through, as on a slow disk."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = True
        self.held: list[tuple[Append, asyncio.Future[None]]] = []
        self.arrived = asyncio.Event()

    def append(self, batch: Append) -> asyncio.Future[None]:
        if not (batch.expected and self.holds):
            return super().append(batch)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append((batch, done))
        self.arrived.set()
        return done

    def let_through(self) -> None:
        """Make the oldest batch durable."""
        batch, done = self.held.pop(0)
        super().append(batch)
        done.set_result(None)

    async def next(self) -> Append:
        """Wait for a batch; return the oldest one."""
        while not self.held:
            self.arrived.clear()
            await self.arrived.wait()
        return self.held[0][0]


class Desk:
    """Functions that are counted; an event is set when the one of that name is called."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.called = {name: asyncio.Event() for name in NAMES}

    def service(self) -> Service:
        def make(name: str, effect: Any) -> Any:
            async def work() -> dict[str, int]:
                self.calls[name] += 1
                self.called[name].set()
                return {}

            work.__name__ = name
            return function(side_effect=effect)(work)

        return Service.of("desk", *(make(n, "external" if n == "pay" else "none") for n in NAMES))


def line() -> Workflow:
    following = (*NAMES[1:], "__end")
    nodes = [
        ToolNode(id=n, index=i, tool=f"desk.{n}", next=m)
        for i, (n, m) in enumerate(zip(NAMES, following, strict=True))
    ]
    return Workflow(
        name="line", nodes=(StartNode(id="__start", next=NAMES[0]), *nodes, EndNode(id="__end", index=9))
    )


async def test_only_a_function_without_effects_goes_ahead_of_the_log():
    log, desk = HeldLog(), Desk()
    async with Runtime(log, services=[desk.service()]) as runtime:
        handle = await runtime.submit(line(), {})
        await desk.called["plain2"].wait()
        while (await log.next()).events[-1].type != "tool.call_started":
            log.let_through()
        while not any(decode(b.events[-1].body).data.tool_name == "desk__pay" for b, _ in log.held):
            log.arrived.clear()
            await log.arrived.wait()
        assert not desk.called["pay"].is_set(), "a function with an effect ran before its start was durable"
        result = asyncio.ensure_future(handle.result())
        while not result.done():
            if log.held:
                name = getattr(decode(log.held[0][0].events[-1].body).data, "tool_name", None)
                if name == "desk__pay":
                    assert not desk.called["pay"].is_set()
                assert not result.done(), "the run has ended before its last event is durable"
                log.let_through()
            else:
                log.arrived.clear()
                await asyncio.wait(
                    {result, asyncio.ensure_future(log.arrived.wait())}, return_when=asyncio.FIRST_COMPLETED
                )
        assert result.result().output == {}
    assert set(desk.calls.values()) == {1}


@pytest.mark.parametrize("kept", range(5))
async def test_a_crash_repeats_only_functions_without_effects(kept: int):
    """The process is killed with all but `kept` of its batches in memory only."""
    log, desk = HeldLog(), Desk()
    async with Runtime(log, services=[desk.service()]) as runtime:
        handle = await runtime.submit(line(), {})
        for _ in range(kept):
            await log.next()
            log.let_through()
            await asyncio.sleep(0)
        row = await log.run(handle.workflow_id)
        events = list(await log.read(handle.workflow_id, 0, 100))
        before = desk.calls["pay"]
        log.holds = False  # that process may end; what it still writes is of no use to anyone
        while log.held:
            log.let_through()
        await handle.result()
    desk.calls["pay"] = before
    survivor = MemoryLog()
    for hash, source in log._definitions.items():  # pyright: ignore[reportPrivateUsage]
        await survivor.put_definition(hash, source)
    meta = log._runs[handle.workflow_id].meta  # pyright: ignore[reportPrivateUsage]
    await survivor.append(Append(handle.workflow_id, 1, 0, events, row.state, meta))
    assert row.owner is not None
    await survivor.release(handle.workflow_id, row.owner)
    async with Runtime(survivor, services=[desk.service()]) as runtime:
        await runtime.recover()
        result = await runtime.rest(handle.workflow_id)
    of_pay = [event.type for event in events if b'"tool_name":"desk__pay"' in event.body]
    if of_pay == ["tool.call_started"]:
        assert (result.state, desk.calls["pay"]) == ("waiting", before), "a person is asked first"
    else:
        assert (result.state, desk.calls["pay"]) == ("completed", 1)


def chain_of_executors(began: dict[str, asyncio.Event], policy: Any) -> Any:
    """Three executors in a line, the first two without effects; the second gives out what it gets."""

    @executor(id="first", side_effect="none")
    async def first(value: int, ctx: WorkflowContext[int]) -> None:
        began["first"].set()
        await ctx.send_message(value + 1)

    @executor(id="second", side_effect="none")
    async def second(value: int, ctx: WorkflowContext[int, int]) -> None:
        began["second"].set()
        await ctx.yield_output(value)
        began["output"].set()
        await ctx.send_message(value + 1)

    @executor(id="third")
    async def third(value: int, ctx: WorkflowContext[Never, int]) -> None:
        began["third"].set()
        await ctx.yield_output(value)

    builder = WorkflowBuilder("line", policy=policy).set_start_executor(first)
    return builder.add_chain([first, second, third]).build()


@pytest.mark.parametrize("policy", ["eager", "superstep"])
async def test_only_an_executor_without_effects_goes_ahead_of_the_log(policy: str):
    log = HeldLog()
    began = {name: asyncio.Event() for name in ("first", "second", "output", "third")}
    waits_for = {"output": "output", "third": "workflow.step_started"}
    async with Runtime(log) as runtime:
        handle = await runtime.submit(chain_of_executors(began, policy), 1)
        await began["second"].wait()
        assert log.held, "the second executor began before the completion of the first was durable"
        result = asyncio.ensure_future(handle.result())
        while not result.done():
            batch = (await log.next()).events
            for name, wanted in waits_for.items():
                steps = [e for e in batch if e.type == wanted]
                step = "second" if name == "output" else "third"
                if any(decode(e.body).data.step_id == step for e in steps):
                    assert not began[name].is_set(), f"{name}: before {wanted} is durable"
            log.let_through()
            if batch[-1].type == "workflow.completed":
                await result
        assert result.result().get_outputs() == [2, 3]
