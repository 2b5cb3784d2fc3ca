"""The YAML subset: JSON types and nothing else, aliases counted, places kept."""

from __future__ import annotations

import time
import tracemalloc

import pytest
import yaml

from agentflow.definition import yaml_source
from agentflow.definition.report import Fatal, Report
from agentflow.definition.source import read_node
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Object, Positions, to_value


def read(text: str):
    report = Report()
    return read_node(Source(text, "yaml"), report), report.diagnostics()


def value_of(text: str):
    node, diagnostics = read(text)
    assert diagnostics == []
    return to_value(node)


def refusal(text: str):
    report = Report()
    with pytest.raises(Fatal):
        read_node(Source(text, "yaml"), report)
    return report.diagnostics()[-1]


def places(text: str):
    return [(d.code, d.line, d.column, d.path) for d in read(text)[1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("TRUE", True),
        ("false", False),
        ("False", False),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("NULL", None),
        ("", None),
        ("0", 0),
        ("-12", -12),
        ("1.5", 1.5),
        ("1.0", 1.0),
        ("1e3", 1000.0),
        ("1E-2", 0.01),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("tRue", "tRue"),
        ("nUll", "nUll"),
        ("2001-12-14", "2001-12-14"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("=", "="),
        ("'12'", "12"),
        ('"true"', "true"),
        ("1e", "1e"),
        ("v1.2.3", "v1.2.3"),
        ("1.2.3", "1.2.3"),
        ("!!str 12", "12"),
        ("!!str", ""),
        ("!!int 12", 12),
        ("!!float 1", 1.0),
        ("!!float 1.5", 1.5),
        ("!!bool true", True),
        ("!!null ~", None),
    ],
)
def test_plain_scalars_have_json_types(text, value):
    read_value = value_of(f"a: {text}\n")["a"]
    assert read_value == value
    assert type(read_value) is type(value)


@pytest.mark.parametrize(
    "text",
    "y Y yes Yes YES n N no No NO on On ON off Off OFF "
    "010 0o17 0b101 0x1F 1_000 +1 +1.5 .5 -.5 5. 1.e5 1.5e+3_ 12:30 190:20:30 1:30.5 "
    ".nan .NaN .inf -.inf +.Inf 00 08 1_0.5".replace("1.5e+3_ ", "").split(),
)
def test_what_other_yaml_reads_otherwise_stays_a_string_with_a_warning(text):
    node, diagnostics = read(f"k:\n  - {text}\n")
    assert to_value(node) == {"k": [text]}
    assert [(d.code, d.severity, d.line, d.column, d.path) for d in diagnostics] == [
        ("W_YAML_AMBIGUOUS", "warning", 2, 5, "/k/0")
    ]
    assert diagnostics[0].hint


def test_a_quoted_or_tagged_string_is_not_ambiguous():
    assert value_of("[\"yes\", 'off', !!str 010]") == ["yes", "off", "010"]


def test_collections_and_blocks():
    text = "a: &x [1, {b: c}]\nd: *x\ne: |\n  one\n  two\nf: >-\n  one\n  two\n!!str g: !!seq [!!map {}]\n"
    assert value_of(text) == {
        "a": [1, {"b": "c"}],
        "d": [1, {"b": "c"}],
        "e": "one\ntwo\n",
        "f": "one two",
        "g": [{}],
    }


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """PyYAML comes with libyaml or without it; both must read alike."""
    monkeypatch.setattr(yaml_source, "_loader", getattr(yaml, request.param))


@pytest.mark.usefixtures("either_parser")
def test_a_surrogate_pair_written_as_two_escapes_is_refused_not_garbled():
    assert refusal('a: "\\ud83d\\ude00"').code == "E_SYNTAX"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !steps.x y", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!timestamp 2001-01-01", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!binary aGk=", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!python/object:os.system x", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!set {x: null}", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!omap [x: 1]", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: ! x", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!int x", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!bool yes", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!int 1.5", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!map [x]", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: !!str [x]", ("E_YAML_SUBSET", 1, 4, "/a")),
        ("a: {b: 1}\nc:\n  <<: {d: 1}", ("E_YAML_SUBSET", 3, 3, "/c")),
        ("1: x", ("E_YAML_SUBSET", 1, 1, "")),
        ("true: x", ("E_YAML_SUBSET", 1, 1, "")),
        ("? \n: x", ("E_YAML_SUBSET", 1, 2, "")),
        ("? [a]\n: x", ("E_YAML_SUBSET", 1, 3, "")),
        ("a: &r [*r]", ("E_YAML_SUBSET", 1, 8, "/a/0")),
        ("a: 1\n---\nb: 2", ("E_YAML_SUBSET", 2, 1, "")),
    ],
)
@pytest.mark.usefixtures("either_parser")
def test_what_is_not_in_the_subset(text, expected):
    assert places(text) == [expected]


