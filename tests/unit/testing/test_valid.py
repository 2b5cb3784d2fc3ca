"""A model that answers anything valid."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow import Runtime
from agentflow.definition.schemas import validate
from agentflow.testing import ValidModel, assert_run, capture, valid_value
from tests.integration.support.runs import Desk, document, step

SCHEMAS = [
    True,
    {},
    {"type": "string", "minLength": 9},
    {"type": "string", "maxLength": 2},
    {"type": "string", "format": "date-time"},
    {"enum": ["high", "low"]},
    {"enum": ["", 1], "type": "integer"},
    {"type": "string", "default": None},
    {"const": {"a": 1}},
    {"type": ["integer", "null"], "minimum": 7},
    {"type": "integer", "exclusiveMinimum": 7},
    {"type": "integer", "maximum": -3},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "minimum": 10, "multipleOf": 7},
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 3},
    {"type": "array", "contains": {"const": 5}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    {"type": "object", "additionalProperties": {"type": "integer"}, "required": ["x"]},
    {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "minimum": 3}}},
    {"anyOf": [{"type": "string", "pattern": "^[A-Z]{40}$"}, {"type": "integer"}]},
    {"oneOf": [{"type": "number"}, {"type": "integer"}, {"type": "string"}]},
    {"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "null"}}}], "type": "object"},
    {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}},
        "required": ["n"],
    },
]


@pytest.mark.parametrize("schema", [pytest.param(s, id=str(n)) for n, s in enumerate(SCHEMAS)])
def test_the_value_is_valid_and_always_the_same(schema) -> None:
    assert validate(schema, valid_value(schema)) == []
    assert valid_value(schema) == valid_value(schema)


def test_a_schema_without_a_value_that_is_found_is_said() -> None:
    with pytest.raises(AssertionError, match="script this answer"):
        valid_value({"type": "string", "pattern": "^[A-Z]{40}$"})


_LEAVES = st.sampled_from(
    [{"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"enum": [1, "a"]}, {"type": "null"}, {}]
)
_NESTED = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda item, n: {"type": "array", "items": item, "minItems": n}, inner, st.integers(0, 3)),
        st.builds(
            lambda parts: {"type": "object", "properties": parts, "required": sorted(parts)},
            st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        ),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


@given(_NESTED)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_nested_schemas(schema) -> None:
    assert validate(schema, valid_value(schema)) == []


async def test_a_document_runs_without_a_script() -> None:
    desk, model = Desk(), ValidModel(name="scripted")
    answer = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    made = document(step("a", functions=["look"], schema=answer), step("b", depends_on=["a"]))
    for one in made["workflow"]["steps"]:
        one["agent"]["model"] = "scripted:any"
    async with Runtime("memory:", models=[model], services=[desk.service()]) as runtime:
        async with capture(runtime) as seen:
            result = await runtime.run(made, {})
        types = await seen.types(result.workflow_id)
    assert_run(result).completed().output({"b": "text"}).step("a", attempt=1).step("b")
    assert desk.calls == 1
    assert [name for name, _ in seen.requests] == ["scripted"] * 3
    assert len(seen.replies) == 3
    assert types.count("model.call_completed") == 3


async def test_assertions_show_the_run() -> None:
    made = document(step("a", schema={"type": "integer"}))
    made["workflow"]["steps"][0]["agent"]["model"] = "scripted:any"
    async with Runtime("memory:", models=[ValidModel(name="scripted")]) as runtime:
        result = await runtime.run(made, {})
    assert_run(result).completed().output({"a": 0}).used(at_most=100)
    with pytest.raises(AssertionError) as caught:
        assert_run(result).output({"a": 1})
    assert '-  "a": 1' in str(caught.value)
    assert '+  "a": 0' in str(caught.value)
    for wrong, said in (
        (lambda run: run.failed(), "is completed, not failed"),
        (lambda run: run.waiting(), "is completed, not waiting"),
        (lambda run: run.step("x"), 'has no step "x"'),
        (lambda run: run.step("a", "skipped"), 'step "a" is succeeded, not skipped'),
        (lambda run: run.used(at_most=1), "more than 1"),
    ):
        with pytest.raises(AssertionError) as caught:
            wrong(assert_run(result))
        assert said in str(caught.value)
        assert "a: succeeded" in str(caught.value)
