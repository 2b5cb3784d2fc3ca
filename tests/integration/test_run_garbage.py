"""A run that has ended leaves no garbage: its memory is free without the cyclic collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime, Service, WorkflowBuilder, WorkflowContext, executor, function
from agentflow.definition.ir import EndNode, MapNode, StartNode, ToolNode, Workflow
from agentflow.engine.activation import Activation
from agentflow.engine.state import RunState
from agentflow.events.memory import MemoryLog
from agentflow.runtime.run_stepper import RunStepper
from agentflow.runtime.run_supervisor import RunSupervisor
from agentflow.runtime.tool_actor import CallTool
from agentflow.testing import ScriptedModel
from tests.golden.scenes.kinds import graph_of
from tests.integration.support.runs import Desk, chain, document, step
from tests.integration.virtual import LoopClock

WATCHED = (Activation, CallTool, RunState, RunStepper, RunSupervisor)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


@contextmanager
def without_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    gc.freeze()  # what was there before is not searched
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@executor(id="first", side_effect="none")
async def first(value: int, ctx: WorkflowContext[int, int]) -> None:
    if value < 9:
        await ctx.send_message(value + 1)
    else:
        await ctx.yield_output(value)


def ring(policy: Any) -> Any:
    builder = WorkflowBuilder("ring", policy=policy).set_start_executor(first)
    return builder.add_edge(first, first).build()


async def end(runtime: Runtime, workflow: Any, given: Any, state: str = "completed") -> str:
    handle = await runtime.submit(workflow, given)
    assert (await runtime.rest(handle.workflow_id)).state == state
    return handle.workflow_id


async def iterate(runtime: Runtime, desk: Desk) -> None:
    each = {**step("a"), "for_each": "${{ inputs.xs }}"}
    await end(runtime, document(each), {"xs": [1, 2, 3]})


async def iterate_and_fail(runtime: Runtime, desk: Desk) -> None:
    each = {**step("a", schema={"type": "object", "required": ["none"]}), "for_each": "${{ inputs.xs }}"}
    await end(runtime, document(each), {"xs": [1, 2, 3]}, "failed")


async def map_a_function(runtime: Runtime, desk: Desk) -> None:
    node = MapNode(id="each", items_path="input.items", tool="desk.look", input={}, next="__end")
    await end(runtime, graph_of(node), {"items": [1, 2, 3]})


def refusing() -> Workflow:
    node = ToolNode(id="no", tool="other.refuse", input={}, next="__end", index=0)
    return Workflow(name="no", nodes=(StartNode(id="__start", next="no"), node, EndNode(id="__end", index=1)))


async def fail_a_function(runtime: Runtime, desk: Desk) -> None:
    await end(runtime, refusing(), {}, "failed")


async def fork(runtime: Runtime, desk: Desk) -> None:
    made = await runtime.fork(await end(runtime, chain("look", "pay"), {}), offset=5)
    await runtime.rest(made.workflow_id)


async def replay(runtime: Runtime, desk: Desk) -> None:
    made = await runtime.replay(await end(runtime, chain("look", "pay"), {}))
    await runtime.rest(made.workflow_id)


async def held_up(runtime: Runtime, desk: Desk) -> str:
    desk.gates["pay"].clear()
    handle = await runtime.submit(chain("look", "pay", "look"), {})
    await desk.until(lambda: bool(desk.at_work))
    return handle.workflow_id


async def pause(runtime: Runtime, desk: Desk) -> None:
    run = await held_up(runtime, desk)
    await runtime.pause(run)
    desk.gates["pay"].set()
    assert (await runtime.rest(run)).state == "paused"
    await runtime.resume(run)
    assert (await runtime.rest(run)).state == "completed"


async def cancel(runtime: Runtime, desk: Desk) -> None:
    run = await held_up(runtime, desk)
    await runtime.cancel(run, grace=0)
    assert (await runtime.rest(run)).state == "cancelled"


ENDS: dict[str, Callable[[Runtime, Desk], Awaitable[Any]]] = {
    "chain": lambda runtime, _: end(runtime, chain("look", "pay"), {}),
    "agents": lambda runtime, _: end(runtime, document(step("a"), step("b", depends_on=["a"])), {}),
    "executors": lambda runtime, _: end(runtime, ring("eager"), 1),
    "supersteps": lambda runtime, _: end(runtime, ring("superstep"), 1),
    "for_each": iterate,
    "for_each that fails": iterate_and_fail,
    "map": map_a_function,
    "failed function": fail_a_function,
    "fork": fork,
    "replay": replay,
    "pause": pause,
    "cancel": cancel,
}


@pytest.mark.parametrize("name", ENDS)
@virtual
async def test_a_run_that_has_ended_is_free_without_the_collector(name):
    @function(name="refuse", side_effect="none")
    async def refuse() -> None:
        raise ValueError("no")

    desk = Desk()
    services = [desk.service(), Service.of("other", refuse)]
    model = ScriptedModel(lambda _: {"ok": True})
    async with Runtime(MemoryLog(), models=[model], services=services, clock=LoopClock()) as runtime:
        await ENDS[name](runtime, desk)
        with without_collector():
            await ENDS[name](runtime, desk)
            await asyncio.sleep(60)  # of the virtual clock: nothing that is to end soon is left
            await run_until_idle()
            found = [type(known).__name__ for known in gc.get_objects() if isinstance(known, WATCHED)]
    assert found == []
