"""Fan-in: rounds, dead sources, quorum, time limits, leftovers (page 002 §5)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.ir import Edge, Workflow
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault
from tests.unit.engine.handlers import Context, Graph, graph, node

POLICIES = ["superstep", "eager"]
BOTH = pytest.mark.parametrize("policy", POLICIES)


def fan_in(target: str, *sources: str, **more: Any) -> list[Edge]:
    return [Edge(source=source, target=target, kind="fan_in", **more) for source in sources]


def diamond(policy: str, *more_edges: Any, on_failure: str = "continue", **more: Any) -> Workflow:
    """a sends to b and c, which meet at d."""
    edges = [("a", "b"), ("a", "c"), *fan_in("d", "b", "c", **more), *more_edges]
    options = {"policy": policy, "on_failure": on_failure}
    return graph(*(node(i) for i in "abcd"), edges=edges, options=options)


def silent(ctx: Context) -> None:
    """A handler that sends nothing."""


def named(ctx: Context) -> None:
    ctx.send(ctx.node)


def fail(ctx: Context) -> None:
    raise Fault("agent", "executor_failed")


@BOTH
def test_a_round_brings_one_list_in_declared_source_order_then_send_order(policy: str):
    def two(ctx: Context) -> None:
        ctx.send("b0")
        ctx.send("b1")

    handlers = {"b": two, "c": lambda c: c.send("c0"), "d": silent}
    for choose in (lambda f: f[0], lambda f: f[-1]):
        run = Graph(diamond(policy), 1, handlers=handlers).go(choose)
        assert run.inputs("d") == [["b0", "b1", "c0"]]
        (started,) = [d for d in run.events(ev.WorkflowStepStarted) if d.step_id == "d"]
        assert [(s.activation, s.edge, s.index) for s in started.sources] == [
            ("/b#0", "b->d", 0), ("/b#0", "b->d", 1), ("/c#0", "c->d", 0),
        ]  # fmt: skip


@BOTH
def test_a_round_takes_the_oldest_activation_of_each_source(policy: str):
    """b handles two messages and c two: two rounds, whatever the timing."""

    def start(ctx: Context) -> None:
        ctx.send(1)
        ctx.send(2)

    def with_input(ctx: Context) -> None:
        ctx.send(f"{ctx.node}{ctx.input}")

    handlers = {"a": start, "b": with_input, "c": with_input, "d": silent}
    for choose in (lambda f: f[0], lambda f: f[-1]):
        run = Graph(diamond(policy), 0, handlers=handlers).go(choose)
        assert run.inputs("d") == [["b1", "c1"], ["b2", "c2"]]


@BOTH
def test_a_join_fires_with_what_arrived_when_the_missing_source_is_dead(policy: str):
    run = Graph(diamond(policy), 1, handlers={"b": named, "c": silent, "d": silent}).go()
    assert run.inputs("d") == [["b"]]
    assert [d.missing for d in run.events(ev.WorkflowStepStarted) if d.step_id == "d"] == [("c",)]
    assert run.state.status == "completed"


@BOTH
def test_a_failed_source_is_dead(policy: str):
    run = Graph(diamond(policy), 1, handlers={"b": named, "c": fail, "d": silent}).go()
    assert run.inputs("d") == [["b"]]
    assert run.state.status == "failed", "the failure counts once the branches have ended"


@BOTH
def test_a_join_without_an_arrival_does_not_fire_and_is_no_error(policy: str):
    run = Graph(diamond(policy), 1, handlers={"b": silent, "c": silent, "d": silent}).go()
    assert run.inputs("d") == []
    assert run.state.status == "completed"
    assert run.events(ev.WorkflowCompleted)[0].not_run == ("d",)


@BOTH
def test_wait_never_fires_with_a_dead_source_and_leaves_what_arrived_undelivered(policy: str):
    run = Graph(diamond(policy, on_missing="wait"), 1, handlers={"b": named, "c": silent, "d": silent}).go()
    assert run.inputs("d") == []
    assert run.undelivered() == [("/b#0", "join_incomplete")]
    assert run.types()[-2:] == ["message.undelivered", "workflow.completed"]


@BOTH
def test_fail_fails_the_run(policy: str):
    run = Graph(diamond(policy, on_missing="fail"), 1, handlers={"b": named, "c": silent, "d": silent}).go()
    assert run.error().code == "join_incomplete"
    assert run.error().details == {"join": "d", "arrived": ["b"], "missing": ["c"]}


@BOTH
def test_a_join_waits_for_a_person(policy: str):
    def ask(ctx: Context) -> None:
        if ctx.is_answer:
            ctx.send(ctx.input)
        else:
            ctx.ask("?")

    run = Graph(diamond(policy), 1, handlers={"b": named, "c": ask, "d": silent}).go()
    assert (run.state.status, run.inputs("d")) == ("waiting", [])
    run.reply("yes")
    assert run.go().inputs("d") == [["b", "yes"]]


@BOTH
def test_a_source_that_can_be_reached_again_is_not_dead(policy: str):
    """c was left out, but x, still at work, leads there."""

    def late(ctx: Context) -> None:
        if ctx.input < 3:
            ctx.send(ctx.input + 1, "x")
        else:
            ctx.send(0, "c")

    edges = [("a", "b"), ("a", "x"), ("x", "x"), ("x", "c"), *fan_in("d", "b", "c")]
    workflow = graph(*(node(i) for i in "abcdx"), edges=edges, options={"policy": policy})
    run = Graph(workflow, 1, handlers={"x": late, "b": named, "c": named, "d": silent}).go()
    assert run.inputs("d") == [["b", "c"]]


@BOTH
def test_messages_buffered_in_the_join_do_not_keep_its_sources_alive(policy: str):
    """d leads back to c: what waits in d must not make c alive."""
    handlers = {"b": named, "c": silent, "d": silent}
    run = Graph(diamond(policy, ("d", "c")), 1, handlers=handlers).go()
    assert run.inputs("d") == [["b"]]


@BOTH
def test_rounds_that_lack_sources_close_one_at_a_time_in_the_order_of_their_ids(policy: str):
    """d and e each lack what the other would bring: d closes, reaches e's source, and e waits for it."""
    edges = [
        ("a", "b"), ("a", "f"),
        *fan_in("d", "b", "x"), *fan_in("e", "f", "y"),
        ("d", "y"), ("e", "x"),
    ]  # fmt: skip
    workflow = graph(*(node(i) for i in "abdefxy"), edges=edges, options={"policy": policy})
    handlers = {"b": named, "f": named, "x": named, "y": named, "d": lambda c: c.send("d"), "e": silent}
    run = Graph(workflow, 1, handlers=handlers).go()
    assert run.inputs("d") == [["b"]]
    assert run.inputs("e") == [["f", "y"]]
    assert run.state.status == "completed"


