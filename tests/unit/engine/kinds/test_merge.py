"""`merge`: joins the branches of a parallel node, or outputs of one path (page 003 §4, §14)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import MapNode, MergeNode, Options, ParallelNode, SubgraphNode, WaitNode
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso
from tests.unit.engine.driver import Driver, Fault, call, chain, graph


def merged(*branches: Any, names: str = "", fork: dict[str, Any] | None = None, **fields: Any) -> Any:
    heads = tuple(names) or tuple(b.id for b in branches)
    fields.setdefault("sources", heads)
    more = [call("late", "__end")] if "on_timeout" in fields else []
    return graph(
        ParallelNode(id="fork", branches=heads, next="join", **(fork or {})),
        *branches,
        MergeNode(id="join", next="after", **fields),
        call("after", "__end"),
        *more,
    )


def failing(*names: str) -> Any:
    def execute(name: str, parameters: Any) -> Any:
        if name.removeprefix("s__") in names:
            raise Fault("tool", f"broken_{name.removeprefix('s__')}")
        return {"by": name.removeprefix("s__")}

    return execute


def ended(driver: Driver, step: str) -> Any:
    return next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step)


def answer(driver: Driver, *names: str) -> None:
    """Answer the calls of these nodes, in this order."""
    for name in names:
        driver.answer(next(c for c in driver.waiting if c.activation.node.id == name))


def cancelled(driver: Driver) -> list[str]:
    return [e.step_id for e in driver.events(ev.WorkflowStepFailed) if e.error.category == "cancelled"]


def failure(driver: Driver, step: str) -> Any:
    return next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == step)


ABC = [call("a", "join"), call("b", "join"), call("c", "join")]


class TestBehindAGroup:
    def test_first_gives_the_value_of_the_first_to_finish_and_cancels_the_rest(self):
        driver = Driver(merged(*ABC, rule="first"), call=failing())
        answer(driver, "b")
        assert ended(driver, "join").output == {"by": "b"}
        assert ended(driver, "fork").output == {"a": None, "b": {"by": "b"}, "c": None}
        assert cancelled(driver) == ["a", "c"]
        assert driver.run().status == "completed"
        assert driver.state.nodes_view.get("a") is None

    def test_drain_lets_the_rest_end_unread(self):
        driver = Driver(merged(*ABC, rule="first", rest="drain"), call=failing())
        answer(driver, "b")
        assert driver.state.nodes["join"].status == "pending"
        answer(driver, "c", "a")
        assert ended(driver, "join").output == {"by": "b"}
        assert cancelled(driver) == []
        assert "a" not in driver.state.nodes_view

    def test_all_gives_an_array_in_the_order_of_the_sources(self):
        driver = Driver(merged(*ABC, rule="all", sources=("c", "a", "b")), call=failing())
        answer(driver, "b", "c", "a")
        assert ended(driver, "join").output == [{"by": "c"}, {"by": "a"}, {"by": "b"}]

    def test_a_source_that_its_branch_did_not_take_is_null(self):
        from agentflow.definition.ir import ConditionNode

        choose = ConditionNode(id="choose", expression="false", on_true="a", on_false="b")
        work = merged(choose, *ABC, names="", fork={}, rule="all", sources=("a", "b", "c"))
        nodes = [n for n in work.nodes if n.id != "fork"]
        import msgspec

        fork = ParallelNode(id="fork", branches=("choose", "c"), next="join")
        driver = Driver(msgspec.structs.replace(work, nodes=(*nodes, fork)), call=failing())
        assert driver.run().status == "completed"
        assert ended(driver, "join").output == [None, {"by": "b"}, {"by": "c"}]

    def test_quorum_gives_the_first_to_finish_in_the_order_of_the_sources(self):
        driver = Driver(merged(*ABC, rule="quorum", quorum=2), call=failing())
        answer(driver, "c", "a")
        assert ended(driver, "join").output == [{"by": "a"}, {"by": "c"}]
        assert cancelled(driver) == ["b"]
        assert driver.run().status == "completed"

    def test_first_bears_failures_while_it_can_succeed(self):
        driver = Driver(merged(*ABC, rule="first"), call=failing("a", "b"))
        answer(driver, "a", "b", "c")
        assert ended(driver, "join").output == {"by": "c"}
        assert driver.run().status == "completed"

    def test_first_fails_when_no_branch_can_finish_any_more(self):
        driver = Driver(merged(*ABC, rule="first"), call=failing("a", "b", "c"))
        assert driver.run().status == "failed"
        error = failure(driver, "join")
        assert error.code == "merge_quorum_not_met"
        assert error.details == {"needed": 1, "arrived": 0, "failed": 3}

    def test_quorum_fails_as_soon_as_too_few_can_finish(self):
        driver = Driver(merged(*ABC, rule="quorum", quorum=2), call=failing("a", "b"))
        answer(driver, "a", "b")
        assert driver.state.status == "failed"
        assert cancelled(driver) == ["c"]
        assert failure(driver, "join").details == {"needed": 2, "arrived": 0, "failed": 2}

    def test_all_leaves_a_failure_to_the_parallel_node(self):
        driver = Driver(merged(*ABC, rule="all"), call=failing("b"))
        answer(driver, "b")
        assert failure(driver, "fork").details == {"branch": "b"}
        assert driver.state.status == "failed"

    def test_what_the_merge_states_about_failures_wins(self):
        driver = Driver(merged(*ABC, rule="all", on_branch_error="collect"), call=failing("b"))
        assert driver.run().status == "completed"
        assert ended(driver, "join").output == [{"by": "a"}, None, {"by": "c"}]
        driver = Driver(merged(*ABC, rule="first", on_branch_error="fail"), call=failing("b"))
        answer(driver, "b")
        assert failure(driver, "fork").code == "branch_failed"

    def test_collect_of_the_parallel_node_counts_under_all(self):
        driver = Driver(merged(*ABC, rule="all", fork={"on_branch_error": "collect"}), call=failing("b"))
        assert driver.run().status == "completed"
        assert ended(driver, "join").output == [{"by": "a"}, None, {"by": "c"}]

    def test_a_branch_without_a_source_does_not_make_a_quorum(self):
        driver = Driver(merged(*ABC, rule="first", sources=("b", "c")), call=failing())
        answer(driver, "a")
        assert driver.state.nodes["join"].status == "pending"
        answer(driver, "c")
        assert ended(driver, "join").output == {"by": "c"}


SLOW = [call("a", "join"), WaitNode(id="b", duration=60.0, next="join")]


class TestTimeOut:
    def test_it_counts_from_the_opening_of_the_group(self):
        driver = Driver(merged(*SLOW, rule="all", timeout=5.0), call=failing())
        begun = driver.now
        driver.run()
        error = failure(driver, "join")
        assert (error.code, error.category) == ("merge_timeout", "timeout")
        assert driver.now == begun + 5_000_000
        assert cancelled(driver) == ["b"]
        assert driver.state.status == "failed"

    def test_it_goes_to_on_timeout_with_what_arrived(self):
        driver = Driver(merged(*SLOW, rule="all", timeout=5.0, on_timeout="late"), call=failing())
        assert driver.run().status == "completed"
        end = ended(driver, "join")
        assert (end.output, end.next) == ({"timed_out": True, "arrived": 1}, "on_timeout")
        assert ended(driver, "late")

    @pytest.mark.parametrize("rule", ["first", "all"])
    def test_a_group_that_ends_in_time_disarms_it(self, rule):
        branches = [call("a", "join"), call("b", "join")]
        driver = Driver(merged(*branches, rule=rule, timeout=5.0), call=failing())
        assert driver.run().status == "completed"
        assert driver.types().count("timer.cancelled") == 1
        assert not driver.state.scheduled


class TestOnOnePath:
    def work(self, rule: str, *, taken: tuple[str, ...] = ("a", "b"), **fields: Any) -> Driver:
        ids = [*taken, "join"]
        nodes = [call(name, ids[i + 1]) for i, name in enumerate(taken)]
        join = MergeNode(id="join", sources=("b", "a"), rule=rule, next="__end", **fields)  # type: ignore[arg-type]
        others = [call(name, "join") for name in ("a", "b") if name not in taken]
        driver = Driver(graph(*nodes, *others, join), call=failing())
        driver.run()
        return driver

    def test_all_reads_the_outputs_in_scope(self):
        assert self.work("all").state.output == [{"by": "b"}, {"by": "a"}]

    def test_first_is_the_first_in_the_log(self):
        assert self.work("first").state.output == {"by": "a"}

    def test_quorum_has_the_order_of_the_sources(self):
        assert self.work("quorum", quorum=2).state.output == [{"by": "b"}, {"by": "a"}]
        assert self.work("quorum", quorum=1).state.output == [{"by": "a"}]

    def test_a_lack_is_an_error_that_names_the_source(self):
        driver = self.work("all", taken=("b",))
        assert failure(driver, "join").code == "missing_merge_source"
        assert failure(driver, "join").details == {"source": "a"}
        assert self.work("first", taken=("b",)).state.output == {"by": "b"}


@pytest.mark.parametrize("policy", ["eager", "superstep"])
@pytest.mark.parametrize("opener", ["map", "subgraph"])
def test_behind_another_opener_it_reads_the_outputs_in_scope(opener: str, policy: Any):
    first: Any = MapNode(id="first", items_path="input", body="b", next="join")
    if opener == "subgraph":
        first = SubgraphNode(id="first", inline=chain(call("b")), next="join")
    body = [call("b", None)] if opener == "map" else []
    source = "b" if body else "first"
    join = MergeNode(id="join", sources=(source,), rule="all", next="__end")
    driver = Driver(graph(first, *body, join, options=Options(policy=policy)), [1, 2])
    output = driver.run().output
    assert output == ([2] if body else [ended(driver, "first").output])


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_its_timer_is_scheduled_in_the_log(policy: Any):
    branches = [call("a", "join"), WaitNode(id="w", duration=60.0, next="join")]
    workflow = merged(*branches, names="aw", rule="all", timeout=5.0, on_timeout="late")
    driver = Driver(msgspec.structs.replace(workflow, options=Options(policy=policy)))
    assert driver.run().output == {"timed_out": True, "arrived": 1}
    scheduled = [e for e in driver.events(ev.TimerScheduled) if e.purpose == "merge_timeout"]
    fired = [e for e in driver.events(ev.TimerFired) if e.purpose == "merge_timeout"]
    assert [e.due_at for e in scheduled] == [e.due_at for e in fired] == [iso(6_000_000)]
