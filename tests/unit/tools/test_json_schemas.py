"""Schemas that others wrote: what can be used comes out whole, what cannot is named, and nothing raises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.definition.schemas import check_schema, validate
from agentflow.tools.json_schemas import Unusable, modern
from agentflow.tools.schema_check import schema_problem

KEYWORDS = [
    "type",
    "properties",
    "items",
    "required",
    "$ref",
    "$defs",
    "allOf",
    "anyOf",
    "enum",
    "const",
    "minimum",
    "maxLength",
    "pattern",
    "not",
    "if",
    "additionalProperties",
    "definitions",
    "$id",
    "$anchor",
    "patternProperties",
    "dependentRequired",
    "multipleOf",
    "uniqueItems",
    "prefixItems",
    "x",
    "$schema",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.sampled_from(
        ["object", "string", "#", "#/properties/x", "#/$defs/x", "http://h/s", "(", "x", "\ud800"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)
SCHEMAS = st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=5)


@given(SCHEMAS)
@settings(max_examples=150, deadline=None)
def test_no_schema_makes_it_raise(schema: dict[str, Any]) -> None:
    problem = schema_problem(schema)
    try:
        usable = modern(schema)
    except Unusable:
        return
    # What comes out judges every value, right or wrong.
    assert usable["type"] == "object"
    for value in ({}, {"x": 1}, [], None):
        validate(usable, value)
    assert problem is None or usable != schema


@given(SCHEMAS)
@settings(max_examples=80, deadline=None)
def test_the_quick_look_takes_what_the_meta_schema_takes(schema: dict[str, Any]) -> None:
    if "ud800" in repr(schema) or "$schema" in repr(schema):
        return
    if check_schema(schema) == []:
        problem = schema_problem(schema)
        assert problem is None or "pattern" in problem or "without end" in problem


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "strng"}, "type is not what it may be, at #/type"),
        ({"type": []}, "type is not what it may be, at #/type"),
        ({"properties": {"a/b": {"items": 3}}}, "items is not what it may be, at #/properties/a~1b/items"),
        ({"anyOf": [{}, {"required": "a"}]}, "required is not what it may be, at #/anyOf/1/required"),
        ({"maxLength": -1}, "maxLength is not what it may be, at #/maxLength"),
        ({"minimum": True}, "minimum is not what it may be, at #/minimum"),
        ({"$ref": "#/$defs/a"}, '$ref "#/$defs/a" leads nowhere, at #/$ref'),
        ({"items": {"$ref": "https://h/s"}}, '$ref "https://h/s" is remote, at #/items/$ref'),
        ({"pattern": "("}, "pattern is not what it may be, at #/pattern"),
        ({"patternProperties": {"(": {}}}, "patternProperties is not what it may be, at #/patternProperties"),
        ({"$ref": "#"}, "it refers to itself without end"),
    ],
)
def test_problems(schema: dict[str, Any], problem: str) -> None:
    assert (schema_problem(schema) or "").startswith(problem)


def test_older_drafts() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.test/args.json",
        "definitions": {"n": {"type": "integer"}},
        "properties": {
            "pair": {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
            "n": {"$ref": "#/definitions/n"},
        },
    }
    made = modern(schema)
    assert made["properties"]["pair"] == {
        "type": "array",
        "prefixItems": [{"type": "string"}],
        "items": False,
    }
    assert "$schema" not in made
    assert validate(made, {"pair": ["a"], "n": 1}) == []
    assert [issue.path for issue in validate(made, {"pair": ["a", 1], "n": "x"})] == ["/n", "/pair"]


@pytest.mark.parametrize(
    "schema", [None, [], True, "object", {"type": "array"}, {"type": ["object", "null"]}]
)
def test_arguments_are_an_object(schema: Any) -> None:
    with pytest.raises(Unusable):
        modern(schema)


def test_depth_is_bounded() -> None:
    schema: Any = {"type": "string"}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(Unusable):
        modern(schema)
