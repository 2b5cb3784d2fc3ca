"""`map`: the same work for each element of an array (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.ir import MapNode, Options, Policy
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.held_steps import settle_held
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, call, graph

FORMS = ("tool", "body")


def mapped(form: str, items: Any = ("x", "y", "z"), *, fails: tuple[Any, ...] = (), **fields: Any) -> Driver:
    options = fields.pop("options", Options())
    fields |= {"tool": "s.each"} if form == "tool" else {"body": "each"}
    nodes = [MapNode(id="m", items_path="input.items", next="after", **fields)]
    nodes += [call("each")] if form == "body" else []  # type: ignore[list-item]

    def execute(name: str, parameters: Any) -> Any:
        if name == "s__each" and parameters in fails:
            raise Fault("tool", f"broken_{parameters}")
        return {"got": parameters}

    given = list(items) if isinstance(items, tuple) else items
    return Driver(graph(*nodes, call("after", "__end"), options=options), {"items": given}, call=execute)


def ended(driver: Driver, step: str = "m") -> Any:
    found = [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step and e.iteration is None]
    return found[0]


def failure(driver: Driver, step: str = "m") -> Any:
    return next(
        e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == step and e.iteration is None
    )


@pytest.mark.parametrize("form", FORMS)
class TestBothForms:
    def test_the_output_is_in_the_order_of_the_items(self, form):
        driver = mapped(form)
        state = driver.run(choose=lambda calls: calls[-1])
        assert ended(driver).output == [{"got": "x"}, {"got": "y"}, {"got": "z"}]
        assert state.status == "completed"

    def test_the_input_is_a_template_for_each_item(self, form):
        driver = mapped(form, input={"i": "${{ index }}", "v": "{{ map_item }}", "n": "${{ item_index }}"})
        driver.run()
        assert ended(driver).output[1] == {"got": {"i": 1, "v": "y", "n": 1}}

    def test_at_most_so_many_items_are_at_work_at_once(self, form):
        driver = mapped(form, max_in_flight=2)
        assert len(driver.waiting) == 2
        assert driver.run().status == "completed"
        assert len(mapped(form, options=Options(scheduler_max_in_flight=1)).waiting) == 1

    def test_no_items_give_an_empty_array(self, form):
        driver = mapped(form, items=[])
        assert driver.run().status == "completed"
        assert ended(driver).output == []

    @pytest.mark.parametrize("value", [None, 7, {"a": 1}, "text"])
    def test_what_is_no_array_fails_the_node(self, form, value):
        driver = mapped(form, items=value)
        driver.run()
        assert (failure(driver).code, failure(driver).category) == ("map_items_not_array", "invalid_input")

    def test_more_items_than_a_run_may_have_fail_the_node(self, form):
        driver = mapped(form, options=Options(max_map_items=2))
        driver.run()
        assert failure(driver).code == "map_item_limit_exceeded"
        assert failure(driver).details == {"limit": 2}

    def test_fail_cancels_the_others_and_names_the_item(self, form):
        driver = mapped(form, fails=("y",))
        driver.answer(driver.waiting[1])
        error = failure(driver)
        assert (error.code, error.details, error.cause.code) == ("item_failed", {"index": 1}, "broken_y")
        assert driver.state.status == "failed"
        assert not driver.waiting

    def test_collect_leaves_null_and_names_the_errors(self, form):
        driver = mapped(form, fails=("y",), on_item_error="collect")
        assert driver.run().status == "completed"
        assert ended(driver).output == [{"got": "x"}, None, {"got": "z"}]
        (error,) = driver.state.nodes_view["m"]["errors"]
        assert (error["index"], error["error"]["code"]) == (1, "broken_y")

    def test_skip_leaves_the_item_out(self, form):
        driver = mapped(form, fails=("y",), on_item_error="skip")
        assert driver.run().status == "completed"
        assert ended(driver).output == [{"got": "x"}, {"got": "z"}]

    def test_an_input_that_cannot_be_made_fails_its_item(self, form):
        driver = mapped(form, items=["x", 5], input="${{ item > 3 }}", on_item_error="collect")
        assert driver.run().status == "completed"
        assert ended(driver).output == [None, {"got": True}]
        assert driver.state.nodes_view["m"]["errors"][0]["error"]["code"] == "expression_error"

    def test_finished_items_are_never_run_again(self, form):
        fails = ["z"]
        driver = mapped(form, options=Options(on_failure="hold"), max_in_flight=1)
        seen: list[Any] = []

        def execute(name: str, parameters: Any) -> Any:
            if name == "s__each":
                seen.append(parameters)
                if parameters in fails:
                    raise Fault("tool", "broken")
            return {"got": parameters}

        driver.call = execute
        driver.run()
        assert driver.state.status == "paused"
        fails.clear()
        driver.advance(settle_held(driver.state, "m", "retry", driver.now, by="test"))
        assert driver.run().status == "completed"
        assert seen == ["x", "y", "z", "z"]
        assert [
            e.output
            for e in driver.events(ev.WorkflowStepCompleted)
            if e.step_id == "m" and e.iteration is None
        ] == [[{"got": "x"}, {"got": "y"}, {"got": "z"}]]

    def test_a_crash_behind_any_batch_gives_the_same_output(self, form):
        whole = mapped(form, max_in_flight=2)
        whole.run()
        for cut in whole.batches[1:]:
            driver = mapped(form, max_in_flight=2)
            driver.run()
            driver.crash(cut)
            assert driver.run().status == "completed"
            assert ended(driver).output == ended(whole).output


class TestOverATool:
    def test_items_are_iterations_with_calls_and_no_steps(self):
        driver = mapped("tool", options=Options(max_steps=5))
        assert driver.run().status == "completed"
        assert [(e.activation, e.iteration) for e in driver.events(ev.ToolCallStarted)[:3]] == [
            ("/m#0", 0),
            ("/m#0", 1),
            ("/m#0", 2),
        ]
        assert driver.state.clock == 2
        assert [item.status for item in ended(driver).items] == ["succeeded"] * 3

    def test_a_call_is_retried_by_the_policy_of_the_node(self):
        tries: list[Any] = []
        retry = RetryPolicy(max_attempts=3, backoff=Backoff(initial=0.5), retry_on=("tool",))
        driver = mapped("tool", items=("x",), policy=Policy(retry=retry))

        def execute(name: str, parameters: Any) -> Any:
            tries.append(parameters)
            if len(tries) < 3:
                raise Fault("tool", "busy")
            return 1

        driver.call = execute
        assert driver.run().status == "completed"
        assert ended(driver).output == [1]
        assert len(driver.events(ev.WorkflowStepRetrying)) == 2


class TestOverABody:
    def test_each_item_has_a_path_whose_nodes_read_it(self):
        nodes = [
            MapNode(id="m", items_path="input.items", body="one", next="after"),
            call("one", "two"),
            call(
                "two",
                "after",
                input={"item": "${{ item }}", "i": "${{ index }}", "one": "${{ nodes.one.output }}"},
            ),
            call("after", "__end"),
        ]
        driver = Driver(graph(*nodes), {"items": ["x", "y"]}, call=lambda name, parameters: parameters)
        assert driver.run().status == "completed"
        assert ended(driver).output == [
            {"item": "x", "i": 0, "one": "x"},
            {"item": "y", "i": 1, "one": "y"},
        ]
        paths = {e.path for e in driver.events(ev.WorkflowStepStarted) if e.step_id == "two"}
        assert paths == {"/m#0.0", "/m#0.1"}
