"""`debounce` and `throttle`: windows of steps and of time, of a run and of a definition (page 003 §4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import (
    DebounceNode,
    Edge,
    LoopNode,
    MapNode,
    Options,
    ThrottleNode,
    TransformNode,
    WaitNode,
)
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso
from tests.unit.engine.driver import Driver, call, graph

SECOND = 1_000_000
START = 1_000_000
INPUT = {"k": "a", "n": 7}


def debounce(next: str = "__end", **more: Any) -> DebounceNode:
    if "window_steps" not in more:
        more.setdefault("window", 2.0)
    return DebounceNode(id="gate", key_path=more.pop("key_path", "input.k"), next=next, **more)


def throttle(next: str = "__end", **more: Any) -> ThrottleNode:
    if "window_steps" not in more:
        more.setdefault("window", 2.0)
    return ThrottleNode(id="gate", key_path=more.pop("key_path", "input.k"), next=next, **more)


def arriving(gate: Any, *seconds: float, others: tuple[Any, ...] = (), **more: Any) -> Driver:
    """Tokens that come to the gate after so many seconds."""
    kept = {name: more.pop(name) for name in ("store", "run", "input") if name in more}
    waits = [WaitNode(id=f"w{i}", duration=s, next="gate") for i, s in enumerate(seconds)]
    edges = tuple(Edge(source="__start", target=w.id) for w in waits[1:])
    workflow = graph(*waits, gate, *others, edges=edges, **more)
    driver = Driver(workflow, kept.pop("input", INPUT), **kept)
    driver.run()
    return driver


def ends(driver: Driver, step: str = "gate") -> list[Any]:
    return [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step]


def outputs(driver: Driver) -> list[Any]:
    return [e.output for e in ends(driver)]


def times(driver: Driver, step: str = "gate") -> list[float]:
    """Return at which second the visits of a step ended."""
    return [
        (ts - START) / SECOND
        for e, _, ts in driver.log
        if isinstance(e, ev.WorkflowStepCompleted) and e.step_id == step
    ]


def suppressed(driver: Driver) -> list[bool]:
    """Return whether each arrival was suppressed, in the order of arrival."""
    return [e.output["suppressed"] for e in sorted(ends(driver), key=lambda e: e.visit)]


def failure(driver: Driver) -> Any:
    return driver.events(ev.WorkflowStepFailed)[0].error


SCOPES = ["run", "definition"]


class TestLeadingDebounce:
    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_key_that_was_seen_less_than_a_window_ago_is_suppressed(self, scope: Any):
        driver = arriving(debounce(scope=scope), 1.0, 2.0, 5.0)
        assert suppressed(driver) == [False, True, False]
        assert outputs(driver)[0] == {"key": "a", "suppressed": False}
        assert len(driver.accesses) == (0 if scope == "run" else 3)

    @pytest.mark.parametrize("scope", SCOPES)
    def test_each_arrival_renews_the_window(self, scope: Any):
        assert suppressed(arriving(debounce(scope=scope), 1.0, 2.5, 4.0, 6.0)) == [False, True, True, False]

    @pytest.mark.parametrize("scope", SCOPES)
    def test_the_suppressed_go_their_own_way_with_the_payload(self, scope: Any):
        gate = debounce("on", on_suppressed="off", scope=scope)
        driver = arriving(gate, 1.0, 1.5, others=(call("on", "__end"), call("off", "__end")))
        assert [e.next for e in ends(driver)] == ["next", "on_suppressed"]
        assert ends(driver, "on")[0].output == ends(driver, "w0")[0].output
        assert ends(driver, "off")[0].output == ends(driver, "w1")[0].output

    def test_without_a_way_of_their_own_they_go_to_next(self):
        driver = arriving(debounce("on"), 1.0, 1.5, others=(call("on", "__end"),))
        assert [e.next for e in ends(driver)] == ["next", "next"]
        assert len(ends(driver, "on")) == 2

    def test_keys_have_windows_of_their_own(self):
        each = MapNode(id="each", items_path="input", body="gate", next="__end")
        driver = Driver(
            graph(
                each,
                DebounceNode(id="gate", key_path="item", window=2.0, next="each2"),
                call("each2"),
            ),
            ["a", "b", "a"],
        )
        driver.run()
        assert suppressed_by_path(driver) == [False, False, True]

    def test_a_window_of_steps_is_counted_on_the_path(self):
        driver = looped(debounce("work", window_steps=4, on_suppressed="work"))
        # start → (loop, gate, work)*: 3 steps lie between two arrivals, and each renews the window
        assert suppressed(driver) == [False, True, True]
        driver = looped(debounce("work", window_steps=3, on_suppressed="work"))
        assert suppressed(driver) == [False, False, False]

    def test_each_path_counts_its_own_steps(self):
        each = MapNode(id="each", items_path="input", body="gate", next="after", max_in_flight=1)
        gate = DebounceNode(id="gate", key_path="item", window_steps=100, next="one")
        driver = Driver(graph(each, gate, call("one"), call("after", "__end")), ["a", "a"])
        driver.run()
        assert suppressed_by_path(driver) == [False, False]


def suppressed_by_path(driver: Driver) -> list[bool]:
    return [e.output["suppressed"] for e in sorted(ends(driver), key=lambda e: e.path)]


def looped(gate: Any) -> Driver:
    loop = LoopNode(id="loop", condition="nodes.loop.count < 3", body="gate", next="__end", max_iterations=9)
    driver = Driver(graph(loop, gate, call("work", "loop")), INPUT)
    driver.run()
    return driver


class TestTrailingDebounce:
    @pytest.mark.parametrize("scope", SCOPES)
    def test_the_last_one_goes_on_after_a_quiet_window(self, scope: Any):
        gate = debounce("on", mode="trailing", on_suppressed="off", scope=scope)
        driver = arriving(gate, 1.0, 2.0, 3.5, 9.0, others=(call("on", "__end"), call("off", "__end")))
        assert suppressed(driver) == [True, True, False, False]
        passed = [t for t, e in zip(times(driver), ends(driver), strict=True) if not e.output["suppressed"]]
        assert passed == [5.5, 11.0]
        assert driver.state.status == "completed"
        assert not driver.state.scheduled

    def test_in_a_run_a_newer_arrival_ends_the_wait_at_once(self):
        driver = arriving(debounce(mode="trailing"), 1.0, 2.0)
        assert times(driver) == [2.0, 4.0]
        assert [type(e).__name__ for e in driver.events(ev.TimerCancelled)] == ["TimerCancelled"]

    def test_it_says_what_it_waits_for(self):
        driver = arriving(debounce(mode="trailing"), 1.0)
        (waits,) = [e for e in driver.events(ev.WorkflowStepWaiting) if e.step_id == "gate"]
        assert (waits.for_, waits.ref, waits.deadline) == ("window", "a", iso(START + 3 * SECOND))
        assert [e.purpose for e in driver.events(ev.TimerFired) if e.step_id == "gate"] == ["debounce"]

    def test_the_end_of_the_run_disarms_it(self):
        driver = arriving(debounce(mode="trailing", window=60.0), 1.0, options=Options(timeout=5.0))
        assert driver.state.status == "failed"
        assert not driver.state.scheduled


class TestThrottle:
    @pytest.mark.parametrize("scope", SCOPES)
    def test_only_passes_count(self, scope: Any):
        driver = arriving(throttle(scope=scope), 1.0, 2.0, 3.0, 4.0, 5.5)
        assert [o["throttled"] for o in outputs(driver)] == [False, True, False, True, False]
        assert outputs(driver)[1] == {"key": "a", "throttled": True, "waited_ms": 0}

    @pytest.mark.parametrize("scope", SCOPES)
    def test_the_limit_holds_for_every_window(self, scope: Any):
        driver = arriving(throttle(limit=2, scope=scope), 1.0, 1.5, 2.9, 3.0, 3.4, 3.5)
        assert [o["throttled"] for o in outputs(driver)] == [False, False, True, False, True, False]

    @pytest.mark.parametrize("scope", SCOPES)
    def test_what_is_too_much_goes_its_own_way_with_the_payload(self, scope: Any):
        gate = throttle("on", on_throttled="off", scope=scope)
        driver = arriving(gate, 1.0, 1.5, others=(call("on", "__end"), call("off", "__end")))
        assert [e.next for e in ends(driver)] == ["next", "on_throttled"]
        assert ends(driver, "off")[0].output == ends(driver, "w1")[0].output

    def test_a_window_of_steps(self):
        driver = looped(throttle("work", window_steps=4, on_throttled="work"))
        assert [o["throttled"] for o in outputs(driver)] == [False, True, False]

    @pytest.mark.parametrize("scope", SCOPES)
    def test_delayed_tokens_pass_in_order_one_in_each_window(self, scope: Any):
        driver = arriving(throttle(mode="delay", scope=scope), 1.0, 1.1, 1.2, 9.0)
        assert [e.visit for e in ends(driver)] == [0, 1, 2, 3]
        assert times(driver) == [1.0, 3.0, 5.0, 9.0]
        assert [o["waited_ms"] for o in outputs(driver)] == [0, 1900, 3800, 0]
        assert not any(o["throttled"] for o in outputs(driver))
        assert not driver.state.scheduled

    @pytest.mark.parametrize("scope", SCOPES)
    def test_delayed_tokens_within_a_limit(self, scope: Any):
        driver = arriving(throttle(mode="delay", limit=2, scope=scope), 1.0, 1.5, 1.6, 1.7, 1.8)
        assert times(driver) == [1.0, 1.5, 3.0, 3.5, 5.0]

    @pytest.mark.parametrize("scope", SCOPES)
    def test_after_a_long_stop_not_all_pass_at_once(self, scope: Any):
        driver = arriving(throttle(mode="delay", scope=scope), 1.0, 1.1, 1.2, 1.3)
        cut = next(
            i
            for i, (e, _, _) in enumerate(driver.log)
            if isinstance(e, ev.TimerFired) and e.step_id == "gate"
        )
        driver.forget_accesses(cut)
        driver.now += 60 * SECOND
        driver.crash(cut)
        driver.run()
        at = [t - times(driver)[1] for t in times(driver)[1:]]
        assert at == [0.0, 2.0, 4.0]

    def test_a_cancelled_token_leaves_the_queue(self):
        driver = arriving(throttle(mode="delay", window=60.0), 1.0, 1.1, 1.2, options=Options(timeout=5.0))
        assert driver.state.status == "failed"
        assert not driver.state.scheduled
        assert driver.refold().memory.gates["gate", "a"].queue == []


@pytest.mark.parametrize("gate", [debounce, throttle])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("path", ["input.n", "input.absent"])
def test_a_key_that_is_no_text_fails(gate: Any, scope: Any, path: str):
    error = failure(arriving(gate(key_path=path, scope=scope), 1.0))
    assert (error.code, error.category) == ("cache_key_not_string", "invalid_input")


class TestOtherRuns:
    """Gates of scope definition; the drivers share a store, and their clocks begin alike."""

    def run(self, gate: Any, *seconds: float, store: dict[str, Any], name: str) -> Driver:
        return arriving(gate, *seconds, store=store, run=name)

    def test_a_burst_over_runs_is_one(self):
        store: dict[str, Any] = {}
        gate = debounce(scope="definition")
        assert suppressed(self.run(gate, 1.0, store=store, name="wf_1")) == [False]
        assert suppressed(self.run(gate, 1.0, store=store, name="wf_2")) == [True]

    def test_a_newer_run_supersedes_one_that_waits(self):
        store: dict[str, Any] = {}
        gate = debounce(scope="definition", mode="trailing")
        waits = [WaitNode(id="w0", duration=1.0, next="gate")]
        first = Driver(graph(*waits, gate), INPUT, store=store, run="wf_1")
        first.now += SECOND
        first.advance([])
        assert first.state.status == "waiting"
        second = Driver(graph(*waits, gate), INPUT, store=store, run="wf_2")
        second.run()
        first.run()
        assert (suppressed(first), suppressed(second)) == ([True], [False])

    def test_a_throttle_counts_the_passes_of_all_runs(self):
        store: dict[str, Any] = {}
        gate = throttle(scope="definition", limit=2)
        for name, expected in (("wf_1", False), ("wf_2", False), ("wf_3", True)):
            driver = self.run(gate, 1.0, store=store, name=name)
            assert [o["throttled"] for o in outputs(driver)] == [expected]

    def test_delayed_runs_pass_one_after_the_other(self):
        store: dict[str, Any] = {}
        gate = throttle(scope="definition", mode="delay")
        found = [times(self.run(gate, 1.0, store=store, name=f"wf_{i}")) for i in range(3)]
        assert found == [[1.0], [3.0], [5.0]]


GATES = {
    "leading": debounce("on", on_suppressed="off"),
    "trailing": debounce("on", on_suppressed="off", mode="trailing"),
    "drop": throttle("on", on_throttled="off"),
    "delay": throttle("on", mode="delay"),
    "steps": debounce("on", on_suppressed="off", window_steps=3),
}


@pytest.mark.parametrize("policy", ["eager", "superstep"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", GATES)
def test_a_crash_behind_each_event_gives_the_same_decisions(name: str, scope: Any, policy: Any):
    """Every access is made again after the crash, and gives its owner the answer that it had."""
    if name == "steps" and scope == "definition":
        scope = "run"
    gate = msgspec.structs.replace(GATES[name], scope=scope)
    others = (call("on", "__end"), call("off", "__end")) if name != "delay" else (call("on", "__end"),)
    more: dict[str, Any] = {"others": others, "options": Options(policy=policy)}
    whole = arriving(gate, 1.0, 1.5, 2.0, 6.0, **more)
    assert whole.state.status == "completed"
    expected = sorted((e.visit, str(e.output), e.next) for e in ends(whole))
    assert len(expected) == 4
    asked = (0, 1) if scope == "definition" else (0,)
    for cut, has_asked in [(cut, a) for cut in whole.batches[1:] for a in asked]:
        driver = Driver(whole.workflow, INPUT)
        driver.log, driver.asked_at = list(whole.log), list(whole.asked_at)
        driver.accesses = list(whole.accesses)
        driver.forget_accesses(cut + has_asked)
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        driver.run()
        assert sorted((e.visit, str(e.output), e.next) for e in ends(driver)) == expected, cut


def test_a_value_carries_through_a_gate():
    first = TransformNode(id="make", value={"x": 1}, next="gate")
    driver = Driver(graph(first, debounce("after"), call("after", "__end")), INPUT)
    assert driver.run().output == {"x": 1}


def test_what_a_gate_remembers_goes_with_the_wall_clock():
    driver = Driver(graph(WaitNode(id="w0", duration=1.0, next="gate"), debounce()), INPUT)
    driver.run()
    state = driver.refold(len(driver.log) - 1)
    before = state.memory.gates["gate", "a"].seen
    state.shift_times(-5 * SECOND)
    assert state.memory.gates["gate", "a"].seen == before - 5 * SECOND  # type: ignore[operator]
