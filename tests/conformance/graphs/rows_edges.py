"""§4: edges and routing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentflow import Case, Default, RetryPolicy
from tests.conformance.graphs.rows import (
    SUPERSTEP,
    Policy,
    Run,
    built,
    emits,
    fails,
    gathers,
    gives,
    node,
    relays,
    row,
)


class Base(msgspec.Struct, frozen=True):
    n: int


class Below(Base, frozen=True):
    pass


class Other(msgspec.Struct, frozen=True):
    n: int


def positive(value: int) -> bool:
    return value > 0


def never(value: Any) -> bool:
    raise AssertionError("the condition of an edge that cannot take the message was asked")


def raises(value: Any) -> bool:
    raise LookupError("no such key")


# -- single ----------------------------------------------------------------------------------------


@row("§4 single", "a message goes along an edge whose condition is true")
def condition(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1, -1)).add_edge("a", gives("b"), positive)
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[1],
        routes={"a": ["b delivered", "b condition_false"]},
        undelivered=[("a", "condition_false")],
    )


@row("§4 single", "the target is tested first, then the type, then the condition")
def order_of_tests(policy: Policy) -> Run:
    flow = built(policy, emits("a", Other(1), to="c", also=(Base,)))
    flow.add_edge("a", gives("b", Other), never).add_edge("a", gives("c", Other | Base))
    flow.add_edge("a", gives("d", Base), never).add_edge("a", "c", lambda m: True, name="more")
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[{"n": 1}, {"n": 1}],
        routes={"a": ["b target_mismatch, c delivered, d target_mismatch, c delivered"]},
    )


@row("§4 single", "a type that the target does not take is told before a condition is asked")
def type_before_condition(policy: Policy) -> Run:
    flow = built(policy, emits("a", Other(1), also=(Base,)))
    flow.add_edge("a", gives("b", Base), never)
    return Run(
        workflow=flow.build(), message=0, outputs=[], undelivered=[("a", "type_mismatch")], not_run=["b"]
    )


@row("§4 single", "a message of a subclass reaches the handler of its base class")
def subclass(policy: Policy) -> Run:
    flow = built(policy, emits("a", Below(2))).add_edge("a", gives("b", Base, lambda v: type(v).__name__))
    return Run(workflow=flow.build(), message=0, outputs=["Below"])


@row("§4 single", "several edges between one pair, with names, deliver once each")
def several_edges(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1)).add_edge("a", gives("b"), positive, name="one")
    flow.add_edge("a", "b", lambda m: m < 5, name="two").add_edge("a", "b", lambda m: m > 5, name="three")
    wanted = ["b delivered, b delivered, b condition_false"]
    return Run(workflow=flow.build(), message=0, outputs=[1, 1], routes={"a": wanted})


# -- predicates ------------------------------------------------------------------------------------


def within(value: int, shared: Mapping[str, Any]) -> bool:
    return value <= shared["limit"]


@row("§4 predicates", "fn(data, shared) reads the shared state")
def predicate_with_shared(policy: Policy) -> Run:
    flow = built(policy, emits("a", 3, 9)).add_shared("limit", int, default=5)
    flow.add_edge("a", gives("b"), within)
    return Run(workflow=flow.build(), message=0, outputs=[3])


@row("§16", "a predicate reads the shared state as it was before the completion that is routed")
def predicate_before_completion(policy: Policy) -> Run:
    async def work(value: int, ctx: Any) -> None:
        ctx.set_shared_state("limit", 100)
        await ctx.send_message(50)

    flow = built(policy, node("a", work, sends=(int,))).add_shared("limit", int, default=5)
    flow.add_switch_case_edge_group("a", [Case(within, gives("b")), Default(gives("c", Any, str))])
    return Run(workflow=flow.build(), message=0, outputs=["50"], shared={"limit": 100})


@row("§4 predicates", "an expression reads message and state")
def expression(policy: Policy) -> Run:
    flow = built(policy, emits("a", Base(3), Base(9))).add_shared("limit", int, default=5)
    flow.add_edge("a", gives("b"), "message.n <= state.limit")
    return Run(workflow=flow.build(), message=0, outputs=[{"n": 3}])


@row("§4", "a predicate that raises fails the sender, is not retried, and falls through to no default")
def predicate_raises(policy: Policy) -> Run:
    async def work(value: Any, ctx: Any) -> None:
        ctx.set_shared_state("kept", 1)
        await ctx.send_message(1)

    a = node("a", work, sends=(int,), retry=RetryPolicy(max_attempts=3))
    flow = built(policy, a)
    flow.add_switch_case_edge_group("a", [Case(raises, gives("b")), Default(gives("c"))])
    return Run(
        workflow=flow.build(),
        message=0,
        state="failed",
        code="routing_failed",
        begun=["/a#0/1"],
        outputs=[],
        shared={},
        check=lambda events: _names_the_edge(events, "raises"),
    )


def _names_the_edge(events: list[Any], edge: str) -> None:
    (failed,) = [e.data for e in events if e.type == "workflow.step_failed"]
    assert failed.error.code == "routing_failed"
    assert failed.error.details["edge"] == edge
    assert set(failed.error.details) == {"edge", "reason", "valid_targets"}


@row("§4", "an expression that fails is a routing failure as well")
def expression_fails(policy: Policy) -> Run:
    flow = built(policy, emits("a", Base(3))).add_edge("a", gives("b"), "message.nothing.more > 1", name="e")
    return Run(
        workflow=flow.build(),
        message=0,
        state="failed",
        code="routing_failed",
        check=lambda events: _names_the_edge(events, "e"),
    )


# -- fan-out ---------------------------------------------------------------------------------------


@row("§4 fan-out", "every target that takes the type gets it")
def fan_out(policy: Policy) -> Run:
    flow = built(policy, emits("a", Base(1), Other(2)))
    flow.add_fan_out_edges("a", [gives("b", Base), gives("c", Other), gives("d")])
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[{"n": 1}, {"n": 2}, {"n": 1}, {"n": 2}],
        any_order=True,
        routes={
            "a": ["b delivered, c type_mismatch, d delivered", "b type_mismatch, c delivered, d delivered"]
        },
    )


@row("§4 fan-out", "targets never share a mutable object")
def no_shared_object(policy: Policy) -> Run:
    async def adds(value: list[int], ctx: Any) -> None:
        value.append(len(value))
        await ctx.yield_output(value)

    async def sends(value: Any, ctx: Any) -> None:
        mine = [7]
        await ctx.send_message(mine)
        mine.append(99)

    flow = built(policy, node("a", sends, sends=(list[int],)))
    flow.add_fan_out_edges("a", [node(i, adds, takes=(list[int],), gives=(list,)) for i in "bc"])
    return Run(workflow=flow.build(), message=0, outputs=[[7, 1], [7, 1]])


@row("§4 fan-out", "with a target_id one target alone gets it")
def fan_out_to_one(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1, to="c")).add_fan_out_edges("a", [gives("b"), gives("c")])
    return Run(
        workflow=flow.build(), message=0, routes={"a": ["b target_mismatch, c delivered"]}, outputs=[1]
    )


# -- selection -------------------------------------------------------------------------------------


def selected(*ids: str) -> Any:
    def chosen(value: Any, targets: list[str]) -> list[str]:
        return list(ids)

    return chosen


@row("§4 selection", "the chosen targets get it once, in whatever order and however often they are named")
def selection(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1))
    flow.add_multi_selection_edge_group("a", [gives("b"), gives("c"), gives("d")], selected("d", "b", "d"))
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[1, 1],
        routes={"a": ["b delivered, c not_selected, d delivered"]},
        not_run=["c"],
    )


@row("§4 selection", "the function is given the targets that take the type alone")
def selection_given(policy: Policy) -> Run:
    def all_of(value: Any, targets: list[str]) -> list[str]:
        assert targets == ["c", "d"], targets
        return targets

    flow = built(policy, emits("a", Base(1), also=(Other,)))
    flow.add_fan_out_edges("a", [gives("b", Other), gives("c", Base), gives("d")], all_of)
    wanted = ["b type_mismatch, c delivered, d delivered"]
    return Run(workflow=flow.build(), message=0, routes={"a": wanted}, outputs=[{"n": 1}] * 2)


@row("§4 selection", "an empty choice is not_selected everywhere")
def selects_nothing(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1))
    flow.add_multi_selection_edge_group("a", [gives("b"), gives("c")], selected())
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[],
        routes={"a": ["b not_selected, c not_selected"]},
        undelivered=[("a", "not_selected")],
    )


@row("§4 selection", "an unknown id fails the sender")
def selects_unknown(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1))
    flow.add_multi_selection_edge_group("a", [gives("b"), gives("c")], selected("b", "nowhere"))

    def check(events: list[Any]) -> None:
        (failed,) = [e.data for e in events if e.type == "workflow.step_failed"]
        assert failed.error.details["valid_targets"] == ["b", "c"]
        assert "nowhere" in failed.error.details["reason"]

    return Run(
        workflow=flow.build(), message=0, state="failed", code="routing_failed", outputs=[], check=check
    )


@row("§4 selection", "a selection that raises fails the sender")
def selection_raises(policy: Policy) -> Run:
    def broken(value: Any, targets: list[str]) -> list[str]:
        raise LookupError("x")

    flow = built(policy, emits("a", 1)).add_multi_selection_edge_group("a", [gives("b"), gives("c")], broken)
    return Run(workflow=flow.build(), message=0, state="failed", code="routing_failed", outputs=[])


# -- switch ----------------------------------------------------------------------------------------


@row("§4 switch", "the first true case alone")
def first_case(policy: Policy) -> Run:
    flow = built(policy, emits("a", 7))
    cases = [
        Case(lambda m: m > 9, gives("b"), "big"),
        Case(positive, gives("c")),
        Case(positive, gives("d"), "again"),
    ]
    flow.add_switch_case_edge_group("a", [*cases, Default(gives("e"))])
    wanted = ["b condition_false, c delivered, d not_selected, e not_selected"]
    return Run(workflow=flow.build(), message=0, outputs=[7], routes={"a": wanted}, not_run=["b", "d", "e"])


@row("§4 switch", "the default is tried last wherever it is written")
def default_first(policy: Policy) -> Run:
    flow = built(policy, emits("a", 7, -7))
    flow.add_switch_case_edge_group("a", [Default(gives("z")), Case(positive, gives("b", int, str))])
    wanted = ["z not_selected, b delivered", "z delivered, b condition_false"]
    return Run(workflow=flow.build(), message=0, outputs=["7", -7], routes={"a": wanted}, any_order=True)


@row("§4 switch", "cases may share a target")
def shared_target(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1, 100, 10)).add_switch_case_edge_group(
        "a",
        [
            Case(lambda m: m < 5, gives("b"), "low"),
            Case(lambda m: m > 50, "b", "high"),
            Default(gives("c", int, str)),
        ],
    )
    return Run(workflow=flow.build(), message=0, outputs=[1, 100, "10"], any_order=True)


@row("§4 switch", "a case whose target does not take the type is passed over")
def case_of_other_type(policy: Policy) -> Run:
    flow = built(policy, emits("a", Other(1), also=(Base,)))
    flow.add_switch_case_edge_group("a", [Case(never, gives("b", Base)), Default(gives("c"))])
    return Run(
        workflow=flow.build(), message=0, outputs=[{"n": 1}], routes={"a": ["b type_mismatch, c delivered"]}
    )


# -- fan-in, error and map edges -------------------------------------------------------------------


@row("§4 fan-in", "a message is accepted as an element of the list of the target")
def fan_in(policy: Policy) -> Run:
    flow = built(policy, emits("a", Base(1)), emits("b", Below(2), Other(3)))
    flow.add_fan_in_edges(["a", "b"], gathers("j", Base, lambda value: type(value).__name__))
    return Run(
        workflow=flow.build(),
        message=0,
        outputs=[["Base", "Below"]],
        routes={"a": ["j buffered"], "b": ["j buffered", "j type_mismatch"]},
        undelivered=[("b", "type_mismatch")],
    )


@row("§4 map", "one activation for each element, results in item order")
def mapped(policy: Policy) -> Run:
    flow = built(policy, emits("a", [3, 1, 2])).add_map_edges("a", relays("w"), gives("j", list[int]))
    return Run(workflow=flow.build(), message=0, outputs=[[3, 1, 2]])


@row("§4 map", "an acyclic graph reaches no bound of rounds, however long the list", SUPERSTEP)
def long_map(policy: Policy) -> Run:
    flow = built(policy, emits("a", list(range(12))), max_iterations=5)
    flow.add_map_edges("a", relays("w"), gives("j", list[int]), max_in_flight=2)
    return Run(workflow=flow.build(), message=0, outputs=[list(range(12))])


@row("§8 limits", "max_iterations bounds the rounds of one element of a map", SUPERSTEP)
def endless_element(policy: Policy) -> Run:
    flow = built(policy, emits("a", [1]), max_iterations=5)
    flow.add_edge("w", "w", lambda m: True, name="again")
    flow.add_map_edges("a", relays("w"), gives("j", list[int]))
    return Run(workflow=flow.build(), message=0, state="failed", code="max_iterations_exceeded")


@row("§8 error edge", "NodeFailure is delivered when the attempts are used up, and the run does not fail")
def error_edge(policy: Policy) -> Run:
    from agentflow import NodeFailure

    def shown(failure: Any) -> list[Any]:
        return [failure.activation, failure.error.code, failure.input]

    flow = built(policy, fails("a", retry=RetryPolicy(max_attempts=2, jitter=0)), name="w")
    flow.add_edge("a", gives("b")).add_error_edge("a", gives("e", NodeFailure, shown))
    return Run(
        workflow=flow.build(),
        message=5,
        outputs=[["/a#0", "executor_failed", 5]],
        begun=["/a#0/1", "/e#0/1"],
        types=["workflow.step_retrying", "workflow.step_failed", "workflow.completed"],
    )


# -- what no edge delivers -------------------------------------------------------------------------


@row("§4", "on_undelivered fail ends the run")
def undelivered_fails(policy: Policy) -> Run:
    flow = built(policy, emits("a", -1), on_undelivered="fail").add_edge("a", gives("b"), positive)
    return Run(
        workflow=flow.build(),
        message=0,
        state="failed",
        code="message_undelivered",
        undelivered=[("a", "condition_false")],
    )


@row("§4", "what a terminal node sends is recorded as no_edge and is no mistake")
def no_edge(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1, 2), on_undelivered="fail")
    return Run(
        workflow=flow.build(), message=0, routes={"a": ["no_edge", "no_edge"]}, undelivered=[], outputs=[]
    )


@row("§4", "a message of several edges that one delivers is not undelivered")
def one_is_enough(policy: Policy) -> Run:
    flow = built(policy, emits("a", 1)).add_edge("a", gives("b"), lambda m: False, name="no")
    flow.add_edge("a", gives("c"))
    return Run(workflow=flow.build(), message=0, undelivered=[], outputs=[1])


@row("§4 fan-out", "a slow target holds nobody back", policies=("eager",))
def slow_target(policy: Policy) -> Run:
    import asyncio

    async def slow(value: int, ctx: Any) -> None:
        await asyncio.sleep(3600)
        await ctx.yield_output("slow")

    flow = built(policy, emits("a", 1)).add_fan_out_edges("a", [node("b", slow, gives=(str,)), relays("c")])
    flow.add_edge("c", relays("d")).add_edge("d", gives("e"))
    return Run(workflow=flow.build(), message=0, outputs=[1, "slow"])


@row("§6 order", "messages of one sender reach a target in the order in which they were sent")
def fifo(policy: Policy) -> Run:
    flow = built(policy, emits("a", *range(5))).add_chain(["a", relays("b"), relays("c"), gives("d")])
    return Run(workflow=flow.build(), message=0, outputs=[0, 1, 2, 3, 4])


@row("§6 order at one target", "edge index, activation order, send index", SUPERSTEP)
def order_at_target(policy: Policy) -> Run:
    flow = built(policy, emits("b", "b0", "b1"), emits("a", "a0", "a1"))
    flow.add_edge("a", gives("t")).add_edge("b", "t")
    return Run(workflow=flow.build(), message=0, outputs=["a0", "a1", "b0", "b1"])


@row("§4 switch", "a case behind the first true one is not asked")
def later_case_unasked(policy: Policy) -> Run:
    flow = built(policy, emits("a", 7))
    flow.add_switch_case_edge_group(
        "a", [Case(positive, gives("b")), Case(raises, gives("c")), Default(gives("d"))]
    )
    return Run(workflow=flow.build(), message=0, outputs=[7], not_run=["c", "d"])


@row("§4 selection", "with a target_id the function chooses from that target alone")
def selection_with_target(policy: Policy) -> Run:
    def all_of(value: Any, targets: list[str]) -> list[str]:
        return targets

    flow = built(policy, emits("a", 1, to="c"))
    flow.add_multi_selection_edge_group("a", [gives("b"), gives("c")], all_of)
    return Run(
        workflow=flow.build(), message=0, outputs=[1], routes={"a": ["b target_mismatch, c delivered"]}
    )


@row("§4", "one message that cannot be routed holds back the others of its activation")
def all_or_nothing(policy: Policy) -> Run:
    def checked(value: int) -> bool:
        if value == 2:
            raise LookupError("2")
        return True

    flow = built(policy, emits("a", 1, 2, 3)).add_edge("a", gives("b"), checked)
    return Run(
        workflow=flow.build(), message=0, state="failed", code="routing_failed", outputs=[], not_run=None
    )


@row("§4 predicates", "a predicate gets a value of its own: what it changes reaches nobody")
def predicate_changes_nothing(policy: Policy) -> Run:
    def spoils(value: list[int]) -> bool:
        value.append(99)
        return True

    flow = built(policy, emits("a", [1])).add_edge("a", gives("b", list[int]), spoils)
    return Run(workflow=flow.build(), message=0, outputs=[[1]])