@BOTH
def test_a_quorum_fires_early_and_what_comes_later_is_undelivered(policy: str):
    def slow(ctx: Context) -> None:
        if ctx.input == 1:
            ctx.send(2, "c")
        else:
            ctx.send("late", "d")

    edges = [("a", "b"), ("a", "c"), ("c", "c"), *fan_in("d", "b", "c", quorum=1)]
    workflow = graph(*(node(i) for i in "abcd"), edges=edges, options={"policy": policy})
    run = Graph(workflow, 1, handlers={"b": named, "c": slow, "d": silent}).go()
    assert run.inputs("d") == [["b"]]
    assert run.undelivered() == [("/c#1", "join_closed")]
    assert run.state.status == "completed"


@BOTH
def test_the_charge_of_a_source_lapses_when_it_fails(policy: str):
    """c owes one activation to the closed round, fails, and is tried anew by b: that counts again."""

    def owing(ctx: Context) -> None:
        if ctx.input == 1:
            ctx.send(2, "c")
        elif ctx.input == 2:
            raise Fault("agent", "executor_failed")
        else:
            ctx.send("again", "d")

    edges = [
        ("a", "b"), ("a", "c"), ("c", "c"), ("d", "c"), *fan_in("d", "b", "c", quorum=1),
        Edge(source="c", target="x", kind="error"), ("x", "c"),
    ]  # fmt: skip
    workflow = graph(*(node(i) for i in "abcdx"), edges=edges, options={"policy": policy})
    handlers = {"b": named, "c": owing, "d": silent, "x": lambda c: c.send(3)}
    run = Graph(workflow, 1, handlers=handlers).go()
    assert run.undelivered() == []
    assert run.inputs("d") == [["b"], ["again"]]


