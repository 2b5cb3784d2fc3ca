"""JSON Schemas of documents: which are valid, where they are not, and what values breach them."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.definition.schema_errors import breaches
from agentflow.definition.schemas import DIALECT, check_applicable, check_schema, validate, validator


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]},
        {"$schema": DIALECT},
        {"$schema": DIALECT + "#"},
        {"x-mine": 1, "title": "t", "format": "no such format"},
        # references that stay inside
        {"$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"$ref": "#/definitions/a", "definitions": {"a": {}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}},
        {"$ref": "#/$defs/a~1b~0", "$defs": {"a/b~": {}}},
        {"$ref": "#/allOf/0", "allOf": [{}]},
        {"$ref": "#/$defs/a", "$defs": {"a": True}},
        {"$ref": "#q", "$defs": {"a": {"$anchor": "q"}}},
        {"properties": {"p": {"$dynamicRef": "#n"}}, "$dynamicAnchor": "n"},
        {"$id": "https://x/y", "$ref": "https://x/y#/$defs/a", "$defs": {"a": {}}},
        {"$id": "https://x/y", "properties": {"p": {"$ref": "z"}}, "$defs": {"z": {"$id": "z"}}},
        {"properties": {"p": {"$id": "sub", "$defs": {"q": {}}, "$ref": "#/$defs/q"}}},
        {"$ref": "#/x/y", "x": {"y": {"type": "string"}}},
        # recursion through the value
        {"properties": {"next": {"$ref": "#"}}},
        {"items": {"$ref": "#"}},
        {"anyOf": [{"type": "string"}, {"items": {"$ref": "#"}}]},
        # data and names that look like keywords
        {"const": {"$ref": "https://x"}, "enum": [{"$ref": "#/no"}], "default": {"$schema": "x"}},
        {"examples": [{"pattern": "["}], "properties": {"$ref": {"type": "string"}, "pattern": {}}},
        {"properties": {"type": {"type": "string"}}},
    ],
)
def test_valid_schemas(schema: Any) -> None:
    assert check_schema(schema) == []
    assert check_applicable(schema) == []


REMOTE = "copy it under $defs"
NOWHERE = "define it under $defs"


@pytest.mark.parametrize(
    ("schema", "path", "message", "hint"),
    [
        (5, "", "5 is not an object or a boolean, at #", None),
        (None, "", "null is not an object or a boolean, at #", None),
        ({"type": "nonsense"}, "/type", '"nonsense" is not a JSON Schema type, at #/type', None),
        (
            {"type": "strng"},
            "/type",
            '"strng" is not a JSON Schema type, at #/type',
            'did you mean "string"?',
        ),
        ({"type": ["null", "strng"]}, "/type/1", '"strng" is not a JSON', 'did you mean "string"?'),
        ({"type": []}, "/type", "type [] is empty", None),
        ({"type": 5}, "/type", "5 is not a JSON Schema type", None),
        ({"properties": {"type": 5}}, "/properties/type", "5 is not an object or a boolean", None),
        ({"minimum": "1"}, "/minimum", '"1" is not a number, at #/minimum', None),
        (
            {"properties": {"a/b": {"items": 3}}},
            "/properties/a~1b/items",
            "3 is not an object or a boolean",
            None,
        ),
        ({"required": ["a", "a"]}, "/required", "has the same item twice", None),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema", "is not Draft 2020-12", "leave"),
        ({"$defs": {"a": {"$schema": "x"}}}, "/$defs/a/$schema", '$schema "x" is not Draft 2020-12', "leave"),
    ],
)
def test_invalid_schemas(schema: Any, path: str, message: str, hint: str | None) -> None:
    (problem,) = check_schema(schema)
    assert (problem.path, problem.code) == (path, None)
    assert message in problem.message
    assert (hint or "") in (problem.hint or "")
    assert (hint is None) == (problem.hint is None)


@pytest.mark.parametrize(
    ("schema", "path", "message", "hint"),
    [
        ({"pattern": "["}, "/pattern", '"[" is not a regular expression', "ECMA-262"),
        ({"patternProperties": {"(": {}}}, "/patternProperties/(", "is not a regular expression", "ECMA-262"),
        ({"items": {"pattern": "\\p{l}"}}, "/items/pattern", "no property of characters {l}", "ECMA-262"),
        ({"pattern": "a{1,99999999999}"}, "/pattern", "is not a regular expression", "ECMA-262"),
        ({"$ref": "#"}, "", "it refers to itself without end, at #", "from a property"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "", "without end", "from a property"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}},
            "/$defs/a",
            "without end",
            "from a property",
        ),
    ],
)
def test_schemas_that_can_judge_no_value(schema: Any, path: str, message: str, hint: str | None) -> None:
    assert check_schema(schema) == []
    (problem,) = check_applicable(schema)
    assert (problem.path, problem.code) == (path, None)
    assert message in problem.message
    assert (hint or "") in (problem.hint or "")
    assert len(validate(schema, 1)) == 1 or "without end" not in message


@pytest.mark.parametrize(
    ("schema", "path", "message", "hint"),
    [
        ({"$ref": "https://x/y"}, "/$ref", '$ref "https://x/y" is remote, at #/$ref', REMOTE),
        ({"$ref": "other.json"}, "/$ref", '$ref "other.json" is remote', REMOTE),
        ({"$ref": "file:///etc/passwd"}, "/$ref", "is remote", REMOTE),
        ({"$ref": DIALECT}, "/$ref", "is remote", REMOTE),
        ({"$ref": "http://[bad"}, "/$ref", "is remote", REMOTE),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "/$ref", '$ref "#/$defs/b" leads nowhere', NOWHERE),
        ({"$ref": "#nowhere"}, "/$ref", "leads nowhere", NOWHERE),
        ({"$dynamicRef": "#nowhere"}, "/$dynamicRef", "$dynamicRef", NOWHERE),
        ({"$ref": "#/allOf/1", "allOf": [{}]}, "/$ref", "leads nowhere", NOWHERE),
        ({"$ref": "#/allOf/x", "allOf": [{}]}, "/$ref", "leads nowhere", NOWHERE),
        ({"$ref": "#/title", "title": "t"}, "/$ref", "leads to no schema", NOWHERE),
        ({"$ref": "#/title/x", "title": "t"}, "/$ref", "leads nowhere", NOWHERE),
        # inside properties that are named like keywords that hold data
        ({"properties": {"default": {"$ref": "https://x"}}}, "/properties/default/$ref", "is remote", REMOTE),
        (
            {"properties": {"enum": {"items": {"$ref": "#/x"}}}},
            "/properties/enum/items/$ref",
            "nowhere",
            NOWHERE,
        ),
        ({"if": {"then": {"$ref": "#/x"}}}, "/if/then/$ref", "leads nowhere", NOWHERE),
        # inside a place that only a reference leads to
        ({"$ref": "#/x/y", "x": {"y": {"$ref": "#/z"}}}, "/$ref/$ref", '"#/z" leads nowhere', NOWHERE),
    ],
)
def test_references_that_leave_the_schema(schema: Any, path: str, message: str, hint: str) -> None:
    (problem,) = check_schema(schema)
    assert (problem.path, problem.code, problem.hint) == (path, "E_REF", hint)
    assert message in problem.message
    assert problem.message.endswith(f"at #{path}")


def test_all_problems_of_a_kind_at_once_but_ten_at_most() -> None:
    schema = {"properties": {f"p{i}": {"type": "no"} for i in range(30)}}
    assert len(check_schema(schema)) == 10
    both = {"properties": {"a": {"$ref": "https://x"}, "b": {"$schema": "x"}, "c": {"$ref": "#/no"}}}
    assert [p.path for p in check_schema(both)] == [
        "/properties/a/$ref",
        "/properties/b/$schema",
        "/properties/c/$ref",
    ]


def test_a_deep_schema_is_a_problem_not_a_crash() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"properties": {"a": schema}}
    assert [p.message for p in check_schema(schema)] == ["schema is nested too deeply"]


@pytest.mark.parametrize(
    ("schema", "value", "issues"),
    [
        (True, object, []),
        ({}, None, []),
        (False, 1, [("", "1 is not allowed here")]),
        ({"type": "integer"}, 1.0, []),
        ({"type": "integer"}, True, [("", "true is not an integer")]),
        ({"const": 1}, True, [("", "true is not 1")]),
        ({"format": "date"}, "no date", []),
        (
            {"type": "object", "required": ["a", "b"]},
            {},
            [("", '"a" is missing'), ("", '"b" is missing')],
        ),
        (
            {"properties": {"a/b": {"items": {"minimum": 3}}}},
            {"a/b": [4, 1]},
            [("/a~1b/1", "1 is less than")],
        ),
        (
            {"properties": {"n": {"$ref": "#"}}, "type": "object"},
            {"n": {"n": 5}},
            [("/n/n", "5 is not an object")],
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, 1, [("", "1 is not null")]),
    ],
)
def test_validate(schema: Any, value: Any, issues: list[tuple[str, str]]) -> None:
    found = validate(schema, value)
    assert [path for path, _ in found] == [path for path, _ in issues]
    for issue, (_, message) in zip(found, issues, strict=True):
        assert message in issue.message


def test_the_first_ten_issues_by_place() -> None:
    found = validate({"items": {"type": "string"}}, list(range(1_000)))
    assert [i.path for i in found] == [f"/{n}" for n in range(10)]
    value = {"b": 1, "a": [1, {"z": 1, "y": 1}], "c": 1}
    schema = {"additionalProperties": {"items": {"additionalProperties": {"type": "null"}, "type": "object"}}}
    assert [i.path for i in validate(schema, value)] == ["/a/0", "/a/1/y", "/a/1/z"]


def test_long_values_do_not_fill_a_message() -> None:
    (issue,) = validate({"type": "integer"}, "x" * 100_000)
    assert len(issue.message) <= 300


def test_a_schema_that_cannot_be_applied_is_an_issue() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = {"a": deep}
    cases: list[tuple[Any, Any, str]] = [
        ({"properties": {"a": {"$ref": "#"}}}, deep, "nested too deeply"),
        ({"$ref": "#"}, 1, "without end"),
        ({"$ref": "https://x/y"}, 1, "cannot be applied"),
        ({"pattern": "["}, "x", "cannot be applied"),
        ({"type": "string"}, "\ud800", "cannot be judged"),
    ]
    for schema, value, message in cases:
        (issue,) = validate(schema, value)
        assert issue.path == ""
        assert message in issue.message


def test_equal_schemas_share_a_validator() -> None:
    one = {"type": "object", "properties": {"a": {"type": "string"}}}
    other = {"properties": {"a": {"type": "string"}}, "type": "object"}
    assert validator(one) is validator(other)
    assert validator(one) is not validator({"type": "object"})
    assert validator(one)({"a": 1})[0].path == "/a"


def test_a_schema_that_is_changed_is_another_schema() -> None:
    schema: dict[str, Any] = {"type": "string"}
    assert validate(schema, 1) != []
    schema["type"] = "integer"
    assert validate(schema, 1) == []


def test_jsonschema_is_imported_only_when_it_is_needed() -> None:
    program = (
        "import sys\n"
        "from agentflow.definition.schemas import check_schema, validate\n"
        "assert validate(True, 1) == []\n"
        "assert 'jsonschema_rs' not in sys.modules and 'referencing' not in sys.modules\n"
        "assert check_schema({}) == [] and 'jsonschema' not in sys.modules\n"
        "assert validate({}, 1) == [] and 'jsonschema' not in sys.modules\n"
        "assert validate({'type': 'null'}, 1) and 'jsonschema' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


KEYWORDS = st.sampled_from(
    ["type", "properties", "items", "$ref", "$defs", "allOf", "anyOf", "not", "if", "pattern"]
) | st.sampled_from(
    ["const", "enum", "required", "minimum", "patternProperties", "$id", "$anchor", "$schema", "a"]
)
VALUES = st.recursive(
    st.sampled_from(
        ["string", "object", "#", "#/$defs/a", "#a", "a", "[", "https://x/y", 1, -1, True, None, 0.5]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=10,
)


@given(VALUES, VALUES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_schema_and_no_value_crashes(schema: Any, value: Any) -> None:
    problems = check_schema(schema)
    assert all(re.search(rf"at #{re.escape(p.path)}$", p.message) or not p.path for p in problems)
    if not problems:
        problems = check_applicable(schema)
        assert problems or not any("cannot be" in issue.message for issue in validate(schema, value))


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([True, ["boolean", 1]], True),
        ([True, ["constant", True]], True),
        ([None, ["constant", None]], True),
        ([{"a": 1}, ["object", [["a", 1]]]], True),
        ([["array", 1], [1]], True),
        ([1, True], True),
        ([0, False], True),
        ([1, 1.0], False),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], False),
        ([[True], [1]], True),
    ],
)
def test_items_are_equal_as_json_schema_means_it(items: list[Any], unique: bool) -> None:
    """documents D7: the verdict, and the explanation, which compares items in its own way."""
    schema = {"uniqueItems": True}
    assert [issue.message[-24:] for issue in validate(schema, items)] == (
        [] if unique else [" has the same item twice"]
    )
    found = breaches(msgspec.json.encode(schema), items, 10_000)
    assert (found == []) == unique
