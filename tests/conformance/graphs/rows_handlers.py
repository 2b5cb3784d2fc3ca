"""§3: contexts, handlers, payloads, state of executors."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections import Counter
from typing import Any, ClassVar

import msgspec

from agentflow import (
    Executor,
    RetryPolicy,
    Service,
    ToolContext,
    WorkflowContext,
    executor,
    function,
    handler,
)
from agentflow.executors import Never
from tests.conformance.graphs.rows import (
    BOTH,
    ROWS,
    Policy,
    Row,
    Run,
    built,
    emits,
    gathers,
    gives,
    node,
    relays,
    row,
)


class Base(msgspec.Struct, frozen=True):
    n: int = 0


class Below(Base, frozen=True):
    pass


class Lowest(Below, frozen=True):
    pass


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: list[int]


class Sorts(Executor):
    """Handlers whose names are in another order than the class body."""

    @handler
    async def z_base(self, value: Base, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("Base")

    @handler
    async def y_below(self, value: Below, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("Below")

    @handler
    async def x_integer(self, value: int, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("int")

    @handler
    async def w_truth(self, value: bool, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("bool")

    @handler
    async def v_union(self, value: str | bytes, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("str | bytes")

    @handler
    async def u_integers(self, value: list[int], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("list[int]")

    @handler
    async def t_texts(self, value: list[str], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("list[str]")

    @handler
    async def a_any(self, value: Any, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("Any")


_CHOICES: list[tuple[str, Any, str]] = [
    ("exact type", Below(), "Below"),
    ("nearest base class", Lowest(), "Below"),
    ("base class", Base(), "Base"),
    ("True reaches the bool handler", True, "bool"),
    ("1 reaches the int handler", 1, "int"),
    ("union member", "text", "str | bytes"),
    ("elements of a list of numbers", [1, 2], "list[int]"),
    ("elements of a list of texts", ["a"], "list[str]"),
    ("a mixed list", [1, "a"], "Any"),
    ("Any", 1.5, "Any"),
    ("Any takes None", None, "Any"),
]


def _choice(value: Any, wanted: str) -> Any:
    def make(policy: Policy) -> Run:
        flow = built(policy, node("s", _sends(value), sends=(Any,))).add_edge("s", Sorts("a"))
        return Run(workflow=flow.build(), message=0, outputs=[wanted])

    return make


def _sends(value: Any) -> Any:
    async def work(ignored: Any, ctx: Any) -> None:
        await ctx.send_message(value)

    return work


def _open_list(value: Any) -> Any:
    def make(policy: Policy) -> Run:
        async def shows(given: list[list[int]], ctx: Any) -> None:
            await ctx.yield_output(str(given))

        flow = built(policy, node("s", _sends(value), sends=(list[list[int]],)))
        flow.add_edge("s", node("a", shows, takes=(list[list[int]],), gives=(str,)))
        return Run(workflow=flow.build(), message=0, outputs=[str(value)])

    return make


ROWS.extend(
    Row("§3 handler choice", f"a list of lists of numbers, as declared: {value}", _open_list(value), BOTH)
    for value in ([[]], [[1], []], [])
)


ROWS.extend(
    Row("§3 handler choice", title, _choice(value, wanted), ("superstep",))
    for title, value, wanted in _CHOICES
)


@row("§3 handler choice", "ties go by the order of the class body")
def ties(policy: Policy) -> Run:
    class Ties(Executor):
        @handler
        async def z(self, value: list[int], ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("first")

        @handler
        async def a(self, value: list[str], ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("second")

    return Run(workflow=built(policy, Ties("a")).build(), message=[], outputs=["first"])


_PAYLOADS: list[Any] = [
    Point(1, [2]),
    Colour.RED,
    dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    dt.timedelta(hours=2),
    uuid.UUID(int=7),
    decimal.Decimal("1.10"),
    b"bytes",
    (1, "a"),
    {1, 2},
    {"k": [Point(1, [])]},
    Lowest(3),
    [Base(1), Lowest(2)],
    None,
    True,
]


def _payload(value: Any) -> Any:
    def make(policy: Policy) -> Run:
        async def takes(found: Any, ctx: Any) -> None:
            assert type(found) is type(value)
            assert found == value
            ctx.set_state("kept", found)
            assert ctx.get_state("kept") == value
            await ctx.send_message(found)

        async def again(found: Any, ctx: Any) -> None:
            await ctx.yield_output(found == value and type(found) is type(value))

        types = (Any, Point, Colour, Base, Below, Lowest)
        flow = built(policy, node("s", _sends(value), sends=types))
        flow.add_chain(["s", node("a", takes, sends=types), node("b", again, gives=(bool,))])
        return Run(workflow=flow.build(), message=0, outputs=[True])

    return make


ROWS.extend(
    Row("§3 payloads", f"{type(value).__name__} number {i}", _payload(value), ("superstep",))
    for i, value in enumerate(_PAYLOADS)
)


# -- contexts --------------------------------------------------------------------------------------


@row("§3 context", "what is read only says where the message came from, which activation and attempt it is")
def read_only(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")
        shown = [
            ctx.source_executor_ids,
            ctx.activation,
            ctx.attempt,
            ctx.workflow_id,
            ctx.missing_source_ids,
        ]
        await ctx.yield_output([*shown, ctx.superstep])

    b = node("b", work, takes=(int,), gives=(list,), retry=RetryPolicy(max_attempts=2))
    flow = built(policy, relays("a")).add_edge("a", b)
    wanted = [["a"], "/b#0", 2, "wf_row", [], 2 if policy == "superstep" else None]
    return Run(workflow=flow.build(), message=0, outputs=[wanted])


@row("§3 context", "a fan-in names its sources in declared order")
def sources(policy: Policy) -> Run:
    async def work(values: list[int], ctx: Any) -> None:
        await ctx.yield_output(ctx.source_executor_ids)

    flow = built(policy, relays("b"), relays("a"))
    flow.add_fan_in_edges(["a", "b"], node("j", work, takes=(list[int],), gives=(list,)))
    return Run(workflow=flow.build(), message=0, outputs=[["a", "b"]])


@row("§3 context", "an event of the user's own cannot be one of a lifecycle")
def no_forgery(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        await ctx.add_event("workflow.completed", {"n": 1})
        await ctx.yield_output("behind it")

    return Run(
        workflow=built(policy, node("a", work, gives=(str,))).build(),
        message=0,
        outputs=["behind it"],
        types=["custom.workflow.completed", "workflow.completed"],
    )


@row("§3 context", "a bare WorkflowContext may send nothing")
def bare(policy: Policy) -> Run:
    class Bare(Executor):
        @handler
        async def on(self, value: int, ctx: WorkflowContext) -> None:
            await ctx.send_message(value)  # type: ignore[arg-type]

    return Run(
        workflow=built(policy, Bare("a")).build(), message=0, state="failed", code="message_type_undeclared"
    )


@row("§3 context", "a target that no edge of the node reaches is unknown_target")
def unknown_target(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1, to="c")).add_chain(["a", relays("b"), gives("c")])
    return Run(workflow=flow.build(), message=0, state="failed", code="unknown_target")


_CALLS: Counter[str] = Counter()


def _called_once(events: list[Any]) -> None:
    for key, count in _CALLS.items():
        assert count <= 1, f"{key} was called {count} times"


@row("§3 run_once", "the record is what a later attempt gets; nothing is called again")
def run_once(policy: Policy) -> Run:
    async def fetch(key: str) -> list[str]:
        _CALLS[key] += 1
        return [key]

    async def work(value: int, ctx: Any) -> None:
        found = await ctx.run_once("one", fetch, "x", side_effect="read")
        more = await ctx.run_once("two", fetch, "y", side_effect="read")
        if ctx.attempt == 1:
            raise ValueError("behind the calls")
        await ctx.yield_output([*found, *more])

    flow = built(policy, node("a", work, takes=(int,), gives=(list,), retry=RetryPolicy(max_attempts=2)))
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[["x", "y"]],
        reset=_CALLS.clear,
        check=_called_once,
        types=["tool.call_completed", "tool.call_completed", "workflow.step_retrying"],
    )


@row("§3 call_tool", "a call of a service is recorded by its arguments")
def call_tool(policy: Policy) -> Run:
    @function(side_effect="read")
    async def pay(amount: int, ctx: ToolContext) -> dict[str, int]:
        """Pays."""
        _CALLS[f"pay {amount}"] += 1
        return {"paid": amount}

    async def work(value: int, ctx: Any) -> None:
        found = await ctx.call_tool("bank.pay", {"amount": value})
        if ctx.attempt == 1:
            raise ValueError("behind the call")
        await ctx.yield_output(found)

    flow = built(policy, node("a", work, takes=(int,), gives=(dict,), retry=RetryPolicy(max_attempts=2)))
    return Run(
        workflow=flow.build(),
        message=3,
        services=[Service.of("bank", pay)],
        outputs=[{"paid": 3}],
        reset=_CALLS.clear,
        check=_called_once,
    )


# -- executors -------------------------------------------------------------------------------------


@row("§3 executors", "a returned value is sent")
def returned(policy: Policy) -> Run:
    @executor(id="a")
    async def a(value: int) -> int:
        return value + 1

    return Run(workflow=built(policy, a).add_edge(a, gives("b")).build(), message=1, outputs=[2])


@row("§3 executors", "None that is returned is no message")
def returned_none(policy: Policy) -> Run:
    @executor(id="a")
    async def a(value: int) -> int | None:
        return value if value > 5 else None

    return Run(
        workflow=built(policy, a).add_edge(a, gives("b")).build(), message=1, outputs=[], not_run=["b"]
    )


class Counts(Executor):
    """Keeps its numbers in a field, which only `snapshot_state` saves."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.seen: list[int] = []

    def snapshot_state(self) -> Any:
        return self.seen

    def restore_state(self, value: Any) -> None:
        self.seen = value

    @handler
    async def on(self, value: int, ctx: WorkflowContext[Never, list]) -> None:
        self.seen.append(value)
        await ctx.yield_output(list(self.seen))


