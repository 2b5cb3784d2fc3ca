"""Behaviours that users of message-passing workflows rely on: loops, mixed types, chained groups."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentflow import Case, Default, Executor, WorkflowContext, WorkflowExecutor, executor, handler
from agentflow.executors import Never
from tests.conformance.graphs.rows import (
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


class Count(msgspec.Struct, frozen=True):
    data: int


class Text(msgspec.Struct, frozen=True):
    text: str


def adds(id: str, limit: int = 10) -> Any:
    """A node that sends the number on, one higher, up to its limit; then it gives it out."""

    async def work(count: Count, ctx: Any) -> None:
        if count.data < limit:
            await ctx.send_message(Count(count.data + 1))
        else:
            await ctx.yield_output(count.data)

    return node(id, work, takes=(Count,), sends=(Count,), gives=(int,))


def total(id: str = "sum") -> Any:
    async def work(counts: list[Count], ctx: Any) -> None:
        await ctx.yield_output(sum(count.data for count in counts))

    return node(id, work, takes=(list[Count],), gives=(int,))


# -- loops and rounds ------------------------------------------------------------------------------


@row("loops", "two nodes that send to each other end when one of them gives out")
def ping_pong(policy: Policy) -> Run:
    flow = built(policy, adds("a")).add_edge("a", adds("b")).add_edge("b", "a")
    return Run(workflow=flow.build(), message=Count(0), outputs=[10])


@row("loops", "a loop that does not converge fails the run, and what was sent stays in the log", SUPERSTEP)
def no_convergence(policy: Policy) -> Run:
    flow = built(policy, adds("a"), max_iterations=5).add_edge("a", adds("b")).add_edge("b", "a")
    return Run(
        workflow=flow.build(), message=Count(0), state="failed", code="max_iterations_exceeded", outputs=[]
    )


@row("loops", "a node may send to itself")
def self_loop(policy: Policy) -> Run:
    flow = built(policy, adds("a", 4)).add_edge("a", "a")
    return Run(workflow=flow.build(), message=Count(0), outputs=[4])


@row("loops", "a run that sends nothing completes after its first step")
def silent(policy: Policy) -> Run:
    async def work(count: Count, ctx: Any) -> None: ...

    return Run(workflow=built(policy, node("a", work, takes=(Count,))).build(), message=Count(0), outputs=[])


# -- fan-out and fan-in ----------------------------------------------------------------------------


@row("fan-out", "a target that goes on does not keep the other from giving out")
def unequal_branches(policy: Policy) -> Run:
    flow = built(policy, adds("a")).add_fan_out_edges("a", [adds("b", 1), adds("c", 2)])
    return Run(workflow=flow.build(), message=Count(0), outputs=[1])


@row("fan-out", "both targets give out")
def two_outputs(policy: Policy) -> Run:
    flow = built(policy, adds("a")).add_fan_out_edges("a", [adds("b", 1), adds("c", 1)])
    return Run(workflow=flow.build(), message=Count(0), outputs=[1, 1])


@row("fan-in", "the results of two branches are added up")
def diamond(policy: Policy) -> Run:
    flow = built(policy, adds("a")).add_fan_out_edges("a", [adds("b"), adds("c")])
    flow.add_fan_in_edges(["b", "c"], total())
    return Run(workflow=flow.build(), message=Count(0), outputs=[4])


@row("fan-in", "a list of a union gathers messages of two types")
def mixed_list(policy: Policy) -> Run:
    async def work(values: list[Count | Text], ctx: Any) -> None:
        await ctx.yield_output([type(value).__name__ for value in values])

    flow = built(policy, emits("a", Count(1)), emits("b", Text("x")))
    flow.add_fan_in_edges(["a", "b"], node("j", work, takes=(list[Count | Text],), gives=(list,)))
    return Run(workflow=flow.build(), message=0, outputs=[["Count", "Text"]])


@row("fan-in", "a handler for each list type takes the list of its own")
def list_handlers(policy: Policy) -> Run:
    class Join(Executor):
        @handler
        async def counts(self, values: list[Count], ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(f"{len(values)} counts")

        @handler
        async def texts(self, values: list[Text], ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(f"{len(values)} texts")

    flow = built(policy, emits("a", Text("x")), emits("b", Text("y"))).add_fan_in_edges(["a", "b"], Join("j"))
    return Run(workflow=flow.build(), message=0, outputs=["2 texts"])


@row("fan-in", "two joins of the same sources each get a list of their own")
def two_joins(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1), emits("b", 2))
    flow.add_fan_in_edges(["a", "b"], gathers("i")).add_fan_in_edges(["b", "a"], gathers("j"))
    return Run(workflow=flow.build(), message=0, outputs=[[1, 2], [2, 1]], any_order=True)


@row("fan-in", "a join feeds another one")
def chained_joins(policy: Policy) -> Run:
    async def work(values: list[int], ctx: Any) -> None:
        await ctx.send_message(sum(values))

    flow = built(policy, emits("a", 1), emits("b", 2), emits("c", 10))
    flow.add_fan_in_edges(["a", "b"], node("i", work, takes=(list[int],), sends=(int,)))
    flow.add_fan_in_edges(["i", "c"], gathers("j"))
    return Run(workflow=flow.build(), message=0, outputs=[[3, 10]])


@row("fan-in", "a source that sends nothing is named as missing")
def silent_source(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1), emits("b", also=(int,))).add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=0, outputs=[[1, "no b"]])


@row("fan-in", "a source of a wide join may be slow; none is lost")
def wide(policy: Policy) -> Run:
    def slow(number: int) -> Any:
        async def work(value: Any, ctx: Any) -> None:
            await asyncio.sleep(10 - number)
            await ctx.send_message(number)

        return node(f"w{number}", work, sends=(int,))

    workers = [slow(i) for i in range(6)]
    flow = built(policy, *workers).add_fan_in_edges(workers, gathers("j"))
    return Run(workflow=flow.build(), message=0, outputs=[[0, 1, 2, 3, 4, 5]])


# -- routing ---------------------------------------------------------------------------------------


@row("routing", "two kinds of messages of one node go to the nodes that take them")
def by_type(policy: Policy) -> Run:
    flow = built(policy, emits("a", Count(1), Text("x")))
    flow.add_edge("a", gives("counts", Count, lambda v: v.data)).add_edge(
        "a", gives("texts", Text, lambda v: v.text)
    )
    return Run(workflow=flow.build(), message=0, outputs=[1, "x"], undelivered=[], any_order=True)


@row("routing", "a union handler takes both")
def union(policy: Policy) -> Run:
    flow = built(policy, emits("a", Count(1), Text("x")))
    flow.add_edge("a", gives("b", Count | Text, lambda v: type(v).__name__))
    return Run(workflow=flow.build(), message=0, outputs=["Count", "Text"])


@row("routing", "a dict goes to a handler of dict, a list to one of list")
def containers(policy: Policy) -> Run:
    flow = built(policy, emits("a", {"k": 1}, [1]))
    flow.add_edge("a", gives("d", dict)).add_edge("a", gives("l", list[int]))
    return Run(workflow=flow.build(), message=0, outputs=[{"k": 1}, [1]], any_order=True)


@row("routing", "a switch behind a switch")
def nested_switch(policy: Policy) -> Run:
    def big(count: Count) -> bool:
        return count.data > 5

    def huge(count: Count) -> bool:
        return count.data > 50

    def shown(name: str) -> Any:
        return gives(name, Count, lambda v: f"{name} {v.data}")

    flow = built(policy, emits("a", Count(1), Count(10), Count(100)))
    flow.add_switch_case_edge_group("a", [Case(big, relays("s", Count)), Default(shown("small"))])
    flow.add_switch_case_edge_group("s", [Case(huge, shown("huge")), Default(shown("big"))])
    return Run(workflow=flow.build(), message=0, outputs=["small 1", "big 10", "huge 100"], any_order=True)


@row("routing", "a switch and an edge of one node are independent")
def switch_beside_edge(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1)).add_edge("a", gives("all"))
    flow.add_switch_case_edge_group("a", [Case(lambda v: v > 5, gives("b"), "big"), Default(gives("c"))])
    return Run(workflow=flow.build(), message=0, outputs=[1, 1], not_run=["b"])


@row("routing", "a selection chosen by the message, with a join behind it")
def selection_and_join(policy: Policy) -> Run:
    def chosen(value: int, targets: list[str]) -> list[str]:
        return targets[:value]

    flow = built(policy, relays("a"))
    flow.add_multi_selection_edge_group("a", [relays("b"), relays("c"), relays("d")], chosen)
    flow.add_fan_in_edges(["b", "c", "d"], gathers("j"))
    return Run(workflow=flow.build(), message=2, outputs=[[2, 2, "no d"]])


@row("routing", "a target_id that the edge group knows, of a type that it does not take, is undelivered")
def target_of_other_type(policy: Policy) -> Run:
    flow = built(policy, emits("a", Count(1), to="texts", also=(Text,)))
    flow.add_fan_out_edges("a", [gives("counts", Count), gives("texts", Text)])
    return Run(workflow=flow.build(), message=0, outputs=[], undelivered=[("a", "type_mismatch")])


@row("routing", "conditions see the message as a value of its type")
def typed_condition(policy: Policy) -> Run:
    def is_count(value: Any) -> bool:
        return isinstance(value, Count)

    flow = built(policy, emits("a", Count(1))).add_edge("a", gives("b", Any, lambda v: v.data), is_count)
    return Run(workflow=flow.build(), message=0, outputs=[1])


# -- executors -------------------------------------------------------------------------------------


@row("executors", "a subclass inherits handlers and may replace one")
def inherited(policy: Policy) -> Run:
    class Parent(Executor):
        @handler
        async def on_count(self, count: Count, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("parent's count")

        @handler
        async def on_text(self, text: Text, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("parent's text")

    class Child(Parent):
        @handler
        async def on_text(self, text: Text, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("child's text")

    flow = built(policy, emits("a", Count(1), Text("x"))).add_edge("a", Child("b"))
    return Run(workflow=flow.build(), message=0, outputs=["parent's count", "child's text"])


@row("executors", "one class twice in a graph, with two ids, keeps two states")
def two_instances(policy: Policy) -> Run:
    class Keeps(Executor):
        @handler
        async def on(self, value: int, ctx: WorkflowContext[int, list]) -> None:
            ctx.set_state("seen", [*ctx.get_state("seen", []), value])
            await ctx.yield_output([self.id, ctx.get_state("seen")])
            await ctx.send_message(value + 1)

    flow = built(policy, Keeps("one")).add_edge("one", Keeps("two"))
    return Run(workflow=flow.build(), message=1, outputs=[["one", [1]], ["two", [2]]])


@row("executors", "a factory makes an executor for each run")
def factory(policy: Policy) -> Run:
    class Counts(Executor):
        def __init__(self) -> None:
            super().__init__("counts")
            self.state = 0

        @handler
        async def on(self, value: int, ctx: WorkflowContext[Never, int]) -> None:
            self.state += value
            await ctx.yield_output(self.state)

    flow = built(policy, emits("s", 1, 2)).add_edge("s", Counts)
    return Run(workflow=flow.build(), message=0, outputs=[1, 3])


@row("executors", "a failure behind outputs leaves them in the log, and the run fails with the step named")
def failure_behind_output(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.yield_output("before")
        raise RuntimeError("broken")

    def check(events: list[Any]) -> None:
        assert [e.type for e in events if e.type in ("output", "workflow.step_failed", "workflow.failed")][
            -2:
        ] == [
            "workflow.step_failed",
            "workflow.failed",
        ]
        assert "broken" in events[-1].data.error.message

    flow = built(policy, node("a", work, takes=(int,), gives=(str,)))
    return Run(
        workflow=flow.build(),
        message=0,
        state="failed",
        code="executor_failed",
        outputs=["before"],
        details={"step_id": "a"},
        check=check,
    )


@row("executors", "the failure of a later node keeps what earlier ones gave out")
def later_failure(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.yield_output(value)
        await ctx.send_message(value)

    flow = built(policy, node("a", work, takes=(int,), sends=(int,), gives=(int,)))
    flow.add_edge("a", fails("b", sends=int)).add_edge("b", gives("c"))
    return Run(
        workflow=flow.build(), message=3, state="failed", code="executor_failed", outputs=[3], not_run=None
    )


# -- shared state ----------------------------------------------------------------------------------


@row("state", "what one node wrote another one reads, and may replace")
def handed_on(policy: Policy) -> Run:
    async def writes(value: int, ctx: Any) -> None:
        ctx.set_shared_state("draft", {"version": 1})
        await ctx.send_message(value)

    async def reads(value: int, ctx: Any) -> None:
        draft = ctx.get_shared_state("draft")
        draft["version"] += 1  # a copy: only set_shared_state writes
        await ctx.yield_output([draft["version"], ctx.get_shared_state("draft")["version"]])

    flow = built(policy, node("a", writes, takes=(int,), sends=(int,)))
    flow.add_edge("a", node("b", reads, takes=(int,), gives=(list,)))
    return Run(workflow=flow.build(), message=0, outputs=[[2, 1]], shared={"draft": {"version": 1}})


@row("state", "a key that nobody wrote gives the default of the call")
def default_of_call(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.yield_output([ctx.get_shared_state("x", 7), ctx.get_state("x"), ctx.get_state("x", [])])

    return Run(
        workflow=built(policy, node("a", work, gives=(list,))).build(), message=0, outputs=[[7, None, []]]
    )


@row("state", "None is a value, and not the lack of one")
def none_is_a_value(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        ctx.set_state("x", None)
        ctx.set_shared_state("y", None)
        await ctx.yield_output([ctx.get_state("x", 1), ctx.get_shared_state("y", 1)])

    return Run(
        workflow=built(policy, node("a", work, gives=(list,))).build(), message=0, outputs=[[None, None]]
    )


# -- requests --------------------------------------------------------------------------------------


@row("requests", "an answer that denies leads another way")
def denied(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.request_info(value, bool)

    async def answered(asked: int, answer: bool, ctx: Any) -> None:
        await (ctx.yield_output(asked) if answer else ctx.send_message(asked))

    flow = built(
        policy, node("a", work, takes=(int,), sends=(int,), gives=(int,), answer=bool, answered=answered)
    )
    flow.add_edge("a", gives("denied", int, str))
    return Run(workflow=flow.build(), message=4, answers=lambda asked: False, outputs=["4"])


@row("requests", "an answer may lead to the next question")
def asked_again(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.request_info(value, int)

    async def answered(asked: int, answer: int, ctx: Any) -> None:
        if answer < 3:
            await ctx.request_info(answer, int)
        else:
            await ctx.yield_output(answer)

    flow = built(policy, node("a", work, takes=(int,), gives=(int,), answer=int, answered=answered))
    return Run(workflow=flow.build(), message=0, answers=lambda asked: asked + 1, outputs=[3])


@row("requests", "questions of two nodes are answered together")
def two_nodes(policy: Policy) -> Run:
    flow = built(policy, asks("a", sends=True), asks("b", sends=True))
    flow.add_fan_in_edges(["a", "b"], gathers("j"))
    return Run(workflow=flow.build(), message=5, answers=lambda asked: asked * 2, outputs=[[10, 10]])


@row("requests", "work that needs no answer goes on while a question is open", EAGER)
def goes_on(policy: Policy) -> Run:
    flow = built(policy, asks("a"), relays("b")).add_chain(["b", relays("c"), gives("d")])
    return Run(workflow=flow.build(), message=5, answers=lambda asked: 1, outputs=[5, 1])


@row("requests", "a handler that finds nothing to ask completes without a request")
def nothing_to_ask(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        if value > 5:
            await ctx.request_info(value, int)
        await ctx.send_message("not asked")

    async def answered(asked: int, answer: int, ctx: Any) -> None: ...

    flow = built(policy, node("a", work, takes=(int,), sends=(str,), answer=int, answered=answered))
    return Run(workflow=flow.add_edge("a", gives("b")).build(), message=1, outputs=["not asked"])


@row("functions", "a function without context sends what it returns, also a list as one message")
def returns_list(policy: Policy) -> Run:
    @executor(id="a")
    async def a(value: int) -> list[int]:
        return [value] * 3

    return Run(
        workflow=built(policy, a).add_edge(a, gives("b", list[int])).build(), message=2, outputs=[[2, 2, 2]]
    )


@row("functions", "a function with context may send and return")
def sends_and_returns(policy: Policy) -> Run:
    @executor(id="a")
    async def a(value: int, ctx: WorkflowContext[int]) -> int:
        await ctx.send_message(value)
        return value + 1

    return Run(workflow=built(policy, a).add_edge(a, gives("b")).build(), message=2, outputs=[2, 3])


# -- sub-workflows ---------------------------------------------------------------------------------


def nested(policy: Policy, start: Any, output: str = "message") -> Any:
    """A graph whose node `sub` runs another one for each message."""
    child = built(policy, start, name="child").build()
    return WorkflowExecutor(child, "sub", output)  # type: ignore[arg-type]


def _works_after(seconds: float) -> Any:
    async def work(value: int, ctx: Any) -> None:
        await asyncio.sleep(seconds)
        await ctx.yield_output(value * 10)

    return node("deep", work, takes=(int,), gives=(int,))


@row("sub-workflows", "each message is a run of its own, and its output goes on as a message")
def sub_messages(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2)).add_chain(
        ["s", nested(policy, _works_after(0)), gives("end", int)]
    )
    return Run(workflow=flow.build(), message=0, outputs=[10, 20], any_order=True)


@row("sub-workflows", "with output=output its outputs are outputs of the run")
def sub_outputs(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1)).add_edge("s", nested(policy, _works_after(0), "output"))
    return Run(workflow=flow.build(), message=0, outputs=[10])


@row("sub-workflows", "a running child holds the barrier", SUPERSTEP)
def child_holds_barrier(policy: Policy) -> Run:
    flow = built(policy, nested(policy, _works_after(60)), relays("b"))
    flow.add_edge("sub", gives("c", int)).add_edge("b", gives("d"))
    types = ["superstep.started", "superstep.completed", "superstep.started", "superstep.completed"]
    return Run(workflow=flow.build(), message=1, outputs=[10, 1], types=types)


@row("sub-workflows", "a waiting child does not", SUPERSTEP)
def waiting_child(policy: Policy) -> Run:
    flow = built(policy, nested(policy, asks("deep")), relays("b")).add_edge("b", gives("d"))
    flow.add_edge("sub", gives("c", int))
    # With crashes: tests/integration/graphs/test_subworkflows.py, where the logs of children are cut as well.
    return Run(workflow=flow.build(), message=1, answers=lambda asked: 5, outputs=[1, 5], at=1)


@row("sub-workflows", "the failure of a child fails its step")
def child_fails(policy: Policy) -> Run:
    flow = built(policy, nested(policy, fails("deep")))
    return Run(workflow=flow.build(), message=1, state="failed", code="subgraph_failed", outputs=[])


@row("limits", "256 handlers of a run are at work at once, the others wait", EAGER)
def many_at_once(policy: Policy) -> Run:
    working: list[int] = []
    most: list[int] = [0]

    def at_work(number: int) -> Any:
        async def work(value: int, ctx: Any) -> None:
            working.append(number)
            most[0] = max(most[0], len(working))
            await asyncio.sleep(60)
            working.remove(number)

        return node(f"w{number}", work, takes=(int,))

    def check(events: list[Any]) -> None:
        assert most[0] == 256
        assert len([e for e in events if e.type == "workflow.step_completed"]) == 301

    flow = built(policy, relays("s")).add_fan_out_edges("s", [at_work(i) for i in range(300)])
    return Run(workflow=flow.build(), message=1, check=check, at=3)
