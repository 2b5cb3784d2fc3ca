"""The behaviours that peers get wrong, in further forms: copies, nesting, barriers, reducers, budgets."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, ClassVar

import msgspec
import pytest

from agentflow import (
    Agent,
    AgentExecutor,
    Executor,
    Runtime,
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
from agentflow.testing import ScriptedModel
from tests.conformance.graphs.rows import BOTH, Policy, built, emits, gives, relays
from tests.integration.support.runs import log_of, must_be_sound

POLICIES = pytest.mark.parametrize("policy", BOTH)


class Question(msgspec.Struct, frozen=True):
    text: str


class AsksTwice(Executor):
    """Asks the same twice in one handler."""

    @handler
    async def on_number(self, value: int, ctx: WorkflowContext) -> None:
        first = await ctx.request_info(Question("pay?"), bool)
        second = await ctx.request_info(Question("pay?"), bool)
        assert first != second

    @response_handler
    async def on_answer(self, asked: Question, answer: bool, ctx: WorkflowContext[Never, bool]) -> None:
        await ctx.yield_output(answer)


@POLICIES
async def test_two_equal_requests_of_one_handler_are_answered_each_by_its_id(policy: Policy):
    flow = built(policy, AsksTwice("a")).build()
    result = await flow.run(1)
    pending: Any = result.pending_requests
    first, second = pending
    assert (first.data, first.activation) == (second.data, second.activation)
    result = await flow.send_responses(result.workflow_id, {second.request_id: False})
    assert [r.request_id for r in result.pending_requests] == [first.request_id]
    result = await flow.send_responses(result.workflow_id, {first.request_id: True})
    assert (result.state, result.get_outputs()) == ("completed", [False, True])


CALLS: Counter[str] = Counter()


class Pays(Executor):
    """Pays once, then asks a person."""

    @handler
    async def on_number(self, value: int, ctx: WorkflowContext) -> None:
        await ctx.run_once("pay", self.pay)
        await ctx.request_info(value, int)

    async def pay(self) -> None:
        CALLS["paid"] += 1

    @response_handler
    async def on_answer(self, value: int, answer: int, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(answer)


@POLICIES
async def test_a_fork_of_a_run_whose_child_has_a_child_that_waits(policy: Policy):
    CALLS.clear()
    inner = built(policy, Pays("pays"), name="inner").build()
    middle = built(policy, relays("m"), name="middle")
    middle.add_edge("m", WorkflowExecutor(inner, "in")).add_edge("in", gives("out", int))
    flow = built(policy, relays("s"), name="outer").add_edge("s", WorkflowExecutor(middle.build(), "mid"))
    workflow = flow.add_edge("mid", gives("end", int)).build()
    old = await workflow.run(1)
    assert old.state == "waiting"
    (asked,) = old.pending_requests
    at = f"{old.workflow_id}@{old.events[-1].offset}"
    answered = await workflow.run_from_checkpoint(at, responses={asked.request_id: 5})
    assert (answered.state, answered.get_outputs()) == ("completed", [5])
    again = await workflow.run_from_checkpoint(at)
    twice = await workflow.run_from_checkpoint(f"{again.workflow_id}@{again.events[-1].offset}")
    (first,), (second,) = again.pending_requests, twice.pending_requests
    assert len({asked.request_id, first.request_id, second.request_id}) == 3
    for run, request, wanted in ((twice, second, 7), (again, first, 6), (old, asked, 4)):
        done = await workflow.send_responses(run.workflow_id, {request.request_id: wanted})
        assert (done.state, done.get_outputs()) == ("completed", [wanted])
    assert CALLS == {"paid": 1}
    runtime = await workflow.runtime()
    for row in (await runtime.log.runs(limit=50)).items:
        await must_be_sound(runtime, row.workflow_id)


class Tags(msgspec.Struct):
    names: list[str]


@dataclasses.dataclass
class Basket:
    items: dict[str, list[int]]
    tags: Tags
    seen: set[str]


@POLICIES
@pytest.mark.parametrize(
    "make",
    [
        lambda: Basket({"a": [1]}, Tags(["t"]), {"x"}),
        lambda: Tags(["t"]),
        lambda: [Tags(["t"]), Tags(["u"])],
        lambda: {"a": [1], "b": {"c": [2]}},
        lambda: {"x"},
        lambda: ([1], {"k": [2]}),
    ],
    ids=["dataclass", "struct", "list of structs", "dict", "set", "tuple"],
)
async def test_who_sends_and_who_receives_never_share_a_mutable_object(make: Any, policy: Policy):
    sent, got = make(), list[Any]()

    @executor(id="s")
    async def send(value: int, ctx: WorkflowContext[Any]) -> None:
        await ctx.send_message(sent)
        spoil(sent)
        ctx.set_state("kept", sent)
        ctx.set_shared_state("kept", sent)

    async def keep(value: Any, ctx: WorkflowContext[Any, Any]) -> None:
        got.append(value)
        assert value == make(), "what others did is not seen"
        spoil(value)
        before = ctx.get_shared_state("kept")
        spoil(ctx.get_shared_state("kept"))
        assert ctx.get_shared_state("kept") == before

    flow = built(policy, send).add_shared("kept", Any)
    known = (Basket, Tags)
    flow.add_fan_out_edges("s", [keeper("a", keep, known), keeper("b", keep, known)])
    result = await flow.build().run(0)
    assert result.state == "completed", result.error
    one, two = got
    assert one is not two
    assert one is not sent


def keeper(id: str, work: Any, known: tuple[Any, ...]) -> Executor:
    from tests.conformance.graphs.rows import node

    return node(id, work, takes=(Any, *known))


def spoil(value: Any) -> None:
    """Change a value wherever it can be changed."""
    for change in CHANGES[type(value)]:
        change(value)


CHANGES: dict[type, tuple[Callable[[Any], Any], ...]] = {
    Basket: (lambda v: v.items["a"].append(9), lambda v: spoil(v.tags), lambda v: v.seen.add("spoilt")),
    Tags: (lambda v: v.names.append("spoilt"),),
    dict: (lambda v: v["a"].append(9), lambda v: v["b"]["c"].append(9), lambda v: v.update(spoilt=1)),
    set: (lambda v: v.add("spoilt"),),
    tuple: (lambda v: v[0].append(9), lambda v: v[1]["k"].append(9)),
    list: (lambda v: spoil(v[0]), lambda v: v.append(Tags(["spoilt"]))),
}


class Counts(Executor):
    """Keeps a list in a field, and another one that all runs share."""

    shared: ClassVar[tuple[str, ...]] = ("everyone",)

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.mine: list[int] = []
        self.everyone: list[int] = []

    @handler
    async def on_number(self, value: int, ctx: WorkflowContext[Never, list[int]]) -> None:
        self.mine.append(value)
        self.everyone.append(value)
        await asyncio.sleep(0)
        await ctx.yield_output(self.mine)


@POLICIES
async def test_runs_of_one_workflow_at_once_keep_the_fields_of_executors_apart(policy: Policy):
    counts = Counts("c")
    flow = built(policy, relays("s")).add_edge("s", counts).build()
    results = await asyncio.gather(*(flow.run(number) for number in range(20)))
    assert [result.get_outputs() for result in results] == [[[number]] for number in range(20)]
    assert counts.mine == []
    assert sorted(counts.everyone) == list(range(20))


async def test_a_stream_that_is_dropped_at_a_barrier_stops_nothing():
    flow = built("superstep", relays("a")).add_chain(["a", relays("b"), relays("c"), gives("d")]).build()
    for barrier in range(1, 5):
        run_id = f"wf_barrier{barrier}"
        async with aclosing(flow.run_stream(7, workflow_id=run_id)) as events:
            async for event in events:
                if event.type == "superstep.completed" and event.data.superstep == barrier:
                    break
        result = await (await flow.attach(run_id)).result()
        assert (result.state, result.get_outputs()) == ("completed", [7])


@POLICIES
async def test_a_run_is_cancelled_while_a_reducer_is_at_work(policy: Policy):
    began, go_on = threading.Event(), threading.Event()

    def slow(value: Any, update: Any) -> Any:
        began.set()
        go_on.wait(10)
        return update

    name = f"slow {policy} {id(began)}"
    reducers.register(name, slow)

    @executor(id="w")
    async def write(value: int, ctx: WorkflowContext[int]) -> None:
        ctx.set_shared_state("k", value)

    flow = built(policy, write).add_shared("k", int, reducer=name).build()
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(flow, 1)
        await asyncio.to_thread(began.wait, 10)
        await handle.cancel(mode="hard")
        result = await handle.result(raise_on_failure=False)
        go_on.set()
        assert result.state == "cancelled"
        await must_be_sound(runtime, handle.workflow_id)


class Writes(Executor):
    def __init__(self, id: str, value: Any) -> None:
        super().__init__(id)
        self.value = value

    @handler
    async def on_number(self, value: int, ctx: WorkflowContext) -> None:
        ctx.set_shared_state("k", self.value)


@pytest.mark.parametrize(
    ("one", "two", "state"),
    [
        (True, 1, "failed"),
        (1, 1.0, "completed"),
        ({"a": [0]}, {"a": [False]}, "failed"),
        (1, 1, "completed"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "completed"),
    ],
    ids=str,
)
async def test_equal_json_values_do_not_conflict_and_true_is_not_one(one: Any, two: Any, state: str):
    flow = built("superstep", emits("s", 1)).add_fan_out_edges("s", [Writes("a", one), Writes("b", two)])
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(flow.build(), 0, raise_on_failure=False)
        assert result.state == state
        assert state == "completed" or (result.error and result.error.code == "state_conflict")


@POLICIES
async def test_a_barrier_does_not_wait_for_a_child_that_is_paused_for_a_budget(policy: Policy):
    agent = Agent("writer", "Write.", model="scripted:m")
    inner = WorkflowBuilder("inner").set_start_executor(AgentExecutor(agent, id="writer")).build()
    flow = built(policy, emits("s", "a", "b", "c"), name="outer")
    flow.add_edge("s", WorkflowExecutor(inner, "in")).add_chain(["s", gives("beside", str)])
    async with Runtime(MemoryLog(), models=[ScriptedModel(lambda _: "ok")]) as runtime:
        handle = await runtime.submit(flow.build(), 0, budget={"max_model_calls": 1})
        result = await handle.result()
        assert (result.state, result.usage.model_calls) == ("waiting", 1)
        assert sorted(result.get_outputs()) == ["a", "b", "c"]
        log = await log_of(runtime, handle.workflow_id)
        supersteps = [e.data.superstep for e in log if e.type == "superstep.completed"]
        assert supersteps == ([1, 2] if policy == "superstep" else [])
        async for event in runtime.events(handle.workflow_id):  # to its end
            if event.type == "workflow.waiting":
                for row in [row for row in await runtime.rows() if row.state == "paused"]:
                    await runtime.resume(row.workflow_id, budget={"max_model_calls": 9})
        result = await handle.result()
        assert (result.state, result.usage.model_calls) == ("completed", 3)
        await must_be_sound(runtime, handle.workflow_id)
