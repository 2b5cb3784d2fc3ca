"""The expression language, as data: every row of the tables of page 001 §6 with values, errors, problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from agentflow.definition.expressions import EvaluationError, ExpressionError, compile_template, parse
from tests.conformance.cases import read_rows

ENTRIES = [row for _, row in read_rows("expressions")]


class Entry(NamedTuple):
    row: str
    data: dict[str, Any]
    status: Any
    source: Any
    wanted: list[Any]


class Status:
    def __init__(self, answers: dict[str, bool]) -> None:
        self.success = lambda: answers["success"]
        self.failure = lambda: answers["failure"]
        self.cancelled = lambda: answers["cancelled"]


def entries(kind: str) -> Iterator[Any]:
    for entry in ENTRIES:
        status = Status(entry["status"]) if "status" in entry else None
        for source, *wanted in entry.get(kind, []):
            text = source
            if isinstance(source, list):
                text = "".join(p if isinstance(p, str) else p["repeat"] * p["times"] for p in source)
            name = f"{entry['row']}: {str(text)[:60]}"
            yield pytest.param(Entry(entry["row"], entry.get("data", {}), status, text, wanted), id=name)


def same(value: Any, wanted: Any) -> bool:
    """Equal, with numbers of the same kind, at every depth."""
    if isinstance(wanted, dict):
        return list(value) == list(wanted) and all(same(value[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(value) == len(wanted) and all(same(v, w) for v, w in zip(value, wanted, strict=True))
    return type(value) is type(wanted) and value == wanted


@pytest.mark.parametrize("entry", list(entries("values")))
def test_value(entry: Entry):
    value = parse(entry.source).evaluate(entry.data, entry.status)
    assert same(value, entry.wanted[0]), value


@pytest.mark.parametrize("entry", list(entries("errors")))
def test_error_at_run_time(entry: Entry):
    reason, offset = entry.wanted
    with pytest.raises(EvaluationError) as caught:
        parse(entry.source).evaluate(entry.data, entry.status)
    assert (caught.value.reason, caught.value.offset) == (reason, offset)
    assert caught.value.code == "expression_error"


@pytest.mark.parametrize("entry", list(entries("problems")))
def test_problem_at_load(entry: Entry):
    code, offset = entry.wanted
    with pytest.raises(ExpressionError) as caught:
        parse(entry.source)
    assert caught.value.code == code
    assert offset is None or caught.value.offset == offset


@pytest.mark.parametrize("entry", list(entries("templates")))
def test_template_value(entry: Entry):
    value = compile_template(entry.source).evaluate(entry.data)
    assert same(value, entry.wanted[0]), value


@pytest.mark.parametrize("entry", list(entries("texts")))
def test_template_text(entry: Entry):
    assert compile_template(entry.source, text=True).evaluate(entry.data) == entry.wanted[0]
    assert compile_template([entry.source]).evaluate(entry.data) == [entry.wanted[0]]


def test_every_row_of_the_tables_has_cases():
    assert {entry["row"] for entry in ENTRIES} == ROWS
    kinds = ("values", "errors", "problems", "templates", "texts")
    assert all(any(entry.get(kind) for kind in kinds) for entry in ENTRIES)


ROWS = {
    "6.2 grammar",
    "6.3 types",
    "6.3 truth",
    "6.3 a && b, a || b",
    "6.3 ==, ===, !=, !==",
    "6.3 <, <=, >, >=",
    "6.3 o.name, o['name']",
    "6.3 a[i], a.0",
    "6.3 x.*, x[*]",
    "6.3 after a projection",
    "6.3 contains",
    "6.3 startsWith, endsWith",
    "6.3 format",
    "6.3 toJSON, fromJSON",
    "6.3 join",
    "6.3 length",
    "6.3 case",
    "6.3 success and the like",
    "6.4 one expression gives its value",
    "6.4 any other string gives text",
    "6.5 limits at load",
    "6.5 limits at run",
}