def late_source(ctx: Context) -> None:
    if ctx.is_answer:
        ctx.send(ctx.input)
    else:
        ctx.ask("?")


@BOTH
def test_a_time_limit_closes_the_round_with_what_arrived(policy: str):
    run = Graph(diamond(policy, timeout=60.0), 1, handlers={"b": named, "c": late_source, "d": silent}).go()
    assert run.state.status == "waiting"
    assert any(name.startswith("join ") for name in run.state.timers)
    run.pass_time(59)
    assert run.inputs("d") == []
    run.pass_time(2)
    assert run.go().inputs("d") == [["b"]]
    assert [d.purpose for d in run.events(ev.TimerFired)] == ["join"]
    run.reply("late")
    run.go()
    assert run.undelivered() == [("/c#1", "join_closed")]
    assert run.inputs("d") == [["b"]]


@BOTH
def test_the_time_counts_from_the_first_arrival_and_survives_a_restart(policy: str):
    run = Graph(diamond(policy, timeout=60.0), 1, handlers={"b": named, "c": late_source, "d": silent}).go()
    due = [time for name, time in run.state.timers.items() if name.startswith("join ")]
    arrived = next(ts for data, _, ts in run.log if getattr(data, "messages", None) and data.step_id == "b")
    assert due == [arrived + 60_000_000]
    run.crash()
    assert [time for name, time in run.state.timers.items() if name.startswith("join ")] == due
    run.pass_time(61)
    assert run.go().inputs("d") == [["b"]]


@BOTH
@pytest.mark.parametrize("on_missing", ["wait", "fail"])
def test_at_the_end_of_its_time_wait_counts_as_fail(policy: str, on_missing: str):
    workflow = diamond(policy, timeout=60.0, on_missing=on_missing)
    run = Graph(workflow, 1, handlers={"b": named, "c": late_source, "d": silent}).go()
    run.pass_time(61)
    assert run.state.status == "failed"
    assert run.error().code == "join_incomplete"
    assert run.state.requests == {}, "what was asked is closed with the run"


@BOTH
def test_a_complete_round_needs_no_timer_any_more(policy: str):
    run = Graph(diamond(policy, timeout=60.0), 1, handlers={"b": named, "c": named, "d": silent}).go()
    assert run.state.status == "completed"
    assert not run.state.timers


TIMERS = (ev.TimerScheduled, ev.TimerFired, ev.TimerCancelled)


def timers_of(run: Graph) -> list[tuple[str, str]]:
    return [
        (data.EVENT_TYPE.partition(".")[2], data.purpose)
        for data, _, _ in run.log
        if isinstance(data, TIMERS)
    ]


def test_the_log_says_when_the_timer_of_a_round_is_armed_and_disarmed():
    run = Graph(diamond("eager", timeout=60.0), 1, handlers={"b": named, "c": named, "d": silent}).go()
    assert timers_of(run) == [("scheduled", "join"), ("cancelled", "join")]
    late = Graph(diamond("eager", timeout=60.0), 1, handlers={"b": named, "c": late_source, "d": silent}).go()
    late.pass_time(61)
    late.go()
    assert timers_of(late) == [("scheduled", "join"), ("fired", "join")]
    armed, fired = late.events(ev.TimerScheduled)[0], late.events(ev.TimerFired)[0]
    assert (armed.timer_id, armed.due_at) == (fired.timer_id, fired.due_at)


@BOTH
def test_a_log_that_does_not_say_it_gets_the_timer_when_it_goes_on(policy: str):
    """Versions before armed it without an event."""
    run = Graph(diamond(policy, timeout=60.0), 1, handlers={"b": named, "c": late_source, "d": silent}).go()
    armed = run.events(ev.TimerScheduled)
    kept = [entry for entry in run.log if not isinstance(entry[0], ev.TimerScheduled)]
    old = [(data, offset, ts) for offset, (data, _, ts) in enumerate(kept)]
    run.log[:] = old
    run.crash()
    assert run.events(ev.TimerScheduled) == armed
    run.pass_time(61)
    assert run.go().inputs("d") == [["b"]]