@pytest.mark.parametrize("text", ["'1': x", '"true": x', '"<<": x', "~x: x", "null_: x"])
def test_keys_that_are_strings(text):
    assert list(value_of(text).values()) == ["x"]


def test_a_document_between_its_markers_is_one_document():
    assert value_of("%YAML 1.1\n---\na: 1\n...\n") == {"a": 1}


def test_repeated_keys():
    node, diagnostics = read("a: 1\nb:\n  c: 1\n  'c': 2\na: 3\n")
    assert to_value(node) == {"a": 1, "b": {"c": 1}}
    assert [(d.code, d.line, d.column, d.path, d.message) for d in diagnostics] == [
        ("E_DUPLICATE_KEY", 4, 3, "/b/c", 'key "c" is repeated, first at 3:3'),
        ("E_DUPLICATE_KEY", 5, 1, "/a", 'key "a" is repeated, first at 1:1'),
    ]


@pytest.mark.parametrize(
    ("text", "line", "column", "hint"),
    [
        ("a: [1, 2", 1, 4, 'add "]"'),
        ("a: [1, 2\nb: 3", 1, 4, 'add "]"'),
        ("a: {b: 1\nc: {d: 2}", 1, 4, 'add "}"'),
        ("a: [\n  'b'\n  c\n]", 2, 5, 'add ","'),
        ("a: {b: 1]", 1, 9, 'close "{" by "}"'),
        ("a: b: c", 1, 5, "put the value in quotes"),
        ("a: 'x", 1, 4, "close it on the same line"),
        ('a: "x\nb: y\nc: "z"\nd: 1', 1, 4, "close it on the same line"),
        ("a: 'don't'", 1, 4, "write '' for an apostrophe inside single quotes, or use double quotes"),
        ("\ta: 1", 1, 1, "indent with spaces"),
        ("a:\n\tb: 1", 2, 1, "indent with spaces"),
        ("a: *nowhere", 1, 4, 'quote a value that begins with "*"'),
        ("a: 1e999", 1, 4, None),
        ("a: @x", 1, 4, "put the value in quotes"),
        ("- a\nb: c", 2, 1, "indent all keys alike"),
        ("a: !<bad", 1, 9, 'quote a value that begins with "!"'),
        ("a: 1\nb\nc: 2", 2, 1, 'write "b:"'),
        ("a\n  b: 2", 1, 1, 'write "a:"'),
        ("a:1\nb: 2", 1, 1, 'write a space after ":"'),
        ("a: b\n  c: d", 2, 3, "indent it like the key that it belongs beside"),
        ("a:\n  b: 1\n c: 1", 3, 2, "indent all keys alike"),
        ("a: - b", 1, 4, "begin it on a line of its own"),
        (r'a: "\d"', 1, 6, "use single quotes, or write \\\\"),
        ("a: | x\n  y", 1, 6, "begin the text on the next line"),
        ("a: [1,, 2]", 1, 7, "write a value, or take the comma away"),
        ("%a b", 1, 1, "put the value in quotes"),
        (r'a: "\UFFFFFFFF"', 1, 7, None),
    ],
)
@pytest.mark.usefixtures("either_parser")
def test_a_slip_is_reported_where_it_is_with_a_way_out(text, line, column, hint):
    diagnostic = refusal(text + "\n")
    assert (diagnostic.code, diagnostic.line, diagnostic.column) == ("E_SYNTAX", line, column)
    assert diagnostic.hint == hint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a:\tb", {"a": "b"}),
        ("a: b\t# note", {"a": "b"}),
        ("a: b\tc", {"a": "b\tc"}),
        ("a: [b?, c? d, e?f]", {"a": ["b?", "c? d", "e?f"]}),
        ("a: {b: ,\n c: # note\n }", {"a": {"b": None, "c": None}}),
        ("a: b\n\n  c\n   d", {"a": "b\nc d"}),
        ("a: b #c\nd: e#f", {"a": "b", "d": "e#f"}),
        ("- a\n-\n- b: [c, {d: e}]", ["a", None, {"b": ["c", {"d": "e"}]}]),
    ],
)
@pytest.mark.usefixtures("either_parser")
def test_tabs_and_question_marks_are_read_alike(text, value):
    assert value_of(text + "\n") == value


