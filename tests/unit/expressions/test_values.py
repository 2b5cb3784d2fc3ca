"""Types, operators, references, projections and functions: every row of page 001 §6.3."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from agentflow.definition.expressions import EvaluationError, parse

ORDERS = {
    "orders": [
        {"id": 1, "items": [{"sku": "a", "n": 2}, {"sku": "b", "n": None}]},
        {"id": 2, "items": [{"sku": "c"}]},
        {"id": 3},
        None,
        "text",
        [{"id": 9}],
    ],
    "by_name": {"x": {"v": 1}, "y": {"v": 2}, "z": 3},
}

SCOPE: dict[str, Any] = {
    "t": True,
    "f": False,
    "nil": None,
    "zero": 0,
    "zerof": 0.0,
    "one": 1,
    "onef": 1.0,
    "half": 0.5,
    "big": 2**53 + 1,
    "bigf": float(2**53),
    "huge": 10**40,
    "s": "abc",
    "es": "",
    "digits": "1",
    "yes": "true",
    "arr": [1, "two", None, [4], {"k": "v"}],
    "ea": [],
    "obj": {"a": 1, "b": {"c": [10, 20]}, "0": "zero", "k l": 2, "n": None},
    "eo": {},
    "d": ORDERS,
    "nested": [[1, 2], [3], [], 4, {"a": 5}],
}


class Status:
    def success(self) -> bool:
        return True

    def failure(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return True


def value(source: str) -> Any:
    return parse(source, roots=SCOPE).evaluate(SCOPE, Status())


def exactly(result: Any, expected: Any) -> bool:
    """Equal in type too: 1, 1.0 and True differ here."""
    return repr(result) == repr(expected)


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("nil", False),
        ("f", False),
        ("zero", False),
        ("zerof", False),
        ("es", False),
        ("(-0.0)", False),
        ("missing_member", False),
        ("t", True),
        ("one", True),
        ("half", True),
        ("s", True),
        ("yes", True),
        ("'false'", True),
        ("'0'", True),
        ("' '", True),
        ("ea", True),
        ("eo", True),
        ("arr", True),
        ("obj", True),
    ],
)
def test_truth(name: str, truth: bool) -> None:
    name = "obj.missing" if name == "missing_member" else name
    assert value(f"!!{name}") is truth
    assert value(f"!{name}") is not truth
    assert value(f"{name} && 'yes' || 'no'") == ("yes" if truth else "no")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("one && s", "abc"),
        ("zero && s", 0),
        ("es || 'x'", "x"),
        ("nil || zero || es", ""),
        ("s || obj", "abc"),
        ("one && s && nil && t", None),
        ("ea && one", 1),
        ("eo || one", {}),
        ("f || t && zero", 0),
        ("(f || t) && 'y'", "y"),
        # short circuit: the right operand would be an error
        ("f && one < s", False),
        ("t || one < s", True),
        ("nil && fromJSON('{')", None),
        ("!one == f", True),
    ],
)
def test_logic_gives_the_operand(source: str, expected: Any) -> None:
    assert exactly(value(source), expected)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("one", "1", True),
        ("one", "onef", True),
        ("onef", "1", True),
        ("1", "1.0", True),
        ("0", "-0.0", True),
        ("big", "bigf", False),
        ("9007199254740993", "9007199254740993.0", False),
        ("huge", "10000000000000000000000000000000000000000", True),
        ("huge", "1e40", False),
        ("0x10", "16", True),
        ("t", "true", True),
        ("t", "one", False),
        ("one", "true", False),
        ("f", "0", False),
        ("zero", "false", False),
        ("f", "nil", False),
        ("t", "1", False),
        ("nil", "null", True),
        ("obj.missing", "null", True),
        ("nil", "es", False),
        ("nil", "0", False),
        ("digits", "1", False),
        ("1", "digits", False),
        ("yes", "true", False),
        ("s", "'abc'", True),
        ("s", "'ABC'", False),
        ("'abc'", "s", True),
        ("ea", "ea", True),
        ("ea", "eo", False),
        ("ea", "''", False),
        ("arr", 'fromJSON(\'[1.0, "two", null, [4], {"k": "v"}]\')', True),
        ("arr", 'fromJSON(\'[true, "two", null, [4], {"k": "v"}]\')', False),
        ("arr", "fromJSON('[1, \"two\", null, [4]]')", False),
        ('fromJSON(\'{"a":1,"b":2}\')', 'fromJSON(\'{"b":2,"a":1.0}\')', True),
        ("fromJSON('{\"a\":1}')", "fromJSON('{\"b\":1}')", False),
        ("fromJSON('{\"a\":1}')", "fromJSON('{\"a\":true}')", False),
        ("fromJSON('{\"a\":null}')", "eo", False),
    ],
)
def test_equality_is_typed_and_deep(left: str, right: str, equal: bool) -> None:
    for operator in ("==", "==="):
        assert value(f"{left} {operator} {right}") is equal
        assert value(f"{right} {operator} {left}") is equal
    for operator in ("!=", "!=="):
        assert value(f"{left} {operator} {right}") is not equal
        assert value(f"{right} {operator} {left}") is not equal


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("one < 2", True),
        ("one <= 1.0", True),
        ("one < onef", False),
        ("half > 0", True),
        ("big > bigf", True),
        ("bigf >= big", False),
        ("2 >= one", True),
        ("huge > 1e39", True),
        ("s < 'abd'", True),
        ("s <= s", True),
        ("'Z' < 'a'", True),
        ("'10' < '9'", True),
        # code points, not UTF-16 units
        ("'\uffee' < '\U0001f600'", True),
        ("es < s", True),
        ("1 < 2 == true", True),
        ("3 > 2 == 2 > 1", True),
        ("1 == 1 == true", True),
        ("1 == 2 == false != false", True),
    ],
)
def test_order(source: str, expected: bool) -> None:
    assert value(source) is expected


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
@pytest.mark.parametrize(
    "operands",
    ["1 {} '1'", "s {} 1", "t {} f", "nil {} nil", "one {} t", "t {} 1", "ea {} ea", "obj.missing {} 1"],
)
def test_order_of_other_types_is_an_error(operands: str, operator: str) -> None:
    source = operands.format(operator)
    with pytest.raises(EvaluationError) as caught:
        value(source)
    error = caught.value
    assert (error.reason, error.offset, error.expression) == ("type", source.index(operator), source)


def test_a_chain_of_relations_compares_a_boolean() -> None:
    with pytest.raises(EvaluationError) as caught:
        value("1 < 2 < 3")
    assert caught.value.offset == 6


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # o.name, o['name']
        ("obj.a", 1),
        ("obj['a']", 1),
        ("obj['k l']", 2),
        ("obj.b.c", [10, 20]),
        ("obj.n", None),
        ("obj.missing", None),
        ("obj.missing.deeper", None),
        ("nil.a", None),
        ("s.length", None),
        ("one.a", None),
        ("arr.length", None),
        ("arr.k", None),
        # a[i], a.0
        ("arr[0]", 1),
        ("arr[1]", "two"),
        ("arr[1.0]", "two"),
        ("arr[0x1]", "two"),
        ("arr.1", "two"),
        ("arr.3.0", 4),
        ("arr[3][0]", 4),
        ("arr.01", "two"),
        ("arr[one]", "two"),
        ("arr[onef]", "two"),
        ("arr[5]", None),
        ("arr.5", None),
        ("arr[-1]", None),
        ("arr[0.5]", None),
        ("arr[half]", None),
        ("arr[1e300]", None),
        ("arr['0']", None),
        ("arr[digits]", None),
        ("arr[t]", None),
        ("arr[nil]", None),
        ("arr[ea]", None),
        ("ea[0]", None),
        ("obj[0]", None),
        ("obj[one]", None),
        ("obj.0", "zero"),
        ("obj['0']", "zero"),
        ("obj.00", None),
        ("obj[nil]", None),
        ("s[0]", None),
        ("s.0", None),
        ("nil[0]", None),
        ("obj[arr[4].k]", None),
        ("obj['b']['c'][1]", 20),
        ("obj[s && 'a']", 1),
        ("('x').y", None),
        ("(nil || obj).a", 1),
        ("fromJSON('{\"a\":[7]}').a[0]", 7),
    ],
)
def test_references(source: str, expected: Any) -> None:
    assert exactly(value(source), expected)


def test_an_absent_root_is_null() -> None:
    assert parse("item.a || index").evaluate({}) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("arr.*", SCOPE["arr"]),
        ("arr[*]", SCOPE["arr"]),
        ("obj.*", [1, {"c": [10, 20]}, "zero", 2, None]),
        ("ea.*", []),
        ("eo.*", []),
        ("nil.*", []),
        ("s.*", []),
        ("one.*", []),
        ("obj.missing.*", []),
        ("d.by_name.*.v", [1, 2]),
        ("d.by_name[*]['v']", [1, 2]),
        ("d.orders.*.id", [1, 2, 3]),
        ("d.orders.*.items", [ORDERS["orders"][0]["items"], ORDERS["orders"][1]["items"]]),
        # `*` flattens; null stays, elements without the member go
        ("d.orders.*.items.*.sku", ["a", "b", "c"]),
        ("d.orders.*.items.*.n", [2, None]),
        ("d.orders.*.items[0].sku", ["a", "c"]),
        ("d.orders.*.items.0.sku", ["a", "c"]),
        ("d.orders.*.items[1].sku", ["b"]),
        ("d.orders.*.missing", []),
        ("d.orders.*[0]", [{"id": 9}]),
        ("d.orders.*[0].id", [9]),
        ("d.orders.*['id']", [1, 2, 3]),
        ("d.orders.*[nil]", []),
        ("d.orders.*[s && 'id']", [1, 2, 3]),
        ("nested.*.*", [1, 2, 3, 5]),
        ("nested.*[0]", [1, 3]),
        ("nested.*.0", [1, 3]),
        ("nested.*[one]", [2]),
        ("nested[0].*", [1, 2]),
        ("fromJSON('[[null],[1]]').*[0]", [None, 1]),
        # parentheses end a projection
        ("(d.orders.*.id)[1]", 2),
        ("(d.orders.*.id).0", 1),
        ("(d.orders.*).id", None),
        ("(d.orders.*.items.*)[2].sku", "c"),
        ("(nested.*.*)[3]", 5),
        ("((nested.*).*)[0]", [1, 2]),
        ("length(d.orders.*)", 6),
        ("contains(d.orders.*.id, 3)", True),
        ("join(d.orders.*.items.*.sku, '+')", "a+b+c"),
    ],
)
def test_projections(source: str, expected: Any) -> None:
    assert exactly(value(source), expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("contains('abc', 'b')", True),
        ("contains('abc', 'B')", False),
        ("contains('abc', '')", True),
        ("contains(s, s)", True),
        ("contains(arr, 1)", True),
        ("contains(arr, 1.0)", True),
        ("contains(arr, true)", False),
        ("contains(arr, '1')", False),
        ("contains(arr, null)", True),
        ("contains(arr, fromJSON('[4]'))", True),
        ('contains(arr, fromJSON(\'{"k":"v"}\'))', True),
        ("contains(ea, 1)", False),
        ("contains(nil, 1)", False),
        ("contains(obj.missing, 'x')", False),
        ("startsWith('abc', 'ab')", True),
        ("startsWith('abc', 'AB')", False),
        ("startsWith('abc', '')", True),
        ("startsWith(nil, 'a')", False),
        ("STARTSWITH('abc', 'ab')", True),
        ("endsWith('abc', 'bc')", True),
        ("endsWith('abc', 'ab')", False),
        ("endsWith(nil, 'a')", False),
        ("format('plain')", "plain"),
        ("format('{0}-{1}-{0}', s, one)", "abc-1-abc"),
        ("format('{0}{1}{2}{3}', nil, t, onef, half)", "true10.5"),
        ("format('{0} {1}', arr, eo)", '[1,"two",null,[4],{"k":"v"}] {}'),
        ("format('{{{0}}}', 1)", "{1}"),
        ("format('{{0}}', 1)", "{0}"),
        ("format('{{}}')", "{}"),
        ("format('{00}', 1)", "1"),
        ("format('{0}', '{1}{')", "{1}{"),
        ("format('', 1, 2)", ""),
        ("toJSON(obj)", '{"a":1,"b":{"c":[10,20]},"0":"zero","k l":2,"n":null}'),
        ("toJSON(s)", '"abc"'),
        ("toJSON(nil)", "null"),
        ("toJSON('é\"\n')", '"é\\"\\n"'),
        ("toJSON(huge)", str(10**40)),
        ("toJSON(half)", "0.5"),
        ('fromJSON(\'{"b":1,"a":[true,null,1.5,"x"]}\')', {"b": 1, "a": [True, None, 1.5, "x"]}),
        ("fromJSON(' 12 ')", 12),
        ("fromJSON('123456789012345678901234567890')", 123456789012345678901234567890),
        ("fromJSON('\"\\ud83d\\ude00\"')", "😀"),
        ("fromJSON(toJSON(d)) == d", True),
        ("join(arr)", '1,two,,[4],{"k":"v"}'),
        ("join(arr.*, '')", '1two[4]{"k":"v"}'),
        ("join(ea, ', ')", ""),
        ("join(nil)", ""),
        ("join(fromJSON('[true,1.0,\"x\"]'), ', ')", "true, 1, x"),
        ("length('abc')", 3),
        ("length('😀é')", 2),
        ("length(arr)", 5),
        ("length(obj)", 5),
        ("length(nil)", 0),
        ("length(es)", 0),
        ("length(ea)", 0),
        ("length(eo)", 0),
        ("case(f, 1, t, 2, 3)", 2),
        ("case(t, 1, t, 2, 3)", 1),
        ("case(f, 1, f, 2, 3)", 3),
        ("case(f, 1, 3)", 3),
        # branches that are not taken are not run, nor conditions after the one that holds
        ("case(t, 1, one < s)", 1),
        ("case(f, fromJSON('{'), t, 2, fromJSON('{'))", 2),
        ("case(t, 1, one, 2, 3)", 1),
        ("success()", True),
        ("Failure()", False),
        ("cancelled()", True),
        ("always()", True),
        ("always() && !failure()", True),
    ],
)
def test_functions(source: str, expected: Any) -> None:
    assert exactly(value(source), expected)


@pytest.mark.parametrize(
    ("source", "reason", "offset"),
    [
        ("contains(1, 1)", "type", 0),
        ("contains(t, 1)", "type", 0),
        ("contains(obj, 'a')", "type", 0),
        ("contains('1', 1)", "type", 0),
        ("contains('a', null)", "type", 0),
        ("startsWith(1, '1')", "type", 0),
        ("startsWith('1', 1)", "type", 0),
        ("startsWith('1', null)", "type", 0),
        ("endsWith(arr, 'x')", "type", 0),
        ("endsWith('x', arr)", "type", 0),
        ("format(1)", "type", 0),
        ("format(null, 1)", "type", 0),
        ("format('{0}')", "format", 0),
        ("format('{1}', 1)", "format", 0),
        ("format('{99999999999999999999}', 1)", "format", 0),
        ("format('{', 1)", "format", 0),
        ("format('}', 1)", "format", 0),
        ("format('{}', 1)", "format", 0),
        ("format('{ 0 }', 1)", "format", 0),
        ("format('{0:x}', 1)", "format", 0),
        ("format('{-1}', 1)", "format", 0),
        ("format('{{0}', 1)", "format", 0),
        ("format('{a}', 1)", "format", 0),
        ("fromJSON('')", "from_json", 0),
        ("fromJSON('{')", "from_json", 0),
        ("fromJSON('{a:1}')", "from_json", 0),
        ("fromJSON('NaN')", "from_json", 0),
        ("fromJSON('Infinity')", "from_json", 0),
        ("fromJSON('1e999')", "from_json", 0),
        ("fromJSON('01')", "from_json", 0),
        ("fromJSON('[1,]')", "from_json", 0),
        ("fromJSON('\"\\ud800\"')", "from_json", 0),
        ("fromJSON('1 2')", "from_json", 0),
        ("fromJSON('\ufeff1')", "from_json", 0),
        ("fromJSON(1)", "type", 0),
        ("fromJSON(null)", "type", 0),
        ("fromJSON(obj)", "type", 0),
        ("join('abc')", "type", 0),
        ("join(obj)", "type", 0),
        ("join(1)", "type", 0),
        ("join(arr, 1)", "type", 0),
        ("join(arr, null)", "type", 0),
        ("length(1)", "type", 0),
        ("length(t)", "type", 0),
        ("case(1, 1, 2)", "type", 5),
        ("case(nil, 1, 2)", "type", 5),
        ("case(f, 1, s, 2, 3)", "type", 11),
        ("t && length(1)", "type", 5),
        ("obj[length(1)]", "type", 4),
        ("one == 1 && (s < 1)", "type", 15),
        ("arr.*[length(t)]", "type", 6),
    ],
)
def test_run_time_errors(source: str, reason: str, offset: int) -> None:
    with pytest.raises(EvaluationError) as caught:
        value(source)
    error = caught.value
    assert (error.reason, error.offset, error.expression) == (reason, offset, source)
    assert error.details("/workflow/steps/0/if") == {
        "path": "/workflow/steps/0/if",
        "expression": source,
        "offset": offset,
        "reason": reason,
    }


def test_errors_hold_no_values() -> None:
    for source in ("fromJSON(secret)", "secret < 1", "format(secret)", "length(secret) < secret"):
        with pytest.raises(EvaluationError) as caught:
            parse(source, roots=("secret",)).evaluate({"secret": "{hunter2"})
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_status_functions_need_a_status() -> None:
    assert parse("always()").evaluate({}) is True
    with pytest.raises(EvaluationError, match=r"success\(\) needs the status"):
        parse("success()").evaluate({})


def test_any_mapping_is_an_object_and_a_tuple_an_array() -> None:
    scope = MappingProxyType({"item": MappingProxyType({"a": (1, MappingProxyType({"b": 2}))})})
    assert parse("item.a[1].b").evaluate(scope) == 2
    assert parse("item.*.*.b").evaluate(scope) == [2]
    assert parse("toJSON(item)").evaluate(scope) == '{"a":[1,{"b":2}]}'
    assert parse("item == fromJSON(toJSON(item))").evaluate(scope) is True


def test_values_are_shared_not_copied_and_never_changed() -> None:
    inner = [1, 2]
    assert parse("item.a").evaluate({"item": {"a": inner}}) is inner
    assert parse("item.*").evaluate({"item": inner}) is not inner
    assert inner == [1, 2]
