"""What the loader learns about an expression without running it."""

from __future__ import annotations

import pytest

from agentflow.definition.expressions import parse, parse_whole


@pytest.mark.parametrize(
    ("source", "path", "kinds", "offsets"),
    [
        ("inputs", ("inputs",), ("root",), (0,)),
        ("steps.a.outputs", ("steps", "a", "outputs"), ("root", "member", "member"), (0, 6, 8)),
        ("steps['a'].status", ("steps", "a", "status"), ("root", "member", "member"), (0, 6, 11)),
        ("steps . a\n. b", ("steps", "a", "b"), ("root", "member", "member"), (0, 8, 12)),
        ("item.0", ("item", 0), ("root", "digits"), (0, 5)),
        ("item[0]", ("item", 0), ("root", "index"), (0, 5)),
        ("item[ -1]", ("item", -1), ("root", "index"), (0, 6)),
        ("item[2.0]", ("item", 2), ("root", "index"), (0, 5)),
        ("item[1.5]", ("item", None), ("root", "dynamic"), (0, 5)),
        ("item[true]", ("item", None), ("root", "dynamic"), (0, 5)),
        ("item[null]", ("item", None), ("root", "dynamic"), (0, 5)),
        ("item.*.a", ("item", None, "a"), ("root", "projection", "member"), (0, 5, 7)),
        ("item[ * ].a", ("item", None, "a"), ("root", "projection", "member"), (0, 6, 10)),
        ("item['*']", ("item", "*"), ("root", "member"), (0, 5)),
        ("(item.a).b", ("item", "a", "b"), ("root", "member", "member"), (1, 6, 9)),
        ("(item.*).b", ("item", None), ("root", "projection"), (1, 6)),
        ("  item.a", ("item", "a"), ("root", "member"), (2, 7)),
    ],
)
def test_segments(source: str, path: object, kinds: object, offsets: object) -> None:
    (reference,) = parse(source).references
    assert (reference.path, reference.kinds, reference.offsets) == (path, kinds, offsets)


def test_a_dynamic_index_is_a_reference_of_its_own() -> None:
    expression = parse("steps[inputs.which].outputs == index")
    assert [(r.path, r.kinds[-1], r.offsets) for r in expression.references] == [
        (("steps", None, "outputs"), "member", (0, 6, 20)),
        (("inputs", "which"), "member", (6, 13)),
        (("index",), "root", (31,)),
    ]
    assert expression.references[0].kinds == ("root", "dynamic", "member")
    assert expression.roots == {"steps", "inputs", "index"}


def test_references_stand_in_the_order_of_the_text() -> None:
    source = "format('{0}', item.a, inputs.b) != join(steps.*.c, item.d) && !(index || inputs.e)"
    paths = [".".join(str(p) for p in r.path) for r in parse(source).references]
    assert paths == ["item.a", "inputs.b", "steps.None.c", "item.d", "index", "inputs.e"]


@pytest.mark.parametrize(
    ("source", "optional"),
    [
        ("inputs.a", {"a": False}),
        ("inputs.a || 'x'", {"a": True}),
        ("inputs.a || inputs.b", {"a": True, "b": False}),
        ("inputs.a || inputs.b || inputs.c", {"a": True, "b": True, "c": False}),
        ("inputs.a && inputs.b", {"a": False, "b": False}),
        ("inputs.a && inputs.b || inputs.c", {"a": True, "b": True, "c": False}),
        ("inputs.a || inputs.b && inputs.c", {"a": True, "b": False, "c": False}),
        ("(inputs.a || 'x') == inputs.b", {"a": True, "b": False}),
        ("length(inputs.a) > 1 || !inputs.b", {"a": True, "b": False}),
        ("'x' || (inputs.a || inputs.b)", {"a": True, "b": False}),
        ("item[inputs.a] || inputs.b", {"a": True, "b": False}),
        ("(item || 1)[inputs.a]", {"a": False}),
    ],
)
def test_optional_is_the_left_of_or(source: str, optional: dict[str, bool]) -> None:
    found = {r.path[1]: r.optional for r in parse(source).references if r.path[0] == "inputs"}
    assert found == optional


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("steps.a.outputs", ("steps", "a", "outputs")),
        ("(steps.a)", ("steps", "a")),
        ("steps[inputs.x].a", ("steps", None, "a")),
        ("steps[steps.a].b", ("steps", None, "b")),
        ("(item.*).b", None),
        ("!item", None),
        ("item || index", None),
        ("fromJSON(item).x", None),
        ("'x'", None),
    ],
)
def test_the_reference_that_an_expression_is(source: str, path: object) -> None:
    reference = parse(source).reference
    assert (reference and reference.path) == path


def test_offsets_of_a_whole_expression_count_in_its_text() -> None:
    text = "  ${{ item.a }}\n"
    expression = parse_whole(text, bare=False)
    (reference,) = expression.references
    assert [text[o] for o in reference.offsets] == ["i", "a"]


def test_status_functions_are_listed_once_in_their_own_spelling() -> None:
    expression = parse("SUCCESS() || success() || (always() && contains('failure', 'x'))")
    assert expression.status_functions == {"success", "always"}
    assert parse("item").status_functions == frozenset()
