"""No schema and no value cost more than the bound, and bounded work answers as jsonschema does."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agentflow.definition import check_text
from agentflow.definition.breach_texts import breach_text
from agentflow.definition.meta_schema import invalid_parts
from agentflow.definition.schema_cost import has_at_most
from agentflow.definition.schemas import check_applicable, check_schema, is_costly, validate

TOO_MUCH = "judging it by its schema would take too many steps"


def doubled(keyword: str, depth: int = 40) -> dict[str, Any]:
    """A schema that follows two references at each level."""
    defs: dict[str, Any] = {"a0": {"type": "string"}}
    for i in range(depth):
        defs[f"a{i + 1}"] = {keyword: [{"$ref": f"#/$defs/a{i}"}, {"$ref": f"#/$defs/a{i}"}]}
    return {"$defs": defs, "$ref": f"#/$defs/a{depth}"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubled("allOf"), "x"),
        (doubled("anyOf"), 1),
        ({"allOf": [{"uniqueItems": True}] * 1_500}, [[0] * 80_000]),
        ({"allOf": [{"uniqueItems": True}] * 30}, [str(i) for i in range(200_000)]),
        ({"items": {"enum": [[0] * 100 + [i] for i in range(480)]}}, [[0] * 101] * 480),
        ({"pattern": "1[01]{300}2"}, "01" * 200_000),
        ({"pattern": "(?=a*b)a*a*a*a*c"}, "a" * 10_000),
    ],
)
def test_too_many_steps_are_an_issue(schema: Any, value: Any):
    assert check_schema(schema) == []
    assert check_applicable(schema) == []
    assert [issue.message for issue in validate(schema, value)] == [TOO_MUCH]


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"uniqueItems": True}, [{"a": i} for i in range(20_000)], True),
        ({"uniqueItems": True}, [[{"a": 1}], [{"a": 1.0}]], False),
        ({"uniqueItems": True}, [1, True, "1", [1], [True]], True),
        ({"uniqueItems": True}, [0, False, 0.0], False),
        ({"uniqueItems": False}, [1, 1], True),
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 5_000 + "!", False),
        ({"patternProperties": {"^(a+)+$": True}, "additionalProperties": False}, {"a" * 60 + "!": 1}, False),
        ({"patternProperties": {"^(a+)+$": {"type": "string"}}}, {"a" * 60: 1}, False),
        ({"propertyNames": {"pattern": "^(a+)+$"}}, {"a" * 60 + "!": 1}, False),
        ({"patternProperties": {"^x-": True}, "unevaluatedProperties": False}, {"x-a": 1}, True),
        ({"patternProperties": {"^x-": True}, "unevaluatedProperties": False}, {"a": 1}, False),
        ({"items": {"enum": [f"e{i}" for i in range(5_000)]}}, ["x"] * 5_000, False),
        ({"items": {"allOf": [True] * 5_000}}, [1] * 500, True),
        (
            {"patternProperties": {"^(a+)+$": True}, "unevaluatedProperties": False},
            {"a" * 60 + "!": 1},
            False,
        ),
        ({"anyOf": [{"type": "integer"}] * 9_000}, "x" * 100_000, False),
        (
            {
                "allOf": [{"contains": {"const": -n}} for n in range(300)],
                "unevaluatedItems": False,
            },
            [1] * 3_000,
            False,
        ),
        ({"items": {"$ref": "#/$defs/i"}, "$defs": {"i": {"type": "integer"}}}, list(range(10_000)), True),
    ],
)
def test_within_bounds_there_is_an_answer(schema: Any, value: Any, fits: bool):
    assert (validate(schema, value) == []) is fits
    assert TOO_MUCH not in [issue.message for issue in validate(schema, value)]


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=(a+)+$)a", "(" * 5_000 + ")" * 5_000, "a{1,", "("])
def test_a_pattern_that_cannot_be_judged_is_told_at_load(pattern: str):
    (problem,) = check_applicable({"pattern": pattern})
    assert problem.path == "/pattern"


def test_a_document_cannot_hang_the_loader_by_its_defaults():
    schema = {"type": "string", "pattern": "^(a+)+$"}
    document = {
        "version": "1.0",
        "inputs": {
            "pattern": {"schema": schema, "default": "a" * 100_000 + "!"},
            "references": {"schema": doubled("allOf"), "default": "x"},
        },
        "workflow": {"steps": [{"type": "run", "id": "a", "agent": AGENT}]},
    }
    found = check_text(json.dumps(document))
    assert [(d.code, d.path) for d in found] == [
        ("E_INPUT_INVALID", "/inputs/pattern/default"),
        ("E_INPUT_INVALID", "/inputs/references/default"),
    ]
    assert TOO_MUCH in found[1].message


def test_a_schema_of_many_parts_is_checked_quickly():
    schema = {"$defs": {f"d{i}": {"type": "object", "properties": {"a": True}} for i in range(20_000)}}
    assert check_schema(schema) == []
    schema["$defs"]["d19999"]["type"] = "objekt"
    assert [p.path for p in check_schema(schema)] == ["/$defs/d19999/type"]


def parts(count: int) -> dict[str, Any]:
    return {f"d{i}": {} for i in range(count)}


@pytest.mark.parametrize(
    ("schema", "value", "problems"),
    [
        ({"$defs": {"x": {"$anchor": "x"}, **parts(5_000)}, "items": {"$ref": "#x"}}, [1] * 2_000, 0),
        (
            {"$defs": {"x": {"$dynamicAnchor": "x"}, **parts(5_000)}, "items": {"$dynamicRef": "#x"}},
            [1] * 2_000,
            0,
        ),
        ({"$defs": {"x": {"$id": "urn:x"}, **parts(5_000)}, "items": {"$ref": "urn:x"}}, [1] * 2_000, 0),
        ({"$defs": {f"d{i}": {"$ref": f"{i}/remote"} for i in range(5_000)}}, 1, 10),
    ],
)
def test_names_in_a_large_schema_are_found_quickly(schema: Any, value: Any, problems: int):
    started = time.process_time()
    assert len(check_schema(schema)) == problems
    assert bool(validate(schema, value)) is bool(problems)
    assert time.process_time() - started < 20


@pytest.mark.parametrize("path", ["/$id", "/$defs/a/$id"])
def test_an_identifier_that_is_no_uri_is_a_problem_not_a_crash(path: str):
    schema: Any = {"$id": "http://["} if path == "/$id" else {"$defs": {"a": {"$id": "http://["}}}
    schema["properties"] = {"b": {"$ref": "#/$defs/a"}}
    assert path in [problem.path for problem in check_schema(schema)]
    assert isinstance(validate(schema, {"b": 1}), list)


@pytest.mark.parametrize(
    "schema", [{"$defs": 5}, {"properties": [1]}, {"allOf": 7}, {"$id": 3}, {"items": "x"}]
)
def test_what_is_no_schema_judges_nothing_and_crashes_nothing(schema: Any):
    assert check_schema(schema)
    assert isinstance(validate(schema, {"a": [1]}), list)


AGENT = {"systemPrompt": "p", "input": 1, "resultSchema": True, "attachedFunctions": "none"}
VALUES: list[Any] = [
    *(True, False, None, 0, 1, -1, 1.0, 1.5, "", "string", "object", "^a", "#/x", "a#b", "9", "a-b"),
    *([], ["string"], ["string", "string"], ["nonsense"], [1], [True], [{}], [{"type": "nonsense"}]),
    *({}, {"a": True}, {"a": 1}, {"a": []}, {"a": ["b"]}, {"a": ["b", "b"]}, {"type": 7}),
]


def random_schema(chance: random.Random, depth: int) -> Any:
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(VALUES)
    keywords = list(Draft202012Validator.VALIDATORS) + KEYWORDS
    made: dict[str, Any] = {}
    for _ in range(chance.randint(0, 3)):
        keyword = chance.choice(keywords)
        inner = random_schema(chance, depth - 1)
        made[keyword] = chance.choice([inner, [inner], {"a": inner}, chance.choice(VALUES)])
    return made


KEYWORDS = [
    *("$defs", "definitions", "dependencies", "then", "else", "$id", "$schema", "$anchor", "$dynamicAnchor"),
    *("$recursiveAnchor", "$recursiveRef", "$vocabulary", "$comment", "title", "description", "default"),
    *("deprecated", "readOnly", "writeOnly", "examples", "contentEncoding", "contentMediaType"),
    *("contentSchema", "minContains", "maxContains", "unknown"),
]


def test_the_table_says_of_a_schema_what_its_meta_schema_says():
    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    valid = 0
    for seed in range(1_500):
        schema = random_schema(random.Random(seed), 3)
        expected = meta.is_valid(schema)
        found = list(invalid_parts(schema))
        assert (not found) == expected, (seed, schema)
        valid += expected
        for _, part in found:
            assert not meta.is_valid(part), (seed, part)
    assert valid > 100


def our_text(error: Any) -> str:
    """Return our message for an error of jsonschema's own keywords: for these it comes of their text."""
    quoted = [f'"{name}"' for name in re.findall(r"'(\w+)'", error.message)]
    if error.validator == "required":
        return f"{quoted[0]} is missing"
    if error.validator == "dependentRequired":
        return f"{quoted[0]} is missing, which {quoted[1]} needs"
    if error.validator == "additionalProperties":
        names = [f'"{name}"' for name in error.instance if not name.startswith("x")]
        return f'unknown member{"s" * (len(names) > 1)} {", ".join(names)}; known are the patterns "^x"'
    return breach_text(error)


