"""Rows of the conformance suite: a rule of page 002, a graph that shows it, and what must come of a run.

A module of rows is a list of functions with `@row("§4 single", "what holds")`. Each gets the policy and
returns a Run. `test_rows` runs each under the policies that it names, and once more from behind each of its
events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from agentflow import Executor, Workflow, WorkflowBuilder, WorkflowContext
from agentflow.executors.handlers import HandlerSpec

__all__ = [
    "BOTH",
    "EAGER",
    "ROWS",
    "SUPERSTEP",
    "Policy",
    "Row",
    "Run",
    "asks",
    "built",
    "emits",
    "fails",
    "gathers",
    "gives",
    "node",
    "relays",
    "row",
]

Policy = Literal["superstep", "eager"]
BOTH: tuple[Policy, ...] = ("superstep", "eager")
SUPERSTEP: tuple[Policy, ...] = ("superstep",)
EAGER: tuple[Policy, ...] = ("eager",)


class Run(msgspec.Struct, kw_only=True):
    """A run and what must come of it. What is not stated is not asked for.

    `answers` gives the answer (JSON) to a request that is open, given what was asked. `routes` has the
    statuses of each message by its sender, in order: `{"a": ["b delivered, c type_mismatch"]}`.
    `undelivered` has sender and reason. `begun` has the activations that began, with their attempts.
    """

    workflow: Workflow
    message: Any
    answers: Callable[[Any], Any] | None = None
    rests: float = 0
    """Seconds to wait when the run rests and nobody answers: for timers."""
    options: dict[str, Any] = {}
    services: list[Any] = []
    state: str = "completed"
    outputs: list[Any] | None = None
    intermediate: list[Any] | None = None
    code: str | None = None
    details: dict[str, Any] | None = None
    routes: dict[str, list[str]] | None = None
    undelivered: list[tuple[str, str]] | None = None
    begun: list[str] | None = None
    shared: dict[str, Any] | None = None
    private: dict[str, dict[str, Any]] | None = None
    not_run: list[str] | None = None
    types: list[str] | None = None
    """The events of these types occur, in this order."""
    any_order: bool = False
    """Outputs come in any order: branches of an eager graph."""
    at: int = 0
    """How many moments of a crash are tried, spread over the log; 0: all."""
    reset: Callable[[], Any] = lambda: None
    """Called before each run: what the nodes count begins anew."""
    check: Callable[[list[Any]], None] | None = None
    """Gets the events of the run, and of each run that went on behind a crash."""


class Row(NamedTuple):
    """One row: where it stands, what it says, and the run that shows it."""

    rule: str
    title: str
    make: Callable[[Policy], Run]
    policies: tuple[Policy, ...]


ROWS: list[Row] = []


def row(
    rule: str, title: str, policies: tuple[Policy, ...] = BOTH
) -> Callable[[Callable[[Policy], Run]], Callable[[Policy], Run]]:
    """Register a row."""

    def keep(make: Callable[[Policy], Run]) -> Callable[[Policy], Run]:
        ROWS.append(Row(rule, title, make, policies))
        return make

    return keep


# -- nodes -----------------------------------------------------------------------------------------

Work = Callable[[Any, WorkflowContext[Any, Any]], Any]


class Node(Executor):
    """A node whose handlers are functions `async (value, ctx)`, with the types that the row states."""

    def __init__(
        self,
        id: str,
        work: Work,
        *,
        takes: tuple[Any, ...] = (Any,),
        sends: tuple[Any, ...] = (),
        gives: tuple[Any, ...] = (),
        asks: Any = Any,
        answer: Any = None,
        answered: Callable[[Any, Any, Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(id, **options)
        self._specs = tuple(
            HandlerSpec(
                name=f"on{i}", kind="message", function=work, takes=t, sends=sends, yields=gives, method=False
            )
            for i, t in enumerate(takes)
        )
        if answered is not None:
            self._specs += (
                HandlerSpec(
                    name="answered",
                    kind="response",
                    function=answered,
                    takes=asks,
                    answer=answer,
                    sends=sends,
                    yields=gives,
                    method=False,
                ),
            )

    @property
    def handlers(self) -> tuple[HandlerSpec, ...]:
        return self._specs

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        return self  # it keeps nothing


def node(id: str, work: Work, **types: Any) -> Node:
    """A node that does `work(value, ctx)`."""
    return Node(id, work, **types)


def emits(id: str, *values: Any, to: str | None = None, also: tuple[Any, ...] = ()) -> Node:
    """A node that sends these values, whatever comes; it may send values of the types `also` as well."""

    async def work(value: Any, ctx: WorkflowContext[Any, Any]) -> None:
        for each in values:
            await ctx.send_message(each, target_id=to)

    return node(id, work, sends=tuple(dict.fromkeys([*(type(v) for v in values), *also])))


def relays(id: str, takes: Any = int, sends: Any = None) -> Node:
    """A node that sends what it gets."""

    async def work(value: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.send_message(value)

    return node(id, work, takes=(takes,), sends=(takes if sends is None else sends,))


def gives(id: str, takes: Any = Any, make: Callable[[Any], Any] | None = None) -> Node:
    """A node that gives out what it gets, or what is made of it."""

    async def work(value: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(value if make is None else make(value))

    return node(id, work, takes=(takes,), gives=(Any,))


def gathers(id: str, item: Any = int, shown: Callable[[Any], Any] = lambda value: value) -> Node:
    """A node that gives out the list that a fan-in brings, and who is missing."""

    async def work(values: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output([*map(shown, values), *(f"no {source}" for source in ctx.missing_source_ids)])

    return node(id, work, takes=(list[item],), gives=(list,))


def asks(id: str, takes: Any = int, sends: bool = False, **options: Any) -> Node:
    """A node that asks what it got, and gives out or sends the answer, an int."""

    async def work(value: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.request_info(value, int, **options)

    async def answered(request: Any, answer: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await (ctx.send_message(answer) if sends else ctx.yield_output(answer))

    more: dict[str, Any] = {"sends": (int,)} if sends else {"gives": (int,)}
    return node(id, work, takes=(takes,), answer=int, answered=answered, **more)


def fails(id: str, attempts: int = 1_000, *, takes: Any = int, sends: Any = int, **options: Any) -> Node:
    """A node whose first attempts raise; then it sends what it got."""

    async def work(value: Any, ctx: WorkflowContext[Any, Any]) -> None:
        if ctx.attempt <= attempts:
            raise ValueError(f"attempt {ctx.attempt}")
        await ctx.send_message(value)

    return node(id, work, takes=(takes,), sends=(sends,), **options)


def built(policy: Policy, *start: Any, name: str = "w", **options: Any) -> WorkflowBuilder:
    """A builder with its start."""
    return WorkflowBuilder(name, policy=policy, **options).set_start_executor(*start)
