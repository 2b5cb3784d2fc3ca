"""The grammar of page 001 §6.2: what parses, what does not, and where the problem stands."""

from __future__ import annotations

import pytest

from agentflow.definition.expressions import ExpressionError, parse, parse_whole, unparse

ROOTS = ("a", "b", "c", "steps", "inputs")


def canonical(source: str) -> str:
    return unparse(parse(source, roots=ROOTS))


def problem(source: str, **options: object) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        parse(source, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # literals
        ("null", "null"),
        ("true", "true"),
        ("false", "false"),
        ("0", "0"),
        ("-12", "-12"),
        ("1.50", "1.5"),
        ("1e3", "1000.0"),
        ("-2.5E-1", "-0.25"),
        ("0x1f", "31"),
        ("'it''s'", "'it''s'"),
        ('"say \\"hi\\""', "'say \"hi\"'"),
        ('"\\u0041\\ud83d\\ude00\\n\\\\"', "'A😀\n\\'"),
        ("'a\nb'", "'a\nb'"),
        ("''", "''"),
        ('""', "''"),
        # references
        ("a", "a"),
        ("a.b-c.d_e", "a.b-c.d_e"),
        ("a . b\n.\tc", "a.b.c"),
        ("a['b']", "a.b"),
        ("a['b c']", "a['b c']"),
        ('a["b"]', "a.b"),
        ("a['']", "a['']"),
        ("a['0']", "a['0']"),
        ("a[0]", "a[0]"),
        ("a[ -1 ]", "a[-1]"),
        ("a.0", "a.0"),
        ("a.0.1.2", "a.0.1.2"),
        ("a[0].1.b", "a[0].1.b"),
        ("a.1[2].3", "a.1[2].3"),
        ("a.007", "a.007"),
        ("a.*", "a.*"),
        ("a[*]", "a.*"),
        ("a[ * ] [0]", "a.*[0]"),
        ("a.*.b.*", "a.*.b.*"),
        ("a[b.c]", "a[b.c]"),
        ("a[b == c]", "a[b == c]"),
        ("a[('x')]", "a.x"),
        # a keyword after "." is a name
        ("a.null.true.false", "a.null.true.false"),
        ("a.steps", "a.steps"),
        # parentheses
        ("(a)", "a"),
        ("((a)).b", "a.b"),
        ("(a.b).c", "a.b.c"),
        ("(a.*).b", "(a.*).b"),
        ("(a.*)", "a.*"),
        ("((a.*).b).c", "(a.*).b.c"),
        ("('x').y", "('x').y"),
        ("(null)[0]", "(null)[0]"),
        ("(a || b).c", "(a || b).c"),
        ("fromJSON(a).b[0]", "fromJSON(a).b[0]"),
        # calls
        ("length(a)", "length(a)"),
        ("LENGTH (a)", "length(a)"),
        ("tojson( a )", "toJSON(a)"),
        ("success()", "success()"),
        ("format('x',a , b)", "format('x', a, b)"),
        # operators, tightest first; those of one level from the left
        ("!a", "!a"),
        ("!!a", "!!a"),
        ("! a.b", "!a.b"),
        ("!a == b", "!a == b"),
        ("!(a == b)", "!(a == b)"),
        ("a<b==b>=c", "a < b == b >= c"),
        ("a < (b == c)", "a < (b == c)"),
        ("a == b != c", "a == b != c"),
        ("a == (b != c)", "a == (b != c)"),
        ("(a == b) != c", "(a == b) != c"),
        ("a===b!==c", "a === b !== c"),
        ("a && b || b && c", "a && b || b && c"),
        ("a && (b || c)", "a && (b || c)"),
        ("a || (b && c)", "a || b && c"),
        ("a == b && b < c || !c", "a == b && b < c || !c"),
        # "-" belongs to names and numbers
        ("a-b", None),
        ("a -1", None),
        ("a ==-1", "a == -1"),
        ("a.b-1", "a.b-1"),
        # white space
        ("\t\r\n a \n", "a"),
        ("a\r\n||\tb", "a || b"),
    ],
)
def test_canonical_text(source: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ExpressionError):
            canonical(source)
        return
    assert canonical(source) == expected
    assert canonical(expected) == expected


