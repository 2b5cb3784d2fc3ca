"""§8: failures, retries, time-outs, limits."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import RetryPolicy
from agentflow.definition.policy import Backoff
from tests.conformance.graphs.rows import (
    BOTH,
    EAGER,
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

TWICE = RetryPolicy(max_attempts=2, backoff=Backoff(initial=60), jitter=0)


@row("§8 retry", "attempts left: backoff, the same input, the same snapshot of the state")
def retried(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.yield_output([value, ctx.attempt, ctx.get_shared_state("k"), ctx.get_state("p")])
        ctx.set_state("p", 1)
        if ctx.attempt == 1:
            raise ValueError("once")

    async def writes(value: int, ctx: Any) -> None:
        await asyncio.sleep(10)  # while the other one waits for its second attempt
        ctx.set_shared_state("k", "new")

    flow = built(policy, node("a", work, takes=(int,), gives=(list,), retry=TWICE), node("b", writes))
    flow.add_shared("k", str, default="old")
    return Run(
        workflow=flow.build(),
        message=5,
        outputs=[[5, 2, "old", None]],
        types=["workflow.step_retrying", "workflow.completed"],
        shared={"k": "new"},
    )


@row("§8", "an executor without retry is attempted once")
def once(policy: Policy) -> Run:
    return Run(
        workflow=built(policy, fails("a", 1)).build(),
        message=5,
        state="failed",
        code="executor_failed",
        begun=["/a#0/1"],
        types=["workflow.step_failed", "workflow.failed"],
        check=lambda events: _category(events, "agent", "ValueError"),
    )


def _category(events: list[Any], category: str, kind: str) -> None:
    (failed,) = [e.data.error for e in events if e.type == "workflow.step_failed"]
    assert (failed.category, failed.details["type"]) == (category, kind)


@row("§8 halt", "dispatch stops, work in flight ends, the run fails", EAGER)
def halt(policy: Policy) -> Run:
    async def slow(value: int, ctx: Any) -> None:
        await asyncio.sleep(60)
        await ctx.yield_output(value)
        await ctx.send_message(value)

    flow = built(
        policy, fails("a"), node("b", slow, takes=(int,), sends=(int,), gives=(int,)), on_failure="halt"
    )
    flow.add_edge("b", gives("c")).add_edge("a", gives("d"))
    return Run(
        workflow=flow.build(),
        message=5,
        state="failed",
        code="executor_failed",
        outputs=[5],
        routes={"b": ["c delivered"]},
        types=["workflow.step_failed", "workflow.step_completed", "workflow.failed"],
    )


@row("§8 halt", "siblings in the superstep end; nothing of the next one begins", SUPERSTEP)
def halt_superstep(policy: Policy) -> Run:
    async def slow(value: int, ctx: Any) -> None:
        await asyncio.sleep(60)
        await ctx.yield_output(value)
        await ctx.send_message(value)

    flow = built(policy, fails("a"), node("b", slow, takes=(int,), sends=(int,), gives=(int,)))
    flow.add_edge("b", gives("c")).add_edge("a", gives("d"))
    return Run(
        workflow=flow.build(),
        message=5,
        state="failed",
        code="executor_failed",
        outputs=[5],
        begun=["/a#0/1", "/b#0/1"],
    )


@row("§8 continue", "the node is dead for joins; other branches end, then the run fails")
def goes_on(policy: Policy) -> Run:
    flow = built(policy, relays("s"), on_failure="continue")
    flow.add_fan_out_edges("s", [fails("a"), relays("b")]).add_fan_in_edges(["a", "b"], gathers("j"))
    flow.add_edge("b", relays("c")).add_edge("c", gives("d"))
    return Run(
        workflow=flow.build(),
        message=5,
        state="failed",
        code="executor_failed",
        outputs=[5, [5, "no a"]],
        any_order=True,
    )


@row("§8 hold", "the run pauses behind the failure")
def held(policy: Policy) -> Run:
    flow = built(policy, fails("a"), on_failure="hold")
    return Run(
        workflow=flow.build(),
        message=5,
        state="paused",
        types=["workflow.step_failed", "workflow.paused"],
    )


@row("§8 skip", "on_error skip: dead for joins, and no failure of the run")
def skipped(policy: Policy) -> Run:
    flow = built(policy, relays("s"))
    flow.add_fan_out_edges("s", [fails("a", on_error="skip"), relays("b")])
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=5, outputs=[[5, "no a"]], types=["workflow.step_failed"])


@row("§8", "an attempt over retry.timeout is step_timeout")
def attempt_timeout(policy: Policy) -> Run:
    async def slow(value: int, ctx: Any) -> None:
        await asyncio.sleep(3600)

    limits = RetryPolicy(max_attempts=2, timeout=60, backoff=Backoff(initial=1), jitter=0)
    flow = built(policy, node("a", slow, takes=(int,), retry=limits))
    return Run(
        workflow=flow.build(),
        message=5,
        state="failed",
        code="step_timeout",
        types=["workflow.step_retrying", "workflow.step_failed"],
    )


@row("§8", "a node over its timeout, all attempts, is step_deadline")
def node_timeout(policy: Policy) -> Run:
    async def slow(value: int, ctx: Any) -> None:
        await asyncio.sleep(50)
        raise ValueError("late")

    limits = RetryPolicy(max_attempts=9, backoff=Backoff(initial=1), jitter=0)
    flow = built(policy, node("a", slow, takes=(int,), retry=limits, timeout=120))
    return Run(workflow=flow.build(), message=5, state="failed", code="step_deadline")


@row("§8", "a deadline of the run that passes is run_deadline")
def deadline(policy: Policy) -> Run:
    async def slow(value: int, ctx: Any) -> None:
        await asyncio.sleep(3600)

    flow = built(policy, node("a", slow, takes=(int,)))
    return Run(
        workflow=flow.build(),
        message=5,
        options={"budget": {"max_duration_s": 60}},
        state="failed",
        code="run_deadline",
    )


@row("§16 retry", "misuse of the context is never retried")
def misuse(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.send_message("text")

    flow = built(policy, node("a", work, takes=(int,), sends=(int,), retry=RetryPolicy(max_attempts=5)))
    return Run(
        workflow=flow.build(), message=5, state="failed", code="message_type_undeclared", begun=["/a#0/1"]
    )


@row("§16 retry", "misuse that the handler catches is no failure")
def caught_misuse(policy: Policy) -> Run:
    from agentflow.errors import MessageTypeUndeclared, UnknownTarget

    async def work(value: int, ctx: Any) -> None:
        try:
            await ctx.send_message("text")
        except MessageTypeUndeclared as error:
            await ctx.yield_output(error.code)
        try:
            await ctx.send_message(1, target_id="nowhere")
        except UnknownTarget as error:
            await ctx.yield_output(error.code)

    flow = built(policy, node("a", work, takes=(int,), sends=(int,), gives=(str,)))
    return Run(workflow=flow.build(), message=5, outputs=["message_type_undeclared", "unknown_target"])


# -- limits ----------------------------------------------------------------------------------------


@row("§8 limits", "max_iterations: the run fails with limit and queued", SUPERSTEP)
def too_many_rounds(policy: Policy) -> Run:
    flow = built(policy, relays("a"), max_iterations=3).add_edge("a", "a", lambda m: True, name="again")
    return Run(
        workflow=flow.build(),
        message=1,
        state="failed",
        code="max_iterations_exceeded",
        details={"limit": 3, "queued": 1},
        begun=["/a#0/1", "/a#1/1", "/a#2/1"],
    )


@row("§8 limits", "max_iterations with an empty queue is success", SUPERSTEP)
def just_enough_rounds(policy: Policy) -> Run:
    flow = built(policy, relays("a"), max_iterations=3).add_chain(["a", relays("b"), gives("c")])
    return Run(workflow=flow.build(), message=1, outputs=[1])


@row("§8 limits", "max_iterations restarts at every answer", SUPERSTEP)
def people_drive(policy: Policy) -> Run:
    flow = built(policy, asks("a", sends=True), max_iterations=2)
    flow.add_edge("a", "a", lambda m: m < 6, name="more").add_edge(
        "a", gives("b"), lambda m: m >= 6, name="end"
    )
    return Run(workflow=flow.build(), message=1, answers=lambda asked: asked + 1, outputs=[6])


@row("§8 limits", "max_steps", EAGER)
def too_many_steps(policy: Policy) -> Run:
    flow = built(policy, relays("a"), max_steps=4).add_edge("a", "a", lambda m: True, name="again")
    return Run(
        workflow=flow.build(), message=1, state="failed", code="step_limit_exceeded", details={"limit": 4}
    )


@row("§8 limits", "max_steps never restarts, an answer changes nothing", EAGER)
def people_and_steps(policy: Policy) -> Run:
    flow = built(policy, asks("a", sends=True), max_steps=5)
    flow.add_edge("a", "a", lambda m: True, name="more")
    return Run(
        workflow=flow.build(),
        message=1,
        answers=lambda asked: asked + 1,
        state="failed",
        code="step_limit_exceeded",
    )


@row("§8 limits", "messages sent by one activation", BOTH)
def too_many_messages(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        for _ in range(10_001):
            await ctx.send_message(1)

    flow = built(policy, node("a", work, takes=(int,), sends=(int,))).add_edge("a", gives("b"))
    return Run(
        workflow=flow.build(),
        message=1,
        state="failed",
        code="message_limit_exceeded",
        outputs=[],
        begun=["/a#0/1"],
    )


@row("§8", "a failed branch leaves its siblings, also behind it")
def siblings(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2, 3), on_failure="continue")

    async def second_fails(value: int, ctx: Any) -> None:
        if value == 2:
            raise ValueError("2")
        await ctx.send_message(value)

    flow.add_edge("s", node("a", second_fails, takes=(int,), sends=(int,))).add_edge("a", gives("b"))
    return Run(workflow=flow.build(), message=1, state="failed", code="executor_failed", outputs=[1, 3])
