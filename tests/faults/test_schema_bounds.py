"""Judging costs at most 0.5 s of CPU, and 64 MiB beside one copy of the value, whatever both are."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

# Measures one schema and value in a process of its own: CPU seconds of loading and of judging, MiB of growth.
PROGRAM = """
import json, resource, sys, time
from agentflow.definition.schemas import check_applicable, check_schema, validate
validate({"type": "null"}, 1)
schema, value = json.load(sys.stdin)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, started = peak(), time.process_time()
problems = check_schema(schema) or check_applicable(schema)
loaded = time.process_time()
issues = [] if problems else validate(schema, value)
judged = time.process_time()
print(json.dumps([loaded - started, judged - loaded, peak() - before, len(issues), len(problems)]))
"""


def measured(schema: Any, value: Any) -> tuple[float, float, float]:
    given = json.dumps([schema, value])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=given, capture_output=True, text=True, check=True, timeout=120
    )
    loading, judging, grown, _, _ = json.loads(done.stdout)
    # One copy of the value as JSON text is taken; the value itself was there before.
    return loading, judging, grown - len(given) / 1024 / 1024


def nested(keyword: str, levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = (
            {"if": schema, "then": schema, "else": schema} if keyword == "if" else {keyword: [schema, schema]}
        )
    return schema


def diamonds(keyword: str, count: int) -> Any:
    defs: dict[str, Any] = {f"d{count}": {"type": "integer"}}
    for i in range(count):
        defs[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


WORST: dict[str, tuple[Any, Any]] = {
    "unique in many branches": ({"allOf": [{"uniqueItems": True}] * 1_500}, [[0] * 80_000]),
    "unique numbers": ({"uniqueItems": True}, [n + 0.5 for n in range(300_000)]),
    "unique objects": ({"uniqueItems": True}, [{"a": [n]} for n in range(100_000)]),
    "unique at every level": (
        {"$defs": {"x": {"uniqueItems": True, "items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"},
        [[[[[[[n] for n in range(20_000)]]]]]],
    ),
    "enum of arrays": ({"items": {"enum": [[0] * 100 + [n] for n in range(480)]}}, [[0] * 101] * 480),
    "enum of texts": ({"items": {"enum": ["x" * 200 + str(n) for n in range(4_000)]}}, ["x" * 203] * 20_000),
    "const of an object": ({"items": {"const": {str(n): n for n in range(5_000)}}}, [{"0": 0}] * 100_000),
    "contains beside unevaluated": (
        {"allOf": [{"contains": {"const": -n}} for n in range(300)], "unevaluatedItems": False},
        [1] * 3_000,
    ),
    "reasons of many branches": ({"anyOf": [{"type": "integer"}] * 9_000}, "x" * 100_000),
    "reasons of many items": ({"items": {"type": "integer"}}, ["x" * 1_000] * 5_000),
    "reasons of many long names": (
        {"additionalProperties": False},
        {"k" * 500 + str(n): 1 for n in range(9_000)},
    ),
    "diamonds of allOf": (diamonds("allOf", 30), 1),
    "diamonds of anyOf": (diamonds("anyOf", 40), "x"),
    "nested conditions": (nested("if", 7), 1),
    "nested choices": (nested("anyOf", 12), "x"),
    "recursion in two ways": (
        {"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]},
        json.loads("[" * 60 + "]" * 60),
    ),
    "a pattern of many states": ({"pattern": "1[01]{300}2"}, "01" * 100_000),
    "patterns of Unicode": (
        {"allOf": [{"pattern": rf"\p{{L}}{{20}}{n}"} for n in range(2_000)]},
        "é" * 10_000,
    ),
    "looking around": ({"pattern": "^(?=.*a)(?=.*b).*c$"}, "ab" * 20_000),
    "polynomial backtracking": ({"pattern": "(?=a*b)a*a*a*a*c"}, "a" * 5_000),
    "patterns of names": (
        {"patternProperties": {f"^{n}[a-z]+x$": True for n in range(2_000)}, "additionalProperties": False},
        {f"{n}abc": 1 for n in range(5_000)},
    ),
    "names beside unevaluated": (
        {"patternProperties": {"^(a+)+$": True}, "unevaluatedProperties": False},
        {"a" * n + "!": 1 for n in range(1_000)},
    ),
    "many parts": (
        {"$defs": {f"d{n}": {"type": "object", "properties": {"a": {}}} for n in range(15_000)}},
        {},
    ),
    "many patterns": ({"$defs": {f"d{n}": {"pattern": f"^{n}$"} for n in range(9_000)}}, {}),
    "multiples of a fraction": ({"items": {"multipleOf": 0.0001}}, [1.2345] * 300_000),
    "large numbers": ({"items": {"multipleOf": 7}}, [10**4_000] * 100),
    "a value of many levels": ({"items": {"$ref": "#"}}, json.loads("[" * 900 + "]" * 900)),
    "required names": ({"items": {"required": [f"p{n}" for n in range(5_000)]}}, [{"p0": 1}] * 100_000),
    "dependent names": (
        {"items": {"dependentRequired": {f"p{n}": [f"q{m}" for m in range(50)] for n in range(300)}}},
        [{f"p{n}": 1 for n in range(300)}] * 50,
    ),
    "long text": ({"minLength": 1, "maxLength": 10**9, "pattern": "^[^\\n]*$"}, "é" * 2_000_000),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_schemas_and_values_cost_no_more_than_the_bound(name: str):
    schema, value = WORST[name]
    loading, judging, grown = measured(schema, value)
    assert judging <= 0.5, f"judging took {judging:.2f} s"
    assert loading <= 1.0, f"loading took {loading:.2f} s"
    assert grown <= 64, f"memory grew by {grown:.0f} MiB"


def some_schema(chance: random.Random, depth: int) -> Any:
    if depth == 0:
        return chance.choice(
            [
                {"type": chance.choice(["integer", "string", "array", "object"])},
                {
                    "enum": [
                        chance.choice([1, "a", [1] * 50, {"a": 1}])
                        for _ in range(chance.choice([1, 30, 300]))
                    ]
                },
                {"uniqueItems": True},
                {"pattern": chance.choice(["^a+$", "(a|b)*c", "[01]{50}1", r"\p{L}+", "^(?=.*a).*$"])},
                {"multipleOf": 0.01},
                {"minLength": 3},
                {"$ref": "#"},
            ]
        )
    inner = [some_schema(chance, depth - 1) for _ in range(chance.choice([1, 2, 5, 40]))]
    names = [f"{chance.choice('ab')}{n}" for n in range(len(inner))]
    return chance.choice(
        [
            {
                chance.choice(["allOf", "anyOf", "oneOf"]): inner,
                "unevaluatedItems": chance.choice([True, False]),
            },
            {"items": inner[0]},
            {"contains": inner[0], "unevaluatedProperties": False},
            {"properties": dict(zip(names, inner, strict=True)), "additionalProperties": inner[0]},
            {"patternProperties": {f"^{n}": s for n, s in zip(names, inner, strict=True)}},
            {"prefixItems": inner, "items": inner[0]},
            {"not": inner[0]},
            {"if": inner[0], "then": inner[-1]},
            {"propertyNames": inner[0], "dependentSchemas": dict(zip(names, inner, strict=True))},
        ]
    )


def some_value(chance: random.Random, depth: int) -> Any:
    if depth == 0:
        return chance.choice([1, 1.5, "a" * 100, "é" * 10_000, None, True, [1] * 100])
    count = chance.choice([1, 3, 30, 300] if depth == 1 else [1, 3, 12])
    if chance.random() < 0.5:
        return (
            [some_value(chance, depth - 1) for _ in range(count)]
            if depth == 1
            else [some_value(chance, depth - 1)] * count
        )
    return {f"{chance.choice('ab')}{n}": some_value(chance, depth - 1) for n in range(count)}


def test_random_schemas_and_values_cost_no_more_than_the_bound():
    """In this process, by CPU time alone; a schema that refers to itself in place is refused."""
    import time

    from agentflow.definition.schemas import check_applicable, check_schema, validate

    judged = 0
    for seed in range(600):
        chance = random.Random(seed)
        schema = some_schema(chance, chance.randint(0, 3))
        if len(json.dumps(schema)) > 1024 * 1024:  # the largest document
            continue
        if check_schema(schema) or check_applicable(schema):
            continue
        value = some_value(chance, chance.randint(0, 3))
        if len(json.dumps(value)) > 8 * 1024 * 1024:  # the largest input
            continue
        started = time.process_time()
        validate(schema, value)
        assert time.process_time() - started <= 0.6, f"seed {seed}"
        judged += 1
    assert judged > 300
