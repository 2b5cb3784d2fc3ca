"""§10: requests to people and other systems."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentflow import (
    Executor,
    RequestInfoExecutor,
    RetryPolicy,
    WorkflowContext,
    handler,
    response_handler,
)
from agentflow.executors import Never
from agentflow.tools import ToolError
from tests.conformance.graphs.rows import (
    EAGER,
    SUPERSTEP,
    Policy,
    Run,
    asks,
    built,
    emits,
    gives,
    node,
    relays,
    row,
)


class Claim(msgspec.Struct, frozen=True):
    id: int


class Verdict(msgspec.Struct, frozen=True):
    pay: bool


class Note(msgspec.Struct, frozen=True):
    text: str


@row("§10", "the handler that asked has ended and never runs again; the answer goes to the response handler")
def asked_once(policy: Policy) -> Run:
    flow = built(policy, asks("a"))
    return Run(
        workflow=flow.build(),
        message=4,
        answers=lambda asked: asked + 1,
        outputs=[5],
        begun=["/a#0/1", "/a#1/1"],
        types=["input.requested", "workflow.waiting", "input.received", "workflow.completed"],
    )


class Desk(Executor):
    """Two questions of one handler, told apart by the types of question and answer."""

    @handler
    async def on_claim(self, claim: Claim, ctx: WorkflowContext) -> None:
        await ctx.request_info(claim, Verdict)
        await ctx.request_info(claim, Note)
        await ctx.request_info("text", Verdict)

    @response_handler
    async def verdict(self, asked: Claim, answer: Verdict, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"verdict {answer.pay}")

    @response_handler
    async def note(self, asked: Claim, answer: Note, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"note {answer.text}")

    @response_handler
    async def other(self, asked: str, answer: Verdict, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"other {answer.pay}")


@row("§10", "the response handler is chosen by both types")
def by_both_types(policy: Policy) -> Run:
    def must_match(events: list[Any]) -> None:
        types = [e.data.request_type for e in events if e.type == "input.requested"]
        assert types == ["Verdict", "Note", "Verdict"]

    return Run(
        workflow=built(policy, Desk("desk")).build(),
        message=Claim(1),
        state="waiting",
        check=must_match,
    )


@row("§10", "two approvals in one node do not collide, and are answered in any order")
def two_approvals(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2)).add_edge("s", asks("a"))
    seen: list[int] = []

    def second_first(asked: int) -> int | None:
        if asked == 2:
            seen.append(2)
            return 20
        return 10 if 2 in seen else None

    return Run(workflow=flow.build(), message=0, answers=second_first, outputs=[10, 20], any_order=True)


@row("§10", "a waiting activation does not hold the queue of its node")
def queue_goes_on(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        if value == 1:
            await ctx.request_info(value, int)
        else:
            await ctx.yield_output(value)

    async def answered(asked: int, answer: int, ctx: Any) -> None:
        await ctx.yield_output(answer)

    flow = built(policy, emits("s", 1, 2, 3))
    flow.add_edge("s", node("a", work, takes=(int,), gives=(int,), answer=int, answered=answered))
    return Run(workflow=flow.build(), message=0, answers=lambda asked: 10, outputs=[2, 3, 10])


@row("§10 timeout", "with on_timeout that is the answer, via deadline")
def on_timeout(policy: Policy) -> Run:
    def check(events: list[Any]) -> None:
        (received,) = [e.data for e in events if e.type == "input.received"]
        assert (received.via, received.value) == ("deadline", -1)

    flow = built(policy, asks("a", timeout="48h", on_timeout=-1))
    return Run(workflow=flow.build(), message=4, rests=200_000, outputs=[-1], check=check)


@row("§10 timeout", "without on_timeout the node fails")
def input_timeout(policy: Policy) -> Run:
    flow = built(policy, asks("a", timeout=60))
    return Run(
        workflow=flow.build(),
        message=4,
        rests=100,
        state="failed",
        code="input_timeout",
        types=["input.requested", "input.cancelled", "workflow.step_failed", "workflow.failed"],
    )


@row("§10", "a request without a response handler for both types fails its step")
def no_response_handler(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.request_info(value, Note)

    async def answered(asked: int, answer: int, ctx: Any) -> None: ...

    flow = built(policy, node("a", work, takes=(int,), answer=int, answered=answered))
    return Run(workflow=flow.build(), message=4, state="failed", code="no_response_handler")


@row("§10", "a request of an attempt that fails is not asked")
def staged(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.request_info(value, int)
        raise ValueError("behind the request")

    async def answered(asked: int, answer: int, ctx: Any) -> None: ...

    def check(events: list[Any]) -> None:
        assert not [e for e in events if e.type == "input.requested"]

    flow = built(policy, node("a", work, takes=(int,), answer=int, answered=answered))
    return Run(workflow=flow.build(), message=4, state="failed", code="executor_failed", check=check)


@row("§10", "RequestInfoExecutor: each message becomes a request, each answer a message on its edges")
def node_form(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2)).add_chain(["s", RequestInfoExecutor("ask", int), gives("b")])
    return Run(
        workflow=flow.build(),
        message=0,
        answers=lambda asked: asked * 100,
        outputs=[100, 200],
        any_order=True,
    )


@row("§6", "waiting does not hold the barrier", SUPERSTEP)
def barrier(policy: Policy) -> Run:
    flow = built(policy, asks("a"), relays("b")).add_chain(["b", relays("c"), gives("d")])
    types = ["superstep.completed", "superstep.completed", "superstep.completed", "workflow.waiting"]
    return Run(
        workflow=flow.build(),
        message=4,
        answers=lambda asked: 9,
        outputs=[4, 9],
        types=[*types, "superstep.completed"],
    )


@row("§6", "answers enter before other messages", SUPERSTEP)
def answers_first(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        if value == 1:
            await ctx.request_info(value, int)
        await ctx.yield_output(f"message {value}")
        if value == 1:
            await ctx.send_message(2)

    async def answered(asked: int, answer: int, ctx: Any) -> None:
        await ctx.yield_output(f"answer {answer}")

    flow = built(
        policy, node("a", work, takes=(int,), sends=(int,), gives=(str,), answer=int, answered=answered)
    )
    flow.add_edge("a", asks("wait", sends=True)).add_edge("wait", "a", lambda m: m != 1, name="back")
    return Run(
        workflow=flow.build(),
        message=1,
        answers=lambda asked: asked * 5,
        outputs=["message 1", "answer 5", "message 10"],
    )


@row("§10", "any number of requests of one activation may be open", EAGER)
def many(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        for number in range(value):
            await ctx.request_info(number, int)

    async def answered(asked: int, answer: int, ctx: Any) -> None:
        await ctx.yield_output(answer)

    flow = built(policy, node("a", work, takes=(int,), gives=(int,), answer=int, answered=answered))
    return Run(
        workflow=flow.build(),
        message=6,
        answers=lambda n: n * n,
        outputs=[0, 1, 4, 9, 16, 25],
        any_order=True,
    )


@row("§10", "an answer enters an executor that has gone on meanwhile, with its private state")
def state_of_asker(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        ctx.set_state("n", ctx.get_state("n", 0) + value)
        await ctx.request_info(value, int)

    async def answered(asked: int, answer: int, ctx: Any) -> None:
        await ctx.yield_output([asked, answer, ctx.get_state("n")])

    flow = built(policy, emits("s", 1, 2))
    flow.add_edge("s", node("a", work, takes=(int,), gives=(list,), answer=int, answered=answered))
    return Run(
        workflow=flow.build(),
        message=0,
        answers=lambda n: -n,
        outputs=[[1, -1, 3], [2, -2, 3]],
        any_order=True,
    )


@row("§10", "a response handler that fails is tried again by the policy of its node, with the same answer")
def response_retried(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.request_info(value, int)

    async def answered(asked: int, answer: int, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")
        await ctx.yield_output([asked, answer, ctx.attempt])

    retry = RetryPolicy(max_attempts=2)
    a = node("a", work, takes=(int,), gives=(list,), answer=int, answered=answered, retry=retry)
    return Run(workflow=built(policy, a).build(), message=4, answers=lambda asked: 9, outputs=[[4, 9, 2]])


@row("§10", "a response handler that fails for good fails its node, and the request is closed")
def response_fails(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.request_info(value, int)

    async def answered(asked: int, answer: int, ctx: Any) -> None:
        raise ValueError("no")

    a = node("a", work, takes=(int,), answer=int, answered=answered)
    return Run(
        workflow=built(policy, a).build(),
        message=4,
        answers=lambda asked: 9,
        state="failed",
        code="executor_failed",
        types=["input.requested", "input.received", "workflow.step_failed", "workflow.failed"],
    )


@row("§10", "the failure of another branch under halt closes open requests")
def closed_by_failure(policy: Policy) -> Run:
    async def later(value: int, ctx: Any) -> None:
        await asyncio.sleep(60)
        raise ValueError("no")

    flow = built(policy, asks("a"), node("b", later, takes=(int,)), on_failure="halt")

    def check(events: list[Any]) -> None:
        opened = {e.data.request_id for e in events if e.type == "input.requested"}
        assert opened == {e.data.request_id for e in events if e.type == "input.cancelled"}

    return Run(workflow=flow.build(), message=4, state="failed", code="executor_failed", check=check)


# -- budgets of handlers (page 000 §10) ------------------------------------------------------------


def calls(id: str, *keys: str, gives: bool = True) -> Any:
    """A node that makes these recorded calls one after another, gives out each and shares the last one."""

    async def work(value: int, ctx: Any) -> None:
        for key in keys:
            called = await ctx.run_once(key, str, f"{id}{key}", side_effect="read")
            await ctx.yield_output(called)
            ctx.set_shared_state(id, called)

    return node(id, work, takes=(int,), gives=(str,))


@row("§10 budget", "a call of a handler over the budget asks a person, and is made when the limit is raised")
def asks_for_more(policy: Policy) -> Run:
    return Run(
        workflow=built(policy, calls("a", "1", "2", "3")).build(),
        message=0,
        options={"budget": {"max_tool_calls": 1, "on_exceeded": "ask"}},
        answers=lambda asked: {"choice": "raise", "limit": asked["used"] + 1},
        outputs=["a1", "a2", "a3"],
        shared={"a": "a3"},
        begun=["/a#0/1"],
    )


@row("§10 budget", "a refused budget is an error that the handler may catch")
def refused_budget(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.run_once("1", str, 1, side_effect="read")
        for key in "23":
            try:
                await ctx.run_once(key, str, key, side_effect="read")
            except ToolError as error:
                await ctx.yield_output(error.info.code)

    return Run(
        workflow=built(policy, node("a", work, takes=(int,), gives=(str,))).build(),
        message=0,
        options={"budget": {"max_tool_calls": 1, "on_exceeded": "ask"}},
        answers=lambda asked: {"choice": "fail"},
        outputs=["budget_exceeded", "budget_exceeded"],
    )


@row("§10 budget", "`fail`: the call raises, and uncaught its step fails")
def over_budget(policy: Policy) -> Run:
    return Run(
        workflow=built(policy, calls("a", "1", "2")).build(),
        message=0,
        options={"budget": {"max_tool_calls": 1, "on_exceeded": "fail"}},
        outputs=["a1"],
        state="failed",
        code="budget_exceeded",
    )


@row("§10 budget", "other nodes go on while a handler waits for its budget, and what each wrote is committed")
def others_go_on(policy: Policy) -> Run:
    def check(events: list[Any]) -> None:
        kinds = [e.type for e in events]
        if policy == "superstep" and "input.requested" in kinds:
            asked, answered = kinds.index("input.requested"), kinds.index("input.received")
            assert "superstep.completed" in kinds[asked:answered]

    async def counts(value: int, ctx: Any) -> None:
        ctx.set_shared_state("n", value)
        await ctx.yield_output(value)
        if value < 3:
            await ctx.send_message(value + 1)

    flow = built(policy, calls("a", "1", "2"), node("b", counts, takes=(int,), sends=(int,), gives=(int,)))
    return Run(
        workflow=flow.add_edge("b", "b").build(),
        message=0,
        options={"budget": {"max_tool_calls": 1, "on_exceeded": "ask"}},
        answers=lambda asked: {"choice": "raise", "limit": 9},
        outputs=["a1", "a2", 0, 1, 2, 3],
        any_order=True,
        shared={"a": "a2", "n": 3},
        check=check,
    )
