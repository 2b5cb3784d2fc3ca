"""Runs that stand still: held failures, operator's pauses and budgets (page 000 §2, §10, §11)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import Budget, Edge, EndNode, ModelRef, Options, StartNode, Workflow
from agentflow.engine import ModelTerms
from agentflow.engine.held_steps import retry_all, settle_held
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, call, steps, tool


def held(*, broken: list[bool], **more) -> Driver:
    """`b` waits for `a`, which fails while `broken` holds something."""

    def model(unit, call):
        if unit.node.id == "a" and broken and (unit.iteration is None or unit.iteration == 1):
            raise Fault("auth", "authentication_failed")
        return "{}"

    graph = steps(agent("a", **more), agent("b", depends_on=("a",)), options=Options(on_failure="hold"))
    driver = Driver(graph, [10, 11, 12], model=model)
    driver.run()
    assert (driver.state.status, driver.state.pause) == ("paused", "failure")
    return driver


def settle(driver: Driver, action, **more) -> None:
    driver.advance(settle_held(driver.state, "a", action, driver.now, by="ann", **more))
    driver.run()


def test_a_failed_step_pauses_the_run_and_is_tried_again_in_place():
    broken = [True]
    driver = held(broken=broken)
    assert driver.types()[-2:] == ["workflow.step_failed", "workflow.paused"]
    broken.clear()
    settle(driver, "retry")
    assert driver.state.status == "completed"
    assert [(e.step_id, e.visit, e.attempt) for e in driver.events(ev.WorkflowStepStarted)] == [
        ("a", 0, 1),
        ("a", 1, 2),
        ("b", 0, 1),
    ]
    assert driver.events(ev.WorkflowCompleted)[0].steps.succeeded == 2


def test_a_step_that_fails_again_is_held_again():
    driver = held(broken=[True])
    settle(driver, "retry")
    assert (driver.state.status, driver.state.pause, sorted(driver.state.held_steps)) == (
        "paused",
        "failure",
        ["a"],
    )


@pytest.mark.parametrize(
    ("action", "state", "b"), [("skip", "completed", "skipped"), ("fail", "failed", "skipped")]
)
def test_a_held_step_may_be_skipped_or_failed(action, state, b):
    driver = held(broken=[True])
    settle(driver, action)
    assert (driver.state.status, driver.state.nodes["b"].status) == (state, b)


def test_a_held_step_may_be_done_by_hand():
    driver = held(broken=[True])
    settle(driver, "done", output={"by": "hand"})
    assert driver.state.status == "completed"
    assert driver.state.nodes_view["a"]["output"] == {"by": "hand"}


def test_the_iterations_that_succeeded_are_kept():
    broken = [True]
    driver = held(broken=broken, for_each="${{ inputs }}")
    broken.clear()
    settle(driver, "retry")
    assert driver.state.status == "completed"
    asked = [key for key, _ in driver.requests]
    assert asked.count("/a#0[0]") == asked.count("/a#0[2]") == 1
    assert [k for k in asked if k.startswith("/a#1")] == ["/a#1[1]"]


def test_an_iteration_whose_item_has_changed_runs_again():
    """Between failure and retry another step writes what the items are read from."""
    broken = [True]

    def execute(name: str, parameters: Any) -> Any:
        if parameters == {"item": 2} and broken:
            raise Fault("tool", "broken")
        return parameters

    each = call("a", "__end", for_each="${{ globals.list }}", join="any", input={"item": "${{ item }}"})
    writes = call("b", "__end", set_globals={"list": "nodes.b.output.list"}, join="any")
    ways = (Edge(source="__start", target="a"), Edge(source="__start", target="b"))
    nodes = (StartNode(id="__start"), each, writes, EndNode(id="__end", index=2, drain=True))
    options = Options(on_failure="hold")
    workflow = Workflow(name="w", nodes=nodes, edges=ways, options=options, globals={"list": [1, 2]})
    driver = Driver(workflow, {"list": [5, 2]}, call=execute)
    driver.run(choose=lambda calls: calls[0])
    assert list(driver.state.held_steps) == ["a"]
    broken.clear()
    settle(driver, "retry")
    assert driver.state.status == "completed"
    (end,) = [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "a" and e.iteration is None]
    assert end.output == [{"item": 5}, {"item": 2}]


def test_what_is_held_survives_a_restart():
    broken = [True]
    driver = held(broken=broken)
    driver.crash()
    assert sorted(driver.state.held_steps) == ["a"]
    broken.clear()
    driver.advance([*retry_all(driver.state, driver.now, by="t"), ev.WorkflowResumed(reason="resume")])
    driver.run()
    assert driver.state.status == "completed"


# -- pauses -------------------------------------------------------------------------------------


def two_turns() -> Driver:
    said = iter(
        [Message(role="assistant", content="", tool_calls=(ToolCall(id="c", name="s__add", arguments="{}"),))]
    )
    graph = steps(agent("a"), agent("b", depends_on=("a",)))
    return Driver(graph, tools={"a": [tool()]}, model=lambda unit, call: next(said, "{}"))


def test_a_draining_pause_lets_the_step_in_flight_finish_and_begins_nothing():
    driver = two_turns()
    driver.advance([ev.WorkflowPaused(reason="operator", detail=None, by="t", in_flight="drain")])
    while driver.waiting:
        driver.answer(driver.waiting[0])
    assert driver.state.status == "paused"
    assert (driver.state.nodes["a"].status, driver.state.nodes["b"].status) == ("succeeded", "pending")
    driver.advance([ev.WorkflowResumed(reason="resume")])
    assert driver.run().status == "completed"


def test_a_suspending_pause_records_what_comes_and_goes_no_further():
    driver = two_turns()
    driver.answer(driver.waiting[0])  # the function is at work now
    driver.advance([ev.WorkflowPaused(reason="operator", detail=None, by="t", in_flight="suspend")])
    driver.answer(driver.waiting[0])
    assert driver.events(ev.ToolCallCompleted)
    assert not driver.state.calls
    driver.advance([ev.WorkflowResumed(reason="resume")])
    assert driver.run().status == "completed"


# -- budgets ------------------------------------------------------------------------------------


def with_budget(on_exceeded: str = "pause", *, step: bool = False, **limits) -> Driver:
    budget = Budget(on_exceeded=on_exceeded, **limits)
    first = agent("a", **({"budget": budget} if step else {}))
    graph = steps(first, agent("b", depends_on=("a",)), options=Options(budget=None if step else budget))
    driver = Driver(graph)
    driver.run()
    return driver


def test_a_call_that_does_not_fit_is_not_made_and_the_run_pauses():
    driver = with_budget(max_model_calls=1)
    assert (driver.state.status, driver.state.pause) == ("paused", "budget")
    assert len(driver.events(ev.ModelCallStarted)) == 1
    paused = driver.events(ev.WorkflowPaused)[0]
    assert paused.budget == {
        "limit": {"max_model_calls": 1},
        "scope": "run",
        "used": 1,
        "reserved": 0.0,
        "requested": 1,
    }
    driver.advance([ev.WorkflowResumed(reason="resume", budget={"max_model_calls": 2})])
    assert driver.run().status == "completed"


def test_resuming_without_more_pauses_again():
    driver = with_budget(max_tokens=5)
    driver.advance([ev.WorkflowResumed(reason="resume")])
    assert (driver.run().status, driver.state.pause) == ("paused", "budget")
    assert len(driver.events(ev.WorkflowPaused)) == 2


def test_it_fails_with_the_figures():
    driver = with_budget("fail", max_model_calls=1)
    error = driver.events(ev.AgentFailed)[0].error
    assert (error.category, error.code) == ("budget", "budget_exceeded")
    assert error.details["used"] == 1
    assert driver.state.status == "failed"


@pytest.mark.parametrize(
    ("value", "status"), [({"choice": "raise", "limit": 3}, "completed"), ({"choice": "fail"}, "failed")]
)
def test_a_person_is_asked(value, status):
    driver = with_budget("ask", max_model_calls=1)
    assert driver.state.status == "waiting"
    asked = driver.events(ev.InputRequested)[0]
    assert asked.request_type == "budget"
    assert asked.response_schema["properties"]["limit"]["exclusiveMinimum"] == 1
    driver.advance(
        [
            ev.InputReceived(
                step_id=asked.step_id,
                iteration=asked.iteration,
                activation=asked.activation,
                request_id=asked.request_id,
                value=value,
                by="t",
                via="api",
            )
        ]
    )
    assert driver.run().status == status


def test_the_budget_of_a_step_counts_that_step_alone():
    driver = with_budget(step=True, max_model_calls=1)
    assert driver.state.status == "completed"
    narrow = Driver(steps(agent("a", for_each="${{ inputs }}", budget=Budget(max_model_calls=2))), [1, 2, 3])
    narrow.run()
    assert (narrow.state.status, narrow.state.pause) == ("paused", "budget")
    raised = {"steps": {"a": {"max_model_calls": 3}}}
    narrow.advance([ev.WorkflowResumed(reason="resume", budget=raised)])
    assert narrow.run().status == "completed"


def test_open_calls_reserve_what_they_may_use():
    """The second call does not fit beside the first one: it waits, and is made when that has ended."""
    graph = steps(agent("a"), agent("b"), options=Options(budget=Budget(max_tokens=60)))
    driver = Driver(graph)
    refs = ModelRef(provider="scripted", model="m")
    bound = {
        i: msgspec.structs.replace(
            b, terms={refs.name: ModelTerms(max_output_tokens=20, input_price=0.0, output_price=1e6)}
        )
        for i, b in driver.bindings.steps.items()
    }
    driver = Driver(graph)
    driver.bindings = engine.Bindings(steps=bound)
    started = driver.log[0][0]
    driver.state = engine.RunState("wf_1", driver.plan, driver.bindings)
    driver.log, driver.waiting = [], []
    driver.advance([started])
    first = driver.events(ev.ModelCallStarted)
    # 16 tokens a request, 8 a message, 1 byte of prompt, and 20 that the model may write.
    assert [(e.reserved.tokens, e.reserved.cost_usd) for e in first] == [(45, 20.0)]
    assert [e.parameters for e in first] == [{"max_tokens": 20}]
    assert driver.run().status == "completed"
    assert [e.reserved.tokens for e in driver.events(ev.ModelCallStarted)] == [45, 45]
    assert not driver.events(ev.WorkflowPaused)


def test_the_time_of_a_run_and_its_steps_are_limited():
    driver = Driver(steps(agent("a"), options=Options(budget=Budget(max_duration_s=3))))
    driver.now += 4_000_000
    driver.advance([])
    assert driver.state.error.code == "run_deadline"
    many = Driver(
        steps(agent("a"), agent("b"), options=Options(budget=Budget(max_steps=1, on_exceeded="fail")))
    )
    many.run()
    assert many.state.error.code == "budget_exceeded"


def test_a_run_goes_on_with_the_last_of_its_held_steps_and_not_before():
    def model(unit, call):
        raise Fault("auth", "authentication_failed")

    driver = Driver(steps(agent("a"), agent("b"), options=Options(on_failure="hold")), model=model)
    driver.run()
    assert sorted(driver.state.held_steps) == ["a", "b"]
    settle(driver, "skip")
    assert (driver.state.status, sorted(driver.state.held_steps)) == ("paused", ["b"])
    assert driver.events(ev.WorkflowResumed) == []
    driver.advance(settle_held(driver.state, "b", "skip", driver.now, by="ann"))
    assert len(driver.events(ev.WorkflowResumed)) == 1
    assert driver.run().status == "completed"