@pytest.mark.parametrize(
    ("source", "offset", "message", "hint"),
    [
        ("", 0, "empty", None),
        (" \n ", 0, "empty", None),
        ("inputs = 1", 7, 'unexpected "="', "compare with =="),
        ("inputs & item", 7, 'unexpected "&"', "write &&"),
        ("inputs and item", 7, 'unexpected "and"', "write &&"),
        ("inputs | item", 7, 'unexpected "|"', "write ||"),
        ("inputs or item", 7, 'unexpected "or"', "write ||"),
        ("not inputs", 4, 'unexpected "inputs"', "write !"),
        ("item in inputs", 5, 'unexpected "in"', "contains"),
        ("item ? 1 : 2", 5, 'unexpected "?"', "case("),
        ("index + 1", 6, 'unexpected "+"', "arithmetic"),
        ("index - 1", 6, 'unexpected "-"', "arithmetic"),
        ("index -1", 6, 'unexpected "-1"', "arithmetic"),
        ("index * 2", 6, 'unexpected "*"', None),
        ("item <> 1", 6, 'unexpected ">"', "!="),
        ("item ==", 7, "ends too early", None),
        ("(item", 5, "ends too early", None),
        ("item)", 4, 'unexpected ")"', None),
        ("item[0", 6, 'expected "]"', None),
        ("item[]", 5, 'unexpected "]"', None),
        ("item[* ,", 7, 'expected "]"', None),
        ("length(item", 11, 'expected ")"', None),
        ("length(item,)", 12, 'unexpected ")"', None),
        ("length(,item)", 7, 'unexpected ","', None),
        ("item.", 4, 'unexpected "."', None),
        ("item..id", 4, 'unexpected "."', None),
        (".item", 0, 'unexpected ".item"', None),
        ("item.-1", 4, 'unexpected "."', None),
        ("item.0b", 4, 'unexpected "."', None),
        ("item.*b", 6, 'unexpected "b"', None),
        ("item inputs", 5, 'unexpected "inputs"', None),
        ("item 'x'", 5, "unexpected string 'x'", None),
        ("'x'.y", 3, 'unexpected ".y"', "parentheses"),
        ("'x'[0]", 3, 'unexpected "["', "parentheses"),
        ("1[0]", 1, 'unexpected "["', "parentheses"),
        ("null.x", 4, 'unexpected "."', "no members"),
        ("true [0]", 5, 'unexpected "["', "parentheses"),
        ("!", 1, "ends too early", None),
        ("== 1", 0, 'unexpected "=="', None),
        ("item.x('a')", 6, 'unexpected "("', None),
        ("1.", 0, '"1." is not a number', None),
        ("1.5.2", 0, '"1.5.2" is not a number', None),
        ("01", 0, '"01" is not a number', None),
        ("1-1", 0, '"1-1" is not a number', None),
        ("1a", 0, '"1a" is not a number', None),
        ("0x", 0, '"0x" is not a number', None),
        ("0X1F", 0, '"0X1F" is not a number', None),
        ("-0x1", 0, '"-0x1" is not a number', None),
        (".5", 0, 'unexpected ".5"', None),
        ("+1", 0, 'unexpected "+"', "arithmetic"),
        ("1e999", 0, "out of range", None),
        ("-1e999", 0, "out of range", None),
        ("`x`", 0, 'unexpected "`"', "quote"),
        ("item == “x”", 8, 'unexpected "“"', "quote"),
        ("größe", 2, 'unexpected "ö"', None),
        ("item\u00a0== 1", 4, "U+00A0", None),
        ("$item", 0, 'unexpected "$"', "without $"),
        ('"a\nb"', 2, "control character U+000A", "\\n"),
        ('"a\\x"', 2, "unknown escape \\x", None),
        ('"a\\\\\\q"', 4, "unknown escape \\q", None),
        ('"\\u12"', 1, "unknown escape \\u", None),
        ('"\\ud800"', 0, "surrogate", None),
        ("'\ud800'", 0, "surrogate", None),
        ('"\ud800"', 0, "surrogate", None),
    ],
)
def test_syntax_errors(source: str, offset: int, message: str, hint: str | None) -> None:
    error = problem(source)
    assert (error.code, error.offset) == ("E_EXPR_SYNTAX", offset)
    assert message in error.message
    assert error.length >= 1
    if hint is not None:
        assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("source", "offset"),
    [("'x", 0), ('item == "x', 8), ("contains(item, 'x)", 15), ("'it''s", 0), ('"a\\"', 0)],
)
def test_a_quote_that_is_never_closed(source: str, offset: int) -> None:
    error = problem(source)
    assert (error.code, error.offset) == ("E_EXPR_UNCLOSED", offset)
    assert error.hint == 'quote the value, " #" begins a comment'


