"""Laws that hold for every text and every value."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.definition.expressions import (
    EvaluationError,
    Expression,
    ExpressionError,
    compile_template,
    escape_braces,
    parse,
    parse_whole,
    to_text,
    unparse,
)
from agentflow.definition.expressions import nodes as n

BOTH = ("${{", "{{")
quick = settings(max_examples=150, deadline=None, derandomize=True)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
SCOPES = st.fixed_dictionaries({"steps": JSON, "inputs": JSON, "item": JSON, "index": st.integers(0, 3)})

# Words that make texts which nearly parse, and templates which nearly close.
WORDS = st.sampled_from(
    [
        *(
            "steps",
            "inputs",
            "item",
            "index",
            ".",
            ".a",
            "['a']",
            "[0]",
            ".0",
            ".*",
            "[*]",
            "(",
            ")",
            "[",
            "]",
        ),
        *(",", "!", "==", "!=", "===", "<", ">=", "&&", "||", "=", "&", "'x'", "''", '"y"', '"\\u0041"', "1"),
        *("null", "true", "-2.5", "0x1f", "1e3", "contains(", "startsWith(", "format(", "toJSON(", "join("),
        *(
            "fromJSON(",
            "length(",
            "case(",
            "success(",
            "foo(",
            "${{",
            "}}",
            "{{",
            "{",
            "}",
            "$",
            "'",
            '"',
            "\\",
        ),
    ]
)
SOUP = (
    st.lists(WORDS, max_size=14).map(" ".join)
    | st.lists(WORDS, max_size=14).map("".join)
    | st.text(max_size=20)
)


def literals() -> st.SearchStrategy[n.Node]:
    values = (
        st.none()
        | st.booleans()
        | st.integers(-(10**30), 10**30)
        | st.floats(allow_nan=False, allow_infinity=False)
        | TEXT
    )
    return values.map(lambda value: n.Lit(value, 0))


def trees(inner: st.SearchStrategy[n.Node]) -> st.SearchStrategy[n.Node]:
    names = st.sampled_from(["a", "b-c", "null", "_x", "k l", "0", ""]) | TEXT
    segment = (
        names.map(lambda name: n.Member(name, 0))
        | st.sampled_from(["0", "7", "01"]).map(lambda text: n.Digits(text, 0))
        | st.just(n.Star(0))
        | inner.map(lambda key: n.Index(key, 0))
    )
    segments = st.lists(segment, max_size=3).map(tuple)
    operands = st.lists(inner, min_size=2, max_size=3).map(tuple)
    call = st.one_of(
        st.tuples(st.just("contains"), st.tuples(inner, inner)),
        st.tuples(st.just("toJSON"), st.tuples(inner)),
        st.tuples(st.just("format"), st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.tuples(st.just("join"), st.tuples(inner)),
        st.tuples(st.just("length"), st.tuples(inner)),
        st.tuples(st.just("case"), st.tuples(inner, inner, inner)),
    ).map(lambda parts: n.Call(parts[0], parts[1], 0))

    def compare(operators: list[str]) -> st.SearchStrategy[n.Node]:
        rest = st.lists(st.tuples(st.sampled_from(operators), inner, st.just(0)), min_size=1, max_size=2)
        return st.builds(lambda first, rest: n.Compare(first, tuple(rest), 0), inner, rest)

    return st.one_of(
        st.builds(lambda root, s: n.Path(root, s, 0), st.sampled_from(["steps", "inputs", "item"]), segments),
        st.builds(lambda base, s: n.Path(base, s, 0), inner, segments.filter(bool)),
        inner.map(lambda operand: n.Not(operand, 0)),
        st.builds(lambda op, o: n.Logic(op, o, 0), st.sampled_from(["&&", "||"]), operands),
        compare(["==", "!=", "===", "!=="]),
        compare(["<", "<=", ">", ">="]),
        call,
    )


TREES = st.recursive(literals(), trees, max_leaves=12)


def outcome(expression: Expression, scope: dict[str, Any]) -> Any:
    try:
        return repr(expression.evaluate(scope))
    except EvaluationError as error:
        return error.reason


@given(SOUP, SCOPES)
@quick
def test_any_text_parses_or_is_refused_and_then_evaluates_or_fails(text: str, scope: dict[str, Any]) -> None:
    for read in (parse, lambda t: parse_whole(t, bare=True), lambda t: parse_whole(t, bare=False)):
        refused: ExpressionError | EvaluationError | None = None
        try:
            expression = read(text)
            for reference in expression.references:
                assert all(0 <= offset < len(text) for offset in reference.offsets)
                assert len(reference.path) == len(reference.kinds) == len(reference.offsets)
            expression.evaluate(scope)
        except (ExpressionError, EvaluationError) as error:
            refused = error
        assert refused is None or 0 <= refused.offset <= len(text)
        assert refused is None or refused.code.startswith("E_EXPR_") or refused.code == "expression_error"


@given(TREES, SCOPES)
@quick
def test_the_text_of_a_tree_means_the_tree(tree: n.Node, scope: dict[str, Any]) -> None:
    read = parse(unparse(tree))
    printed = unparse(read)
    again = parse(printed)
    assert unparse(again) == printed
    meant = outcome(Expression("", tree, frozenset(), frozenset(), 0), scope)
    assert outcome(read, scope) == outcome(again, scope) == meant


@given(SOUP)
@quick
def test_what_parses_is_stable_once_printed(text: str) -> None:
    try:
        first = unparse(parse(text))
    except ExpressionError:
        return
    assert unparse(parse(first)) == first


@given(TREES, SCOPES)
@quick
def test_evaluation_is_pure_and_its_result_is_json_within_the_limit(
    tree: n.Node, scope: dict[str, Any]
) -> None:
    before = repr(scope)
    expression = parse(unparse(tree))
    try:
        value = expression.evaluate(scope)
    except EvaluationError:
        pass
    else:
        assert len(msgspec.json.encode(value)) <= 1_048_576
        assert repr(expression.evaluate(scope)) == repr(value)
    assert repr(scope) == before


@given(JSON)
@quick
def test_json_text_round_trips(value: Any) -> None:
    scope = {"item": value}
    assert parse("fromJSON(toJSON(item)) == item").evaluate(scope) is True
    assert repr(json.loads(parse("toJSON(item)").evaluate(scope))) == repr(value)


@given(JSON)
@quick
def test_text_form_round_trips(value: Any) -> None:
    text = to_text(value)
    assert compile_template("<${{ item }}>").evaluate({"item": value}) == f"<{text}>"
    if isinstance(value, str):
        assert text == value
    elif value is None:
        assert text == ""
    elif isinstance(value, float):
        assert float(text) == value
    else:
        assert repr(json.loads(text)) == repr(value)


@given(JSON, JSON)
@quick
def test_equality_is_an_equivalence_and_order_is_total_on_its_types(a: Any, b: Any) -> None:
    scope = {"item": a, "inputs": b}
    equal = parse("item == inputs").evaluate(scope)
    assert parse("item == item").evaluate(scope) is True
    assert parse("inputs == item").evaluate(scope) is equal
    assert parse("item != inputs").evaluate(scope) is not equal
    assert parse("item === fromJSON(toJSON(item))").evaluate(scope) is True
    try:
        less, more = (parse(f"item {op} inputs").evaluate(scope) for op in "<>")
    except EvaluationError as error:
        reason = error.reason
    else:
        reason = None
        assert less + more + equal == 1
    assert reason in (None, "type")


@given(JSON)
@quick
def test_a_template_without_expressions_is_its_value(value: Any) -> None:
    if "{{" in repr(value):
        return
    template = compile_template(value, braces=BOTH)
    assert template.expressions == ()
    assert template.evaluate({}) is value


@given(SOUP, SCOPES, st.booleans())
@quick
def test_escaped_braces_mean_the_same(text: str, scope: dict[str, Any], as_text: bool) -> None:
    try:
        template = compile_template(text, text=as_text)
    except ExpressionError:
        with pytest.raises(ExpressionError):
            compile_template(escape_braces(text), braces=BOTH, text=as_text)
        return
    escaped = compile_template(escape_braces(text), braces=BOTH, text=as_text)

    def run(t: Any) -> Any:
        try:
            return repr(t.evaluate(scope))
        except EvaluationError as error:
            return error.reason

    assert run(escaped) == run(template)


@given(TEXT, JSON)
@quick
def test_inserted_text_is_never_a_template(text: str, value: Any) -> None:
    inserted = f"{text}${{{{ item }}}}"
    assert compile_template("x${{ inputs }}").evaluate({"inputs": inserted, "item": value}) == "x" + inserted
