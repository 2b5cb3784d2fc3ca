"""§5: rounds of fan-ins, untaken branches, leftovers."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conformance.graphs.rows import (
    BOTH,
    SUPERSTEP,
    Policy,
    Run,
    asks,
    built,
    emits,
    fails,
    gathers,
    gives,
    node,
    relays,
    row,
)


def odd(value: int) -> bool:
    return value % 2 == 1


def diamond(policy: Policy, *, taken: Any = None, **join: Any) -> Any:
    """`s` to `a` and `b`, both to the join `j`; with `taken`, `b` gets a message only if that is true."""
    flow = built(policy, relays("s")).add_edge("s", relays("a"))
    flow.add_edge("s", relays("b"), taken, name=None if taken is None else "taken")
    return flow.add_fan_in_edges(["a", "b"], gathers("j"), **join)


@row("§5.1", "a round takes all that the oldest activation of each source sent; later ones wait for the next")
def rounds(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2))

    async def twice(value: int, ctx: Any) -> None:
        await ctx.send_message(value * 10)
        await ctx.send_message(value * 10 + 1)

    flow.add_fan_out_edges("s", [node("a", twice, takes=(int,), sends=(int,)), relays("b")])
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=0, outputs=[[10, 11, 1], [20, 21, 2]])


@row("§5.1", "grouping does not depend on timing: a slow first activation keeps the second waiting")
def timing(policy: Policy) -> Run:
    async def slow_first(value: int, ctx: Any) -> None:
        await asyncio.sleep(100 if value == 1 else 0)
        await ctx.send_message(value * 10)

    flow = built(policy, emits("s", 1, 2))
    flow.add_fan_out_edges("s", [node("a", slow_first, takes=(int,), sends=(int,)), relays("b")])
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=0, outputs=[[10, 1], [20, 2]])


@row("§5.2", "one list: declared source order, then send order, whoever was first")
def declared_order(policy: Policy) -> Run:
    async def late(value: int, ctx: Any) -> None:
        await asyncio.sleep(50)
        await ctx.send_message(1)
        await ctx.send_message(2)

    flow = built(policy, relays("s"))
    flow.add_fan_out_edges("s", [emits("b", 3), node("a", late, takes=(int,), sends=(int,))])
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=0, outputs=[[1, 2, 3]])


@row("§5.3", "an untaken branch hangs no join: its source is dead and is named")
def untaken(policy: Policy) -> Run:
    flow = diamond(policy, taken=odd)
    return Run(workflow=flow.build(), message=4, outputs=[[4, "no b"]], not_run=["b"], undelivered=[])


@row("§5.3", "a source is not dead while a live node can reach it over other nodes")
def distant_source(policy: Policy) -> Run:
    flow = (
        built(policy, relays("s"))
        .add_edge("s", relays("a"))
        .add_chain(["s", relays("x"), relays("y"), relays("b")])
    )
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=4, outputs=[[4, 4]])


@row("§5.3", "a waiting node is live: a join waits for a person")
def join_waits_for_person(policy: Policy) -> Run:
    flow = built(policy, relays("s")).add_fan_out_edges("s", [relays("a"), asks("b", sends=True)])
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=4, answers=lambda asked: asked * 10, outputs=[[4, 40]])


@row("§5.3", "messages buffered in a join do not keep it open: a cycle through the join is no source")
def cycle_through_join(policy: Policy) -> Run:
    async def gather(values: list[int], ctx: Any) -> None:
        await ctx.yield_output([*values, *ctx.missing_source_ids])
        if values[0] < 3:
            await ctx.send_message(values[0] + 1)

    flow = built(policy, relays("a")).add_edge("a", relays("b"), odd)
    flow.add_fan_in_edges(["a", "b"], node("j", gather, takes=(list[int],), sends=(int,), gives=(list,)))
    flow.add_edge("j", "a")
    return Run(workflow=flow.build(), message=1, outputs=[[1, 1], [2, "b"], [3, 3]])


@row("§5.4", "two joins that lack sources close one at a time, in id order; the first may revive the second")
def one_at_a_time(policy: Policy) -> Run:
    async def first(values: list[int], ctx: Any) -> None:
        await ctx.send_message(100)

    flow = (
        built(policy, relays("s"))
        .add_edge("s", relays("a"))
        .add_edge("s", relays("b"), lambda m: False, name="no")
    )
    flow.add_fan_in_edges(["a", "b"], node("i", first, takes=(list[int],), sends=(int,)))
    flow.add_fan_in_edges(["a", "i"], gathers("k"))
    return Run(workflow=flow.build(), message=1, outputs=[[1, 100]])


@row("§5 on_missing", "partial fires with what arrived")
def partial(policy: Policy) -> Run:
    flow = diamond(policy, taken=odd, on_missing="partial")
    return Run(workflow=flow.build(), message=2, outputs=[[2, "no b"]], undelivered=[])


@row("§5 on_missing", "wait never fires, and its leftovers are undelivered at the end")
def wait(policy: Policy) -> Run:
    flow = diamond(policy, taken=odd, on_missing="wait")
    return Run(
        workflow=flow.build(),
        message=2,
        outputs=[],
        undelivered=[("a", "join_incomplete")],
        not_run=["b", "j"],
    )


@row("§5 on_missing", "fail fails the run with join, arrived and missing")
def fail(policy: Policy) -> Run:
    flow = diamond(policy, taken=odd, on_missing="fail")
    return Run(
        workflow=flow.build(),
        message=2,
        state="failed",
        code="join_incomplete",
        outputs=[],
        details={"join": "j", "arrived": ["a"], "missing": ["b"]},
    )


@row("§5", "a join with no arrival does not fire and is no error")
def no_arrival(policy: Policy) -> Run:
    flow = built(policy, relays("s")).add_edge("s", relays("a"), odd).add_edge("s", relays("b"), odd)
    flow.add_fan_in_edges(["a", "b"], gathers("j"), on_missing="fail")
    return Run(workflow=flow.build(), message=2, outputs=[], not_run=["a", "b", "j"])


@row("§5", "a failed source that is left out is dead for the join")
def failed_source(policy: Policy) -> Run:
    flow = built(policy, relays("s")).add_fan_out_edges("s", [relays("a"), fails("b", on_error="skip")])
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=3, outputs=[[3, "no b"]])


@row("§5 quorum", "the round closes at n arrivals; the later one of that round is join_closed")
def quorum(policy: Policy) -> Run:
    flow = built(policy, relays("s")).add_edge("s", relays("a")).add_edge("s", relays("b"))
    flow.add_chain(["s", relays("x"), relays("y"), relays("c")])
    flow.add_fan_in_edges(["a", "b", "c"], gathers("j"), quorum=2)
    return Run(workflow=flow.build(), message=3, outputs=[[3, 3, "no c"]], undelivered=[("c", "join_closed")])


def late_join(policy: Policy, **join: Any) -> Any:
    async def slow(value: int, ctx: Any) -> None:
        await asyncio.sleep(600)
        await ctx.send_message(value)

    flow = built(policy, relays("s"))
    flow.add_fan_out_edges("s", [relays("a"), node("b", slow, takes=(int,), sends=(int,))])
    return flow.add_fan_in_edges(["a", "b"], gathers("j"), timeout="1m", **join)


@row("§5 timeout", "at its expiry a partial join fires; what comes later is join_closed")
def timeout_partial(policy: Policy) -> Run:
    flow = late_join(policy)
    return Run(workflow=flow.build(), message=3, outputs=[[3, "no b"]], undelivered=[("b", "join_closed")])


@row("§5 timeout", "at its expiry wait counts as fail")
def timeout_wait(policy: Policy) -> Run:
    flow = late_join(policy, on_missing="wait")
    return Run(workflow=flow.build(), message=3, state="failed", code="join_incomplete", outputs=[])


@row("§5 timeout", "at its expiry fail fails")
def timeout_fail(policy: Policy) -> Run:
    flow = late_join(policy, on_missing="fail")
    return Run(workflow=flow.build(), message=3, state="failed", code="join_incomplete", outputs=[])


@row("§5 timeout", "the timer is durable: it fires while the run waits for a person", BOTH)
def timeout_at_rest(policy: Policy) -> Run:
    flow = built(policy, relays("s")).add_fan_out_edges("s", [relays("a"), asks("b", sends=True)])
    flow.add_fan_in_edges(["a", "b"], gathers("j"), timeout="48h")
    types = ["workflow.waiting", "timer.fired"]
    return Run(
        workflow=flow.build(),
        message=4,
        state="waiting",
        rests=200_000,
        outputs=[[4, "no b"]],
        types=[*types, "workflow.waiting"],
    )


@row("§5", "after a quorum, the second activation of the late source begins the next round")
def charge_is_one_activation(policy: Policy) -> Run:
    async def twice(value: Any, ctx: Any) -> None:
        await ctx.send_message(1)
        await ctx.send_message(2)

    flow = built(policy, node("s", twice, sends=(int,)))
    flow.add_fan_out_edges("s", [relays("a"), relays("b")])
    flow.add_chain(["s", relays("x"), relays("c")])
    flow.add_fan_in_edges(["a", "b", "c"], gathers("j"), quorum=2)
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[[1, 1, "no c"], [2, 2, "no c"]],
        undelivered=[("c", "join_closed"), ("c", "join_closed")],
    )


@row("§5", "two starts are two sources")
def join_of_two_inputs(policy: Policy) -> Run:
    flow = built(policy, relays("a"), relays("b")).add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=6, outputs=[[6, 6]])


@row("§5", "rounds of a loop close one after another", SUPERSTEP)
def loop(policy: Policy) -> Run:
    async def gather(values: list[int], ctx: Any) -> None:
        if sum(values) < 20:
            await ctx.send_message(sum(values))
        else:
            await ctx.yield_output(values)

    flow = built(policy, relays("s"))
    flow.add_fan_out_edges("s", [relays("a"), relays("b")])
    flow.add_fan_in_edges(["a", "b"], node("j", gather, takes=(list[int],), sends=(int,), gives=(list,)))
    flow.add_edge("j", "s").add_edge("j", gives("never"), lambda m: False, name="no")
    return Run(workflow=flow.build(), message=1, outputs=[[16, 16]])