@pytest.mark.parametrize(
    ("source", "offset", "hint"),
    [
        ("step.a", 0, 'did you mean "steps"?'),
        ("Inputs.x", 0, 'did you mean "inputs"?'),
        ("item && itm.x", 8, 'did you mean "item"?'),
        ("True", 0, 'did you mean "true"?'),
        ("item == None", 8, None),
        ("success && item", 0, "write success()"),
        ("item == length", 8, "write length(…)"),
        ("zebra", 0, None),
    ],
)
def test_unknown_names(source: str, offset: int, hint: str | None) -> None:
    error = problem(source)
    assert (error.code, error.offset, error.hint) == ("E_EXPR_NAME", offset, hint)
    assert error.message.startswith('unknown name "')
    assert source[offset : offset + error.length].isidentifier()


def test_roots_are_those_of_the_page() -> None:
    assert parse("message.x == state.y", roots=("message", "state")).roots == {"message", "state"}
    assert problem("steps.a", roots=("message", "state")).code == "E_EXPR_NAME"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("size(item)", "known: case, contains, "),
        ("lenght(item)", 'did you mean "length"?'),
        ("starts_with(item, 'x')", 'did you mean "startsWith"?'),
        ("size(item).x[0]", "known: "),
        ("steps('a')", "known: "),
        ("null(1)", "known: "),
    ],
)
def test_unknown_functions(source: str, hint: str) -> None:
    error = problem(source)
    assert (error.code, error.offset) == ("E_EXPR_FUNCTION", 0)
    assert (error.hint or "").startswith(hint)


def test_functions_may_be_narrowed_but_status_functions_always_parse() -> None:
    assert parse("length(item) > 1 && success()", functions=("length",)).status_functions == {"success"}
    error = problem("contains(item, 1)", functions=("length",))
    assert error.code == "E_EXPR_FUNCTION"
    assert "contains" not in (error.hint or "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("contains(item)", "contains takes 2 arguments, got 1"),
        ("contains(1, 2, 3)", "contains takes 2 arguments, got 3"),
        ("startsWith(item)", "startsWith takes 2 arguments, got 1"),
        ("endsWith()", "endsWith takes 2 arguments, got 0"),
        ("format()", "format takes 1 to 255 arguments, got 0"),
        ("toJSON()", "toJSON takes 1 argument, got 0"),
        ("fromJSON('1', '2')", "fromJSON takes 1 argument, got 2"),
        ("join()", "join takes 1 to 2 arguments, got 0"),
        ("JOIN(1, 2, 3)", "join takes 1 to 2 arguments, got 3"),
        ("length()", "length takes 1 argument, got 0"),
        ("case(true, 1)", "case takes an odd number of arguments from 3 to 255, got 2"),
        ("case(true)", "case takes an odd number of arguments from 3 to 255, got 1"),
        ("case(true, 1, false, 2)", "case takes an odd number of arguments from 3 to 255, got 4"),
        ("success(1)", "success takes no arguments, got 1"),
        ("failure(1)", "failure takes no arguments, got 1"),
        ("cancelled(1)", "cancelled takes no arguments, got 1"),
        ("always(1)", "always takes no arguments, got 1"),
    ],
)
def test_arities(source: str, message: str) -> None:
    error = problem(source)
    assert (error.code, error.offset, error.message) == ("E_EXPR_ARITY", 0, message)


