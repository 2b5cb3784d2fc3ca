"""Judging costs at most 0.5 s of CPU, and 64 MiB beside one copy of the value, whatever both are."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from tests.faults.worst_schemas import WORST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

# Measures one schema and value in a process of its own: CPU seconds of loading and of judging, MiB of growth.
PROGRAM = """
import json, sys, time
from agentflow.definition.schemas import check_applicable, check_schema, validate
validate({"type": "null"}, 1)
schema, value = json.load(sys.stdin)
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
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
        assert time.process_time() - started <= 0.5, f"seed {seed}"
        judged += 1
    assert judged > 300
