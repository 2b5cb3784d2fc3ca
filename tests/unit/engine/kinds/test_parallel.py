"""`parallel`: one concurrent child path for each branch (page 003 §4)."""

from __future__ import annotations

from typing import Any

from agentflow.definition.ir import ErrorRoute, Options, ParallelNode
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, call, graph


def forked(*branches: Any, names: tuple[str, ...] = (), options: Options | None = None, **fields: Any) -> Any:
    names = names or tuple(b.id for b in branches)
    fork = ParallelNode(id="fork", branches=names, next="after", **fields)
    more = {} if options is None else {"options": options}
    return graph(fork, *branches, call("after", "__end"), **more)


def failing(*names: str) -> Any:
    def execute(name: str, parameters: Any) -> Any:
        if name.removeprefix("s__") in names:
            raise Fault("tool", f"broken_{name.removeprefix('s__')}")
        return {"by": name.removeprefix("s__")}

    return execute


def ended(driver: Driver, step: str) -> list[Any]:
    return [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step]


def test_every_branch_gets_the_token_on_a_path_of_its_own():
    driver = Driver(forked(call("a", "after"), call("b", "after")), {"x": 1})
    started = driver.events(ev.WorkflowStepStarted)
    assert [(e.step_id, e.path, e.activation, e.input) for e in started] == [
        ("fork", "", "/fork#0", {"x": 1}),
        ("a", "/fork#0.0", "/fork#0.0/a#0", {"x": 1}),
        ("b", "/fork#0.1", "/fork#0.1/b#0", {"x": 1}),
    ]
    assert [c.activation.node.id for c in driver.waiting] == ["a", "b"]


def test_the_output_has_the_results_in_the_order_of_the_branches():
    driver = Driver(forked(call("a", "after"), call("b", "after")), call=failing())
    state = driver.run(choose=lambda calls: calls[-1])
    (end,) = ended(driver, "fork")
    assert list(end.output.items()) == [("a", {"by": "a"}), ("b", {"by": "b"})]
    assert ended(driver, "after")[0].output == {"by": "after"}
    assert state.status == "completed"
    assert list(state.paths) == [""]


def test_a_child_path_ends_behind_a_node_without_a_way_on():
    driver = Driver(forked(call("a", "b"), call("b"), call("c", "after"), names=("a", "c")), call=failing())
    assert driver.run().status == "completed"
    assert ended(driver, "fork")[0].output == {"a": {"by": "b"}, "c": {"by": "c"}}


def test_at_most_so_many_branches_are_open_at_once():
    nodes = [call(name, "after") for name in "abcd"]
    driver = Driver(forked(*nodes, max_in_flight=2))
    assert [c.activation.node.id for c in driver.waiting] == ["a", "b"]
    driver.answer(driver.waiting[1])
    assert [c.activation.node.id for c in driver.waiting] == ["a", "c"]
    assert driver.run().status == "completed"


def test_the_option_of_the_run_bounds_every_group():
    nodes = [call(name, "after") for name in "abcd"]
    driver = Driver(forked(*nodes, options=Options(scheduler_max_in_flight=1)))
    assert [c.activation.node.id for c in driver.waiting] == ["a"]
    assert driver.run().status == "completed"


def test_the_branches_of_a_node_that_failed_give_no_values():
    fork = forked(call("a", "after"), call("b", "after"), on_error=ErrorRoute(next="after"))
    driver = Driver(fork, call=failing("b"))
    assert driver.run().status == "completed"
    assert [e.step_id for e in driver.events(ev.WorkflowStepCompleted)] == ["a", "after"]
    assert driver.state.root.frame.nodes.get("a", {"status": None})["status"] is None


def test_the_first_failure_cancels_the_others_and_fails_the_node():
    driver = Driver(forked(call("a", "after"), call("b", "after"), call("c", "after")), call=failing("b"))
    state = driver.run(choose=lambda calls: calls[1])
    failed = driver.events(ev.WorkflowStepFailed)
    assert [(e.step_id, e.error.code) for e in failed] == [
        ("b", "broken_b"),
        ("a", "cancelled"),
        ("c", "cancelled"),
        ("fork", "branch_failed"),
    ]
    assert failed[-1].error.details == {"branch": "b"}
    assert failed[-1].error.cause.code == "broken_b"
    assert (state.status, state.failed_steps) == ("failed", ["fork"])
    assert not ended(driver, "after")


def test_a_branch_that_has_not_begun_leaves_no_event_when_the_group_fails():
    nodes = [call(name, "after") for name in "abc"]
    driver = Driver(forked(*nodes, options=Options(max_parallel=1)), call=failing("a"))
    driver.run()
    assert {e.step_id for e in driver.events(ev.WorkflowStepStarted)} == {"fork", "a"}
    assert not driver.state.activations


def test_collect_leaves_null_and_names_the_errors():
    driver = Driver(
        forked(call("a", "after"), call("b", "after"), on_branch_error="collect"), call=failing("a")
    )
    state = driver.run()
    assert ended(driver, "fork")[0].output == {"a": None, "b": {"by": "b"}}
    (error,) = state.nodes_view["fork"]["errors"]
    assert (error["branch"], error["error"]["code"]) == ("a", "broken_a")
    assert state.nodes_view["a"]["error"]["code"] == "broken_a"
    assert state.status == "completed"


