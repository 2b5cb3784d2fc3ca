"""What graph engines are known to get wrong, each by name."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
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
    reducers,
    response_handler,
)
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.graphs import close_runtimes
from tests.conformance.graphs.rows import BOTH, Policy, asks, built, emits, gathers, gives, node, relays
from tests.integration.support.runs import log_of, must_be_sound

POLICIES = pytest.mark.parametrize("policy", BOTH)


@pytest.fixture(autouse=True)
async def homes():
    yield
    await close_runtimes()


class Order(msgspec.Struct, frozen=True):
    id: int


CALLS: Counter[str] = Counter()


async def charge(key: str) -> str:
    CALLS[key] += 1
    return f"paid {key}"


class Shop(Executor):
    """Pays, asks, and pays the rest; keeps what it paid."""

    @handler
    async def on_order(self, order: Order, ctx: WorkflowContext) -> None:
        paid = await ctx.run_once("first", charge, f"first {order.id}")
        ctx.set_state("paid", paid)
        await ctx.request_info(order, bool)

    @response_handler
    async def on_answer(self, order: Order, go_on: bool, ctx: WorkflowContext[Never, list[str]]) -> None:
        rest = await ctx.run_once("rest", charge, f"rest {order.id}")
        await ctx.yield_output([ctx.get_state("paid"), rest])


def shop(store: Any = None) -> Workflow:
    builder = WorkflowBuilder("shop").set_start_executor(Shop("shop"))
    return (builder if store is None else builder.with_checkpointing(store)).build()


async def test_resume_repeats_no_effect(tmp_path: Path):
    """In another Runtime on the same store, twice over."""
    CALLS.clear()
    store = f"sqlite:{tmp_path}/runs.db"
    async with Runtime(store) as runtime:
        result = await shop(runtime).run(Order(1))
        run_id = result.workflow_id
    for _ in range(2):
        async with Runtime(store) as runtime:
            result = await shop(runtime).resume(run_id)
            assert result.state == "waiting"
    async with Runtime(store) as runtime:
        (asked,) = result.pending_requests
        result = await shop(runtime).send_responses(run_id, {asked.request_id: True})
    assert result.output == ["paid first 1", "paid rest 1"]
    assert CALLS == {"first 1": 1, "rest 1": 1}


@POLICIES
async def test_200_appends_of_1_kib_grow_the_log_linearly(policy: Policy):
    async def work(left: int, ctx: Any) -> None:
        ctx.set_shared_state("history", f"{left:4}" + "x" * 1020)
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(len(ctx.get_shared_state("history")))

    def flow() -> Workflow:
        made = built(policy, node("a", work, takes=(int,), sends=(int,), gives=(int,)), max_iterations=500)
        made.add_shared("history", list[str], reducer=reducers.append)
        return made.add_edge("a", "a", lambda left: True, name="again").build()

    sizes: dict[int, int] = {}
    for count in (100, 200):
        log = MemoryLog()
        async with Runtime(log) as runtime:
            handle = await runtime.submit(flow(), count - 1)
            assert (await handle.result()).output == count
            rows = await log.read(handle.workflow_id, 0, 100_000)
        sizes[count] = sum(len(row.body) for row in rows)
    assert sizes[200] - sizes[100] < sizes[100] * 1.05
    assert sizes[200] < 200 * 1024 * 3


async def test_a_failed_branch_leaves_its_siblings():
    async def fails(value: int, ctx: Any) -> None:
        raise ValueError("no")

    gate = asyncio.Event()

    async def slow(value: int, ctx: Any) -> None:
        await gate.wait()
        await ctx.send_message(value)

    flow = built("eager", relays("s")).add_fan_out_edges(
        "s", [node("bad", fails, takes=(int,)), node("good", slow, takes=(int,), sends=(int,))]
    )
    run = await flow.add_edge("good", gives("end")).build().start(3)
    async for event in run.events():
        if event.type == "workflow.step_failed":
            gate.set()  # the other one has failed by now
    result = await run.result(raise_on_failure=False)
    assert (result.state, result.get_outputs()) == ("failed", [3])
    assert result.error.code == "executor_failed"


@POLICIES
async def test_a_dropped_stream_stops_nothing(policy: Policy):
    """One reader leaves, one is cancelled, one never reads on; the run ends as without them."""
    gate = asyncio.Event()

    async def work(value: int, ctx: Any) -> None:
        await gate.wait()
        await ctx.yield_output(value)

    flow = built(policy, relays("a")).add_edge("a", node("b", work, takes=(int,), gives=(int,))).build()
    async with aclosing(flow.run_stream(7, workflow_id="wf_left")) as events:
        async for _ in events:
            break
    run = await flow.attach("wf_left")
    idle = run.events()
    await anext(idle)

    reading = asyncio.Event()

    async def reads() -> None:
        async for _ in run.events():
            reading.set()

    reader = asyncio.create_task(reads())
    await reading.wait()
    reader.cancel()
    gate.set()
    result = await run.result()
    assert (result.state, result.get_outputs()) == ("completed", [7])
    assert [e.offset async for e in idle] == list(range(1, len(result.events)))


async def test_two_runs_of_one_workflow_object_at_once():
    both = asyncio.Barrier(2)

    class Meets(Executor):
        shared = ("barrier",)

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.barrier, self.seen = both, list[int]()

        @handler
        async def on(self, value: int, ctx: WorkflowContext[Never, list[int]]) -> None:
            self.seen.append(value)
            ctx.set_shared_state("last", value)
            async with asyncio.timeout(5):
                await self.barrier.wait()
            await ctx.yield_output(self.seen)

    flow = built("superstep", Meets("a")).build()
    one, two = await asyncio.gather(flow.run(1), flow.run(2))
    assert (one.output, two.output) == ([1], [2])
    runtime = await flow.runtime()
    folds = [await runtime.fold(r.workflow_id) for r in (one, two)]
    assert [f.shared.values for f in folds] == [{"last": 1}, {"last": 2}]


@POLICIES
@pytest.mark.parametrize("on_missing", ["partial", "wait"])
async def test_an_untaken_branch_hangs_no_join_and_its_leftovers_leak_into_no_other_run(
    policy: Policy, on_missing: Any
):
    flow = built(policy, relays("s")).add_edge("s", relays("a"))
    flow.add_edge("s", relays("b"), lambda value: value != 1, name="not 1")
    flow.add_fan_in_edges(["a", "b"], gathers("j"), on_missing=on_missing)
    workflow = flow.build()
    first = await workflow.run(1)
    second = await workflow.run(2)
    assert first.get_outputs() == ([[1, "no b"]] if on_missing == "partial" else [])
    assert second.get_outputs() == [[2, 2]]
    assert len(first.undelivered) == (0 if on_missing == "partial" else 1)
    assert second.undelivered == ()


class Inner(Executor):
    @handler
    async def on_order(self, order: Order, ctx: WorkflowContext) -> None:
        await ctx.run_once("charge", charge, f"inner {order.id}")
        await ctx.request_info(order, int)

    @response_handler
    async def on_answer(self, order: Order, answer: int, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(answer)


@POLICIES
async def test_fork_inside_a_sub_workflow(policy: Policy):
    """The child in flight is forked with its parent: what it paid is not paid again."""
    CALLS.clear()
    child = WorkflowBuilder("child", policy=policy).set_start_executor(Inner("inner")).build()
    flow = built(policy, emits("s", Order(1))).add_edge("s", WorkflowExecutor(child, "sub"))
    workflow = flow.add_edge("sub", gives("end", int)).build()
    old = await workflow.run(0)
    assert old.state == "waiting"
    last = old.events[-1].offset
    fork = await workflow.run_from_checkpoint(f"{old.workflow_id}@{last}")
    assert (fork.state, fork.forked_from.workflow_id) == ("waiting", old.workflow_id)
    (of_old,), (of_fork,) = old.pending_requests, fork.pending_requests
    assert of_old.request_id != of_fork.request_id
    fork = await workflow.send_responses(fork.workflow_id, {of_fork.request_id: 2})
    assert (fork.state, fork.get_outputs()) == ("completed", [2])
    old = await workflow.send_responses(old.workflow_id, {of_old.request_id: 1})
    assert (old.state, old.get_outputs()) == ("completed", [1])
    answered = await workflow.run_from_checkpoint(
        f"{old.workflow_id}@{last}", responses={of_old.request_id: 3}
    )
    assert (answered.state, answered.get_outputs()) == ("completed", [3])
    assert CALLS == {"inner 1": 1}
    runtime = await workflow.runtime()
    for row in (await runtime.log.runs(limit=10)).items:
        await must_be_sound(runtime, row.workflow_id)


async def test_cancel_reaches_a_running_handler_and_leaves_a_closed_history():
    """Also the handler of a child run, and a recorded call under way."""
    began, ended = asyncio.Event(), list[str]()

    async def pays() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("call")

    async def work(value: int, ctx: Any) -> None:
        try:
            await ctx.run_once("pay", pays)
        finally:
            ended.append("handler")

    child = built("superstep", node("deep", work, takes=(int,)), name="child").build()
    flow = built("superstep", WorkflowExecutor(child, "sub"), asks("other")).build()
    run = await flow.start(1)
    await began.wait()
    await run.cancel("enough")
    result = await run.result(raise_on_failure=False)
    assert result.state == "cancelled"
    assert sorted(ended) == ["call", "handler"]
    runtime = await flow.runtime()
    rows = (await runtime.log.runs(limit=10)).items
    assert {row.state for row in rows} == {"cancelled"}
    for row in rows:
        log = await must_be_sound(runtime, row.workflow_id)
        opened = {e.data.request_id for e in log if e.type == "input.requested"}
        closed = {e.data.request_id for e in log if e.type in ("input.received", "input.cancelled")}
        assert opened == closed
        begun = {e.data.activation for e in log if e.type == "workflow.step_started"}
        over = {
            e.data.activation for e in log if e.type in ("workflow.step_completed", "workflow.step_failed")
        }
        assert begun == over


async def test_fan_out_targets_never_share_a_mutable_object():
    seen: list[Any] = []

    @executor(id="b")
    async def b(value: dict) -> None:
        value["items"].append("b")
        seen.append(value)

    @executor(id="c")
    async def c(value: dict) -> None:
        value["items"].append("c")
        seen.append(value)

    flow = built("superstep", emits("a", {"items": [0]})).add_fan_out_edges("a", [b, c]).build()
    await flow.run(0)
    one, two = seen
    assert one is not two
    assert one["items"] is not two["items"]
    assert sorted(map(str, (one["items"], two["items"]))) == ["[0, 'b']", "[0, 'c']"]


async def test_true_reaches_the_bool_handler():
    class Sorts(Executor):
        @handler
        async def a_number(self, value: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("int")

        @handler
        async def b_truth(self, value: bool, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("bool")

    flow = built("superstep", Sorts("a")).build()
    assert [(await flow.run(value)).output for value in (True, 1, False, 0)] == ["bool", "int", "bool", "int"]


async def test_two_approvals_in_one_node_do_not_collide():
    flow = built("superstep", emits("s", 1, 2)).add_edge("s", asks("a")).build()
    result = await flow.run(0)
    first, second = result.pending_requests
    result = await flow.send_responses(result.workflow_id, {second.request_id: 20})
    assert (result.state, [r.request_id for r in result.pending_requests]) == ("waiting", [first.request_id])
    result = await flow.send_responses(result.workflow_id, {first.request_id: 10})
    assert (result.state, sorted(result.get_outputs())) == ("completed", [10, 20])
    log = await log_of(await flow.runtime(), result.workflow_id)
    assert len([e for e in log if e.type == "input.received"]) == 2
