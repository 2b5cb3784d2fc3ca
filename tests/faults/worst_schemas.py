"""The schemas and values that cost most to judge, for the suites that hold judging against the clock."""

from __future__ import annotations

import json
from typing import Any


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
