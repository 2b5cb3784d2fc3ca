"""`event_trigger`: a signal from outside, or the name of an event in a value (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.ir import Edge, EventTriggerNode, LoopNode, Options
from agentflow.engine.held_steps import settle_held
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph

SECOND = 1_000_000


def trigger(input: Any = None, **fields: Any) -> Driver:
    node = EventTriggerNode(id="t", **{"event": "paid", "next": "after", **fields})
    others = [call(name, "__end") for name in ("late", "other") if name in fields.values()]
    return Driver(graph(node, call("after", "__end"), *others), input)


def signal(driver: Driver, data: Any = None, name: str = "paid", id: str = "sig_1") -> None:
    driver.now += SECOND
    driver.advance(engine.commands.signal(driver.state, id, name, data))


def end(driver: Driver, step: str = "t") -> Any:
    return next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step)


def failure(driver: Driver) -> Any:
    return driver.events(ev.WorkflowStepFailed)[0].error


@pytest.mark.parametrize(("value", "port"), [("paid", "next"), ("sent", "on_mismatch")])
def test_a_value_is_compared_at_once(value, port):
    driver = trigger({"e": value}, event_path="input.e", on_mismatch="other")
    assert driver.run().status == "completed"
    assert end(driver).output == {"event": "paid", "matched": port == "next", "actual": value}
    assert end(driver).next == port


def test_without_another_way_a_mismatch_goes_on():
    driver = trigger({"e": "sent"}, event_path="input.e")
    assert driver.run().status == "completed"
    assert end(driver).next == "next"
    assert end(driver, "after")


@pytest.mark.parametrize("value", [None, 1, ["paid"]], ids=str)
def test_a_value_that_is_no_name_fails_the_node(value):
    driver = trigger({"e": value}, event_path="input.e")
    assert driver.run().status == "failed"
    assert (failure(driver).code, failure(driver).category) == ("invalid_event_value", "invalid_input")


def test_the_run_waits_for_the_signal_and_names_it():
    driver = trigger()
    assert driver.state.status == "waiting"
    (waits,) = driver.events(ev.WorkflowStepWaiting)
    assert (waits.for_, waits.ref) == ("signal", "paid")
    assert driver.events(ev.WorkflowWaiting)[0].signals == ("signal paid",)
    signal(driver, name="other", id="sig_0")
    assert driver.state.status == "waiting"
    signal(driver, {"n": 1})
    assert driver.run().status == "completed"
    assert end(driver).output == {"event": "paid", "matched": True, "data": {"n": 1}, "signal_id": "sig_1"}
    assert not driver.state.awaited


def test_earlier_signals_are_kept_in_order_and_used_once():
    nodes = [
        EventTriggerNode(id="a", event="paid", next="b"),
        EventTriggerNode(id="b", event="paid", next="c"),
        EventTriggerNode(id="c", event="paid", next="__end"),
    ]
    driver = Driver(graph(call("first", "a"), *nodes), None)
    for number in (1, 2):
        signal(driver, number, id=f"sig_{number}")
    driver.run()
    assert driver.state.status == "waiting"
    assert [end(driver, step).output["data"] for step in "ab"] == [1, 2]
    signal(driver, 3, id="sig_3")
    assert driver.run().status == "completed"
    assert end(driver, "c").output["data"] == 3


def test_two_that_wait_take_one_signal_each():
    nodes = [EventTriggerNode(id=i, event="paid", next="__end") for i in ("a", "b")]
    driver = Driver(graph(*nodes, edges=(Edge(source="__start", target="b"),)), None)
    signal(driver, 1, id="sig_1")
    assert [e.step_id for e in driver.events(ev.WorkflowStepCompleted)] == ["a"]
    signal(driver, 2, id="sig_2")
    assert driver.run().status == "completed"
    assert end(driver, "b").output["data"] == 2


def test_match_chooses_among_the_signals_and_leaves_the_others():
    driver = trigger({"order": 7}, match="signal.data.order == input.order")
    signal(driver, {"order": 6}, id="sig_1")
    assert driver.state.status == "waiting"
    signal(driver, {"order": 7}, id="sig_2")
    assert driver.run().status == "completed"
    assert end(driver).output["signal_id"] == "sig_2"
    assert [*driver.state.used_signals] == ["sig_2"]


def test_a_match_that_cannot_be_evaluated_fails_the_node():
    driver = trigger(match="signal.data > 3")
    signal(driver, {"no": "number"})
    assert driver.run().status == "failed"
    assert failure(driver).code == "expression_error"
    assert failure(driver).details["path"] == "/match"


@pytest.mark.parametrize("has_way", [True, False])
def test_the_wait_is_limited(has_way):
    driver = trigger(timeout=60.0, **({"on_timeout": "late"} if has_way else {}))
    assert driver.state.status == "waiting"
    state = driver.run()
    if has_way:
        assert (state.status, end(driver).next) == ("completed", "on_timeout")
        assert end(driver).output["matched"] is False
    else:
        assert (state.status, failure(driver).code) == ("failed", "event_timeout")
    assert len(driver.events(ev.TimerFired)) == 1
    assert not state.scheduled


def test_a_signal_in_time_disarms_the_timer():
    driver = trigger(timeout=60.0)
    signal(driver)
    assert driver.run().status == "completed"
    assert len(driver.events(ev.TimerCancelled)) == 1
    assert not driver.state.timers


def test_a_loop_takes_a_signal_each_time_round():
    driver = Driver(
        graph(
            LoopNode(id="again", condition="nodes.again.count < 2", body="t", next="__end", max_iterations=9),
            EventTriggerNode(id="t", event="paid", next="again"),
        )
    )
    for number in (1, 2):
        assert driver.state.status == "waiting"
        signal(driver, number, id=f"sig_{number}")
    assert driver.run().status == "completed"
    assert [e.output["data"] for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "t"] == [1, 2]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_a_crash_behind_each_batch_takes_the_signal_once(early, policy):
    def whole() -> Driver:
        options = Options(policy=policy)
        node = EventTriggerNode(id="t", event="paid", timeout=60.0, next="after")
        driver = Driver(graph(call("first", "t"), node, call("after", "__end"), options=options))
        if early:
            signal(driver)
            driver.run()
        else:
            while driver.waiting:
                driver.answer(driver.waiting[0])
            signal(driver)
        assert driver.run().status == "completed"
        return driver

    for cut in whole().batches[1:]:
        driver = whole()
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        if "sig_1" not in driver.state.signals:
            while driver.waiting:
                driver.answer(driver.waiting[0])
            signal(driver)
        assert driver.run().status == "completed"
        taken = [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "t"]
        assert [e.output["signal_id"] for e in taken] == ["sig_1"]


def test_a_time_that_ends_beside_a_failure_that_is_held_counts_after_the_resume():
    nodes = [EventTriggerNode(id=name, event="go", timeout=1.0, next="__end") for name in ("a", "b")]
    ways = (Edge(source="__start", target="b"),)
    driver = Driver(graph(*nodes, edges=ways, options=Options(on_failure="hold")), {})
    driver.now = max(driver.state.timers.values())
    driver.advance([])
    assert (driver.state.status, list(driver.state.held_steps)) == ("paused", ["a"])
    driver.advance(settle_held(driver.state, "a", "skip", driver.now, by="ann"))
    assert list(driver.state.held_steps) == ["b"], "its time was over, too"
