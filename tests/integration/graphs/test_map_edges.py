"""Map edges: one activation of the worker for each element of a list, the results as a list in item order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Workflow, WorkflowBuilder, WorkflowContext, executor
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from tests.integration.executors.crashes import at_every_event
from tests.integration.executors.graphs import completed
from tests.integration.support.runs import must_be_sound


class Item(msgspec.Struct, frozen=True):
    n: int


class Result(msgspec.Struct, frozen=True):
    n: int


@executor(id="split")
def split(count: int) -> list[Item]:
    return [Item(n) for n in range(count)]


@executor(id="sends")
async def sends(item: Item, ctx: WorkflowContext[Result]) -> None:
    await ctx.send_message(Result(item.n * 2))


@executor(id="returns")
def returns(item: Item) -> Result:
    if item.n == 13:
        raise ValueError("13 cannot be doubled")
    return Result(item.n * 2)


@executor(id="join")
async def join(results: list[Result], ctx: WorkflowContext[Never, list[int]]) -> None:
    await ctx.yield_output([result.n for result in results])


def mapped(worker: Any, policy: Any = "superstep", at_once: int = 2) -> Workflow:
    built = WorkflowBuilder("mapped", policy=policy).set_start_executor(split)
    return built.add_map_edges(split, worker, join, max_in_flight=at_once).build()


@pytest.mark.parametrize("policy", ["superstep", "eager"])
@pytest.mark.parametrize("worker", [sends, returns], ids=["sends", "returns"])
@pytest.mark.parametrize("count", [5, 1, 0])
async def test_the_join_gets_the_typed_results_in_the_order_of_the_items(
    policy: str, worker: Any, count: int
):
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(mapped(worker, policy), count)
        await handle.result()
        rows = await runtime.log.read(handle.workflow_id, 0, 10_000)
        await must_be_sound(runtime, handle.workflow_id)
        assert await completed(runtime, mapped(worker, policy), count) == [[2 * n for n in range(count)]]
    told = [decode(row.body) for row in rows]
    begun = [e for e in told if e.type == "workflow.step_started" and e.data.step_id == worker.id]
    assert len(begun) == count
    assert not [e for e in told if e.type == "message.undelivered"]


async def test_the_failure_of_an_element_fails_the_map_as_of_an_item():
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(mapped(returns), 14)
        result = await handle.result(raise_on_failure=False)
        rows = await runtime.log.read(handle.workflow_id, 0, 10_000)
    assert result.state == "failed"
    failed = [e.data for row in rows if (e := decode(row.body)).type == "workflow.step_failed"]
    (of_map,) = [data for data in failed if data.step_id == "map_returns"]
    assert (of_map.error.code, of_map.error.details) == ("item_failed", {"index": 13})
    assert "13 cannot be doubled" in of_map.error.cause.message


@pytest.mark.parametrize("policy", ["superstep", "eager"])
async def test_a_map_goes_on_from_behind_every_event(policy: str):
    whole = await at_every_event(lambda: mapped(sends, policy), 3)  # type: ignore[arg-type]
    assert (whole.state, whole.outputs) == ("completed", [[0, 2, 4]])
