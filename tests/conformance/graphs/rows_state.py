"""§6 and §7: when state is committed, conflicts, reducers, private state; §12: outputs and their order."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import RetryPolicy, reducers
from tests.conformance.graphs.rows import (
    EAGER,
    ROWS,
    SUPERSTEP,
    Policy,
    Row,
    Run,
    built,
    emits,
    gives,
    node,
    relays,
    row,
)


def writes(id: str, *values: Any, key: str = "k", after: float = 0, sends: bool = False) -> Any:
    async def work(value: Any, ctx: Any) -> None:
        await asyncio.sleep(after)
        for each in values:
            ctx.set_shared_state(key, each)
        if sends:
            await ctx.send_message(0)

    return node(id, work, sends=(int,) if sends else ())


def reads(id: str, key: str = "k", after: float = 0) -> Any:
    async def work(value: Any, ctx: Any) -> None:
        await asyncio.sleep(after)
        await ctx.yield_output(ctx.get_shared_state(key, "nothing"))

    return node(id, work, gives=(Any,))


# -- commits and reads -----------------------------------------------------------------------------


@row("§6 shared reads", "as committed before the superstep, plus own writes", SUPERSTEP)
def superstep_reads(policy: Policy) -> Run:
    async def own(value: Any, ctx: Any) -> None:
        ctx.set_shared_state("k", 1)
        await ctx.yield_output(ctx.get_shared_state("k"))

    flow = built(policy, node("a", own, gives=(int,)), reads("b", after=60))
    return Run(workflow=flow.build(), message=0, outputs=[1, "nothing"], shared={"k": 1})


@row("§6 shared reads", "as committed at dispatch, plus own writes", EAGER)
def eager_reads(policy: Policy) -> Run:
    async def late(value: Any, ctx: Any) -> None:
        await asyncio.sleep(60)
        await ctx.yield_output(ctx.get_shared_state("k", "nothing"))
        await ctx.send_message(0)

    flow = built(policy, writes("a", 1), node("b", late, sends=(int,), gives=(Any,)))
    flow.add_edge("b", reads("c"))
    return Run(workflow=flow.build(), message=0, outputs=["nothing", 1], shared={"k": 1})


@row("§6 shared commit", "a message reaches its target after the commit of its sender")
def committed_before_delivery(policy: Policy) -> Run:
    flow = built(policy, writes("a", 5, sends=True)).add_edge("a", reads("b"))
    return Run(workflow=flow.build(), message=0, outputs=[5])


@row("§6 conflict", "two nodes wrote one key in this superstep: the run fails at the barrier", SUPERSTEP)
def conflict_at_barrier(policy: Policy) -> Run:
    flow = built(policy, writes("a", 1), writes("b", 2))
    return Run(
        workflow=flow.build(),
        message=0,
        state="failed",
        code="state_conflict",
        details={"key": "k", "steps": ["a", "b"]},
        shared={},
    )


@row("§6 conflict", "another node committed the key since the dispatch: the later activation fails", EAGER)
def conflict_of_later(policy: Policy) -> Run:
    flow = built(policy, writes("a", 1), writes("b", 2, after=60))

    def check(events: list[Any]) -> None:
        (failed,) = [e.data for e in events if e.type == "workflow.step_failed"]
        assert (failed.step_id, failed.error.code) == ("b", "state_conflict")
        assert failed.error.details == {"key": "k", "steps": ["a", "b"]}

    return Run(
        workflow=flow.build(), message=0, state="failed", code="state_conflict", shared={"k": 1}, check=check
    )


@row("§7", "equal values do not conflict")
def equal_values(policy: Policy) -> Run:
    flow = built(policy, writes("a", 1), writes("b", 1, after=60))
    return Run(workflow=flow.build(), message=0, shared={"k": 1})


@row("§7", "several writes of one node do not conflict; the last counts")
def one_node(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2)).add_edge("s", writes("a", 7, 8, 9))
    return Run(workflow=flow.build(), message=0, shared={"k": 9})


@row("§7", "writes one after another do not conflict")
def successive(policy: Policy) -> Run:
    flow = built(policy, writes("a", 1, sends=True)).add_edge("a", writes("b", 2))
    return Run(workflow=flow.build(), message=0, shared={"k": 2})


@row("§6 shared commit", "with a reducer: commit order is step-id order at a barrier", SUPERSTEP)
def order_of_commit(policy: Policy) -> Run:
    flow = built(policy, writes("b", "b"), writes("c", "c1", "c2"), writes("a", "a", after=60))
    flow.add_shared("k", list, reducer=reducers.append)
    return Run(workflow=flow.build(), message=0, shared={"k": ["a", "b", "c1", "c2"]})


@row("§6 shared commit", "with a reducer: commit order is the order of completions", EAGER)
def order_of_completion(policy: Policy) -> Run:
    flow = built(policy, writes("a", "a", after=60), writes("b", "b"))
    flow.add_shared("k", list, reducer=reducers.append)
    return Run(workflow=flow.build(), message=0, shared={"k": ["b", "a"]})


_REDUCERS: dict[str, tuple[Any, list[Any], Any]] = {
    "append": (None, [1, 2], [1, 2]),
    "extend": ([0], [[1], [2, 3]], [0, 1, 2, 3]),
    "add": (10, [1, 2], 13),
    "max": (None, [1, 5, 3], 5),
    "min": (2, [4, 1], 1),
    "union": ([1], [[2, 1], [3]], [1, 2, 3]),
    "merge": ({"a": 1}, [{"b": 2}, {"a": 3}], {"a": 3, "b": 2}),
    "last": (None, [1, 2], 2),
}


def _reducer(name: str) -> Any:
    default, updates, wanted = _REDUCERS[name]

    def make(policy: Policy) -> Run:
        async def work(value: Any, ctx: Any) -> None:
            for update in updates:
                ctx.set_shared_state("k", update)
            await ctx.yield_output(ctx.get_shared_state("k"))

        flow = built(policy, node("a", work, gives=(Any,)))
        flow.add_shared("k", Any, reducer=getattr(reducers, name), default=default)
        return Run(workflow=flow.build(), message=0, shared={"k": wanted}, outputs=[wanted])

    return make


ROWS.extend(
    Row(
        "§7 reducers",
        f"{name}: an update is folded, and own updates are seen",
        _reducer(name),
        ("superstep", "eager"),
    )
    for name in _REDUCERS
)


# -- completion is atomic --------------------------------------------------------------------------


@row("§7", "a failed attempt leaves no message and no write; its outputs and events stay, marked")
def failed_attempt(policy: Policy) -> Run:
    async def work(value: Any, ctx: Any) -> None:
        await ctx.send_message(ctx.attempt)
        ctx.set_shared_state("k", ctx.attempt)
        ctx.set_state("p", ctx.get_state("p", 0) + 1)
        await ctx.yield_output(f"attempt {ctx.attempt}")
        await ctx.add_event("tried", {"n": ctx.attempt})
        if ctx.attempt == 1:
            raise ValueError("once")

    def check(events: list[Any]) -> None:
        given = [(e.data.value, e.data.index) for e in events if e.type == "output" and e.data.step_id == "a"]
        assert given[0] == ("attempt 1", 0)
        assert given[-1] == ("attempt 2", 0)
        assert [e.data.data["n"] for e in events if e.type == "custom.tried"][-1] == 2

    flow = built(policy, node("a", work, sends=(int,), gives=(str,), retry=RetryPolicy(max_attempts=2)))
    flow.add_edge("a", gives("b"))
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=["attempt 2", 2],
        shared={"k": 2},
        private={"a": {"p": 1}},
        check=check,
    )


@row("§7", "outputs of the last attempt count also if that one failed for good")
def output_of_failed(policy: Policy) -> Run:
    async def work(value: Any, ctx: Any) -> None:
        await ctx.yield_output(ctx.attempt)
        raise ValueError("always")

    flow = built(policy, node("a", work, gives=(int,), retry=RetryPolicy(max_attempts=3)))
    return Run(workflow=flow.build(), message=0, state="failed", code="executor_failed", outputs=[3])


@row("§7", "an executor sees its own earlier activations at once, also inside a superstep")
def private_state(policy: Policy) -> Run:
    async def work(value: Any, ctx: Any) -> None:
        ctx.set_state("seen", [*ctx.get_state("seen", []), value])
        await ctx.yield_output(len(ctx.get_state("seen")))

    flow = built(policy, emits("s", 1, 2, 3)).add_edge("s", node("a", work, gives=(int,)))
    return Run(workflow=flow.build(), message=0, outputs=[1, 2, 3], private={"a": {"seen": [1, 2, 3]}})


@row("§7", "private state is private: nodes of one run have keys of their own")
def private_of_each(policy: Policy) -> Run:
    def keeps(id: str) -> Any:
        async def work(value: Any, ctx: Any) -> None:
            assert ctx.get_state("k") is None
            ctx.set_state("k", id)
            await ctx.send_message(value)

        return node(id, work, sends=(int,))

    flow = built(policy, keeps("a")).add_chain(["a", keeps("b"), gives("c")])
    return Run(workflow=flow.build(), message=0, private={"a": {"k": "a"}, "b": {"k": "b"}})


@row("§7", "under halt a superstep with a failure commits no shared write; what completed stays", SUPERSTEP)
def halt_commits_nothing(policy: Policy) -> Run:
    async def broken(value: Any, ctx: Any) -> None:
        await asyncio.sleep(60)
        raise ValueError("no")

    flow = built(policy, writes("a", 1, sends=True), node("b", broken)).add_edge("a", gives("c"))
    return Run(
        workflow=flow.build(),
        message=0,
        state="failed",
        code="executor_failed",
        shared={},
        outputs=[],
        routes={"a": ["c delivered"]},
    )


@row("§7", "the default of a declared key is read until it is written")
def declared_default(policy: Policy) -> Run:
    flow = built(policy, reads("a"), emits("s", 1)).add_shared("k", list[int], default=[1, 2])
    return Run(workflow=flow.build(), message=0, outputs=[[1, 2]])


# -- outputs ---------------------------------------------------------------------------------------


@row("§6", "outputs are ordered by superstep, step id, visit, index", SUPERSTEP)
def order_of_outputs(policy: Policy) -> Run:
    async def late(value: Any, ctx: Any) -> None:
        await asyncio.sleep(60)
        await ctx.yield_output("a1")
        await ctx.yield_output("a2")
        await ctx.send_message(1)

    flow = built(policy, gives("b"), node("a", late, sends=(int,), gives=(str,))).add_edge("a", gives("_0"))
    return Run(workflow=flow.build(), message="b", outputs=["a1", "a2", "b", 1])


@row("§6", "outputs are in offset order", EAGER)
def outputs_by_offset(policy: Policy) -> Run:
    async def late(value: Any, ctx: Any) -> None:
        await asyncio.sleep(60)
        await ctx.yield_output("a")

    flow = built(policy, gives("b"), node("a", late, gives=(str,)))
    return Run(workflow=flow.build(), message="b", outputs=["b", "a"])


@row("§12", "nodes outside output_from give intermediate outputs")
def intermediate(policy: Policy) -> Run:
    flow = built(policy, gives("a"), gives("b"), output_from=["b"])
    return Run(workflow=flow.build(), message=1, outputs=[1], intermediate=[1])


@row("§12", "nodes that were never activated are listed in not_run, without events of their own")
def never_activated(policy: Policy) -> Run:
    flow = built(policy, relays("a")).add_edge("a", gives("b"), lambda m: m > 5, name="big")
    return Run(workflow=flow.build(), message=1, not_run=["b"], begun=["/a#0/1"])


@row("§3", "several starts each receive the input")
def several_starts(policy: Policy) -> Run:
    flow = built(policy, gives("a"), gives("b", Any, str), gives("c"))
    return Run(workflow=flow.build(), message=3, outputs=[3, "3", 3])
