"""Global values, frames and error routes: who writes, who sees it, what conflicts (page 003 §3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import ErrorRoute, GlobalUpdate, MapNode, MergeNode, ParallelNode
from agentflow.engine.frames import ABSENT, Frame
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, call, graph, steps


def ended(driver: Driver, step: str) -> Any:
    return next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step)


def failure(driver: Driver, step: str) -> Any:
    return next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == step)


def update(op: Any, source: str | None = None, **more: Any) -> GlobalUpdate:
    return GlobalUpdate(op=op, source=source, **more)


class TestOnePath:
    def one(self, start: dict[str, Any], **fields: Any) -> Driver:
        node = call("a", "b", **fields)
        return Driver(
            graph(node, call("b", "__end", input="${{ globals }}"), globals=start), {"n": 2, "o": {"k": 1}}
        )

    def test_sets_see_the_output_and_stand_in_the_event(self):
        driver = self.one({}, set_globals={"x": "nodes.a.output.n", "none": "nodes.a.output.lacks"})
        driver.run()
        assert ended(driver, "a").state.globals == {"x": 2, "none": None}
        assert ended(driver, "b").output == {"x": 2, "none": None}

    def test_sets_see_those_before_them_and_updates_see_all_sets(self):
        driver = self.one(
            {"x": 0},
            set_globals={"early": "globals.late", "x": "nodes.a.output.n", "late": "globals.x"},
            update_globals={
                "sum": update("increment", "globals.late"),
                "other": update("set", "globals.sum"),
            },
        )
        assert driver.run().output == {"x": 2, "early": None, "late": 2, "sum": 2, "other": None}

    def test_updates_work_on_the_values_before_them(self):
        driver = self.one(
            {"count": 1, "list": [1], "object": {"a": 0}},
            set_globals={"count": "input.n"},
            update_globals={
                "count": update("increment", by=3),
                "list": update("append", "input.n"),
                "object": update("merge", "input.o"),
                "copy": update("set", "input.n"),
                "fresh": update("append", "input.n"),
                "zero": update("increment"),
            },
        )
        assert driver.run().output == {
            "count": 5,
            "list": [1, 2],
            "object": {"a": 0, "k": 1},
            "copy": 2,
            "fresh": [2],
            "zero": 1,
        }

    def test_a_log_grows_with_what_is_appended_and_not_with_the_array(self):
        sizes: dict[int, int] = {}
        for count in (100, 200):
            append = {"update_globals": {"list": update("append", "input.text")}}
            nodes = [call(f"n{i}", f"n{i + 1}", **append) for i in range(count - 1)]
            nodes.append(call(f"n{count - 1}", "__end", **append))
            driver = Driver(graph(*nodes), {"text": "x" * 1024}, call=lambda name, parameters: None)
            assert driver.run().status == "completed"
            assert len(driver.state.root.frame.globals["list"]) == count
            sizes[count] = sum(len(msgspec.json.encode(data)) for data, _, _ in driver.log)
        assert sizes[200] < 2.1 * sizes[100]
        assert sizes[200] < 200 * 4096

    def test_a_log_that_has_the_whole_array_is_read(self):
        """Versions before wrote the value after the append."""
        append = {"update_globals": {"g": update("append", "input.n")}}
        driver = forked(append, {"update_globals": {"g": update("append", "input.m")}}, {"g": [0]})
        driver.run()
        for i, (data, offset, ts) in enumerate(driver.log):
            if isinstance(data, ev.WorkflowStepCompleted) and data.state is not msgspec.UNSET:
                values = {"g": [0, *data.state.appended["g"]]}
                old = msgspec.structs.replace(data, state=ev.StateWrites(globals=values))
                driver.log[i] = (old, offset, ts)
        assert driver.refold().root.frame.globals == {"g": [0, 1, 2]}

    def test_an_append_behind_a_set_writes_the_array(self):
        writes = {"set_globals": {"g": "input.o"}, "update_globals": {"g": update("append", "input.n")}}
        driver = self.one({"g": [1]}, **writes)
        driver.run()
        assert failure(driver, "a").code == "invalid_global_value"
        writes["set_globals"] = {"g": "nodes.a.output.list"}
        driver = self.one({"g": [1]}, **writes)
        driver.call = lambda name, parameters: {"list": [5]}
        driver.run()
        state = ended(driver, "a").state
        assert (state.globals, state.appended) == ({"g": [5, 2]}, {})

    def test_increments_keep_integers(self):
        driver = self.one({"n": 2**60}, update_globals={"n": update("increment")})
        assert driver.run().output == {"n": 2**60 + 1}

    @pytest.mark.parametrize(("value", "by"), [(1e308, 1e308), (10**400, 1.5), (1.5, 10**400)])
    def test_a_sum_that_json_cannot_write_fails_the_node(self, value: float, by: float):
        driver = self.one({"g": value}, update_globals={"g": update("increment", by=by)})
        assert driver.run().status == "failed"
        error = failure(driver, "a")
        assert (error.code, error.category) == ("invalid_global_value", "invalid_input")
        assert error.details == {"key": "g", "op": "increment"}

    @pytest.mark.parametrize(
        ("op", "value"),
        [
            ("append", 1),
            ("increment", "x"),
            ("increment", ""),
            ("increment", False),
            ("increment", []),
            ("merge", [1]),
        ],
    )
    def test_an_operand_that_does_not_fit_fails_the_node(self, op, value):
        driver = self.one({"g": value}, update_globals={"g": update(op, "input.n")})
        driver.run()
        assert failure(driver, "a").code == "invalid_global_value"
        assert failure(driver, "a").details == {"key": "g", "op": op}


def forked(
    a: dict[str, Any], b: dict[str, Any], start: dict[str, Any] | None = None, **fields: Any
) -> Driver:
    nodes = [
        ParallelNode(id="fork", branches=("a", "b"), next="after", **fields),
        call("a", "after", **a),
        call("b", "after", **b),
        call("after", "__end", input="${{ globals }}"),
    ]
    return Driver(graph(*nodes, globals=start or {}), {"n": 1, "m": 2})


class TestChildPaths:
    def test_two_values_for_one_key_conflict(self):
        driver = forked({"set_globals": {"g": "input.n"}}, {"set_globals": {"g": "input.m"}})
        driver.run()
        assert (failure(driver, "fork").code, failure(driver, "fork").details) == (
            "state_conflict",
            {"key": "g"},
        )

    def test_equal_values_do_not(self):
        driver = forked({"set_globals": {"g": "input.n"}}, {"set_globals": {"g": "input.n"}})
        assert driver.run().output == {"g": 1}
        assert ended(driver, "fork").state.globals == {"g": 1}

    @pytest.mark.parametrize(
        ("op", "sources", "expected"),
        [
            ("append", ("input.n", "input.m"), [0, 1, 2]),
            ("increment", ("input.n", "input.m"), 3),
            ("merge", ("globals.x", "globals.y"), {"a": 1, "b": 2}),
        ],
    )
    def test_updates_of_all_children_count_in_the_order_of_the_branches(self, op, sources, expected):
        start = {"append": [0], "increment": 0, "merge": {}}[op]
        a, b = ({"update_globals": {"g": update(op, source)}} for source in sources)
        driver = forked(a, b, {"g": start, "x": {"a": 1}, "y": {"b": 2}})
        driver.run(choose=lambda calls: calls[-1])
        assert ended(driver, "after").output["g"] == expected
        writes = ended(driver, "fork").state
        assert writes.appended == ({"g": [1, 2]} if op == "append" else {})
        assert writes.globals == ({} if op == "append" else {"g": expected})

    def test_a_set_beside_an_update_conflicts(self):
        driver = forked(
            {"set_globals": {"g": "input.n"}}, {"update_globals": {"g": update("increment", by=5)}}
        )
        driver.run()
        assert failure(driver, "fork").code == "state_conflict"

    def test_what_one_child_wrote_is_invisible_to_the_other(self):
        b = {"input": "${{ globals }}"}
        driver = forked({"set_globals": {"g": "input.n"}}, b, {"g": 0}, max_in_flight=1)
        driver.run()
        assert ended(driver, "b").output == {"g": 0}
        assert ended(driver, "after").output == {"g": 1}

    def test_nested_children_count_for_the_outer_join(self):
        nodes = [
            ParallelNode(id="fork", branches=("inner", "b"), next="after"),
            ParallelNode(id="inner", branches=("c", "d"), next="e"),
            call("c", "e", update_globals={"g": update("increment")}),
            call("d", "e", update_globals={"g": update("increment", by=10)}),
            call("e", "after"),
            call("b", "after", update_globals={"g": update("increment", by=100)}),
            call("after", "__end", input="${{ globals }}"),
        ]
        driver = Driver(graph(*nodes), {"n": 1})
        assert driver.run().output == {"g": 111}

    def test_a_branch_that_a_merge_does_not_read_writes_nothing(self):
        nodes = [
            ParallelNode(id="fork", branches=("a", "b"), next="join"),
            call("a", "join", set_globals={"g": "input.n"}),
            call("b", "join", set_globals={"g": "input.m"}),
            MergeNode(id="join", sources=("a", "b"), rule="first", rest="drain", next="after"),
            call("after", "__end", input="${{ globals }}"),
        ]
        driver = Driver(graph(*nodes), {"n": 1, "m": 2})
        driver.run(choose=lambda calls: calls[-1])
        assert ended(driver, "after").output == {"g": 2}

    def test_items_append_in_their_order(self):
        nodes = [
            MapNode(id="m", items_path="input", body="one", next="after"),
            call("one", "after", update_globals={"g": update("append", "item")}),
            call("after", "__end", input="${{ globals }}"),
        ]
        driver = Driver(graph(*nodes), [3, 1, 2])
        driver.run(choose=lambda calls: calls[-1])
        assert ended(driver, "after").output == {"g": [3, 1, 2]}


class TestLastOutputs:
    def test_they_are_of_the_path_and_null_before_the_first(self):
        what = {"input": "${{ last_tool_output }}"}
        nodes = [
            call("first", "fork", input="${{ last_tool_output }}"),
            ParallelNode(id="fork", branches=("a", "b"), next="after", max_in_flight=1),
            call("a", "after", **what),
            call("b", "after", **what),
            call("after", "__end", **what),
        ]
        driver = Driver(graph(*nodes), call=lambda name, parameters: {"by": name, "saw": parameters})
        driver.run()
        first = {"by": "s__first", "saw": None}
        assert ended(driver, "first").output == first
        assert ended(driver, "b").output == {"by": "s__b", "saw": first}
        assert ended(driver, "after").output == {"by": "s__after", "saw": first}


def failing(*names: str) -> Any:
    def execute(name: str, parameters: Any) -> Any:
        if name.removeprefix("s__") in names:
            raise Fault("tool", "broken")
        return name

    return execute


class TestOnError:
    def run(self, on_error: Any, **more: Any) -> Driver:
        nodes = [
            call("a", "b", on_error=on_error, **more),
            call(
                "b", "__end", input={"error": "${{ nodes.a.error.code }}", "output": "${{ nodes.a.output }}"}
            ),
            call("mend", "__end", input={"error": "${{ nodes.a.error.code }}"}),
        ]
        driver = Driver(graph(*nodes), {}, call=lambda n, p: failing("a")(n, p) and p)
        driver.run()
        return driver

    def test_fail_fails_the_run(self):
        assert self.run("fail").state.status == "failed"

    def test_skip_goes_on_with_null(self):
        driver = self.run("skip")
        assert driver.state.status == "completed"
        assert driver.state.output == {"error": "broken", "output": None}
        assert driver.state.nodes["a"].status == "failed"

    def test_a_route_leads_elsewhere(self):
        driver = self.run(ErrorRoute(next="mend"))
        assert (driver.state.status, driver.state.output) == ("completed", {"error": "broken"})

    def test_a_route_is_taken_for_its_codes_alone(self):
        assert self.run(ErrorRoute(next="mend", codes=("broken",))).state.status == "completed"
        assert self.run(ErrorRoute(next="mend", codes=("other",))).state.status == "failed"

    def test_a_parallel_node_bears_its_failure_too(self):
        nodes = [
            ParallelNode(id="fork", branches=("a", "b"), next="after", on_error="skip"),
            call("a", "after"),
            call("b", "after"),
            call("after", "__end", input={"code": "${{ nodes.fork.error.code }}"}),
        ]
        driver = Driver(graph(*nodes), {}, call=lambda n, p: failing("a")(n, p) and p)
        assert driver.run().output == {"code": "branch_failed"}

    def test_a_failure_that_is_borne_on_a_child_path_does_not_end_it(self):
        nodes = [
            ParallelNode(id="fork", branches=("a", "b"), next="after"),
            call("a", "a2", on_error="skip"),
            call("a2", "after"),
            call("b", "after"),
            call("after", "__end"),
        ]
        driver = Driver(graph(*nodes), {}, call=failing("a"))
        assert driver.run().status == "completed"
        assert ended(driver, "fork").output == {"a": "s__a2", "b": "s__b"}

    def test_dependents_of_a_skipped_failure_run(self):
        def model(activation: Any, call: Any) -> Any:
            if activation.node.id == "a":
                raise Fault("auth", "denied")
            return "{}"

        driver = Driver(steps(agent("a", on_error="skip"), agent("b", depends_on=("a",))), model=model)
        state = driver.run()
        assert (state.status, state.nodes["b"].status) == ("completed", "succeeded")

    def test_hold_does_not_hold_what_is_borne(self):
        from agentflow.definition.ir import Options

        nodes = [call("a", "b", on_error="skip"), call("b", "__end")]
        driver = Driver(graph(*nodes, options=Options(on_failure="hold")), {}, call=failing("a"))
        assert driver.run().status == "completed"


class TestFrames:
    def test_a_reader_sees_what_was_at_its_opening(self):
        frame = Frame()
        frame.set("globals", "x", 1)
        first = Frame(frame, frame.open())
        frame.set("globals", "x", 2)
        second_opening = frame.open()
        second = Frame(frame, second_opening)
        frame.set("globals", "x", 3)
        frame.set("globals", "y", 1)
        assert [f.get("globals", "x") for f in (first, second, frame)] == [1, 2, 3]
        assert first.get("globals", "y") is ABSENT
        assert (first.all("globals"), second.all("globals")) == ({"x": 1}, {"x": 2})

    def test_nothing_is_kept_when_no_child_path_is_open(self):
        frame = Frame()
        opening = frame.open()
        for i in range(100):
            frame.set("nodes", f"n{i}", i)
            frame.set("nodes", f"n{i}", i + 1)
        assert len(frame._kept) == 100
        assert all(len(kept) == 1 for kept in frame._kept.values())
        frame.close(opening)
        assert not frame._kept

    def test_openings_that_no_one_reads_any_more_are_dropped(self):
        frame = Frame()
        before = frame.open()
        for i in range(50):
            frame.set("nodes", "n", i)
            opening = frame.open()
            frame.close(before)
            before = opening
        assert len(frame._kept[("nodes", "n")]) <= 2