def test_a_fired_timer_that_no_event_armed_closes_the_round():
    run = Graph(diamond("eager", timeout=60.0), 1, handlers={"b": named, "c": late_source, "d": silent}).go()
    run.pass_time(61)
    run.go()
    kept = [entry for entry in run.log if not isinstance(entry[0], ev.TimerScheduled)]
    run.log[:] = [(data, offset, ts) for offset, (data, _, ts) in enumerate(kept)]
    assert run.refold().nodes["d"].status == "succeeded"


def test_joins_are_examined_at_the_barrier_under_superstep():
    run = Graph(diamond("superstep"), 1, handlers={"b": named, "c": silent, "d": silent}).go()
    assert [(d.superstep, d.queued) for d in run.events(ev.SuperstepCompleted)] == [(1, 2), (2, 1), (3, 0)]


@BOTH
def test_two_joins_at_one_target_are_apart(policy: str):
    edges = [
        ("a", "b"), ("a", "c"),
        *fan_in("d", "b", "c", group="one", name="one"), *fan_in("d", "b", "c", group="two", name="two"),
    ]  # fmt: skip
    workflow = graph(*(node(i) for i in "abcd"), edges=edges, options={"policy": policy})
    run = Graph(workflow, 1, handlers={"b": named, "c": named, "d": silent}).go()
    assert run.inputs("d") == [["b", "c"], ["b", "c"]]


@BOTH
def test_buffers_follow_from_the_log_at_every_offset(policy: str):
    whole = Graph(diamond(policy), 1, handlers={"b": named, "c": named, "d": silent}).go()
    for cut in range(1, len(whole.log)):
        run = Graph(diamond(policy), 1, handlers={"b": named, "c": named, "d": silent}).go()
        run.crash(cut)
        assert run.go().inputs("d")[-1] == ["b", "c"]
        assert run.state.status == "completed"


def test_a_step_that_no_join_concerns_changes_no_counter():
    workflow = graph(*(node(i) for i in "abcdz"), edges=[("a", "z"), *fan_in("d", "b", "c")])
    compiled = engine.compile_graph(workflow)
    assert compiled.nodes["z"].fan_watchers == ()
    assert compiled.nodes["b"].fan_watchers == ((0, "b"),)


@BOTH
def test_the_charge_of_a_source_lapses_when_nothing_leads_to_it_any_more(policy: str):
    """c owes an activation to the round that closed without it, ends without sending, and is reached anew."""

    def twice(ctx: Context) -> None:
        ctx.send("b")
        if not ctx.is_answer:
            ctx.ask("?")

    def back(ctx: Context) -> None:
        if ctx.input == ["b"]:
            ctx.send("d", "c")

    edges = [("a", "b"), ("a", "c"), ("a", "e"), ("d", "c"), *fan_in("d", "b", "c", "e", quorum=2)]
    workflow = graph(*(node(i) for i in "abcde"), edges=edges, options={"policy": policy})
    handlers = {
        "b": twice,
        "c": lambda c: c.send("again", "d") if c.input == "d" else None,
        "d": back,
        "e": named,
    }
    run = Graph(workflow, 1, handlers=handlers)
    run.go(lambda found: next((f for f in found if not f.activation_key.startswith("/c")), found[0]))
    assert run.inputs("d") == [["b", "e"]]
    run.reply("yes")
    assert run.go().inputs("d") == [["b", "e"], ["b"], ["again"]]
    assert run.undelivered() == []


def test_a_round_whose_time_is_over_comes_before_messages_that_wait_for_the_barrier():
    """x sends to d, then the time of d's round ends, and y is still at work in the same superstep."""
    edges = [
        ("x", "d"), ("a", "b"), ("a", "c"), ("a", "w"), ("w", "x"), ("w", "y"),
        *fan_in("d", "b", "c", timeout=60.0),
    ]  # fmt: skip
    workflow = graph(*(node(i) for i in "abcdwxy"), edges=edges, options={"policy": "superstep"})
    handlers = {"b": named, "c": late_source, "d": silent, "w": named, "x": named, "y": silent}
    run = Graph(workflow, 1, handlers=handlers)
    while not any(f.activation_key == "/y#0" for f in run.open_handlers()):
        run.work(run.open_handlers()[0])
    run.work(next(f for f in run.open_handlers() if f.activation_key == "/x#0"))
    run.pass_time(61)
    assert [d.purpose for d in run.events(ev.TimerFired)] == ["join"]
    run.go()
    assert run.inputs("d") == [["b"], "x"]
