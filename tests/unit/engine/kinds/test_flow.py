"""`router` and `loop`: flow kinds pass the token that they got (page 003 §4)."""

from __future__ import annotations

from agentflow.definition.ir import LoopNode, Route, RouterNode
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph


def ended(driver: Driver, step: str) -> list[ev.WorkflowStepCompleted]:
    return [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step]


def routed(value: object) -> Driver:
    routes = (
        Route(when="input.n > 10", next="many"),
        Route(when="input.n > 5", next="some"),
        Route(when="input.n.x > 1", next="never"),
    )
    driver = Driver(
        graph(
            RouterNode(id="choose", routes=routes, default="few"),
            *(call(name, "__end") for name in ("many", "some", "few", "never")),
        ),
        {"n": value},
    )
    driver.run()
    return driver


class TestRouter:
    def test_the_first_true_route_is_taken_with_the_token_that_came(self):
        driver = routed(12)
        (end,) = ended(driver, "choose")
        assert (end.output, end.next) == ({"selected": "many", "route": 0}, "routes/0/next")
        assert ended(driver, "many")[0].output == {"n": 12}
        assert not ended(driver, "some")

    def test_routes_behind_the_first_true_one_are_not_evaluated(self):
        driver = routed(6)  # the third would fail: a number has no members to compare
        assert ended(driver, "choose")[0].output == {"selected": "some", "route": 1}
        assert driver.state.status == "completed"

    def test_the_default_is_taken_when_none_is_true(self):
        routes = (Route(when="input.n > 10", next="many"),)
        nodes = (
            RouterNode(id="choose", routes=routes, default="few"),
            call("many", "__end"),
            call("few", "__end"),
        )
        driver = Driver(graph(*nodes), {"n": 1})
        assert driver.run().output == {"n": 1}
        (end,) = ended(driver, "choose")
        assert (end.output, end.next) == ({"selected": "few", "route": None}, "default")

    def test_an_expression_that_fails_names_its_route(self):
        routes = (Route(when="input.n > 'x'", next="a"),)
        driver = Driver(
            graph(RouterNode(id="choose", routes=routes, default="a"), call("a", "__end")), {"n": 1}
        )
        state = driver.run()
        (failed,) = driver.events(ev.WorkflowStepFailed)
        assert state.status == "failed"
        assert (failed.error.code, failed.error.details["path"]) == ("expression_error", "/routes/0/when")


def looped(limit: int | None, on_limit: str | None = None, rounds: int = 3) -> Driver:
    """A loop whose body counts; it goes on while the count is below `rounds`."""
    loop = LoopNode(
        id="again",
        condition=f"nodes.again.count < {rounds}",
        body="work",
        next="done",
        max_iterations=limit,
        on_limit=on_limit,
    )
    nodes = [loop, call("work", "again"), call("done", "__end"), call("gave_up", "__end")]
    return Driver(graph(*nodes[: None if on_limit else 3]), {"x": 1})


class TestLoop:
    def test_the_body_runs_while_the_condition_is_true(self):
        driver = looped(None)
        state = driver.run()
        ends = ended(driver, "again")
        assert [(e.output, e.next) for e in ends] == [(True, "body")] * 3 + [(False, "next")]
        assert len(ended(driver, "work")) == 3
        assert state.output == {"x": 1}

    def test_the_count_is_0_before_the_first_arrival_and_after_the_way_on(self):
        driver = looped(None)
        assert driver.state.nodes_view["again"]["count"] == 1
        driver.run()
        assert driver.state.nodes_view["again"]["count"] == 0

    def test_as_many_iterations_as_the_limit_says_are_made(self):
        driver = looped(3)
        assert driver.run().status == "completed"
        assert len(ended(driver, "work")) == 3

    def test_one_arrival_more_that_is_still_true_fails(self):
        driver = looped(2)
        state = driver.run()
        (failed,) = driver.events(ev.WorkflowStepFailed)
        assert (failed.error.code, failed.error.category) == ("loop_iteration_limit_exceeded", "agent")
        assert failed.error.details == {"limit": 2}
        assert len(ended(driver, "work")) == 2
        assert state.status == "failed"

    def test_one_arrival_more_that_is_still_true_goes_to_on_limit(self):
        driver = looped(2, on_limit="gave_up")
        assert driver.run().status == "completed"
        assert [(e.output, e.next) for e in ended(driver, "again")] == [
            (True, "body"),
            (True, "body"),
            (True, "on_limit"),
        ]
        assert ended(driver, "gave_up")
        assert driver.state.nodes_view["again"]["count"] == 0
