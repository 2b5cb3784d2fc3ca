"""The strict JSON parser: what RFC 8259 refuses is refused, and every value knows its place."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.definition.report import Fatal, Report
from agentflow.definition.source import read_node
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Array, Object, Positions, Scalar, to_value


def read(text: str):
    report = Report()
    return read_node(Source(text, "json"), report), report.diagnostics()


def refusal(text: str):
    report = Report()
    with pytest.raises(Fatal):
        read_node(Source(text, "json"), report)
    (diagnostic,) = report.diagnostics()
    return diagnostic


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


@given(json_values, st.sampled_from([None, 0, 2, "\t", " \r\n"]), st.booleans())
def test_reads_what_the_standard_library_writes(value, indent, ascii_only):
    node, diagnostics = read(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert diagnostics == []
    assert json.dumps(to_value(node)) == json.dumps(value)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, 1),
        ("  \n ", 2, 2),
        ("{", 1, 2),
        ('{"a": 1,}', 1, 9),
        ('{"a" 1}', 1, 6),
        ("{a: 1}", 1, 2),
        ("{'a': 1}", 1, 2),
        ('{"a": 1 "b": 2}', 1, 9),
        ("[1,\n 2,]", 2, 4),
        ("[1 2]", 1, 4),
        ('{"a": 1} x', 1, 10),
        ("[01]", 1, 2),
        ("[+1]", 1, 2),
        ("[.5]", 1, 2),
        ("[5.]", 1, 2),
        ("[1e]", 1, 2),
        ("[-]", 1, 2),
        ("[0x1F]", 1, 2),
        ("[NaN]", 1, 2),
        ("[Infinity]", 1, 2),
        ("[1e999]", 1, 2),
        ("[-1e999]", 1, 2),
        ("[٣]", 1, 2),
        ("[True]", 1, 2),
        ("[truefalse]", 1, 2),
        ("// x\n{}", 1, 1),
        ("[1\u00a0]", 1, 3),
        ('["a\nb"]', 1, 2),
        ('["a\tb"]', 1, 4),
        ('["a', 1, 2),
        (r'["ab\x"]', 1, 5),
        (r'["\u12G4"]', 1, 3),
        (r'["\ud83d"]', 1, 3),
        (r'["\ude00"]', 1, 3),
        (r'["\ud83d\u0041"]', 1, 3),
        (r'["\ud83dx"]', 1, 3),
    ],
)
def test_refuses_what_is_not_json(text, line, column):
    diagnostic = refusal(text)
    assert (diagnostic.code, diagnostic.line, diagnostic.column) == ("E_SYNTAX", line, column)


def test_a_surrogate_pair_is_one_character():
    node, _ = read(r'["\ud83d\ude00"]')
    assert to_value(node) == ["\N{GRINNING FACE}"]


def test_integers_are_exact_and_floats_are_floats():
    node, _ = read("[123456789012345678901234567890, 1.0, 1e2, -0, 9007199254740993]")
    value = to_value(node)
    assert value == [123456789012345678901234567890, 1.0, 100.0, 0, 9007199254740993]
    assert [type(item) for item in value] == [int, float, float, int, int]
    assert math.isfinite(value[2])


def test_every_value_and_key_has_its_place():
    node, _ = read('{\r\n  "ключ": [1, {"b": null}],\r\n\t"c/~": "x"\r\n}')
    assert isinstance(node, Object)
    positions = Positions(node)
    assert (node.line, node.column) == (1, 1)
    assert positions.key_at("/ключ") == (2, 3)
    assert positions.at("/ключ") == (2, 11)
    assert positions.at("/ключ/1/b") == (2, 21)
    assert positions.key_at("/ключ/1/b") == (2, 16)
    assert positions.key_at("/ключ/1") == (2, 15)
    assert positions.key_at("/c~1~0") == (3, 2)
    assert positions.at("/c~1~0") == (3, 9)
    assert positions.at("/ключ/7/nothing") == (2, 11)


def test_a_repeated_key_is_reported_and_the_first_one_kept():
    node, diagnostics = read('{"a": 1, "b": {"a": 2, "a": 3},\n "a": 4}')
    assert to_value(node) == {"a": 1, "b": {"a": 2}}
    assert [(d.code, d.line, d.column, d.path) for d in diagnostics] == [
        ("E_DUPLICATE_KEY", 1, 24, "/b/a"),
        ("E_DUPLICATE_KEY", 2, 2, "/a"),
    ]
    assert diagnostics[1].message == 'key "a" is repeated, first at 1:2'


def test_depth_64_is_read_and_65_is_not():
    node, _ = read("[" * 64 + "]" * 64)
    assert isinstance(node, Array)
    diagnostic = refusal("[" * 65 + "]" * 65)
    assert (diagnostic.code, diagnostic.column) == ("E_LIMIT", 65)


def test_a_hundred_thousand_values_are_read_and_one_more_is_not():
    read("[" + "1," * 99_998 + "1]")
    assert refusal("[" + "1," * 99_999 + "1]").code == "E_LIMIT"


def test_a_thousand_digits_are_read_and_one_more_is_not():
    node, _ = read("[" + "9" * 1000 + "]")
    assert to_value(node) == [10**1000 - 1]
    assert refusal("[" + "9" * 1001 + "]").code == "E_LIMIT"
    assert refusal("[0." + "9" * 1000 + "]").code == "E_LIMIT"


@pytest.mark.parametrize(
    "text", ["[" * 500_000, '{"a":' * 200_000, "[" + '"\\' * 400_000, '["' + "a" * 900_000]
)
def test_hostile_texts_are_refused_at_once(text):
    assert refusal(text).code in ("E_LIMIT", "E_SYNTAX")


def test_scalars_know_where_their_text_begins():
    source = Source('{"a": "x ${{ y }}", "b": "\\u0078 ${{ y }}"}', "json")
    node = read_node(source, Report())
    assert isinstance(node, Object)
    plain, escaped = node.members["a"].node, node.members["b"].node
    assert isinstance(plain, Scalar)
    assert source.place(plain, 6) == (1, 14)
    assert source.place(escaped, 6) == (1, 26)
