"""The promises of `test_promises` in other forms: in lists and unions, at joins, in several event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentflow import Executor, Workflow, WorkflowBuilder, WorkflowContext, executor, handler
from agentflow.executors import Never
from agentflow.graphs import close_runtimes
from tests.conformance.graphs.rows import BOTH, Policy, built, emits, relays


@pytest.fixture(autouse=True)
async def homes():
    yield
    await close_runtimes()


class Sorts(Executor):
    """Takes numbers in two ways, and truths in three."""

    @handler
    async def a_numbers(self, value: list[int], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("list of int")

    @handler
    async def b_truths(self, value: list[bool], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("list of bool")

    @handler
    async def c_number(self, value: int | str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("int or str")

    @handler
    async def d_truth(self, value: bool | None, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("bool or None")


CASES = [([True], "list of bool"), ([1], "list of int"), (True, "bool or None"), (0, "int or str")]


@pytest.mark.parametrize(("value", "wanted"), [*CASES, (None, "bool or None")])
@pytest.mark.parametrize("is_sent", [False, True], ids=["input", "sent"])
async def test_true_reaches_the_bool_handler_of_lists_and_unions(value: Any, wanted: str, is_sent: bool):
    flow = built("superstep", Sorts("sorts"))
    if is_sent:
        flow = built("superstep", emits("a", value)).add_edge("a", Sorts("sorts"))
    assert (await flow.build().run(value if not is_sent else 0)).get_outputs() == [wanted]


@pytest.mark.parametrize("policy", BOTH)
async def test_the_lists_of_two_joins_share_no_mutable_object(policy: Policy):
    changed = asyncio.Event()

    @executor(id="j")
    async def first(values: list[dict], ctx: WorkflowContext[Never, list]) -> None:
        assert values[0] is not values[1]
        values[0]["items"].append("changed")
        changed.set()
        await ctx.yield_output([value["items"] for value in values])

    @executor(id="k")
    async def second(values: list[dict], ctx: WorkflowContext[Never, list]) -> None:
        await changed.wait()
        await ctx.yield_output([value["items"] for value in values])

    flow = built(policy, emits("s", {"items": [0]})).add_fan_out_edges(
        "s", [relays("a", dict), relays("b", dict)]
    )
    flow.add_fan_in_edges(["a", "b"], first).add_fan_in_edges(["a", "b"], second)
    assert (await flow.build().run(0)).get_outputs() == [[[0, "changed"], [0]], [[0], [0]]]


@pytest.mark.parametrize("policy", BOTH)
async def test_a_value_of_the_state_that_a_handler_changes_stays_what_it_was(policy: Policy):
    @executor(id="a")
    async def keeps(value: int, ctx: WorkflowContext[int]) -> None:
        given = {"items": [value]}
        ctx.set_shared_state("k", given)
        ctx.set_state("k", given)
        given["items"].append("behind the call")
        ctx.get_shared_state("k")["items"].append("in a copy")
        ctx.get_state("k")["items"].append("in a copy")
        await ctx.send_message(value)

    @executor(id="b")
    async def reads(value: int, ctx: WorkflowContext[Never, list]) -> None:
        ctx.get_shared_state("k")["items"].append("in a copy")
        await ctx.yield_output(ctx.get_shared_state("k")["items"])

    result = await built(policy, keeps).add_edge(keeps, reads).build().run(1)
    assert result.get_outputs() == [[1]]


def test_one_workflow_object_runs_in_several_event_loops_at_once():
    flow: Workflow = WorkflowBuilder("w").set_start_executor(Sorts("sorts")).build()
    found: list[tuple[Any, Any]] = []
    together = threading.Barrier(len(CASES))

    def work(value: Any, wanted: str) -> None:
        async def main() -> None:
            together.wait()
            found.extend([(wanted, (await flow.run(value)).output) for _ in range(5)])

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=case) for case in CASES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5 * len(CASES)
    assert all(wanted == output for wanted, output in found)


@pytest.mark.parametrize("policy", BOTH)
async def test_streams_that_are_left_at_their_first_events_stop_nothing(policy: Policy):
    flow = built(policy, emits("s", 1)).add_chain(["s", relays("a"), relays("b"), relays("c")]).build()
    run = await flow.start(0)
    for upto in (1, 2, 3):
        stream = run.events()
        for _ in range(upto):
            await anext(stream)
        await stream.aclose()
    assert (await run.result()).state == "completed"
