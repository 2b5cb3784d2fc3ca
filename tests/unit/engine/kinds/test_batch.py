"""`batch`: an array in parts, or tokens gathered to arrays (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.ir import BatchNode, Edge, Options, ParallelNode, WaitNode
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph


def ended(driver: Driver, step: str) -> list[Any]:
    return [e.output for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step]


def failure(driver: Driver, step: str) -> Any:
    return next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == step)


class TestOfAnArray:
    def run(self, items: Any, **fields: Any) -> Driver:
        options = fields.pop("options", Options())
        node = BatchNode(id="b", items_path="input.items", next="__end", **fields)
        driver = Driver(graph(node, options=options), {"items": items})
        driver.run()
        return driver

    def test_without_a_size_it_is_the_array(self):
        assert self.run([1, 2, 3]).state.output == [1, 2, 3]

    def test_with_a_size_it_is_arrays_of_at_most_so_many(self):
        assert self.run([1, 2, 3], size=2).state.output == [[1, 2], [3]]
        assert self.run([], size=2).state.output == []

    @pytest.mark.parametrize("value", [None, 1, {"a": 1}])
    def test_what_is_no_array_fails_the_node(self, value):
        error = failure(self.run(value), "b")
        assert (error.code, error.category) == ("batch_items_not_array", "invalid_input")

    def test_more_items_than_a_run_may_have_fail_the_node(self):
        error = failure(self.run([1, 2, 3], options=Options(max_batch_items=2)), "b")
        assert (error.code, error.details) == ("batch_item_limit_exceeded", {"limit": 2})


def windowed(*delays: float, **fields: Any) -> Driver:
    """Tokens that come to a window after so many seconds each, with the delay's index as payload."""
    options = fields.pop("options", Options())
    waits = [WaitNode(id=f"w{i}", duration=seconds, next=f"t{i}") for i, seconds in enumerate(delays)]
    sends = [call(f"t{i}", "b", input={"i": i, "even": i % 2 == 0}) for i in range(len(delays))]
    nodes = [*waits, *sends, BatchNode(id="b", next="after", **fields), call("after", "__end")]
    edges = tuple(Edge(source="__start", target=w.id) for w in waits[1:])
    work = graph(*nodes, edges=edges, options=options)
    return Driver(work, call=lambda name, parameters: parameters)


def numbers(batches: list[Any]) -> list[list[int]]:
    return [[item["i"] for item in batch] for batch in batches]


class TestWindow:
    def test_it_goes_on_when_it_holds_so_many_tokens(self):
        driver = windowed(1, 2, 3, 4, size=2)
        assert driver.run().status == "completed"
        assert numbers(ended(driver, "b")) == [[0, 1], [2, 3]]
        assert len(ended(driver, "after")) == 2

    def test_it_goes_on_when_nothing_live_can_reach_it_any_more(self):
        driver = windowed(1, 2, 3)
        assert driver.run().status == "completed"
        assert numbers(ended(driver, "b")) == [[0, 1, 2]]

    def test_what_is_left_goes_on_as_a_smaller_array(self):
        driver = windowed(1, 2, 3, size=2)
        assert driver.run().status == "completed"
        assert numbers(ended(driver, "b")) == [[0, 1], [2]]

    def test_it_goes_on_when_its_time_is_over_since_its_first_token(self):
        driver = windowed(1, 2, 60, max_wait=5.0)
        begun = driver.now
        driver.run()
        assert numbers(ended(driver, "b")) == [[0, 1], [2]]
        fired = next(
            ts for data, _, ts in driver.log if isinstance(data, ev.TimerFired) and data.step_id == "b"
        )
        assert begun + 6_000_000 <= fired < begun + 6_100_000
        assert not driver.state.scheduled

    def test_each_key_has_a_window(self):
        driver = windowed(1, 2, 3, 4, key_path="last_tool_output.even")
        assert driver.run().status == "completed"
        assert numbers(ended(driver, "b")) == [[0, 2], [1, 3]]

    def test_a_window_is_one_activation_that_waits(self):
        driver = windowed(1, 2)
        driver.run()
        assert [e.activation for e in driver.events(ev.WorkflowStepStarted) if e.step_id == "b"] == ["/b#0"]
        assert [e.for_ for e in driver.events(ev.WorkflowStepWaiting) if e.step_id == "b"] == ["tokens"]

    def test_more_tokens_than_a_window_may_hold_fail_it(self):
        driver = windowed(1, 2, 3, options=Options(max_batch_items=2))
        driver.run()
        assert failure(driver, "b").code == "batch_item_limit_exceeded"

    def test_windows_are_per_path(self):
        nodes = [
            ParallelNode(id="fork", branches=("x", "y"), next="after"),
            call("x", "b"),
            call("y", "b"),
            BatchNode(id="b", next="after"),
            call("after", "__end"),
        ]
        driver = Driver(graph(*nodes), 1)
        assert driver.run().status == "completed"
        assert ended(driver, "fork") == [{"x": [1], "y": [1]}]

    def test_two_windows_that_wait_for_each_other_do_not_stop_the_run(self):
        from agentflow.definition.ir import Route, RouterNode

        more = Route(when="nodes.b2.visits < 2", next="b1")
        nodes = [
            BatchNode(id="b1", next="b2"),
            BatchNode(id="b2", next="again"),
            RouterNode(id="again", routes=(more,), default="__end"),
        ]
        driver = Driver(graph(*nodes, edges=(Edge(source="__start", target="b2"),)), 1)
        assert driver.run().status == "completed"

    def test_a_crash_behind_any_batch_gives_the_same_arrays(self):
        whole = windowed(1, 2, 3, size=2, max_wait=5.0)
        whole.run()
        for cut in whole.batches[1:]:
            driver = windowed(1, 2, 3, size=2, max_wait=5.0)
            driver.run()
            driver.now = driver.log[cut - 1][2]
            driver.crash(cut)
            assert driver.run().status == "completed"
            assert numbers(ended(driver, "b")) == [[0, 1], [2]]