@row("§3 executors", "snapshot_state and restore_state carry the state over a restart")
def snapshot(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2, 3)).add_edge("s", Counts("a"))
    return Run(workflow=flow.build(), message=0, outputs=[[1], [1, 2], [1, 2, 3]])


class Kept(Executor):
    """Keeps its state in the attribute `state`."""

    tries: ClassVar[list[int]] = []
    state: int = 0

    @handler
    async def on(self, value: int, ctx: WorkflowContext[Never, int]) -> None:
        self.state += value
        if value == 2 and ctx.attempt == 1:
            raise ValueError("the state of this attempt is gone")
        await ctx.yield_output(self.state)


@row("§3 executors", "the attribute state is kept, and a failed attempt leaves nothing of it")
def attribute(policy: Policy) -> Run:
    flow = built(policy, emits("s", 1, 2, 3)).add_edge("s", Kept("a", retry=RetryPolicy(max_attempts=2)))
    return Run(workflow=flow.build(), message=0, outputs=[1, 3, 6])


@row("§3 payloads", "what the sender changes behind the call does not change the message")
def encoded_at_once(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        found = Point(1, [1])
        await ctx.send_message(found)
        found.y.append(2)
        found.x = 9

    flow = built(policy, node("a", work, sends=(Point,))).add_edge("a", gives("b", Point))
    return Run(workflow=flow.build(), message=0, outputs=[{"x": 1, "y": [1]}])


@row("§3 map", "max_in_flight bounds the workers, and the order of results is that of the items")
def map_bound(policy: Policy) -> Run:
    import asyncio

    working: list[int] = []

    async def work(value: int, ctx: Any) -> None:
        working.append(value)
        assert len(working) <= 2
        await asyncio.sleep(10 - value)
        working.remove(value)
        await ctx.send_message(value)

    flow = built(policy, emits("s", [1, 2, 3, 4, 5]))
    flow.add_map_edges("s", node("w", work, takes=(int,), sends=(int,)), gathers("j"), max_in_flight=2)
    return Run(workflow=flow.build(), message=0, outputs=[[1, 2, 3, 4, 5]], reset=working.clear)
