"""The limits of page 001 §6.5: met exactly, and before memory, time or the stack are used up."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from agentflow.definition.expressions import (
    EvaluationError,
    ExpressionError,
    compile_template,
    parse,
    to_text,
    unparse,
)

MIB = 1_048_576


def code(source: str) -> tuple[str, int] | None:
    try:
        parse(source)
    except ExpressionError as error:
        return error.code, error.offset
    return None


def limit(run: Callable[[], Any]) -> EvaluationError:
    with pytest.raises(EvaluationError) as caught:
        run()
    assert caught.value.reason == "limit"
    return caught.value


# --- at load


def test_source_of_21000_characters() -> None:
    fits = "'" + "x" * 20_998 + "'"
    assert code(fits) is None
    assert code(fits + " ") == ("E_EXPR_LIMIT", 0)
    with pytest.raises(ExpressionError) as caught:
        compile_template("ab ${{ " + fits + "x }}")
    assert (caught.value.code, caught.value.offset) == ("E_EXPR_LIMIT", 7)


@pytest.mark.parametrize(
    ("opening", "closing", "offset"),
    [
        ("(", ")", 1),
        ("!", "", 1),
        ("length(", ")", 7),
        ("item[", "]", 5),
        ("!(", ")", 2),
        ("1 || 2 && 3 == 4 < (", ")", 20),
    ],
)
def test_nesting_of_50(opening: str, closing: str, offset: int) -> None:
    each = opening.count("(") + opening.count("[") + opening.count("!")
    fits = opening * (50 // each) + "item" + closing * (50 // each)
    assert code(fits) is None
    assert code(opening * (50 // each) + opening + "item" + closing * (50 // each + 1)) is not None
    assert code("(" * 51 + "item" + ")" * 51) == ("E_EXPR_LIMIT", 50)
    assert unparse(parse(unparse(parse(fits)))) == unparse(parse(fits))


@pytest.mark.parametrize("opening", ["(", "!", "length(", "item[", "item.x[", "case(", "1 < (", "!("])
def test_deep_nesting_stops_at_the_limit(opening: str) -> None:
    source = (opening * 21_000)[:21_000]
    found = code(source)
    assert found is not None
    assert found[0] == "E_EXPR_LIMIT"


def test_255_arguments() -> None:
    assert code(f"format({','.join(['1'] * 255)})") is None
    source = f"format({','.join(['1'] * 256)})"
    assert code(source) == ("E_EXPR_LIMIT", source.rindex("1"))
    assert code(f"case({','.join(['true'] * 255)})") is None
    assert code(f"case({','.join(['true'] * 257)})") == ("E_EXPR_LIMIT", 5 + 255 * 5)


def test_numbers_of_1000_characters() -> None:
    assert code("9" * 1000) is None
    assert code("item == " + "9" * 1001) == ("E_EXPR_LIMIT", 8)
    assert code("0x" + "f" * 2000) == ("E_EXPR_LIMIT", 0)
    assert code("item." + "9" * 5000) == ("E_EXPR_LIMIT", 5)
    assert len(to_text(parse("0x" + "f" * 998).evaluate({}))) > 1000


@pytest.mark.parametrize(
    "joint", ["||", "&&", "==", "!=", ".a", "[0]", ".*", " ", "=", "'", '"', "\\", "\n", "1.", "-", "''"]
)
def test_long_chains_are_flat_and_linear(joint: str) -> None:
    operand = "" if joint in (".a", "[0]", ".*") else "1"
    source = ("item" if not operand else "1") + (joint + operand) * (20_000 // (len(joint + operand) + 2))
    began = time.process_time()
    try:
        expression = parse(source)
    except ExpressionError:
        pass
    else:
        assert unparse(parse(unparse(expression))) == unparse(expression)
        expression.evaluate({"item": {"a": 1}})
        assert expression.references is not None
    assert time.process_time() - began < 2


def test_the_parser_needs_a_bounded_part_of_the_stack() -> None:
    worst = "item"
    for _ in range(49):
        worst = f"1 || 1 && 1 == 1 < length({worst})"

    def depth() -> int:
        frame, count = sys._getframe(), 0
        while frame is not None:
            frame, count = frame.f_back, count + 1
        return count

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth() + 550)
    try:
        expression = parse(worst)
        unparse(expression)
        assert expression.references
        assert expression.evaluate({"item": "x"}) == 1
    finally:
        sys.setrecursionlimit(before)


# --- at run time


def test_operations_of_a_projection() -> None:
    assert len(parse("item.*").evaluate({"item": [0] * 90_000})) == 90_000
    error = limit(lambda: parse("1 == 2 || item.*").evaluate({"item": [0] * 100_000}))
    assert error.offset == 15
    rows = [[0] * 1_000] * 1_000
    limit(lambda: parse("item.*.*").evaluate({"item": rows}))


def test_operations_of_equality_contains_and_join() -> None:
    many, other = [1] * 100_001, [1] * 100_001
    for source in ("item.a == item.b", "contains(item.a, 2)", "join(item.a)", "length(item.a.*)"):
        limit(lambda source=source: parse(source).evaluate({"item": {"a": many, "b": other}}))
    assert parse("item.a == item.b").evaluate({"item": {"a": many[:90_000], "b": other[:90_000]}}) is True


def test_operations_are_shared_by_all_parts_of_an_expression() -> None:
    source = " && ".join(["item.a == item.b"] * 20)
    scope = {"item": {"a": [1] * 10_000, "b": [1] * 10_000}}
    assert parse(" && ".join(["item.a == item.b"] * 9)).evaluate(scope) is True
    limit(lambda: parse(source).evaluate(scope))


def test_the_same_expression_may_run_again() -> None:
    expression = parse("length(item.*)")
    for _ in range(5):
        assert expression.evaluate({"item": [0] * 50_000}) == 50_000


def test_text_is_charged() -> None:
    source = " && ".join(["contains(item, 'y')==false"] * 20)
    limit(lambda: parse(source).evaluate({"item": "x" * MIB}))


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("x" * (MIB - 2), True),
        ("x" * (MIB - 1), False),
        ("é" * (MIB // 2 - 1), True),
        ("é" * (MIB // 2), False),
        ('"' * (MIB // 2 - 1), True),
        ('"' * (MIB // 2), False),
        (["x" * (MIB - 4)], True),
        (["x" * (MIB - 3)], False),
        ([0] * ((MIB - 1) // 2), True),
        ([0] * ((MIB + 1) // 2), False),
        ({"k": "x" * (MIB - 8)}, True),
        ({"k": "x" * (MIB - 7)}, False),
        ([[]] * 349_525, True),
        ([[]] * 349_526, False),
        ([{"a": True}, {"b": None}] * 40_000, True),
        ([{"a": True}, {"b": None}] * 60_000, False),
    ],
)
def test_a_result_of_one_mebibyte(value: Any, fits: bool) -> None:
    expression = parse("item")
    if fits:
        assert expression.evaluate({"item": value}) is value
    else:
        assert limit(lambda: expression.evaluate({"item": value})).offset == 0
    # What is not the result may be larger.
    assert parse("item == null").evaluate({"item": value}) is False


def peak(run: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "format('" + "{0}" * 5_000 + "', item.text)",
        "join(item.texts)",
        "join(item.nulls, item.text)",
        "join(item.nested)",
        "toJSON(item.texts)",
        "toJSON(item.nested)",
        "item.nested",
        "item.cycle",
        "toJSON(item.cycle)",
        "format('{0}', item.cycle)",
        "item.cycle == item.cycle2",
        "fromJSON(item.deep)",
        "fromJSON(item.quoted)",
        "fromJSON(item.long)",
        "item.nested.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*",
    ],
)
def test_limits_hold_before_allocation(source: str) -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]
    cycle: list[Any] = []
    cycle.extend([cycle, cycle])
    cycle2: list[Any] = []
    cycle2.extend([cycle2, cycle2])
    item = {
        "text": "x" * 500_000,
        "texts": ["x" * 500_000] * 5_000,
        "nulls": [None] * 5_000,
        "nested": nested,
        "cycle": cycle,
        "cycle2": cycle2,
        "deep": "[" * 100_000,
        "quoted": '["' + "[" * 100 + '",' + "[" * 64 + "]" * 64 + "]",
        "long": " " * (MIB + 1),
    }
    expression = parse(source)
    if "nested" in source or "cycle" in source:
        # Written out, these would have no end; tracing would only make the walk slow.
        limit(lambda: expression.evaluate({"item": item}))
    else:
        assert peak(lambda: limit(lambda: expression.evaluate({"item": item}))) < 24 * MIB


def test_depth_of_from_json() -> None:
    def nested(levels: int, opening: str, closing: str) -> str:
        return opening * levels + "1" + closing * levels

    expression = parse("length(fromJSON(item))")
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        assert expression.evaluate({"item": nested(64, opening, closing)}) == 1
        limit(lambda o=opening, c=closing: expression.evaluate({"item": nested(65, o, c)}))
    wide = "[" + ",".join(['[1,"]]]]["]'] * 1_000) + "]"
    assert expression.evaluate({"item": wide}) == 1_000


def test_deep_values_do_not_use_the_stack() -> None:
    one: Any = 1
    two: Any = 1
    for _ in range(50_000):
        one, two = [one], [two]
    scope = {"item": {"a": one, "b": two}}
    assert parse("item.a == item.b").evaluate(scope) is True
    assert parse("contains(item.*, item.a)").evaluate(scope) is True
    assert parse("item.a").evaluate(scope) is one
    limit(lambda: parse("toJSON(item.a)").evaluate(scope))


def test_integers_that_python_refuses_to_write() -> None:
    for source in ("item", "toJSON(item)", "format('{0}', item)", "join(item2)"):
        expression = parse(source, roots=("item", "item2"))
        limit(lambda e=expression: e.evaluate({"item": 10**5000, "item2": [10**5000]}))


def test_lone_surrogates_are_a_type_error() -> None:
    for source in ("toJSON(item)", "format('{0}', item)", "fromJSON(item.*[0] || item[0])"):
        with pytest.raises(EvaluationError):
            parse(source).evaluate({"item": ["\ud800"]})


# --- templates


def test_a_text_of_one_mebibyte() -> None:
    template = compile_template("a${{ item }}b")
    assert len(template.evaluate({"item": "x" * (MIB - 4)})) == MIB - 2
    for size in (MIB - 3, MIB):
        limit(lambda size=size: template.evaluate({"item": "x" * size}))
    repeated = compile_template("${{ item }}" * 1_000)
    assert peak(lambda: limit(lambda: repeated.evaluate({"item": "x" * 100_000}))) < 8 * MIB


def test_all_of_a_template_shares_sixteen_times_the_limits() -> None:
    text = "x" * 1_000_000
    assert len(compile_template(["${{ item }}"] * 16).evaluate({"item": text})) == 16
    error = limit(lambda: compile_template(["${{ item }}"] * 17).evaluate({"item": text}))
    assert error.path == "/16"
    many = [0] * 90_000
    assert compile_template(["${{ length(item.*) }}"] * 17).evaluate({"item": many}) == [90_000] * 17
    error = limit(lambda: compile_template(["${{ length(item.*) }}"] * 18).evaluate({"item": many}))
    assert error.path == "/17"


def test_depth_of_a_template() -> None:
    value: Any = "${{ item }}"
    for _ in range(128):
        value = [value]
    assert to_text(compile_template(value).evaluate({"item": 1})) == "[" * 128 + "1" + "]" * 128
    with pytest.raises(ExpressionError) as caught:
        compile_template([[value]])
    assert caught.value.code == "E_EXPR_LIMIT"
