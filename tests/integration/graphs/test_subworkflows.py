"""Workflows as nodes of others: a child run for each message, its outputs as messages or outputs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agentflow import (
    Case,
    Default,
    Executor,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from agentflow.events.envelope import decode
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog
from agentflow.events.rows import RunMeta
from agentflow.executors import Never
from tests.integration.executors.crashes import Outcome, drive
from tests.integration.executors.graphs import completed, outputs
from tests.integration.support.runs import must_be_sound


class Order(msgspec.Struct, frozen=True):
    id: int
    price: int = 1


class Bill(msgspec.Struct, frozen=True):
    id: int
    total: int


class FinalBill(Bill, frozen=True):
    pass


class Approved(msgspec.Struct, frozen=True):
    ok: bool


class Split(Executor):
    @handler
    async def on_count(self, count: int, ctx: WorkflowContext[Order]) -> None:
        for number in range(count):
            await ctx.send_message(Order(number, 10))


@executor(id="sink")
async def sink(bill: Bill, ctx: WorkflowContext[Never, Bill]) -> None:
    await ctx.yield_output(bill)


@executor(id="charge")
async def charge(order: Order, ctx: WorkflowContext[Never, Bill | str]) -> None:
    if order.id == 13:
        raise ValueError("order 13 cannot be charged")
    await ctx.yield_output(Bill(order.id, order.price * 2))


class Ask(Executor):
    @handler
    async def on_order(self, order: Order, ctx: WorkflowContext) -> None:
        await ctx.request_info(order, Approved)

    @response_handler
    async def on_answer(self, order: Order, answer: Approved, ctx: WorkflowContext[Never, Bill]) -> None:
        await ctx.yield_output(Bill(order.id, order.price if answer.ok else 0))


def billing(name: str = "billing", start: Any = charge) -> Workflow:
    return WorkflowBuilder(name).set_start_executor(start).build()


def shop(
    inner: Workflow, *, policy: Any = "superstep", output: Any = "message", start: Any = None
) -> Workflow:
    built = WorkflowBuilder("shop", policy=policy).set_start_executor(start or Split("split"))
    built.add_edge("split" if start is None else start, WorkflowExecutor(inner, "billing", output))
    if output == "message":
        built.add_edge("billing", sink)
    return built.build()


POLICIES = pytest.mark.parametrize("policy", ["superstep", "eager"])


async def runs_of(runtime: Runtime) -> list[Any]:
    return list((await runtime.log.runs(limit=100)).items)


@POLICIES
@pytest.mark.parametrize("output", ["message", "output"])
async def test_each_message_is_the_typed_input_of_a_run_of_its_own(policy: str, output: str):
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(shop(billing(), policy=policy, output=output), 3)
        children = [row for row in await runs_of(runtime) if row.parent == result.workflow_id]
        for row in children:
            await must_be_sound(runtime, row.workflow_id)
        await must_be_sound(runtime, result.workflow_id)
        bills = await outputs(runtime, result.workflow_id)
    assert sorted(b["id"] for b in bills) == [0, 1, 2]
    assert {b["total"] for b in bills} == {20}
    assert len(children) == 3
    assert {row.state for row in children} == {"completed"}


async def test_outputs_of_a_child_keep_their_types_for_edges_predicates_and_base_classes():
    @executor(id="many")
    async def many(order: Order, ctx: WorkflowContext[Never, Bill | str]) -> None:
        await ctx.yield_output("a note")
        await ctx.yield_output(FinalBill(order.id, order.price))

    @executor(id="notes")
    async def notes(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"note: {text}")

    @executor(id="dear")
    async def dear(bill: Bill, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"dear: {type(bill).__name__} {bill.total}")

    def is_dear(message: Any) -> bool:
        return isinstance(message, Bill) and message.total > 5

    outer = (
        WorkflowBuilder("outer")
        .set_start_executor(WorkflowExecutor(billing(start=many), "inner"))
        .add_switch_case_edge_group("inner", [Case(is_dear, dear), Default(notes)])
        .build()
    )
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(outer, Order(1, 9))
        found = await outputs(runtime, result.workflow_id)
    assert sorted(found) == ["dear: FinalBill 9", "note: a note"]


async def test_a_fan_in_before_a_workflow_gives_it_the_typed_list():
    @executor(id="one")
    def one(count: int) -> Order:
        return Order(count, 1)

    @executor(id="two")
    def two(count: int) -> Order:
        return Order(count, 2)

    @executor(id="total")
    async def total(orders: list[Order], ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(sum(order.price for order in orders))

    outer = (
        WorkflowBuilder("outer")
        .set_start_executor(one, two)
        .add_fan_in_edges([one, two], WorkflowExecutor(billing(start=total), "inner", "output"))
        .build()
    )
    async with Runtime(MemoryLog()) as runtime:
        assert await completed(runtime, outer, 1) == [3]


async def test_overlapping_messages_are_independent_runs():
    """No child ends before the other one has begun."""
    begun = asyncio.Barrier(2)

    class Meet(Executor):
        shared = ("barrier",)

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.barrier = begun

        @handler
        async def on_order(self, order: Order, ctx: WorkflowContext[Never, Bill]) -> None:
            async with asyncio.timeout(5):
                await self.barrier.wait()
            await ctx.yield_output(Bill(order.id, 0))

    async with Runtime(MemoryLog()) as runtime:
        bills = await completed(runtime, shop(billing(start=Meet("meet"))), 2)
    assert [bill["id"] for bill in bills] == [0, 1]


async def test_workflows_with_equal_graphs_and_other_functions_run_their_own_code():
    def made(text: str) -> Workflow:
        @executor(id="say")
        async def say(count: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(text)

        return billing("same", say)

    outer = (
        WorkflowBuilder("outer")
        .set_start_executor(
            WorkflowExecutor(made("a"), "a", "output"), WorkflowExecutor(made("b"), "b", "output")
        )
        .build()
    )
    async with Runtime(MemoryLog()) as runtime:
        assert sorted(await completed(runtime, outer, 1)) == ["a", "b"]


async def test_the_failure_of_a_child_fails_the_step_with_the_error_of_the_child_as_cause():
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(shop(billing()), 14, raise_on_failure=False)
        rows = await runtime.log.read(result.workflow_id, 0, 1000)
    (failed,) = [e.data for row in rows if (e := decode(row.body)).type == "workflow.step_failed"]
    assert (failed.step_id, failed.activation, failed.error.code) == (
        "billing",
        "/billing#13",
        "subgraph_failed",
    )
    cause = failed.error.cause
    assert "order 13" in cause.message
    assert cause.details["workflow_id"] == failed.error.details["workflow_id"]
    assert cause.details["activation"] == "/charge#0"
    assert result.state == "failed"


async def test_a_question_of_a_child_is_answered_through_the_parent_under_its_id():
    outer = shop(billing(start=Ask("ask")))
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(outer, 2)
        result = await handle.result()
        assert result.state == "waiting"
        asked = {r.request_id: r for r in result.pending_requests}
        children = [row for row in await runs_of(runtime) if row.parent == handle.workflow_id]
        of_children = [r.request_id for c in children for r in await runtime.requests(c.workflow_id)]
        assert sorted(asked) == sorted(of_children)
        assert {r.step_id for r in asked.values()} == {"billing"}
        await runtime.answer_all(handle.workflow_id, {id: {"ok": True} for id in asked})
        result = await handle.result()
        assert len(await outputs(runtime, handle.workflow_id)) == 2
    assert result.state == "completed"


async def test_cancelling_the_parent_cancels_its_children():
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(shop(billing(start=Ask("ask"))), 2)
        await handle.result()
        await handle.cancel("enough")
        await handle.result(raise_on_failure=False)
        states = {row.state for row in await runs_of(runtime)}
    assert states == {"cancelled"}


# -- crashes -------------------------------------------------------------------------------------


def approve(request: Any) -> Any:
    return {"ok": True}


async def _put(log: MemoryLog, run: Any, rows: list[Any], graph: tuple[str, bytes]) -> None:
    """Store the first events of a run as a process leaves them that is killed then."""
    hash, body = graph
    await log.put_definition(hash, body)
    meta = RunMeta(name="w", definition_hash=hash, created_at=rows[0].ts, labels={}, owner=None)
    state = "waiting" if rows[-1].type == "workflow.waiting" else "running"
    await log.append(Append(run.workflow_id, 1, 0, rows, state, meta))
    owner = (await log.run(run.workflow_id)).owner
    if owner is not None:
        await log.release(run.workflow_id, owner)


_TOLD = ("workflow.step_waiting", "input.requested")
"""Events of the parent that follow from a report: the log of the child was durable before."""


def by_id(outcome: Outcome) -> Outcome:
    """Order the outputs: children that run at once may end in any order."""
    return msgspec.structs.replace(outcome, outputs=sorted(outcome.outputs, key=lambda one: one["id"]))


@pytest.mark.parametrize("children", ["as they were", "lost", "whole"])
@pytest.mark.parametrize("start", [charge, Ask("ask")], ids=["works", "asks"])
async def test_a_run_goes_on_from_behind_every_event_with_its_children(start: Any, children: str):
    """The log of the parent is cut behind each event; those of the children at that time, before or after."""
    log, outer = MemoryLog(), shop(billing(start=start))
    async with Runtime(log) as runtime:
        handle = await runtime.submit(outer, 2)
        whole = await drive(runtime, handle.workflow_id, approve)
        runs = await runs_of(runtime)
        events = {run.workflow_id: await log.read(run.workflow_id, 0, 10_000) for run in runs}
        graphs = {}
        for run in runs:
            hash = decode(events[run.workflow_id][0].body).data.ir_hash
            graphs[run.workflow_id] = (hash, await log.get_definition(hash))
    assert (whole.state, len(whole.outputs)) == ("completed", 2)
    rows = events[handle.workflow_id]
    for upto in range(1, len(rows)):
        cut, until = MemoryLog(), rows[upto - 1].ts
        for run in runs:
            kept = list(events[run.workflow_id])
            if run.workflow_id == handle.workflow_id:
                kept = kept[:upto]
            elif children == "lost" and not any(row.type in _TOLD for row in rows[:upto]):
                kept = []
            elif children == "as they were":
                kept = [row for row in kept if row.ts <= until]
            if kept:
                await _put(cut, run, kept, graphs[run.workflow_id])
        where = f"cut behind {rows[upto - 1].type} at {upto - 1}"
        async with Runtime(cut) as runtime:
            runtime.register(shop(billing(start=start)))
            await runtime.recover()
            try:
                async with asyncio.timeout(10):
                    outcome: Outcome = await drive(runtime, handle.workflow_id, approve)
            except TimeoutError:
                raise AssertionError(f"{where}: the run does not end") from None
            assert by_id(outcome) == by_id(whole), where
            await must_be_sound(runtime, handle.workflow_id)
            assert len(await runs_of(runtime)) <= 3, f"{where}: a child was begun twice"