def test_bounded_work_answers_as_jsonschema_does():
    schemas: list[Any] = [
        {"type": ["object", "array"], "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"additionalProperties": {"type": "integer"}, "properties": {"a": True}},
        {"additionalProperties": False, "patternProperties": {"^x": {"minimum": 2}}},
        {"items": {"uniqueItems": True}, "contains": {"const": 1}, "prefixItems": [{"type": "array"}]},
        {"anyOf": [{"pattern": "^a+$"}, {"type": "array", "uniqueItems": True}]},
        {"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}]},
        {"unevaluatedItems": False, "prefixItems": [True]},
        {"dependentRequired": {"a": ["b"]}, "propertyNames": {"maxLength": 2}},
        {"if": {"type": "string"}, "then": {"pattern": "b"}, "else": {"not": {"const": 1}}},
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}}},
        },
    ]
    values: list[Any] = [
        *(None, True, 0, 1, 1.0, "a", "ab", "xa", [], [1], [1, 1.0], [[1], [1]], [True, 1], ["a", "a"]),
        *({}, {"a": 1}, {"a": "b"}, {"a": {}}, {"xa": 1}, {"xa": 3}, {"abc": {}}, {"a": {"b": {}}}, [[], 2]),
    ]
    for schema in schemas:
        theirs = Draft202012Validator(schema)
        for value in values:
            expected = sorted(our_text(error) for error in theirs.iter_errors(value))
            assert sorted(issue.message for issue in validate(schema, value)) == expected, (schema, value)


@pytest.mark.parametrize(
    "value",
    [[0] * 10_000_000, [[0] * 1_000] * 10_000, {"a": {"b": [{"c": 0}] * 1_000_000}}, [[]] * 1_000_000],
    ids=["one long list", "many lists", "objects below objects", "empty lists"],
)
def test_estimating_the_cost_of_a_value_stops_when_it_is_known_to_be_costly(value: Any):
    """documents D3: a value was written as JSON to find its cost, 10 million items in 4.9 s."""
    began = time.process_time()
    assert is_costly({"type": ["array", "object"]}, value)
    assert time.process_time() - began < 0.5


def test_arrays_and_objects_count_as_five_nodes():
    assert has_at_most([1, 2, {"a": "text"}], 12)
    assert not has_at_most([1, 2, {"a": "text"}], 11)
    assert has_at_most("text", 1)
