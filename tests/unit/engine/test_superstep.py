"""Supersteps: barriers, the order of messages, the bound on iterations (page 002 §6, §8)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec import UNSET

from agentflow import engine
from agentflow.definition.graph import SharedKey
from agentflow.definition.ir import Approval, ConditionNode, Edge, Policy, ToolNode
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine import IllegalEvent
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault, tool
from tests.unit.engine.handlers import Context, Graph, graph, node

BOTH = pytest.mark.parametrize("policy", ["superstep", "eager"])


def bounds(run: Graph) -> list[tuple[int, tuple[str, ...]]]:
    return [(d.superstep, d.activations) for d in run.events(ev.SuperstepStarted)]


def silent(ctx: Context) -> None:
    """A handler that sends nothing."""


def test_a_chain_takes_one_superstep_for_each_node():
    run = Graph(graph(node("a"), node("b"), edges=[("a", "b")]), 1, handlers={"b": silent}).go()
    assert run.types() == [
        "workflow.started",
        "superstep.started",
        "workflow.step_started",
        "workflow.step_completed",
        "superstep.completed",
        "superstep.started",
        "workflow.step_started",
        "workflow.step_completed",
        "superstep.completed",
        "workflow.completed",
    ]
    assert bounds(run) == [(1, ("/a#0",)), (2, ("/b#0",))]
    assert [(d.superstep, d.state_version, d.queued) for d in run.events(ev.SuperstepCompleted)] == [
        (1, 0, 1),
        (2, 0, 0),
    ]


def test_step_events_name_their_superstep_under_this_policy_only():
    run = Graph(graph(node("a"), node("b"), edges=[("a", "b")]), 1, handlers={"b": silent}).go()
    assert [d.superstep for d in run.events(ev.WorkflowStepStarted)] == [1, 2]
    assert [d.superstep for d in run.events(ev.WorkflowStepCompleted)] == [1, 2]
    workflow = graph(node("a"), edges=[], options={"policy": "eager"})
    run = Graph(workflow, 1, handlers={"a": silent}).go()
    assert "superstep.started" not in run.types()
    assert run.events(ev.WorkflowStepStarted)[0].superstep is UNSET


def test_a_run_is_pending_until_its_first_superstep():
    run = Graph(graph(node("a"), edges=[]), 1, handlers={"a": silent})
    assert run.refold(1).status == "pending"
    assert run.refold(2).status == "running"
    assert run.refold(2).dispatched_at == run.log[1][2]


def test_targets_of_one_superstep_run_at_the_same_time_and_the_barrier_waits_for_all():
    workflow = graph(*(node(i) for i in "abcd"), edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    run = Graph(workflow, 1, handlers={"d": silent})
    run.work(run.open_handlers()[0])
    assert [h.activation_key for h in run.open_handlers()] == ["/b#0", "/c#0"]
    run.work(run.open_handlers()[1])
    assert bounds(run)[-1] == (2, ("/b#0", "/c#0")), "c has sent to d, b still works"
    run.work(run.open_handlers()[0])
    assert bounds(run)[-1] == (3, ("/d#0", "/d#1"))


def test_messages_of_one_target_are_handled_one_after_the_other():
    def three(ctx: Context) -> None:
        for i in range(3):
            ctx.send(i)

    run = Graph(graph(node("a"), node("b"), edges=[("a", "b")]), 1, handlers={"a": three, "b": silent})
    run.work(run.open_handlers()[0])
    assert bounds(run)[-1] == (2, ("/b#0", "/b#1", "/b#2"))
    assert [h.activation_key for h in run.open_handlers()] == ["/b#0"]
    assert run.go().inputs("b") == [0, 1, 2]


def test_messages_at_one_target_come_by_edge_then_activation_then_send_index():
    def twice(ctx: Context) -> None:
        ctx.send(f"{ctx.node}{ctx.activation.visit}.0")
        ctx.send(f"{ctx.node}{ctx.activation.visit}.1")

    def start(ctx: Context) -> None:
        ctx.send(0)
        ctx.send(1)

    workflow = graph(*(node(i) for i in "abcd"), edges=[("a", "b"), ("a", "c"), ("c", "d"), ("b", "d")])
    expected = ["c0.0", "c0.1", "c1.0", "c1.1", "b0.0", "b0.1", "b1.0", "b1.1"]
    for choose in (lambda found: found[0], lambda found: found[-1]):
        run = Graph(workflow, 1, handlers={"a": start, "b": twice, "c": twice, "d": silent}).go(choose)
        assert run.inputs("d") == expected


def test_eager_dispatches_in_the_order_of_completions():
    workflow = graph(
        *(node(i) for i in "abcd"),
        edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
        options={"policy": "eager"},
    )
    run = Graph(workflow, 1, handlers={"b": lambda c: c.send("b"), "c": lambda c: c.send("c"), "d": silent})
    run.work(run.open_handlers()[0])
    run.work(run.open_handlers()[1])
    run.go()
    assert run.inputs("d") == ["c", "b"]


def test_a_waiting_activation_does_not_hold_the_barrier():
    agreed = node("b", approval=Approval(before="step"))
    workflow = graph(node("a"), agreed, node("c"), node("d"), edges=[("a", "b"), ("a", "c"), ("c", "d")])
    run = Graph(workflow, 1, handlers={"b": silent, "d": silent}).go()
    assert run.order() == ["/a#0", "/c#0", "/d#0"]
    assert run.state.status == "waiting"
    request = next(iter(run.state.requests))
    run.advance(engine.commands.decide_request(run.state, request_id=request, granted=True, by="test"))
    run.go()
    assert run.order()[-1] == "/b#0"
    assert run.state.status == "completed"


def test_answers_enter_before_other_messages():
    """Both wait for the same barrier; the answer came last."""

    def ask(ctx: Context) -> None:
        if ctx.input == "ask":
            ctx.ask("?", response_schema=True)

    def start(ctx: Context) -> None:
        ctx.send("ask", "desk")
        ctx.send("work", "slow")

    workflow = graph(
        node("a"), node("desk"), node("slow"), edges=[("a", "desk"), ("a", "slow"), ("slow", "desk")]
    )
    run = Graph(workflow, 1, handlers={"a": start, "desk": ask, "slow": lambda c: c.send("later")})
    run.work(run.open_handlers()[0])
    run.work(next(h for h in run.open_handlers() if "desk" in h.activation_key))
    run.advance([])
    run.reply("answer")
    run.go()
    assert run.inputs("desk") == ["ask", "answer", "later"]


def endless(ctx: Context) -> None:
    ctx.send(ctx.input + 1)


def test_max_iterations_ends_a_run_that_goes_round():
    workflow = graph(node("a"), edges=[("a", "a")], options={"max_iterations": 3})
    run = Graph(workflow, 0, handlers={"a": endless}).go()
    assert run.state.status == "failed"
    assert (run.error().code, run.error().details) == ("max_iterations_exceeded", {"limit": 3, "queued": 1})
    assert len(bounds(run)) == 3


def test_max_iterations_is_100_where_it_is_not_stated():
    run = Graph(graph(node("a"), edges=[("a", "a")]), 0, handlers={"a": endless}).go()
    assert (run.error().details or {})["limit"] == 100


def test_a_long_chain_needs_no_larger_bound():
    names = [f"n{i}" for i in range(130)]
    edges = list(pairwise(names))
    run = Graph(graph(*map(node, names), edges=edges), 0, handlers={names[-1]: silent}).go()
    assert run.state.status == "completed"
    assert len(bounds(run)) == 130


def test_an_empty_queue_at_the_bound_is_success():
    def twice(ctx: Context) -> None:
        if ctx.input < 2:
            ctx.send(ctx.input + 1)

    workflow = graph(node("a"), edges=[("a", "a")], options={"max_iterations": 3})
    run = Graph(workflow, 0, handlers={"a": twice}).go()
    assert (run.state.status, len(bounds(run))) == ("completed", 3)


def test_the_count_of_iterations_restarts_at_an_answer_from_outside():
    def ask(ctx: Context) -> None:
        if ctx.is_answer and ctx.input == "stop":
            return
        if ctx.is_answer:
            ctx.send(0)
        elif ctx.input == 1:
            ctx.ask("more?")
        else:
            ctx.send(ctx.input + 1)

    workflow = graph(node("a"), edges=[("a", "a")], options={"max_iterations": 3})
    run = Graph(workflow, 0, handlers={"a": ask}).go()
    for _ in range(4):
        assert run.state.status == "waiting"
        run.reply("more")
        run.go()
    run.reply("stop")
    assert run.go().state.status == "completed"
    assert len(bounds(run)) > 3


def test_the_count_does_not_restart_when_a_question_runs_out_of_time():
    def ask(ctx: Context) -> None:
        ctx.ask("more?", timeout=1, on_timeout="go on")

    run = Graph(graph(node("a"), edges=[], options={"max_iterations": 3}), 0, handlers={"a": ask}).go()
    for _ in range(5):
        run.pass_time(2)
        run.go()
    assert run.error().code == "max_iterations_exceeded"


def test_max_steps_never_restarts():
    workflow = graph(node("a"), edges=[("a", "a")], options={"max_steps": 4})
    run = Graph(workflow, 0, handlers={"a": endless}).go()
    assert (run.error().code, run.error().details) == ("step_limit_exceeded", {"limit": 4})


def test_other_kinds_of_nodes_run_by_supersteps_too():
    workflow = graph(
        ToolNode(id="t", tool="s.add", next="c"),
        ConditionNode(id="c", expression="nodes.t.output.x > 0", on_true="e", on_false="__end"),
        node("e"),
        edges=[],
    )
    run = Graph(workflow, {"x": 1}, handlers={"e": silent}, tools={"t": [tool()]}).go()
    assert bounds(run) == [(1, ("/t#0",)), (2, ("/c#0",)), (3, ("/e#0",))]
    assert run.state.status == "completed"


def test_a_retry_belongs_to_the_superstep_that_began_it():
    tries: list[int] = []

    def flaky(ctx: Context) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise Fault("agent", "executor_failed")

    retry = RetryPolicy(max_attempts=3, backoff=Backoff(initial=2.0))
    workflow = graph(node("a", policy=Policy(retry=retry)), node("b"), edges=[("a", "b")])
    run = Graph(workflow, 0, handlers={"a": flaky}).go()
    assert tries == [1, 2, 3]
    assert bounds(run) == [(1, ("/a#0",))]


@BOTH
def test_a_crash_anywhere_changes_nothing_but_what_was_at_work(policy: str):
    workflow = graph(
        *(node(i) for i in "abcd"),
        edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
        options={"policy": policy},
    )

    def end(ctx: Context) -> None:
        ctx.give(ctx.input)

    whole = Graph(workflow, 1, handlers={"d": end}).go()
    for cut in range(1, len(whole.log)):
        run = Graph(workflow, 1, handlers={"d": end}).go()
        run.crash(cut)
        run.go()
        assert run.state.status == "completed"
        assert run.outputs()[-2:] == [1, 1]


@pytest.mark.parametrize(
    "event",
    [
        ev.SuperstepStarted(superstep=7, activations=()),
        ev.SuperstepStarted(superstep=1, activations=("/b#0",)),
        ev.SuperstepCompleted(superstep=1, state_version=0, queued=0),
    ],
)
def test_a_superstep_that_does_not_follow_is_an_error_of_the_log(event: Any):
    run = Graph(graph(node("a"), edges=[]), 1, handlers={"a": silent})
    state = run.refold(1)
    with pytest.raises(IllegalEvent):
        engine.evolve(state, event, 1, run.now)


def test_the_order_in_which_handlers_return_decides_nothing():
    workflow = graph(
        *(node(i) for i in "abcde"),
        edges=[("a", "b"), ("a", "c"), ("a", "d"), ("b", "e"), ("c", "e"), ("d", "e")],
        shared={"log": SharedKey(reducer="append")},
    )

    def note(ctx: Context) -> None:
        ctx.write("log", ctx.node)
        ctx.give(ctx.node)
        ctx.send(ctx.node)

    def run(choose: Any) -> Any:
        found = Graph(workflow, 1, handlers=dict.fromkeys("bcd", note)).go(choose)
        return found.inputs("e"), found.state.shared.values, found.outputs(), bounds(found)

    results = [run(choose) for choose in (lambda f: f[0], lambda f: f[-1], lambda f: f[len(f) // 2])]
    assert results[0] == results[1] == results[2]
    assert results[0][1] == {"log": ["b", "c", "d"]}


def test_error_edges_are_followed_at_the_next_superstep():
    def bad(ctx: Context) -> None:
        raise Fault("agent", "executor_failed")

    edges = [Edge(source="a", target="b", kind="error")]
    run = Graph(graph(node("a"), node("b"), edges=edges), 5, handlers={"a": bad, "b": silent}).go()
    assert bounds(run) == [(1, ("/a#0",)), (2, ("/b#0",))]
    assert run.inputs("b")[0]["input"] == 5
    assert run.state.status == "completed"


def test_targets_of_a_superstep_run_in_the_order_of_the_nodes_not_of_the_edges():
    workflow = graph(*(node(i) for i in "abc"), edges=[("a", "c"), ("a", "b")])
    run = Graph(workflow, 1, handlers={"a": lambda ctx: ctx.send(1), "b": silent, "c": silent}).go()
    assert bounds(run) == [(1, ("/a#0",)), (2, ("/b#0", "/c#0"))]
