"""Templates: page 001 §6.4, and the braces of the graph format."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.expressions import (
    EvaluationError,
    ExpressionError,
    compile_template,
    escape_braces,
    to_text,
)

BOTH = ("${{", "{{")
SCOPE: dict[str, Any] = {
    "inputs": {
        "s": "abc",
        "n": 3,
        "f": 2.0,
        "o": {"k": [1, None]},
        "nil": None,
        "t": True,
        "tpl": "${{ inputs.s }}",
    },
    "item": [1, 2],
}


def evaluated(value: Any, **options: Any) -> Any:
    return compile_template(value, **options).evaluate(SCOPE)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # one expression, at most white space around it: the typed value
        ("${{ inputs.n }}", 3),
        ("${{inputs.n}}", 3),
        ("  ${{ inputs.o }}\n", {"k": [1, None]}),
        ("\t${{ inputs.nil }}\r\n", None),
        ("${{ inputs.t }}", True),
        ("${{ item }}", [1, 2]),
        ("${{ inputs.missing }}", None),
        # any other string: text
        ("x-${{ null }}-${{ true }}", "x--true"),
        ("${{ inputs.n }}${{ inputs.n }}", "33"),
        ("${{ inputs.n }} ${{ inputs.n }}", "3 3"),
        ("<${{ inputs.o }}>", '<{"k":[1,null]}>'),
        ("${{ inputs.f }}!", "2!"),
        ("a ${{ inputs.s }} b", "a abc b"),
        ("$${{ inputs.s }}", "$abc"),
        ("{${{ inputs.s }}}", "{abc}"),
        ("\u00a0${{ inputs.n }}", "\u00a03"),
        # literals
        ("plain", "plain"),
        ("", ""),
        ("{{ inputs.s }}", "{{ inputs.s }}"),
        ("$ {{", "$ {{"),
        ("}} $ {", "}} $ {"),
        ("${{ '${{' }}", "${{"),
        ("a ${{ '${{' }} b", "a ${{ b"),
        ("${{ '}}' }}", "}}"),
        ('${{ "}}" }}.', "}}."),
        ("${{ 'it''s }}' }}", "it's }}"),
        ("${{ '\"' }}${{ \"'\" }}", "\"'"),
        # one pass: values are data
        ("${{ inputs.tpl }}", "${{ inputs.s }}"),
        ("<${{ inputs.tpl }}>", "<${{ inputs.s }}>"),
        # no strings
        (5, 5),
        (None, None),
        (True, True),
    ],
)
def test_strings(template: Any, expected: Any) -> None:
    result = evaluated(template)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("${{ inputs.n }}", "3"),
        (" ${{ inputs.n }}\n", "3"),
        ("${{ inputs.nil }}", ""),
        ("${{ inputs.o }}", '{"k":[1,null]}'),
        ("${{ inputs.t }} ", "true"),
        ("a ${{ inputs.s }}", "a abc"),
        (" plain ", " plain "),
    ],
)
def test_text_fields_give_text(template: str, expected: str) -> None:
    assert evaluated(template, text=True) == expected


def test_strings_at_any_depth_but_never_keys() -> None:
    value = {
        "${{ inputs.s }}": "k",
        "a": [{"b": "${{ inputs.n }}"}, "x${{ inputs.n }}", 1],
        "c": {"d": {"e": "${{ item[0] }}"}},
        "f": {"untouched": [1, 2]},
    }
    template = compile_template(value)
    assert template.evaluate(SCOPE) == {
        "${{ inputs.s }}": "k",
        "a": [{"b": 3}, "x3", 1],
        "c": {"d": {"e": 1}},
        "f": {"untouched": [1, 2]},
    }
    assert list(template.evaluate(SCOPE)) == list(value)
    assert value["a"] == [{"b": "${{ inputs.n }}"}, "x${{ inputs.n }}", 1]
    assert [(path, offset, e.source) for path, offset, e in template.expressions] == [
        ("/a/0/b", 4, "inputs.n"),
        ("/a/1", 5, "inputs.n"),
        ("/c/d/e", 4, "item[0]"),
    ]


def test_pointers_are_escaped() -> None:
    template = compile_template({"a/b": {"m~n": ["${{ item }}"]}})
    assert [path for path, _, _ in template.expressions] == ["/a~1b/m~0n/0"]


def test_constants_are_recognised() -> None:
    for value in (None, 1, "x", "{{ x }}", {"a": ["b", {"c": 1}]}, [], {}, {"${{ inputs.s }}": 1}):
        template = compile_template(value)
        assert template.evaluate({}) is value
        assert template.expressions == ()


def test_two_braces_equal_three_characters_where_asked_for() -> None:
    assert evaluated("{{ inputs.n }}", braces=BOTH) == 3
    assert evaluated("{{inputs.n}}-${{ inputs.n }}", braces=BOTH) == "3-3"
    assert evaluated("{ {{ inputs.n }} }", braces=BOTH) == "{ 3 }"
    with pytest.raises(ExpressionError):
        compile_template("{{", braces=BOTH)


@pytest.mark.parametrize(
    ("template", "code", "offset"),
    [
        ("abc ${{ inputs.s", "E_EXPR_UNCLOSED", 4),
        ("abc ${{ 'x }} y", "E_EXPR_UNCLOSED", 8),
        ("${{ inputs.s }} ${{", "E_EXPR_UNCLOSED", 16),
        ("${{ }}", "E_EXPR_SYNTAX", 6 - 2),
        ("ab${{  inputs = 1 }}", "E_EXPR_SYNTAX", 14),
        ("ab${{  input.x }}", "E_EXPR_NAME", 7),
        ("ab${{ size(1) }}", "E_EXPR_FUNCTION", 6),
        ("${{ ${{ inputs.s }} }}", "E_EXPR_SYNTAX", 4),
    ],
)
def test_errors_have_offset_and_path(template: str, code: str, offset: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_template({"a": [template]})
    error = caught.value
    assert (error.code, error.offset, error.path) == (code, offset, "/a/0")


def test_all_errors_at_once() -> None:
    errors: list[ExpressionError] = []
    compile_template(
        {"a": "${{ input.x == itm }} ${{ 1 = }}", "b": ["${{ inputs.s }}", "x ${{"]}, errors=errors
    )
    found = [(e.path, e.code, e.offset) for error in errors for e in (error, *error.also)]
    assert found == [
        ("/a", "E_EXPR_NAME", 4),
        ("/a", "E_EXPR_NAME", 15),
        ("/a", "E_EXPR_SYNTAX", 28),
        ("/b/1", "E_EXPR_UNCLOSED", 2),
    ]


def test_no_more_errors_than_a_document_reports() -> None:
    errors: list[ExpressionError] = []
    compile_template(["${{ a }}" * 50_000, "${{ b }}"], errors=errors)
    assert len(errors) == 200
    assert errors[-1].offset == 199 * 8 + 4


def test_roots_and_functions_are_passed_on() -> None:
    assert compile_template("${{ message.x }}", roots=("message",)).evaluate({"message": {"x": 1}}) == 1
    with pytest.raises(ExpressionError):
        compile_template("${{ length(item) }}", functions=())


def test_a_run_time_error_names_its_place() -> None:
    template = compile_template({"a": ["ok", "x ${{ length(inputs.n) }}"]})
    with pytest.raises(EvaluationError) as caught:
        template.evaluate(SCOPE)
    assert caught.value.details("/workflow/steps/0/agent/input") == {
        "path": "/workflow/steps/0/agent/input/a/1",
        "expression": "length(inputs.n)",
        "offset": 0,
        "reason": "type",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-12, "-12"),
        (10**40, "1" + "0" * 40),
        (1.0, "1"),
        (-3.0, "-3"),
        (0.1, "0.1"),
        (1e-7, "1e-7"),
        (123456789.25, "123456789.25"),
        (999999999999999.0, "999999999999999"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (5e-324, "5e-324"),
        ("", ""),
        ('a "b"\n', 'a "b"\n'),
        ([], "[]"),
        ({}, "{}"),
        ([1, 1.0, None, True, "é", {"b": 1, "a": []}], '[1,1.0,null,true,"é",{"b":1,"a":[]}]'),
    ],
)
def test_text_form(value: Any, text: str) -> None:
    assert to_text(value) == text
    assert evaluated("${{ item }}|", roots=("item",)) != ""
    assert compile_template("${{ item }}|").evaluate({"item": value}) == text + "|"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("no braces", "no braces"),
        ("{ {", "{ {"),
        ("{{", "${{ '{{' }}"),
        ("a {{ b }} c", "a ${{ '{{' }} b }} c"),
        ("{{{", "${{ '{{' }}{"),
        ("{{{{", "${{ '{{' }}${{ '{{' }}"),
        ("${{ inputs.s }}", "${{ inputs.s }}"),
        ("{{${{ inputs.s }}}}", "${{ '{{' }}${{ inputs.s }}}}"),
        ("${{ '{{' }}", "${{ '{{' }}"),
        ("${{ '{{ }}' }} {{", "${{ '{{ }}' }} ${{ '{{' }}"),
        (" {{\n", "${{ ' {{\n' }}"),
        ("{${{ inputs.s }}", "{${{ inputs.s }}"),
        ("$ {{", "$ ${{ '{{' }}"),
        ("{{ ${{ inputs.s", "${{ '{{' }} ${{ inputs.s"),
    ],
)
def test_escape_braces(text: str, escaped: str) -> None:
    assert escape_braces(text) == escaped
    if text.endswith("inputs.s"):
        for reading, braces in ((text, ("${{",)), (escaped, BOTH)):
            with pytest.raises(ExpressionError) as caught:
                compile_template(reading, braces=braces)
            assert caught.value.code == "E_EXPR_UNCLOSED"
        return
    for as_text in (False, True):
        assert evaluated(escaped, braces=BOTH, text=as_text) == evaluated(text, text=as_text)