@pytest.mark.parametrize("text", ["input: {a: ${{ inputs.x }}}", "if: ${{ a: b }}", "a: [${{ x }}]"])
def test_an_error_on_a_line_with_an_expression_says_to_quote_it(text):
    diagnostic = refusal(text + "\n")
    assert diagnostic.code == "E_SYNTAX"
    assert "quote the value" in (diagnostic.hint or "")


def test_places_of_keys_and_values():
    node, _ = read("\n# note\na:\n  - b: 1\n    c: [x, 'y']\n  - é: |\n      z\n")
    assert isinstance(node, Object)
    positions = Positions(node)
    assert positions.key_at("/a") == (3, 1)
    assert positions.at("/a") == (4, 3)
    assert positions.at("/a/0") == (4, 5)
    assert positions.at("/a/0/c/1") == (5, 12)
    assert positions.key_at("/a/1/é") == (6, 5)
    assert positions.at("/a/1/é") == (6, 8)


@pytest.mark.parametrize(
    ("text", "offset", "place"),
    [
        ("a: x ${{ y }}", 5, (1, 9)),
        ('a: "x ${{ y }}"', 5, (1, 10)),
        ("a: 'x ${{ y }}'", 5, (1, 10)),
        ("a: 'it''s ${{ y }}'", 5, (1, 4)),
        (r'a: "\x41 ${{ y }}"', 5, (1, 4)),
        ("a: x\n  ${{ y }}", 5, (1, 4)),
        ('a: "x\n  ${{ y }}"', 5, (1, 4)),
        ("a: |\n  x\n   ${{ y }}\n", 7, (3, 8)),
        ("a: |2-\n   x ${{ y }}\n", 6, (2, 9)),
        ("a: |\r\n  x\r\n  ${{ y }}\r\n", 6, (3, 7)),
        ("a: |\n\n  x ${{ y }}\n", 6, (3, 8)),
        ("a: >\n  x\n  ${{ y }}\n", 6, (1, 4)),
        ("a: &n x ${{ y }}", 5, (1, 4)),
        ("a: !!str x ${{ y }}", 5, (1, 4)),
        ("é: ñ ${{ y }}", 5, (1, 9)),
        (r"a: c:\x ${{ y }}", 8, (1, 12)),
    ],
)
@pytest.mark.usefixtures("either_parser")
def test_places_inside_scalars(text, offset, place):
    source = Source(text, "yaml")
    node = read_node(source, Report())
    assert isinstance(node, Object)
    (member,) = node.members.values()
    assert source.place(member.node, offset) == place


def test_the_use_of_an_alias_is_the_place_of_its_value():
    source = Source("a: &n x ${{ y }}\nb: *n\nc: &m [1]\nd: *m\n", "yaml")
    node = read_node(source, Report())
    assert isinstance(node, Object)
    assert source.place(node.members["b"].node, 5) == (2, 4)
    assert Positions(node).at("/d") == (4, 4)


def test_the_comment_that_cut_a_scalar():
    node = read_node(source := Source("a: ${{ x #1 }}\nb: ${{ x }} # note\nc: x#y\n", "yaml"), Report())
    assert isinstance(node, Object)
    cut = {key: source.is_cut_by_comment(member.node) for key, member in node.members.items()}
    assert cut == {"a": True, "b": True, "c": False}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a " + "x" * 500_000 + "\nb: [" + "*a, " * 1000 + "*a]\n",
        "a: &a [" + "[" * 62 + "]" * 62 + "]\nb: [*a, [*a]]\n",
        "[" * 500_000,
        "{a: " * 250_000,
        "- " * 400_000,
        "? " * 400_000,
        "a: " + "9" * 1001,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_texts_are_refused_at_once_and_in_little_memory(text):
    tracemalloc.start()
    started = time.perf_counter()
    try:
        assert refusal(text).code == "E_LIMIT"
        taken = time.perf_counter() - started
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 10
    assert peak < 32 << 20


@pytest.mark.parametrize("text", ["[" + "1," * 200_000 + "]", "- x\n" * 200_000], ids=lambda text: text[:12])
def test_too_many_values_are_refused(text):
    assert refusal(text).code == "E_LIMIT"


def test_limits_count_each_use_of_an_alias():
    nine = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    assert len(value_of(nine + "b: [" + "*a, " * 9_997 + "*a]\n")["b"]) == 9_998
    assert refusal(nine + "b: [" + "*a, " * 9_999 + "*a]\n").code == "E_LIMIT"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_document_is_null(text):
    assert to_value(read(text)[0]) is None
