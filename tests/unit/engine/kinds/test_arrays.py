"""`reduce`, `filter` and `transform`: values made of values (page 003 §4)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentflow.definition.ir import (
    FilterNode,
    MapNode,
    MergeNode,
    Options,
    ParallelNode,
    ReduceNode,
    TransformNode,
)
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph

INPUT = {"n": [3, 1, 2], "none": [], "text": "x", "null": None, "mixed": [1, "x"], "o": {"k": 1}}


def played(node: Any, input: Any = INPUT, **more: Any) -> Driver:
    driver = Driver(graph(node, **more), input)
    driver.run()
    return driver


def output(driver: Driver, step: str = "k") -> Any:
    return next(e.output for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step)


def failure(driver: Driver, step: str = "k") -> Any:
    return next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == step)


def reduced(operation: Any, items: Any) -> Driver:
    return played(ReduceNode(id="k", items_path="input", operation=operation, next="__end"), items)


BIG = 2**80


class TestReduce:
    @pytest.mark.parametrize(
        ("operation", "items", "expected"),
        [
            ("count", [1, None, "x"], 3),
            ("sum", [BIG, 1, -BIG], 1),
            ("sum", [BIG, 1], BIG + 1),
            ("sum", [0.1] * 10, 1.0),
            ("sum", [1, 0.5], 1.5),
            ("min", [3, 1.5, 2], 1.5),
            ("max", [BIG, BIG + 1], BIG + 1),
            ("max", ["b", "a"], "b"),
            ("avg", [1, 2], 1.5),
            ("avg", [BIG, BIG + 2], BIG + 1),
            ("concat", [[1], [], [[2]]], [1, [2]]),
            ("concat", ["a", "b"], "ab"),
            ("merge", [{"a": 1, "b": 1}, {"b": 2}], {"a": 1, "b": 2}),
            ("first", [None, 1], None),
            ("last", [1, {"x": 2}], {"x": 2}),
        ],
    )
    def test_an_operation(self, operation: str, items: Any, expected: Any):
        driver = reduced(operation, items)
        assert output(driver) == expected
        assert type(output(driver)) is type(expected)
        assert driver.state.output == expected

    @pytest.mark.parametrize(
        ("operation", "expected"),
        [
            ("count", 0),
            ("sum", 0),
            *((name, None) for name in ("min", "max", "avg", "concat", "merge", "first", "last")),
        ],
    )
    def test_an_empty_array(self, operation: str, expected: Any):
        assert output(reduced(operation, [])) == expected

    @pytest.mark.parametrize(
        ("operation", "items", "details"),
        [
            ("count", {"a": 1}, {"reason": "not_array"}),
            ("sum", None, {"reason": "not_array"}),
            ("sum", [1, "2"], {"reason": "not_number", "index": 1}),
            ("sum", [True], {"reason": "not_number", "index": 0}),
            ("avg", [1, None], {"reason": "not_number", "index": 1}),
            ("min", ["a", 1], {"reason": "not_number", "index": 0}),
            ("concat", [[1], "a"], {"reason": "not_concatenable", "index": 1}),
            ("merge", [{}, [1]], {"reason": "not_object", "index": 1}),
            ("sum", [1e308, 1e308], {"reason": "overflow"}),
            ("avg", [10**400, 1], {"reason": "overflow"}),
        ],
    )
    def test_what_it_cannot_fold(self, operation: str, items: Any, details: Any):
        error = failure(reduced(operation, items))
        assert (error.code, error.category, error.details) == (
            "invalid_reduce_input",
            "invalid_input",
            details,
        )

    def test_a_source_is_the_output_of_a_node(self):
        fork = [
            ParallelNode(id="p", branches=("a", "b"), next="m"),
            call("a", "m", input=1),
            call("b", "m", input=2),
            MergeNode(id="m", sources=("a", "b"), rule="all", next="k"),
        ]
        assert output(_play(*fork, _sum("m"))) == 3

    def test_a_source_behind_its_map(self):
        node = MapNode(id="each", items_path="input.n", tool="s.f", next="k")
        assert output(_play(node, _sum("each"))) == 6

    def test_a_source_without_output_is_missing(self):
        error = failure(_play(_sum("late", next="late"), call("late", "__end")))
        assert (error.code, error.details) == ("missing_merge_source", {"source": "late"})

    def test_a_source_on_a_child_path_reads_that_of_its_path(self):
        each = MapNode(id="each", items_path="input.n", body="make", next="__end")
        make = TransformNode(id="make", value=["${{ item }}", 10], next="k")
        driver = _play(each, make, _sum("make", next=None))
        assert output(driver, "each") == [13, 11, 12]


def _sum(source: str, next: str | None = "__end") -> ReduceNode:
    return ReduceNode(id="k", source=source, operation="sum", next=next)


def _play(*nodes: Any, **more: Any) -> Driver:
    driver = Driver(graph(*nodes, **more), INPUT)
    driver.run()
    return driver


def filtered(path: str, text: str, **more: Any) -> Driver:
    return played(FilterNode(id="k", items_path=path, expression=text, next="__end"), **more)


class TestFilter:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("item > 1", [3, 2]),
            ("index != 0", [1, 2]),
            ("item_index < 1", [3]),
            ("map_item == 1 || map_index == 0", [3, 1]),
            ("${{ item >= input.n[2] }}", [3, 2]),
            ("''", []),
            ("input.o.k == item", [1]),
        ],
    )
    def test_it_keeps_in_order_what_is_true(self, text: str, expected: Any):
        assert output(filtered("input.n", text)) == expected

    def test_an_empty_array_stays_empty(self):
        assert output(filtered("$.input.none", "item.x > 1")) == []

    @pytest.mark.parametrize("path", ["input.text", "input.null", "input.absent", "input.o"])
    def test_what_is_no_array(self, path: str):
        error = failure(filtered(path, "true"))
        assert (error.code, error.category) == ("filter_items_not_array", "invalid_input")

    def test_too_many_items(self):
        error = failure(filtered("input.n", "true", options=Options(max_filter_items=2)))
        assert (error.code, error.details) == ("filter_item_limit_exceeded", {"limit": 2})
        assert Options().max_filter_items == 8_192

    def test_an_error_names_the_index(self):
        error = failure(filtered("input.mixed", "item > 0"))
        assert (error.code, error.category) == ("expression_error", "expression")
        assert error.details["index"] == 1
        assert error.details["path"] == "/expression"
        assert "item 1" in error.message

    def test_its_item_shadows_that_of_a_map(self):
        each = MapNode(id="each", items_path="input.rows", body="k", next="__end")
        node = FilterNode(id="k", items_path="item", expression="item > 1 && index > 0", next=None)
        driver = Driver(graph(each, node), {"rows": [[1, 2, 3], [5, 1]]})
        driver.run()
        assert output(driver, "each") == [[2, 3], []]


class TestTransform:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("42", 42),
            (" 1180591620717411303424 ", 2**70),
            ('"a ${{ b }}"', "a ${{ b }}"),
            ('{"a": [1, null]}', {"a": [1, None]}),
            ("null", None),
            ("true", True),
            ("input.n[1]", 1),
            ("${{ length(input.n) }}", 3),
            ("input.absent", None),
            ("'x'", "x"),
        ],
    )
    def test_an_expression_or_a_literal(self, text: str, expected: Any):
        driver = played(TransformNode(id="k", expression=text, next="__end"))
        assert output(driver) == expected
        assert driver.state.output == expected

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (None, None),
            ({"a": "{{ input.n }}", "b": "n={{ input.o.k }}"}, {"a": [3, 1, 2], "b": "n=1"}),
            ("{{ input.null }}", None),
            (7, 7),
        ],
    )
    def test_a_value_with_templates(self, value: Any, expected: Any):
        assert output(played(TransformNode(id="k", value=value, next="__end"))) == expected

    @pytest.mark.parametrize(
        ("more", "path"),
        [({"expression": "input.text > 1"}, "/expression"), ({"value": ["${{ input.text > 1 }}"]}, "/value")],
    )
    def test_an_expression_that_fails(self, more: Any, path: str):
        error = failure(played(TransformNode(id="k", next="__end", **more)))
        assert error.code == "expression_error"
        assert error.details["path"].startswith(path)


NODES = {
    "reduce": ReduceNode(id="k", items_path="input.n", operation="sum", next="after"),
    "filter": FilterNode(id="k", items_path="input.n", expression="item > 1", next="after"),
    "transform": TransformNode(id="k", expression="input.n", next="after"),
}


@pytest.mark.parametrize("policy", ["eager", "superstep"])
@pytest.mark.parametrize("name", NODES)
def test_a_crash_behind_each_event_gives_the_same_end(name: str, policy: Any):
    workflow = graph(NODES[name], call("after", "__end"), options=Options(policy=policy))
    whole = Driver(workflow, INPUT)
    whole.run()
    assert whole.state.status == "completed"
    for cut in range(1, len(whole.log)):
        driver = Driver(workflow, INPUT)
        driver.run()
        driver.crash(cut)
        assert driver.run().output == whole.state.output == json.loads(json.dumps(output(whole)))