def test_all_names_functions_and_arities_are_reported_together() -> None:
    error = problem("step.a == itm || size(1) && join()")
    found = [error, *error.also]
    assert [(e.code, e.offset) for e in found] == [
        ("E_EXPR_NAME", 0),
        ("E_EXPR_NAME", 10),
        ("E_EXPR_FUNCTION", 17),
        ("E_EXPR_ARITY", 28),
    ]


def test_a_syntax_error_stands_alone() -> None:
    error = problem("step.a = itm")
    assert (error.code, error.also) == ("E_EXPR_SYNTAX", ())


WHOLE = [
    ("${{ item.a }}", "item.a"),
    ("  ${{item.a}}\n", "item.a"),
    ("${{ '}}' }}", "'}}'"),
    ('${{ "\\"}}" }}', "'\"}}'"),
    ("${{ 'it''s }}' }}", "'it''s }}'"),
]


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize(("text", "expected"), WHOLE)
def test_whole(text: str, expected: str, bare: bool) -> None:
    expression = parse_whole(text, bare=bare)
    assert unparse(expression) == expected
    assert expression.source == text


@pytest.mark.parametrize("text", ["item.a", " item.a\n", "'${{' == item.a", '"${{ }}" == item.a'])
def test_bare_is_whole_in_a_condition_only(text: str) -> None:
    assert parse_whole(text, bare=True).roots == {"item"}
    with pytest.raises(ExpressionError) as caught:
        parse_whole(text, bare=False)
    assert (caught.value.code, caught.value.hint) == ("E_EXPR_WHOLE", "move it all into ${{ }}")


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("${{ item }} == 1", 0),
        (" ${{ item }} x", 1),
        ("item == ${{ index }}", 0),
        ("${{ item }}${{ index }}", 0),
        ("x ${{ item }}", 0),
    ],
)
@pytest.mark.parametrize("bare", [True, False])
def test_not_whole(text: str, offset: int, bare: bool) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_whole(text, bare=bare)
    error = caught.value
    assert (error.code, error.offset) == ("E_EXPR_WHOLE", offset)
    assert error.message == f'"{text.strip()}" is a string'
    assert error.hint == "move it all into ${{ }}"


@pytest.mark.parametrize(
    ("text", "code", "offset"),
    [
        ("${{ item", "E_EXPR_UNCLOSED", 0),
        (" ${{ item }", "E_EXPR_UNCLOSED", 1),
        ("${{ 'x }}", "E_EXPR_UNCLOSED", 4),
        ("${{ }}", "E_EXPR_SYNTAX", 3),
        ("${{}}", "E_EXPR_SYNTAX", 3),
        ("", "E_EXPR_SYNTAX", 0),
        (" \n", "E_EXPR_SYNTAX", 2),
        ("${{ item = 1 }}", "E_EXPR_SYNTAX", 9),
        ("  ${{ itm }}", "E_EXPR_NAME", 6),
    ],
)
def test_offsets_of_whole_count_in_the_text(text: str, code: str, offset: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_whole(text, bare=False)
    assert (caught.value.code, caught.value.offset) == (code, offset)


def test_whole_takes_roots_and_functions() -> None:
    assert parse_whole("message.x", bare=True, roots=("message",)).roots == {"message"}
    with pytest.raises(ExpressionError):
        parse_whole("length(message)", bare=True, roots=("message",), functions=())
