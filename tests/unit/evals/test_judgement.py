"""Comparison of results with what was expected (page 003 §13)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.expressions import ExpressionError
from agentflow.definition.paths import ABSENT, parse_value_path
from agentflow.evals.judgement import compare_paths, compare_subset, node_at

SUBSET: list[tuple[Any, Any, str | None]] = [
    ({"a": 1}, {"a": 1, "b": 2}, None),
    ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2, "d": 0}, 3]}}, None),
    (6, 6.0, None),
    (None, None, None),
    ({}, {"a": 1}, None),
    ([], [1], None),
    ({"a": 1}, {}, "$.a"),
    ({"a": None}, {}, "$.a"),
    ({"a": {"b": [1, 2]}}, {"a": {"b": [1]}}, "$.a.b[1]"),
    ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "$.a.b[1]"),
    ({"a": 1, "b": 2}, {"a": 2, "b": 3}, "$.a"),
    (True, 1, "$"),
    (1, True, "$"),
    (0, None, "$"),
    ("1", 1, "$"),
    ([1], {"0": 1}, "$"),
    ({"a b": 1}, {}, "$['a b']"),
]


@pytest.mark.parametrize(("expected", "actual", "path"), SUBSET)
def test_a_subset_must_be_there(expected: Any, actual: Any, path: str | None):
    found = compare_subset(expected, actual)
    assert (None if found is None else found.path) == path


def test_a_deep_value_is_compared_without_recursion():
    one: Any = 1
    other: Any = 2
    for _ in range(20_000):
        one, other = [one], [other]
    found = compare_subset(one, other)
    assert found is not None
    assert found.path == "$" + "[0]" * 20_000


PATHS: list[tuple[Any, Any, str, str | None]] = [
    ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, "a.b", None),
    ({"a": [1, 2]}, {"a": [1, 2]}, "$.a[1]", None),
    ({"a": [1, 2]}, {"a": [1, 2]}, "a.1", None),
    ({"a b": 1}, {"a b": 1}, "['a b']", None),
    ({"a": 1}, {}, "a", "$.a"),
    ({}, {"a": 1}, "a", "$.a"),
    ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}, "a", "$.a.y"),
    ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, "a", "$.a.y"),
    ({"a": 1}, {"a": 2}, "a", "$.a"),
    ({"a": [1]}, {"a": [1]}, "a[-1]", "$.a[-1]"),
    ({"a": None}, {"a": None}, "a", None),
    ({"a": None}, {}, "a", "$.a"),
    ({"0": 1}, {"0": 1}, "$.0", None),
    ([1, {"b": 2}], [0, {"b": 2}], "[1].b", None),
    (1, 1, "$", None),
    ({"a": {"b'c": 1}}, {"a": {}}, "a", "$.a['b\\'c']"),
]


@pytest.mark.parametrize(("expected", "actual", "path", "wrong"), PATHS)
def test_both_sides_must_exist_and_be_equal_at_a_path(expected: Any, actual: Any, path: str, wrong: Any):
    found = compare_paths(expected, actual, [parse_value_path(path)])
    assert (None if found is None else found.path) == wrong


def test_a_value_that_does_not_exist_is_not_null():
    read = {path: parse_value_path(path).read for path in ("a", "b", "a.b", "[1]")}
    assert read["a"]({"a": None}) is None
    assert read["b"]({"a": None}) is ABSENT
    assert read["a.b"]({"a": None}) is ABSENT
    assert read["[1]"]([1]) is ABSENT


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        ({"a": 1}, {}, "$.a is absent in the result, expected 1"),
        ({}, {"a": None}, "$.a is null, and absent in expected_output"),
        ({}, {}, "$.a is absent in the result and in expected_output"),
        ({"a": 1}, {"a": None}, "$.a is null, expected 1"),
    ],
)
def test_the_reason_says_on_which_side_a_value_is_absent(expected: Any, actual: Any, reason: str):
    found = compare_paths(expected, actual, [parse_value_path("a")])
    assert found is not None
    assert found.reason == reason


@pytest.mark.parametrize("path", ["a..b", "a.*", "a[b]", "a == b", "$$", "a[", "length(a)"])
def test_what_is_no_path_is_refused(path: str):
    with pytest.raises(ExpressionError):
        parse_value_path(path)


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("$.outputs.ask.output.text", "ask"),
        ("$.steps.a-b.x", "a-b"),
        ("$.outputs['a b'].output", "a b"),
        ("$.text", None),
        ("$", None),
    ],
)
def test_the_node_of_a_mismatch_is_read_from_its_path(path: str, node: str | None):
    assert node_at(path) == node


def test_a_reason_shows_values_as_json():
    found = compare_subset({"a": 1, "b": None}, {"a": True, "b": "é"})
    assert found is not None
    assert found.reason == "$.a is true, expected 1"
    other = compare_subset({"b": None}, {"b": "é"})
    assert other is not None
    assert other.reason == '$.b is "é", expected null'