def test_more_branches_than_a_run_may_have_are_refused():
    nodes = [call(name, "after") for name in "abc"]
    driver = Driver(forked(*nodes, options=Options(max_parallel_branches=2)))
    assert driver.run().status == "failed"
    (failed,) = driver.events(ev.WorkflowStepFailed)
    assert (failed.error.code, failed.error.details) == ("parallel_branch_limit_exceeded", {"limit": 2})


def test_groups_nest():
    inner = ParallelNode(id="inner", branches=("c", "d"), next="e")
    nodes = [inner, call("c", "e"), call("d", "e"), call("e", "after"), call("b", "after")]
    driver = Driver(forked(*nodes, names=("inner", "b")), call=failing())
    state = driver.run(choose=lambda calls: calls[-1])
    assert state.status == "completed"
    assert ended(driver, "fork")[0].output == {"inner": {"by": "e"}, "b": {"by": "b"}}
    assert ended(driver, "c")[0].path == "/fork#0.0/inner#0.0"


def test_a_group_that_is_entered_again_has_paths_of_its_own():
    from agentflow.definition.ir import LoopNode

    fork = ParallelNode(id="fork", branches=("a", "b"), next="again")
    loop = LoopNode(id="again", condition="nodes.fork.visits < 2", body="fork", next="after")
    driver = Driver(graph(fork, call("a", "again"), call("b", "again"), loop, call("after", "__end")))
    assert driver.run().status == "completed"
    assert [e.activation for e in ended(driver, "a")] == ["/fork#0.0/a#0", "/fork#1.0/a#0"]


class TestScope:
    def test_a_child_path_reads_the_values_of_its_parent_as_of_its_opening(self):
        """Node `busy` moves on the parent path meanwhile; branch b, begun behind it, sees what was before."""
        from agentflow.definition.ir import Edge

        nodes = [
            ParallelNode(id="fork", branches=("a", "b"), next="after", max_in_flight=1),
            call("a", "after"),
            call("b", "after", input={"seen": "${{ nodes.busy.output }}"}),
            call("after", "__end", input={"seen": "${{ nodes.busy.output }}"}),
            call("busy", "__end"),
        ]
        work = graph(*nodes, edges=(Edge(source="__start", target="busy"),))
        driver = Driver(work, call=lambda name, parameters: {"by": name, **(parameters or {})})
        driver.answer(next(c for c in driver.waiting if c.activation.node.id == "busy"))
        driver.run()
        inputs = {e.step_id: e.input for e in driver.events(ev.WorkflowStepStarted)}
        assert inputs["b"] == {"seen": None}
        assert inputs["after"] == {"seen": {"by": "s__busy"}}

    def test_siblings_do_not_see_each_other_and_the_parent_sees_all_after_the_join(self):
        nodes = [
            call("a", "after"),
            call("b", "after", input={"seen": "${{ nodes.a.output }}"}),
        ]
        driver = Driver(forked(*nodes, max_in_flight=1), call=failing())
        driver.run()
        inputs = {e.step_id: e.input for e in driver.events(ev.WorkflowStepStarted)}
        assert inputs["b"] == {"seen": None}
        assert driver.state.nodes_view["a"]["output"] == {"by": "a"}


def test_halt_lets_the_branches_that_are_under_way_end():
    from agentflow.definition.ir import Edge

    nodes = [
        ParallelNode(id="fork", branches=("a", "b"), next="after"),
        call("a", "a2"),
        call("a2", "after"),
        call("b", "after"),
        call("after", "__end"),
        call("bad", "__end"),
    ]
    work = graph(*nodes, edges=(Edge(source="__start", target="bad"),), options=Options(on_failure="halt"))
    driver = Driver(work, call=failing("bad"))
    driver.answer(next(c for c in driver.waiting if c.activation.node.id == "bad"))
    assert driver.run().status == "failed"
    assert ended(driver, "a2")
    assert ended(driver, "fork")
    assert not ended(driver, "after")


def test_hold_concerns_the_node_that_opened_the_paths():
    driver = Driver(
        forked(call("a", "after"), call("b", "after"), options=Options(on_failure="hold")), call=failing("a")
    )
    driver.run()
    assert driver.state.status == "paused"
    assert list(driver.state.held_steps) == ["fork"]


def test_a_crash_behind_any_event_leads_to_the_same_result():
    def make() -> Driver:
        return Driver(
            forked(
                call("a", "a2"), call("a2", "after"), call("b", "after"), names=("a", "b"), max_in_flight=1
            ),
            call=failing(),
        )

    whole = make()
    whole.run()
    for cut in whole.batches[1:]:
        driver = make()
        driver.run()
        driver.crash(cut)
        assert driver.run().output == whole.state.output
        assert ended(driver, "fork")[0].output == {"a": {"by": "a2"}, "b": {"by": "b"}}
